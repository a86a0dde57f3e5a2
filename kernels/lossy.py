"""Rules that give the target's law up: thresholds that accept more, and acceptance by decree.

Both are here so that they can be measured, and refused knowingly. A threshold below 1 buys accepted
drafts with a bias towards the draft; synthetic rates accept whatever the text is, to time an engine
at a given acceptance. After a refusal both draw as ``verify_chain`` does.

Source: SGLang's ``speculative_accept_threshold_single`` and ``_acc`` (its tree kernel at
d315eb725044; here with q, for chains); vLLM's ``rejection_sample_method="synthetic"`` at
2f41c894e320.
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .contract import Verified
from .draw import argmax_id, argmax_ids, argmax_run
from .finish import final_id, final_rows, final_tokens, flags_or_none
from .ratio import drafted_masses, load_masses
from .span import greedy_flag, onehot_flag, request_span


def verify_threshold(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    accept_threshold_single: float = 1.0,
    accept_threshold_acc: float = 1.0,
    max_spec_len: int,
    greedy: torch.Tensor | None = None,
    onehot: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept a draft iff ``u·q(x)·acc < p(x)`` or ``p(x) ≥ single``; else as ``verify_chain``.

    With both thresholds at 1 this is ``verify_chain``: a draft with p(x) = 1 passes its test
    anyway. Below 1 the emitted law is not the target's.

    Args:
        target_probs: as for :func:`~specedu.kernels.verify_chain`, like all but the thresholds.
        draft_probs: as there.
        draft_token_ids: as there.
        cu_num_draft_tokens: as there.
        accept_coins: as there.
        final_coins: as there.
        accept_threshold_single: in (0, 1]; drafts that the target gives at least this much are
            accepted whatever their coin.
        accept_threshold_acc: in (0, 1]; every acceptance is raised by its inverse.
        max_spec_len: as there.
        greedy: such a request takes the argmax of each row; thresholds are not used.
        onehot: as there.
        backend: as there.
        check: as there.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: as for :func:`~specedu.kernels.verify_chain`, or a threshold is outside (0, 1].
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> p, q = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.75, 0.25]])
        >>> draft, cu = (torch.tensor([i], dtype=torch.int32) for i in (0, 1))
        >>> coin = torch.tensor([0.5], dtype=torch.float64)
        >>> verify_threshold(p, q, draft, cu, coin, coin, max_spec_len=1).num_accepted
        tensor([0], dtype=torch.int32)
        >>> verify_threshold(p, q, draft, cu, coin, coin, accept_threshold_acc=0.5,
        ...                  max_spec_len=1).num_accepted
        tensor([1], dtype=torch.int32)

    Book: eq-thresholds.
    """
    for name, value in (
        ("accept_threshold_single", accept_threshold_single),
        ("accept_threshold_acc", accept_threshold_acc),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError(f"{name}: {value!r}, expected a number in (0, 1]")
    thresholds = torch.tensor(
        [accept_threshold_single, accept_threshold_acc],
        dtype=torch.float64,
        device=draft_token_ids.device,
    )
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
        thresholds=thresholds,
    )


def verify_synthetic(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    conditional_rates: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None = None,
    onehot: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept the i-th draft iff its coin is below the i-th rate; else as ``verify_chain``.

    A draft of -1 is never accepted.

    Args:
        target_probs: as for :func:`~specedu.kernels.verify_chain`, like all but the rates.
        draft_probs: as there.
        draft_token_ids: as there.
        cu_num_draft_tokens: as there.
        accept_coins: as there.
        final_coins: as there.
        conditional_rates: float64 ``[max_spec_len]`` in [0, 1], c_i: of those that get so far
            (:func:`specedu.theory.rates.conditional_rates` makes them from unconditional ones).
        max_spec_len: as there.
        greedy: such a request draws its final token as the argmax; its accept coins *are* read.
        onehot: as there.
        backend: as there.
        check: as there.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: as for :func:`~specedu.kernels.verify_chain`, and for a rate outside [0, 1].
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> p = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        >>> draft, cu = (torch.tensor([i], dtype=torch.int32) for i in (0, 1))
        >>> coin, rate = (torch.tensor([x], dtype=torch.float64) for x in (0.5, 0.75))
        >>> verify_synthetic(p, None, draft, cu, coin, coin, conditional_rates=rate,
        ...                  max_spec_len=1).token_ids
        tensor([[0, 1]])

    Book: eq-synthetic.
    """
    device = draft_token_ids.device
    checks.expect(
        "conditional_rates", conditional_rates, torch.float64, (max_spec_len,), device,
        "(max_spec_len,)",
    )  # fmt: skip
    if checks.checks_values(check, device):
        outside = ~((conditional_rates >= 0) & (conditional_rates <= 1))
        checks.refuse("conditional_rates", conditional_rates, outside, "a rate in [0, 1]")
    run = {"torch": _verify_torch, "triton": _verify_triton}
    return checks.checked_run(
        run[pick(backend, device)],
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
        rates=conditional_rates,
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
    *,
    thresholds: torch.Tensor | None = None,
    rates: torch.Tensor | None = None,
) -> Verified:
    num_draft, batch = len(draft_token_ids), len(cu_num_draft_tokens)
    result = contract.blank(batch, max_spec_len, target_probs.device)
    if batch == 0:
        return result
    greedy, onehot = flags_or_none(greedy, onehot, draft_probs, batch, target_probs.device)
    starts, counts = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
    request, place = contract.draft_places(starts, counts)
    index = starts[request] + place
    drafts = draft_token_ids[index].long()
    legal, p, q = drafted_masses(
        target_probs, draft_probs, index + request, index, drafts, onehot[request]
    )
    if rates is not None:
        accepted = legal & (accept_coins[index] < rates[place])
    else:
        single, acc = thresholds
        accepted = legal & ((accept_coins[index] * q * acc < p) | (p >= single))
        if bool(greedy.any()):
            rows = (index + request)[greedy[request]]
            accepted[greedy[request]] = drafts[greedy[request]] == argmax_ids(target_probs, rows)
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
    *,
    thresholds: torch.Tensor | None = None,
    rates: torch.Tensor | None = None,
) -> Verified:
    return contract.launch_chain(
        _verify_lossy_kernel,
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        final_coins,
        max_spec_len,
        greedy,
        onehot,
        settings=thresholds if rates is None else rates,
        SYNTHETIC=rates is not None,
        TILE=tile_width(target_probs.shape[1]),
    )


@jit
def _verify_lossy_kernel(
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
    settings,
    HAS_Q: tl.constexpr,
    HAS_GREEDY: tl.constexpr,
    HAS_ONEHOT: tl.constexpr,
    SYNTHETIC: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a request: accept by threshold or by decree, then draw the last token."""
    request = tl.program_id(0)
    start, count = request_span(cu, request, num_draft, max_spec_len)
    p_rows = target_probs + (start + request).to(tl.int64) * p_stride
    q_rows = draft_probs + start.to(tl.int64) * q_stride
    out = token_ids + request.to(tl.int64) * (max_spec_len + 1)

    is_greedy = greedy_flag(greedy, request, HAS_GREEDY)
    is_onehot = onehot_flag(onehot, request, HAS_Q, HAS_ONEHOT)
    by_argmax = is_greedy
    if SYNTHETIC:
        by_argmax = is_greedy * 0

    accepted = 0
    final = 0
    if by_argmax != 0:
        accepted, final = argmax_run(
            out, p_rows, p_stride, draft_token_ids + start, count, vocab, TILE
        )
    else:
        refused = 0
        draft = -1
        while (refused == 0) & (accepted < count):
            draft = tl.load(draft_token_ids + start + accepted)
            legal = (draft >= 0) & (draft < vocab)
            coin = tl.load(accept_coins + start + accepted)
            if SYNTHETIC:
                kept = legal & (coin < tl.load(settings + accepted))
            else:
                p, q = load_masses(
                    p_rows, q_rows, p_stride, q_stride, accepted, draft, legal, is_onehot
                )
                single = tl.load(settings)
                acc = tl.load(settings + 1)
                kept = legal & ((coin * q * acc < p) | (p >= single))
            if kept:
                tl.store(out + accepted, draft.to(tl.int64))
                accepted += 1
            else:
                refused = 1

        row = accepted.to(tl.int64)
        p_row = p_rows + row * p_stride
        q_row = q_rows + row * q_stride
        if is_greedy != 0:
            final = argmax_id(p_row, vocab, TILE)
        else:
            coin = tl.load(final_coins + request)
            final = final_id(p_row, q_row, refused, is_onehot, draft, 1.0, coin, vocab, TILE)

    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
