"""Rules of another signature, put behind the one that the exact law asks.

The exact law calls ``rule(target_probs, draft_probs, draft_token_ids, cu_num_draft_tokens,
accept_coins, final_coins, max_spec_len=..., [greedy=..., onehot=...])``. An adapter is a function
of that signature that hands the same step to another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import torch

from specedu.kernels import Verified, contract, verify_greedy, verify_match

from .cells import Rule


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


def by_request(function: Callable[..., list[int]]) -> Rule:
    """Hand over one request at a time, as fractions: for rules in plain Python.

    Args:
        function: called as ``function(ps, qs, drafts, accept_coins, final_coin)``, the arguments of
            :func:`specedu.theory.reference.verify`; returns the emitted ids.

    Example:
        >>> from specedu.theory import reference
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import fixed, law_of
        >>> setting = fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 1)
        >>> joint_law(by_request(reference.verify), setting).exact
        True
    """

    def rule(
        target_probs: torch.Tensor,
        draft_probs: torch.Tensor | None,
        draft_token_ids: torch.Tensor,
        cu_num_draft_tokens: torch.Tensor,
        accept_coins: torch.Tensor,
        final_coins: torch.Tensor,
        *,
        max_spec_len: int,
        onehot: torch.Tensor | None = None,
    ) -> Verified:
        ends, drafts = cu_num_draft_tokens.tolist(), draft_token_ids.tolist()
        laws_p, laws_q = _fractions(target_probs), _fractions(draft_probs)
        result = contract.blank(len(ends), max_spec_len, target_probs.device)
        for request, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            qs = laws_q[start:end]
            if draft_probs is None or (onehot is not None and bool(onehot[request])):
                vocab = range(target_probs.shape[1])
                qs = [tuple(Fraction(int(t == x)) for t in vocab) for x in drafts[start:end]]
            run = function(
                laws_p[start + request : end + request + 1],
                qs,
                drafts[start:end],
                [Fraction(coin) for coin in accept_coins[start:end].tolist()],
                Fraction(final_coins[request].item()),
            )
            result.token_ids[request, : len(run)] = torch.tensor(run)
            result.num_accepted[request] = len(run) - 1
        return result

    return rule


def _fractions(rows: torch.Tensor | None) -> list[tuple[Fraction, ...]]:
    return [] if rows is None else [tuple(map(Fraction, row)) for row in rows.tolist()]


# --- rules of others ------------------------------------------------------------------------------


def transformers_rule(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    max_spec_len: int,
    onehot: torch.Tensor | None = None,
    assistant_ensemble_weight: float | None = None,
) -> Verified:
    """Hand each request to transformers' own rule, with our coins in place of its random numbers.

    The rule is ``_speculative_sampling`` of ``transformers/generation/utils.py``. It draws with
    ``torch.rand_like`` and ``torch.multinomial``; while it runs, the first gives the accept coins
    and the second takes the id at the final coin, by inverse CDF. Its accept test is not strict, so
    that a coin of 0 accepts an id without probability; ``assistant_ensemble_weight`` below 1 gives
    the law up.

    Example:
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import PAIRS, fixed
        >>> joint_law(transformers_rule, fixed(*PAIRS[2][0], 1)).exact
        True
        >>> from specedu.theory.verdict import endpoints
        >>> [end.question for end in endpoints(transformers_rule) if not end.right]
        ['u = 0 at a draft with p(x) = 0', 'u·q(x) = p(x) exactly']

    Source: transformers 5.22.2.
    """
    from transformers.generation.utils import _speculative_sampling

    ends, vocab = cu_num_draft_tokens.tolist(), target_probs.shape[1]
    result = contract.blank(len(ends), max_spec_len, target_probs.device)
    for request, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        p = target_probs[start + request : end + request + 1].float()
        drafts = draft_token_ids[start:end].long()
        if draft_probs is None or (onehot is not None and bool(onehot[request])):
            q = torch.nn.functional.one_hot(drafts, vocab).float()
        else:
            q = draft_probs[start:end].float()
        if end == start:  # transformers never asks its rule without a draft
            run = [int(_drawn(p, final_coins[request]))]
        else:
            with _our_coins(accept_coins[start:end], final_coins[request]):
                tokens, _ = _speculative_sampling(
                    drafts[None], q.log()[None], len(drafts), p.log()[None],
                    assistant_ensemble_weight,
                )  # fmt: skip
            run = tokens[0].tolist()
        result.token_ids[request, : len(run)] = torch.tensor(run)
        result.num_accepted[request] = len(run) - 1
    return result


def transformers_ensemble(*arguments: Any, **options: Any) -> Verified:
    """Hand each request to transformers' rule with ``assistant_ensemble_weight`` 1/2: biased.

    Example:
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import PAIRS, fixed
        >>> law = joint_law(transformers_ensemble, fixed(*PAIRS[2][0], 1))
        >>> law.deviation > law.bound
        True
    """
    return transformers_rule(*arguments, assistant_ensemble_weight=0.5, **options)


@contextmanager
def _our_coins(accept_coins: torch.Tensor, final_coin: torch.Tensor) -> Iterator[None]:
    """Let ``torch.rand_like`` and ``torch.multinomial`` give what a question says."""

    def rand_like(like: torch.Tensor) -> torch.Tensor:
        return accept_coins.view(like.shape)  # float64: compared with float32 without rounding

    def multinomial(weights: torch.Tensor, num_samples: int) -> torch.Tensor:
        return _drawn(weights, final_coin)[:, None]

    with (
        patch.object(torch, "rand_like", rand_like),
        patch.object(torch, "multinomial", multinomial),
    ):
        yield


def _drawn(weights: torch.Tensor, coin: torch.Tensor) -> torch.Tensor:
    """Return the smallest id of each row whose running sum exceeds the coin's share."""
    running = weights.double().cumsum(1)
    return (running > coin * running[:, -1:]).int().argmax(1)
