"""What every acceptance rule is given and returns, and the checks of both.

Request r owns ``n_r + 1`` consecutive target rows, its bonus row last: rows
``cu[r-1] + r .. cu[r] + r`` with ``cu[-1] = 0``. Draft rows lie in the order of the drafts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

PROBABILITY_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Verified(NamedTuple):
    """What one verify step emits.

    Attributes:
        token_ids: int64 ``[batch, max_spec_len + 1]``; accepted drafts, then the final token, then
            -1 behind the last emitted id.
        num_accepted: int32 ``[batch]``; how many drafts the rule accepted. The request emits
            ``num_accepted + 1`` tokens; stops are applied later, in ``specedu.outputs``.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor


def blank(batch: int, max_spec_len: int, device: torch.device) -> Verified:
    """Return a result with no token in it yet."""
    return Verified(
        torch.full((batch, max_spec_len + 1), -1, dtype=torch.int64, device=device),
        torch.zeros(batch, dtype=torch.int32, device=device),
    )


def spans(
    cu_num_draft_tokens: torch.Tensor, num_draft: int, max_spec_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each request's first draft and its number of drafts, int64 ``[batch]`` both.

    A prefix sum that was not checked is clamped to the drafts that exist, so that nothing outside
    the tensors is ever addressed.

    Example:
        >>> spans(torch.tensor([3, 3, 5], dtype=torch.int32), 5, 3)
        (tensor([0, 3, 3]), tensor([3, 0, 2]))
    """
    ends = cu_num_draft_tokens.long().clamp(0, num_draft)
    starts = torch.nn.functional.pad(ends[:-1], (1, 0)) if len(ends) else ends
    return starts, (ends - starts).clamp(0, max_spec_len)


def draft_places(starts: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (request, place within the request) of every draft that belongs to a request.

    Example:
        >>> draft_places(torch.tensor([0, 3, 3]), torch.tensor([3, 0, 2]))
        (tensor([0, 0, 0, 2, 2]), tensor([0, 1, 2, 0, 1]))
    """
    ends = counts.cumsum(0)
    drafts = torch.arange(int(counts.sum()), device=counts.device)
    request = torch.searchsorted(ends, drafts, right=True)
    return request, drafts - (ends - counts)[request]


def leading_run(
    accepted: torch.Tensor, request: torch.Tensor, place: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Return the length of each request's leading run of accepted drafts, int64 ``[batch]``.

    Example:
        >>> request, place = draft_places(torch.tensor([0, 4]), torch.tensor([4, 0]))
        >>> leading_run(torch.tensor([True, False, True, True]), request, place,
        ...             torch.tensor([4, 0]))
        tensor([1, 0])
    """
    first_refusal = torch.where(accepted, counts[request], place)
    return counts.scatter_reduce(0, request, first_refusal, "amin")


def write_run(
    result: Verified,
    draft_token_ids: torch.Tensor,
    starts: torch.Tensor,
    num_accepted: torch.Tensor,
    final: torch.Tensor,
) -> None:
    """Write each request's accepted drafts and its final token into ``result``."""
    request, place = draft_places(starts, num_accepted)
    result.token_ids[request, place] = draft_token_ids[starts[request] + place].long()
    result.token_ids[torch.arange(len(final), device=final.device), num_accepted] = final
    result.num_accepted.copy_(num_accepted)


def launch_chain(
    kernel: Any,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
    **constants: Any,
) -> Verified:
    """Launch a Triton kernel of ``verify_chain``'s arguments, one program a request.

    A tensor that is not there is replaced by one that is; the kernel's flags say not to read it.
    """
    batch, vocab = len(cu_num_draft_tokens), target_probs.shape[1]
    result = blank(batch, max_spec_len, target_probs.device)
    if batch:
        q = target_probs if draft_probs is None else draft_probs
        kernel[(batch,)](
            result.token_ids,
            result.num_accepted,
            target_probs,
            q,
            draft_token_ids,
            cu_num_draft_tokens,
            accept_coins,
            final_coins,
            cu_num_draft_tokens if greedy is None else greedy,
            cu_num_draft_tokens if onehot is None else onehot,
            len(draft_token_ids),
            max_spec_len,
            vocab,
            target_probs.stride(0),
            q.stride(0),
            HAS_Q=draft_probs is not None,
            HAS_GREEDY=greedy is not None,
            HAS_ONEHOT=onehot is not None,
            num_warps=8,
            enable_fp_fusion=False,
            **constants,
        )
    return result
