"""What speculation gains: tokens of a step over its cost, alone and in a batch.

All of it is a model. A step is bound by the slower of two peaks and by nothing else; drafts are
accepted independently at one rate; the draft is a scaled copy of the target, with the same ridge.
``measured_speedup`` takes measured times instead of the model's.

Sources: Leviathan, Kalman and Matias (arXiv:2211.17192, section 3.3) for one request; the batch is
the roofline of :mod:`specedu.theory.cost` put in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from .cost import TransformerShape, step_seconds
from .hardware import Hardware
from .rates import expected_tokens

Amount = float | np.ndarray
Regime = Literal["memory", "verify", "arithmetic"]
MOST_KAPPA = 64  # where best_kappa stops looking


def speedup(alpha: Amount, kappa: int, c: Amount) -> Amount:
    """Return S, tokens per second over plain decoding's, for one request bound by memory.

    Args:
        alpha: chance that a draft is accepted, in [0, 1], or an array.
        kappa: drafts a step, at least 0.
        c: one draft pass over one target step, at least 0, or an array.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> round(speedup(0.7, 3, 0.165), 3), speedup(0.7, 0, 0.165)
        (1.694, 1.0)

    Book: eq-speedup.
    """
    _refuse(c=c)
    return expected_tokens(alpha, kappa) / (1 + kappa * c)


def break_even_alpha(kappa: int, c: float) -> float:
    """Return alpha*, below which speculation is slower than plain decoding.

    There ``E = 1 + kappa c``. E rises with alpha, so there is one such alpha; it is 1 at ``c = 1``,
    and a draft that costs more never pays.

    Raises:
        ValueError: kappa is below 1, or c outside [0, 1].

    Example:
        >>> round(break_even_alpha(3, 0.165), 3)
        0.34

    Book: eq-break-even.
    """
    if kappa < 1:
        raise ValueError(f"kappa: {kappa}, expected at least 1")
    if not 0 <= c <= 1:
        raise ValueError(f"c: {c}, expected 0 to 1")
    low, high = 0.0, 1.0
    for _ in range(60):  # halves the interval below the last bit of a double near 1
        middle = (low + high) / 2
        low, high = (middle, high) if speedup(middle, kappa, c) < 1 else (low, middle)
    return high


def break_even_c(alpha: Amount, kappa: int) -> Amount:
    """Return the cost of a draft pass above which speculation loses: (E - 1) / kappa.

    It is the mean of alpha, alpha^2, ... alpha^kappa, hence below alpha for kappa above 1.

    Raises:
        ValueError: kappa is below 1, or alpha outside [0, 1].

    Example:
        >>> break_even_c(0.5, 1), break_even_c(0.5, 2)
        (0.5, 0.375)

    Book: eq-break-even-c.
    """
    if kappa < 1:
        raise ValueError(f"kappa: {kappa}, expected at least 1")
    return (expected_tokens(alpha, kappa) - 1) / kappa


def lengthening_pays(alpha: Amount, kappa: int, c: Amount) -> bool | np.ndarray:
    """Return whether ``kappa + 1`` drafts are faster than ``kappa``: alpha^(kappa+1) > c S(kappa).

    One more draft brings alpha^(kappa+1) tokens and costs c; it pays where that is better than what
    the step does already. Where it does not pay once it never does again: the left side falls.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> lengthening_pays(0.7, 3, 0.165), lengthening_pays(0.7, 4, 0.165)
        (False, False)

    Book: eq-lengthen.
    """
    return alpha ** (kappa + 1) > c * speedup(alpha, kappa, c)


def best_kappa(alpha: float, c: float, most: int = MOST_KAPPA) -> int:
    """Return the least number of drafts with the largest S; 0 says not to speculate.

    Draft m pays exactly if the sum of ``alpha^-j - 1`` for j from 1 to m is below ``1/c - 1``; the
    sums rise with m, so that the drafts that pay are the first ones, and their number is returned.

    Args:
        alpha: chance that a draft is accepted, in [0, 1].
        c: one draft pass over one target step, at least 0.
        most: where to stop; free drafts (``c = 0``) are worth any number.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> best_kappa(0.7, 0.165), best_kappa(0.9, 0.165), best_kappa(0.1, 0.165)
        (3, 7, 0)

    Book: eq-best-kappa.
    """
    if most < 0:
        raise ValueError(f"most: {most}, expected at least 0")
    for kappa in range(most):
        if not lengthening_pays(alpha, kappa, c):
            return kappa
    return most


# --- in a batch -----------------------------------------------------------------------------------


def step_cost(positions: Amount, T_star: float) -> Amount:
    """Return the time of a step of so many positions over one that is bound by memory.

    Raises:
        ValueError: positions or T_star are below 0.

    Example:
        >>> step_cost(100, 295.0), step_cost(590, 295.0)
        (1.0, 2.0)

    Book: eq-step-cost.
    """
    _refuse(positions=positions, T_star=T_star)
    cost = np.maximum(1.0, np.asarray(positions) / T_star)
    return cost if np.ndim(cost) else float(cost)


def batch_speedup(
    batch: Amount,
    alpha: Amount,
    kappa: int,
    c: Amount,
    T_star: float,
    draft_T_star: float | None = None,
) -> Amount:
    """Return S(B), tokens per second over plain decoding's, for B requests at once.

    Plain decoding puts B positions in a step, a verify ``B (kappa + 1)``, a draft pass B.

    Args:
        batch: B, at least 0, or an array.
        alpha: chance that a draft is accepted, in [0, 1].
        kappa: drafts a step, at least 0.
        c: one draft pass over one target step, both bound by memory; at least 0.
        T_star: the target's ridge in positions, above 0.
        draft_T_star: the draft's own, above 0; None makes it a scaled copy, with the target's.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> round(batch_speedup(1, 0.7, 3, 0.165, 295), 3)
        1.694
        >>> round(batch_speedup(295, 0.7, 3, 0.165, 295), 2)
        0.56

    Book: eq-batch-speedup.
    """
    _refuse(batch=batch, c=c)
    plain, verify = step_cost(batch, T_star), step_cost(batch * (kappa + 1), T_star)
    draft = step_cost(batch, draft_T_star) if draft_T_star is not None else plain
    return expected_tokens(alpha, kappa) * plain / (kappa * c * draft + verify)


def regime(batch: float, kappa: int, T_star: float) -> Regime:
    """Return which of the three regimes a batch is in.

    ``memory``: the verify is free; ``verify``: the verify is bound by arithmetic and plain decoding
    is not; ``arithmetic``: both are.

    Example:
        >>> [regime(b, 3, 295) for b in (73, 74, 295)]
        ['memory', 'verify', 'arithmetic']

    Book: eq-regimes.
    """
    if batch >= T_star:
        return "arithmetic"
    return "memory" if batch * (kappa + 1) <= T_star else "verify"


def arithmetic_limit(alpha: Amount, kappa: int, c: Amount) -> Amount:
    """Return S(B) for ``B >= T_star``: E over ``kappa c + kappa + 1``, at most 1.

    It is 1 only with ``c = 0`` and ``alpha = 1``.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> round(arithmetic_limit(0.7, 3, 0.165), 4), arithmetic_limit(1.0, 3, 0.0)
        (0.5635, 1.0)

    Book: eq-arithmetic-limit.
    """
    _refuse(c=c)
    return expected_tokens(alpha, kappa) / (kappa * c + kappa + 1)


def crossing(alpha: float, kappa: int, c: float, T_star: float) -> float | None:
    """Return the batch above which speculation loses, or None where it loses at every batch.

    In the middle regime S(B) = 1 where ``B = T_star (E - kappa c) / (kappa + 1)``. With free drafts
    that are always accepted S stays 1 from ``T_star`` on and never falls below it.

    Raises:
        ValueError: an argument is outside its range, or kappa is 0.

    Example:
        >>> round(crossing(0.7, 3, 0.165, 295), 1), crossing(0.2, 3, 0.165, 295)
        (150.3, None)

    Book: eq-crossing.
    """
    if kappa < 1:
        raise ValueError(f"kappa: {kappa}, expected at least 1")
    _refuse(c=c, T_star=T_star)
    gain = expected_tokens(alpha, kappa) - kappa * c
    return T_star * gain / (kappa + 1) if gain > 1 else None


def roofline_speedup(
    batch: Amount,
    target: TransformerShape,
    draft: TransformerShape,
    hardware: Hardware,
    alpha: float,
    kappa: int,
    context: Amount = 0,
    *,
    shared: bool = True,
    overhead: float = 0.0,
    draft_peak: float = 1.0,
    weights_only: bool = False,
) -> Amount:
    """Return S(B) where cache, activations, logits and the draft's own roofline count.

    Args:
        batch: requests, at least 0, or an array.
        target: its shape.
        draft: its shape; its passes go over one position of each request.
        hardware: the two peaks.
        alpha: chance that a draft is accepted, in [0, 1].
        kappa: drafts a step, at least 0.
        context: tokens in the cache of each request.
        shared: whether the kappa + 1 queries of a request share one reading of its cache.
        overhead: seconds that a draft pass takes besides: launching, synchronising, sampling.
        draft_peak: the share of peak arithmetic that the draft's smaller products reach; its ridge
            moves with it.
        weights_only: count the weights alone, as :func:`batch_speedup` does.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> from specedu.theory.cost import LLAMA_3_2_1B, LLAMA_3_8B
        >>> from specedu.theory.hardware import hardware
        >>> pair = LLAMA_3_8B, LLAMA_3_2_1B, hardware("H100 SXM"), 0.7, 3
        >>> round(roofline_speedup(1, *pair, context=512), 2)
        1.69

    Book: eq-roofline-speedup.
    """
    _refuse(batch=batch, context=context, overhead=overhead)
    if not 0 < draft_peak <= 1:
        raise ValueError(f"draft_peak: {draft_peak}, expected above 0 and at most 1")
    slower = replace(hardware, peak_flops=hardware.peak_flops * draft_peak)
    again = 1 if shared else kappa + 1
    only = {"weights_only": weights_only}
    plain = step_seconds(target, hardware, 1, context, batch, **only)
    verify = step_seconds(target, hardware, kappa + 1, context, batch, kv_reads=again, **only)
    drafting = kappa * (step_seconds(draft, slower, 1, context, batch, **only) + overhead)
    return measured_speedup(expected_tokens(alpha, kappa), plain, verify, drafting)


def first_loss(gain: Callable[[np.ndarray], np.ndarray], most: float = 1e5) -> float | None:
    """Return the batch at which a speed-up falls below 1, found numerically.

    Args:
        gain: S(B) for an array of B.
        most: where to stop looking.

    Returns:
        The batch to within a millionth, infinity where S stays at 1 or above up to ``most``, None
        where it is below 1 already for one request.

    Example:
        >>> round(first_loss(lambda batch: 100 / batch), 3), first_loss(lambda batch: 0.5 / batch)
        (100.0, None)
    """
    batches = np.geomspace(1, most, 2000)
    lost = gain(batches) < 1 - 1e-12  # S = 1 is reached up to a last bit
    if not lost.any():
        return math.inf
    at = int(np.argmax(lost))
    if at == 0:
        return None
    low, high = batches[at - 1], batches[at]
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if gain(np.array([middle]))[0] < 1 else (middle, high)
    return float(high)


def lengths_by_batch(
    alpha: float, c: float, T_star: float, most_batch: int, most: int = 8
) -> list[tuple[int, int, int]]:
    """Return the best draft length of every batch size, as ``(first, last, kappa)`` ranges.

    The form is that of ``num_speculative_tokens_per_batch_size``. Shorter drafts win ties.

    Args:
        alpha: chance that a draft is accepted, in [0, 1].
        c: one draft pass over one target step, both bound by memory.
        T_star: the ridge in positions.
        most_batch: the largest batch.
        most: the largest kappa tried.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> lengths_by_batch(0.7, 0.165, 295, most_batch=295)
        [(1, 76, 3), (77, 115, 2), (116, 226, 1), (227, 295, 0)]

    Book: eq-lengths-by-batch.
    """
    if most_batch < 1:
        raise ValueError(f"most_batch: {most_batch}, expected at least 1")
    batches = np.arange(1, most_batch + 1)
    gains = [batch_speedup(batches, alpha, kappa, c, T_star) for kappa in range(most + 1)]
    best = np.argmax(np.round(gains, 12), axis=0)  # rounding: S = 1 is reached up to a last bit
    ends = [*np.flatnonzero(np.diff(best)) + 1, most_batch]
    starts = [1, *(end + 1 for end in ends[:-1])]
    return [(int(a), int(b), int(best[a - 1])) for a, b in zip(starts, ends, strict=True)]


def measured_speedup(
    tokens: Amount, plain: Amount, verify: Amount, draft: Amount = 0.0, host: Amount = 0.0
) -> Amount:
    """Return the speed-up that measured parts predict, whatever they are bound by.

    Args:
        tokens: that a step yields, E.
        plain: seconds of a plain step, its host's share included.
        verify: seconds of a verify's forward pass, t(B (kappa + 1)).
        draft: seconds of all draft passes of a step.
        host: seconds of everything else of a speculative step.

    Raises:
        ValueError: a time is below 0, or no time is spent at all.

    Example:
        >>> measured_speedup(2.5, plain=20e-3, verify=22e-3, draft=2e-3, host=1e-3)
        2.0

    Book: eq-measured-speedup.
    """
    _refuse(tokens=tokens, plain=plain, verify=verify, draft=draft, host=host)
    spent = np.asarray(verify) + draft + host
    if np.any(spent <= 0):
        raise ValueError("verify + draft + host: 0, expected a time above 0")
    found = tokens * plain / spent
    return found if np.ndim(found) else float(found)


def fitted_line(positions: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of the line ``t(T) = a + b T``: what a pass costs, and a position of it.

    Least squares. ``a / b`` is the measured counterpart of ``T_star``: where the positions of a
    pass cost as much as the rest of it.

    Raises:
        ValueError: there are fewer than two different numbers of positions.

    Example:
        >>> fitted_line([1, 2, 4], [11.0, 12.0, 14.0])
        (10.0, 1.0)

    Book: eq-fitted-line.
    """
    if len(set(positions)) < 2:
        raise ValueError(f"positions: {list(positions)}, expected at least two different ones")
    b, a = np.polyfit(positions, seconds, 1)
    return round(float(a), 12), round(float(b), 12)


def _refuse(**amounts: Amount) -> None:
    for name, amount in amounts.items():
        if np.any(np.asarray(amount) < 0) or (name == "T_star" and amount == 0):
            legal = "above 0" if name == "T_star" else "at least 0"
            raise ValueError(f"{name}: {amount}, expected {legal}")
