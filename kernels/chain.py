"""Chain verification: the ratio test, and a final draw by two passes over the inverse CDF.

A drafted id x is kept while ``u·q(x) < p(x)``. The first refusal ends the run with a draw from the
residual ``max(0, p - q)`` of that row; a run without refusal ends with a draw from the bonus row.
Every row behind the first refusal was conditioned on a text that did not happen and stays unread.

Source: Leviathan, Kalman and Matias (arXiv:2211.17192), algorithm 1. SGLang's opt-in chain kernel
(``chain_speculative_sampling_triton`` at d315eb725044) tests and draws the same way.
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .contract import Verified
from .draw import argmax_run
from .finish import final_id, final_rows, final_tokens, flags_or_none
from .ratio import ratio_accepts, ratio_run
from .span import greedy_flag, onehot_flag, request_span


def verify_chain(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    max_spec_len: int,
    greedy: torch.Tensor | None = None,
    onehot: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept each request's drafts by the ratio test and draw its last token.

    A draft x with coin u is accepted iff ``u·q(x) < p(x)``, strictly, in float64. The final token
    is the smallest id t with ``cum(t) > w·Z``. After a refusal cum sums the residual
    ``max(0, p - q)`` (for a one-hot q: the p row with the drafted id masked out), after none the
    bonus row; the subtraction is in float32, sums and products are in float64. A residual without
    mass falls back to the p row. NaN and negative entries count as 0. A p row without positive
    mass yields id 0.

    A draft of -1 ends the run: the final token is drawn from ``max(0, p - q)`` of *that* row's q.

    Args:
        target_probs: ``[num_draft + batch, vocab]``, float32, float16 or bfloat16, rows at any
            distance; request r owns ``n_r + 1`` consecutive rows, its bonus row last.
        draft_probs: ``[num_draft, vocab]`` in the order of the drafts, the law each draft was drawn
            from; None says that every draft is deterministic (q is one-hot).
        draft_token_ids: int32 ``[num_draft]``; -1 where there is nothing to accept.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum of the requests' draft counts.
        accept_coins: float64 ``[num_draft]`` in [0, 1), u.
        final_coins: float64 ``[batch]`` in [0, 1), w.
        max_spec_len: width of the result minus 1; no device value is read for it.
        greedy: bool ``[batch]`` or None; such a request takes the argmax of each row, lowest id
            first among equals, and its coins are not read.
        onehot: bool ``[batch]`` or None; such a request's q rows are not read.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal,
            or (where checked) a token was to be drawn from a p row without positive mass.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> q = torch.tensor([[0.75, 0.25]])
        >>> draft, cu = (torch.tensor([i], dtype=torch.int32) for i in (0, 1))
        >>> coin = lambda u: torch.tensor([u], dtype=torch.float64)
        >>> verify_chain(p, q, draft, cu, coin(0.25), coin(0.5), max_spec_len=1).token_ids
        tensor([[0, 1]])
        >>> verify_chain(p, q, draft, cu, coin(0.5), coin(0.5), max_spec_len=1).token_ids
        tensor([[ 1, -1]])

    Book: eq-accept, eq-residual.
    """
    run = {"torch": _verify_torch, "triton": _verify_triton}
    return checks.checked_run(
        run[pick(backend, draft_token_ids.device)],
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        final_coins,
        max_spec_len,
        greedy,
        onehot,
        check,
    )


# --- the twin -------------------------------------------------------------------------------------


def _verify_torch(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
) -> Verified:
    num_draft, batch = len(draft_token_ids), len(cu_num_draft_tokens)
    result = contract.blank(batch, max_spec_len, target_probs.device)
    if batch == 0:
        return result
    greedy, onehot = flags_or_none(greedy, onehot, draft_probs, batch, target_probs.device)
    starts, counts = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
    request, place = contract.draft_places(starts, counts)
    index = starts[request] + place
    accepted = ratio_accepts(
        target_probs,
        draft_probs,
        index + request,
        index,
        draft_token_ids[index].long(),
        accept_coins[index],
        greedy[request],
        onehot[request],
    )
    num_accepted = contract.leading_run(accepted, request, place, counts)

    rows, q_rows, excluded = final_rows(draft_token_ids, starts, counts, num_accepted, onehot)
    final = final_tokens(target_probs, draft_probs, rows, q_rows, excluded, final_coins, greedy)
    contract.write_run(result, draft_token_ids, starts, num_accepted, final)
    return result


# --- the kernel -----------------------------------------------------------------------------------


def _verify_triton(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
) -> Verified:
    return contract.launch_chain(
        _verify_chain_kernel,
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        final_coins,
        max_spec_len,
        greedy,
        onehot,
        TILE=tile_width(target_probs.shape[1]),
    )


@jit
def _verify_chain_kernel(
    token_ids,
    num_accepted,
    target_probs,
    draft_probs,
    draft_token_ids,
    cu,
    accept_coins,
    final_coins,
    greedy,
    onehot,
    num_draft,
    max_spec_len,
    vocab,
    p_stride,
    q_stride,
    HAS_Q: tl.constexpr,
    HAS_GREEDY: tl.constexpr,
    HAS_ONEHOT: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a request: walk the drafts until one is refused, then draw the last token."""
    request = tl.program_id(0)
    start, count = request_span(cu, request, num_draft, max_spec_len)
    p_rows = target_probs + (start + request).to(tl.int64) * p_stride
    q_rows = draft_probs + start.to(tl.int64) * q_stride
    out = token_ids + request.to(tl.int64) * (max_spec_len + 1)

    is_greedy = greedy_flag(greedy, request, HAS_GREEDY)
    is_onehot = onehot_flag(onehot, request, HAS_Q, HAS_ONEHOT)

    accepted = 0
    final = 0
    if is_greedy != 0:
        accepted, final = argmax_run(
            out, p_rows, p_stride, draft_token_ids + start, count, vocab, TILE
        )
    else:
        accepted, refused, draft = ratio_run(
            out, p_rows, q_rows, p_stride, q_stride, draft_token_ids + start,
            accept_coins + start, count, is_onehot, vocab,
        )  # fmt: skip
        # The row of the first refusal, or the bonus row; no row behind it is read.
        row = accepted.to(tl.int64)
        p_row = p_rows + row * p_stride
        q_row = q_rows + row * q_stride
        coin = tl.load(final_coins + request)
        final = final_id(p_row, q_row, refused, is_onehot, draft, 1.0, coin, vocab, TILE)

    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
