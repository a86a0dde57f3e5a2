"""Chain verification whose last token is the winner of a race of exponentials.

The drafts are tested by the ratio test. The final token is the argmax of mass over noise, where the
noise is one row of Exp(1) variables a request: the winner of such a race has the masses' law, and
no sum over the vocabulary is needed, so the row is read once. One row of noise serves all
positions, the bonus row included, since at most one of them draws.

Against ``chain``: the noise is a table of ``batch x vocab`` in memory where ``chain`` has one coin
a request; the vocabulary is read once instead of twice; nothing is normalised, so that a residual
without mass shows as a best score of 0, and p takes its place; the ends of [0, 1) have no part in
the draw, but noise of 0 or infinity would (``exponential`` yields neither).

Source: vLLM's first sampler (``vllm/v1/sample/rejection_sampler.py`` at 2f41c894e320) in two
kernels, a recovered token for every position whether it is drawn or not; here it is one kernel, and
one draw.
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .contract import Verified
from .draw import argmax_ids, argmax_run, positive
from .finish import final_rows, flags_or_none
from .ratio import ratio_accepts, ratio_run
from .span import greedy_flag, onehot_flag, request_span


def verify_race(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    noise: torch.Tensor,
    *,
    max_spec_len: int,
    greedy: torch.Tensor | None = None,
    onehot: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept each request's drafts by the ratio test and race for its last token.

    The final token is the argmax of ``max(0, p - q) / noise`` after a refusal (for a one-hot q: of
    ``p / noise`` with the drafted id masked out), of ``p / noise`` on the bonus row; ties go to the
    lowest id. Subtraction and division are in float32. A residual without mass falls back to p; NaN
    and negative entries count as 0; a p row without positive mass yields id 0. Unchecked noise of 0
    or less takes its id out of the race.

    Args:
        target_probs: as for :func:`~specedu.kernels.verify_chain`.
        draft_probs: as there.
        draft_token_ids: as there.
        cu_num_draft_tokens: as there.
        accept_coins: as there.
        noise: float32 ``[batch, vocab]``, independent Exp(1) variables, finite and above 0.
        max_spec_len: width of the result minus 1.
        greedy: such a request takes the argmax of each row; its coins and noise are not read.
        onehot: such a request's q rows are not read.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: as for :func:`~specedu.kernels.verify_chain`, or noise of a request that is not
            greedy is 0, negative, NaN or infinite.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> p, q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0]]), torch.tensor([[1.0, 0, 0]])
        >>> draft, cu = (torch.tensor([i], dtype=torch.int32) for i in (0, 1))
        >>> coin, noise = torch.tensor([0.5], dtype=torch.float64), torch.tensor([[1.0, 2.0, 0.5]])
        >>> verify_race(p, q, draft, cu, coin, noise, max_spec_len=1).token_ids
        tensor([[ 2, -1]])

    Book: eq-race.
    """
    batch = len(cu_num_draft_tokens)
    vocab = target_probs.shape[-1] if isinstance(target_probs, torch.Tensor) else 0
    device = draft_token_ids.device
    checks.expect("noise", noise, torch.float32, (batch, vocab), device, "(batch, vocab)")
    if checks.checks_values(check, device) and noise.numel():
        legal = ((noise > 0) & noise.isfinite()).all(1)
        if greedy is not None:
            legal |= greedy
        smallest = noise.min(1).values
        checks.refuse("noise", smallest, ~legal, "every entry finite and above 0")
    run = {"torch": _verify_torch, "triton": _verify_triton}
    return checks.checked_run(
        run[pick(backend, device)],
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        None,
        max_spec_len,
        greedy,
        onehot,
        check,
        noise=noise,
    )


# --- the twin -------------------------------------------------------------------------------------


def _verify_torch(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: None,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
    noise: torch.Tensor,
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
    final = torch.empty_like(rows)
    final[greedy] = argmax_ids(target_probs, rows[greedy])
    for i in (~greedy).nonzero()[:, 0].tolist():  # a row at a time: no copy of the whole table
        q_row = int(q_rows[i])
        q = None if q_row < 0 else draft_probs[q_row]
        final[i] = winner(target_probs[int(rows[i])], q, int(excluded[i]), noise[i])
    contract.write_run(result, draft_token_ids, starts, num_accepted, final)
    return result


def winner(
    p: torch.Tensor, q: torch.Tensor | None, excluded: int, noise: torch.Tensor
) -> torch.Tensor:
    """Return the argmax of mass over noise of one row; p itself races where no mass is left."""
    masses = p.float().nan_to_num(0.0).clamp_min_(0.0)
    weights = masses
    if q is not None:
        weights = (masses - q.float().nan_to_num(0.0).clamp_min_(0.0)).clamp_min_(0.0)
    if excluded >= 0:
        weights = weights.index_fill(0, torch.tensor([excluded], device=p.device), 0.0)
    scores = weights / noise
    scores[noise <= 0] = 0.0  # unchecked noise of 0 would win whatever its mass
    if not bool(scores.max() > 0):
        scores = masses / noise
        scores[noise <= 0] = 0.0
    return scores.argmax()


# --- the kernel -----------------------------------------------------------------------------------


def _verify_triton(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: None,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
    noise: torch.Tensor,
) -> Verified:
    return contract.launch_chain(
        _verify_race_kernel,
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        noise,
        max_spec_len,
        greedy,
        onehot,
        TILE=tile_width(target_probs.shape[1], 2048),  # 4096 spilled on sm_90 in bf16
    )


@jit
def race_id(p_row, q_row, q_ids, excluded, noise_row, vocab, TILE: tl.constexpr):
    """Return the best score of the race and its lowest id; a best of 0 means no mass."""
    best = tl.full((), 0.0, tl.float32)
    best_id = 0
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        p = positive(tl.load(p_row + ids, mask=ids < vocab, other=0.0))
        q = positive(tl.load(q_row + ids, mask=ids < q_ids, other=0.0))
        weights = tl.where(ids == excluded, 0.0, positive(p - q))
        e = tl.load(noise_row + ids, mask=ids < vocab, other=1.0)
        # Rounded as the twin's; unchecked noise of 0 would win.
        scores = tl.where(e > 0.0, tl.div_rn(weights, e), 0.0)
        highest = tl.max(scores, 0)
        if highest > best:
            best = highest
            best_id = tl.min(tl.where(scores == highest, ids, vocab), 0)
    return best, best_id


@jit
def _verify_race_kernel(
    token_ids,
    num_accepted,
    target_probs,
    draft_probs,
    draft_token_ids,
    cu,
    accept_coins,
    noise,
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
    """One program a request: walk the drafts until one is refused, then race for the last token."""
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
        row = accepted.to(tl.int64)
        p_row = p_rows + row * p_stride
        q_row = q_rows + row * q_stride
        noise_row = noise + request.to(tl.int64) * vocab
        q_ids = tl.where((refused == 1) & (is_onehot == 0), vocab, 0)
        excluded = tl.where((refused == 1) & (is_onehot == 1), draft, -1)
        best, final = race_id(p_row, q_row, q_ids, excluded, noise_row, vocab, TILE)
        if best == 0.0:
            best, final = race_id(p_row, q_row, q_ids * 0, -1, noise_row, vocab, TILE)

    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
