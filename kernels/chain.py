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
from .draw import argmax_id, argmax_ids, draw_id, draw_ids, mass, positive, total_mass
from .span import request_span


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
    batch, num_draft = checks.expect_drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len)
    device = draft_token_ids.device
    vocab = checks.expect_probabilities(
        "target_probs", target_probs, num_draft + batch, "num_draft + batch", None, device
    )
    if draft_probs is not None:
        checks.expect_probabilities(
            "draft_probs", draft_probs, num_draft, "num_draft", vocab, device
        )
    float64 = torch.float64
    checks.expect("accept_coins", accept_coins, float64, (num_draft,), device, "(num_draft,)")
    checks.expect("final_coins", final_coins, float64, (batch,), device, "(batch,)")
    for name, flags in (("greedy", greedy), ("onehot", onehot)):
        if flags is not None:
            checks.expect(name, flags, torch.bool, (batch,), device, "(batch,)")

    checked = checks.checks_values(check, device)
    if checked:
        checks.check_draft_values(draft_token_ids, cu_num_draft_tokens, max_spec_len, vocab)
        checks.check_coins("accept_coins", accept_coins)
        checks.check_coins("final_coins", final_coins)
    run = {"torch": _verify_torch, "triton": _verify_triton}[pick(backend, device)]
    result = run(
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        final_coins,
        max_spec_len,
        greedy,
        onehot,
    )
    if checked:
        starts, _ = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
        request = torch.arange(batch, device=device)
        accepted = result.num_accepted.long()
        final = result.token_ids[request, accepted]
        checks.check_mass("target_probs", target_probs, starts + request + accepted, final)
    return result


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
    nobody = torch.zeros(batch, dtype=torch.bool, device=target_probs.device)
    greedy = nobody if greedy is None else greedy
    onehot = ~nobody if draft_probs is None else nobody if onehot is None else onehot

    starts, counts = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
    request, place = contract.draft_places(starts, counts)
    index = starts[request] + place
    accepted = _accepts(
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

    # The row of the first refusal, or the bonus row; no row behind it is read.
    rows = starts + torch.arange(batch, device=starts.device) + num_accepted
    refused = num_accepted < counts
    refused_index = torch.where(refused, starts + num_accepted, 0)
    refused_draft = draft_token_ids[refused_index].long() if num_draft else starts
    q_rows = torch.where(refused & ~onehot, refused_index, -1)
    excluded = torch.where(refused & onehot, refused_draft, -1)
    final = torch.empty_like(rows)
    final[greedy] = argmax_ids(target_probs, rows[greedy])
    drawn = ~greedy
    final[drawn] = draw_ids(
        target_probs, draft_probs, rows[drawn], q_rows[drawn], excluded[drawn], final_coins[drawn]
    )
    contract.write_run(result, draft_token_ids, starts, num_accepted, final)
    return result


def _accepts(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    drafts: torch.Tensor,
    coins: torch.Tensor,
    greedy: torch.Tensor,
    onehot: torch.Tensor,
) -> torch.Tensor:
    """Return which drafts pass their test, whatever happened before them; one entry a draft."""
    legal = (drafts >= 0) & (drafts < target_probs.shape[1])
    column = drafts.where(legal, 0)
    p = mass(target_probs[rows, column])
    q = torch.ones_like(p)
    if draft_probs is not None:
        q = torch.where(onehot, q, mass(draft_probs[q_rows, column]))
    accepted = legal & (coins * q < p)
    if bool(greedy.any()):
        accepted[greedy] = drafts[greedy] == argmax_ids(target_probs, rows[greedy])
    return accepted


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
    batch, vocab = len(cu_num_draft_tokens), target_probs.shape[1]
    result = contract.blank(batch, max_spec_len, target_probs.device)
    if batch:
        q = target_probs if draft_probs is None else draft_probs  # not read where HAS_Q is False
        _verify_chain_kernel[(batch,)](
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
            TILE=tile_width(vocab),
            num_warps=8,
            enable_fp_fusion=False,
        )
    return result


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

    is_greedy = 0
    if HAS_GREEDY:
        is_greedy = tl.load(greedy + request).to(tl.int32)
    is_onehot = 1
    if HAS_Q:
        is_onehot = 0
        if HAS_ONEHOT:
            is_onehot = tl.load(onehot + request).to(tl.int32)

    accepted = 0
    refused = 0
    final = 0
    if is_greedy != 0:
        final = argmax_id(p_rows, vocab, TILE)
        while (refused == 0) & (accepted < count):
            draft = tl.load(draft_token_ids + start + accepted)
            if draft == final:
                tl.store(out + accepted, draft.to(tl.int64))
                accepted += 1
                final = argmax_id(p_rows + accepted.to(tl.int64) * p_stride, vocab, TILE)
            else:
                refused = 1
    else:
        draft = -1
        while (refused == 0) & (accepted < count):
            draft = tl.load(draft_token_ids + start + accepted)
            legal = (draft >= 0) & (draft < vocab)
            row = accepted.to(tl.int64)
            p = positive(tl.load(p_rows + row * p_stride + draft, mask=legal, other=0.0))
            q = tl.full((), 1.0, tl.float64)
            if is_onehot == 0:
                q_entry = tl.load(q_rows + row * q_stride + draft, mask=legal, other=0.0)
                q = positive(q_entry).to(tl.float64)
            coin = tl.load(accept_coins + start + accepted)
            if coin * q < p.to(tl.float64):  # an illegal id has p = 0
                tl.store(out + accepted, draft.to(tl.int64))
                accepted += 1
            else:
                refused = 1

        # The row of the first refusal, or the bonus row; no row behind it is read.
        row = accepted.to(tl.int64)
        p_row = p_rows + row * p_stride
        q_row = q_rows + row * q_stride
        q_ids = tl.where((refused == 1) & (is_onehot == 0), vocab, 0)
        excluded = tl.where((refused == 1) & (is_onehot == 1), draft, -1)
        total = total_mass(p_row, q_row, q_ids, excluded, vocab, TILE)
        if total == 0.0:
            q_ids = q_ids * 0
            excluded = excluded * 0 - 1
            total = total_mass(p_row, q_row, q_ids, excluded, vocab, TILE)
        goal = tl.load(final_coins + request) * total
        final = draw_id(p_row, q_row, q_ids, excluded, goal, vocab, TILE)

    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
