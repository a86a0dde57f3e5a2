"""Block verification: the drafts are accepted jointly, as one run, and not one after the other.

With r_0 = 1 and r_i = min(1, r_{i-1}·p_i(x_i)/q_i(x_i)), a run of i drafts may stand if
``u_i < h_i``, where h_i weighs what the residual behind it still has to give; the longest run that
may stands, and the final token is drawn from ``max(0, r·p - q)`` of the row behind it. The law is
the target's, as with the ratio test, and the expected number of accepted drafts is never lower. It
is equal for one draft a step and for one-hot drafts, and coin by coin it may be lower.

Because the rule looks at coins *behind* the accepted length, a coin must not be used again in the
next step: its key holds the step (see ``coins``).

Source: Sun et al. (arXiv:2403.10444), algorithm 2. vLLM's second sampler has the rule as
``rejection_sample_method="block"`` (``vllm/v1/worker/gpu/spec_decode`` at 2f41c894e320), keyed by
position; vllm-ascend at 182b75ea compares with a product of coins instead, which is biased.
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .contract import Verified
from .draw import argmax_ids, argmax_run, block_sums, total_mass
from .finish import final_id, final_rows, final_tokens, flags_or_none
from .ratio import drafted_masses, load_masses
from .span import greedy_flag, onehot_flag, request_span


def verify_block(
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
    """Accept the longest run of drafts that may stand, and draw the token behind it.

    For a request of n drafts x_1..x_n: ``R_i = Σ max(0, r_i·p_{i+1} - q_{i+1})``;
    ``h_i = R_i / (R_i + 1 - r_i)`` for i < n and ``h_n = r_n``; the accepted length τ is the
    largest i with ``u_i < h_i``, or 0. The final token is drawn by inverse CDF from
    ``max(0, r_τ·p_{τ+1} - q_{τ+1})``, for τ = n from the bonus row. 0/0 counts as 0, and a/0 as 1
    for a > 0. Ratios, products and sums are in float64, masses are rounded to float32.

    A draft of -1 at place j leaves ``h_i = 0`` for i ≥ j and all else as it is, q_j included.

    Args:
        target_probs: as for :func:`~specedu.kernels.verify_chain`, like all that follow.
        draft_probs: the law each draft was drawn from; None: every draft is deterministic.
        draft_token_ids: -1 where there is nothing to accept.
        cu_num_draft_tokens: inclusive prefix sum of the requests' draft counts.
        accept_coins: u_i of every draft; all of a request's are read.
        final_coins: w.
        max_spec_len: width of the result minus 1.
        greedy: such a request takes the argmax of each row, and its coins are not read.
        onehot: such a request's q rows are not read.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: as for :func:`~specedu.kernels.verify_chain`.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        The first draft alone is refused at this coin, and stands because the second does.

        >>> p = torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]])
        >>> q = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
        >>> draft = torch.tensor([0, 0], dtype=torch.int32)
        >>> cu = torch.tensor([2], dtype=torch.int32)
        >>> u, w = torch.tensor([0.9, 0.9], dtype=torch.float64), torch.zeros(1).double()
        >>> verify_block(p, q, draft, cu, u, w, max_spec_len=2).token_ids
        tensor([[0, 0, 0]])

    Book: eq-block.
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
    index = starts[request] + place  # of every draft
    drafts = draft_token_ids[index].long()
    legal, p, q = drafted_masses(
        target_probs, draft_probs, index + request, index, drafts, onehot[request]
    )

    # r of every run: before[i] stands at the row of draft i, behind[i] behind it.
    before, behind = torch.ones_like(p), torch.ones_like(p)
    r = torch.ones(batch, dtype=torch.float64, device=p.device)
    for i in range(int(counts.max())):
        here = place == i
        before[here] = r[request[here]]
        weighed = before[here] * p[here]
        ratio = torch.where(weighed >= q[here], 1.0, weighed / q[here])
        behind[here] = torch.where(p[here] > 0, ratio, 0.0)
        r[request[here]] = behind[here]

    # h of the run that ends before each draft, R from that draft's row.
    subtracted = torch.where(onehot[request], -1, index)
    masked = torch.where(onehot[request] & legal, drafts, -1)
    weighed = (place > 0) & (before > 0)
    rows, r = (index + request)[weighed], before[weighed]
    left = block_sums(target_probs, draft_probs, rows, subtracted[weighed], masked[weighed], r).sum(
        1
    )
    h = torch.zeros_like(p)
    h[weighed] = torch.where(left > 0, left / (left + 1 - r), 0.0)
    last = place == counts[request] - 1
    threshold = behind.where(last, h.roll(-1))  # of the run that ends with each draft
    ends = torch.full_like(counts, max_spec_len).scatter_reduce(
        0, request, torch.where(legal, max_spec_len, place), "amin"
    )
    stands = (accept_coins[index] < threshold) & (place < ends[request])
    taken = torch.zeros_like(counts).scatter_reduce(0, request, (place + 1) * stands, "amax")
    if bool(greedy.any()):
        rows = (index + request)[greedy[request]]
        equal = torch.ones_like(legal)
        equal[greedy[request]] = drafts[greedy[request]] == argmax_ids(target_probs, rows)
        taken = torch.where(greedy, contract.leading_run(equal, request, place, counts), taken)

    scales = torch.ones(batch, dtype=torch.float64, device=p.device)
    refused = place == taken[request]  # the first draft behind the run that stands
    scales[request[refused]] = before[refused]
    rows, q_rows, excluded = final_rows(draft_token_ids, starts, counts, taken, onehot)
    final = final_tokens(
        target_probs, draft_probs, rows, q_rows, excluded, final_coins, greedy, scales
    )
    contract.write_run(result, draft_token_ids, starts, taken, final)
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
        _verify_block_kernel,
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
def _verify_block_kernel(
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
    """One program a request: weigh every run once, remember the longest that stands, then draw.

    A run's R is read from the row behind it, so p and q are read once a draft, and once more for
    the final token.
    """
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
        one = tl.full((), 1.0, tl.float64)
        r = one
        kept = one
        i = 0
        going = 1
        while (going == 1) & (i < count):
            draft = tl.load(draft_token_ids + start + i)
            legal = (draft >= 0) & (draft < vocab)
            p, q = load_masses(p_rows, q_rows, p_stride, q_stride, i, draft, legal, is_onehot)
            weighed = r * p
            r = tl.where(weighed >= q, one, weighed / tl.where(q > 0.0, q, one))
            r = tl.where(p > 0.0, r, 0.0)  # an illegal id has p = 0
            i += 1
            going = tl.where(r > 0.0, 1, 0)  # no run stands behind one that cannot
            if going == 1:
                h = r
                if i < count:
                    following = tl.load(draft_token_ids + start + i)
                    row = i.to(tl.int64)
                    left = total_mass(
                        p_rows + row * p_stride,
                        q_rows + row * q_stride,
                        tl.where(is_onehot == 0, vocab, 0),
                        tl.where(is_onehot == 1, following, -1),
                        r,
                        vocab,
                        TILE,
                    )
                    h = tl.where(left > 0.0, left / (left + one - r), 0.0)
                if tl.load(accept_coins + start + i - 1) < h:
                    accepted = i
                    kept = r

        place = 0
        while place < accepted:
            token = tl.load(draft_token_ids + start + place)
            tl.store(out + place, token.to(tl.int64))
            place += 1

        refused = tl.where(accepted < count, 1, 0)
        row = accepted.to(tl.int64)
        p_row = p_rows + row * p_stride
        q_row = q_rows + row * q_stride
        draft = tl.load(draft_token_ids + start + accepted, mask=accepted < count, other=-1)
        scale = tl.where(refused == 1, kept, one)
        coin = tl.load(final_coins + request)
        final = final_id(p_row, q_row, refused, is_onehot, draft, scale, coin, vocab, TILE)

    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
