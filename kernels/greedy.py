"""Greedy verification: keep the drafts while they are the target's argmax.

At temperature zero both laws are one-hot, the ratio p(x)/q(x) is 1 or 0 and the residual is the
target's argmax. One unconditional store therefore covers acceptance and mismatch: where the draft
is accepted, the argmax *is* the draft.

Source: vLLM keeps the same rule in a kernel of its own (``rejection_greedy_sample_kernel`` in
vllm/v1/sample/rejection_sampler.py at 2f41c894e320).
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tl
from .contract import Verified
from .span import request_span


def verify_greedy(
    target_argmax: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    *,
    max_spec_len: int,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept each request's drafts while they equal the target's argmax, then emit the argmax.

    Args:
        target_argmax: int64 ``[num_draft + batch]``, the argmax of every target row, lowest id
            first among equals; request r owns ``n_r + 1`` consecutive rows, its bonus row last.
        draft_token_ids: int32 ``[num_draft]``; -1 is never accepted.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum of the requests' draft counts.
        max_spec_len: width of the result minus 1; no device value is read for it.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> int32 = lambda *ids: torch.tensor(ids, dtype=torch.int32)
        >>> verify_greedy(torch.tensor([1, 5, 3, 4]), int32(1, 2, 3), int32(3), max_spec_len=3)
        Verified(token_ids=tensor([[ 1,  5, -1, -1]]), num_accepted=tensor([1], dtype=torch.int32))

    Book: eq-greedy.
    """
    batch, num_draft = checks.expect_drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len)
    device = draft_token_ids.device
    checks.expect(
        "target_argmax",
        target_argmax,
        torch.int64,
        (num_draft + batch,),
        device,
        "(num_draft + batch,)",
    )
    if checks.checks_values(check, device):
        checks.check_draft_values(draft_token_ids, cu_num_draft_tokens, max_spec_len, vocab=None)
        checks.refuse("target_argmax", target_argmax, target_argmax < 0, "an id of at least 0")
    run = {"torch": _verify_torch, "triton": _verify_triton}[pick(backend, device)]
    return run(target_argmax, draft_token_ids, cu_num_draft_tokens, max_spec_len)


def _verify_torch(
    target_argmax: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    max_spec_len: int,
) -> Verified:
    batch = len(cu_num_draft_tokens)
    result = contract.blank(batch, max_spec_len, target_argmax.device)
    starts, counts = contract.spans(cu_num_draft_tokens, len(draft_token_ids), max_spec_len)
    request, place = contract.draft_places(starts, counts)
    drafts = draft_token_ids[starts[request] + place]
    wanted = target_argmax[starts[request] + request + place]
    accepted = (drafts >= 0) & (drafts == wanted)
    num_accepted = contract.leading_run(accepted, request, place, counts)
    final_rows = starts + torch.arange(batch, device=starts.device) + num_accepted
    contract.write_run(result, draft_token_ids, starts, num_accepted, target_argmax[final_rows])
    return result


def _verify_triton(
    target_argmax: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    max_spec_len: int,
) -> Verified:
    batch = len(cu_num_draft_tokens)
    result = contract.blank(batch, max_spec_len, target_argmax.device)
    if batch:
        _verify_greedy_kernel[(batch,)](
            result.token_ids,
            result.num_accepted,
            target_argmax,
            draft_token_ids,
            cu_num_draft_tokens,
            len(draft_token_ids),
            max_spec_len,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return result


@jit
def _verify_greedy_kernel(
    token_ids, num_accepted, target_argmax, draft_token_ids, cu, num_draft, max_spec_len
):
    """One program a request; it reads row after row and stops at the first mismatch."""
    request = tl.program_id(0)
    start, count = request_span(cu, request, num_draft, max_spec_len)
    row = (start + request).to(tl.int64)
    out = token_ids + request.to(tl.int64) * (max_spec_len + 1)

    accepted = 0
    matching = 1
    while matching == 1:
        token = tl.load(target_argmax + row + accepted)
        tl.store(out + accepted, token)  # the accepted draft, the correction or the bonus
        matching = 0
        if accepted < count:
            draft = tl.load(draft_token_ids + start + accepted)
            if (draft >= 0) & (draft == token):
                accepted += 1
                matching = 1
    tl.store(num_accepted + request, accepted)
