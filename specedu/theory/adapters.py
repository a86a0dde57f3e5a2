"""Rules of another signature, put behind the one that the exact law asks.

The exact law calls ``rule(target_probs, draft_probs, draft_token_ids, cu_num_draft_tokens,
accept_coins, final_coins, max_spec_len=..., [greedy=..., onehot=...])``. An adapter is a function
of that signature that hands the same step to another rule.
"""

from __future__ import annotations

from typing import Any

import torch

from specedu.kernels import Verified, contract, verify_greedy, verify_match


def greedy(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    max_spec_len: int,
    **options: Any,
) -> Verified:
    """Hand the target's argmax to ``verify_greedy``; q and the coins are not used.

    Example:
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import law_of, turning
        >>> joint_law(greedy, turning(law_of("1/4 3/4"), law_of("1/2 1/2"), 2, greedy=True)).exact
        True
    """
    options.pop("greedy", None)
    options.pop("onehot", None)
    return verify_greedy(
        target_probs.argmax(1),
        draft_token_ids,
        cu_num_draft_tokens,
        max_spec_len=max_spec_len,
        **options,
    )


def match(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    max_spec_len: int,
    **options: Any,
) -> Verified:
    """Hand ``verify_match`` one coin a row: the accept coins, then the final coin; q is not used.

    The theory's cuts of its coins are :func:`~specedu.theory.cells.match_cuts`.

    Example:
        >>> from specedu.theory.cells import match_cuts
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import law_of, turning
        >>> setting = turning(law_of("1/4 3/4"), law_of("1/2 1/2"), 2)
        >>> joint_law(match, setting, cuts=match_cuts).exact
        True
    """
    options.pop("onehot", None)
    starts, counts = contract.spans(cu_num_draft_tokens, len(draft_token_ids), max_spec_len)
    request, place = contract.draft_places(starts, counts)
    row_coins = final_coins.new_empty(len(target_probs))
    row_coins[starts[request] + request + place] = accept_coins
    row_coins[starts + torch.arange(len(starts), device=starts.device) + counts] = final_coins
    return verify_match(
        target_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        row_coins,
        max_spec_len=max_spec_len,
        **options,
    )
