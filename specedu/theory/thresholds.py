"""What a threshold buys and what it costs: the law of the first token, with one draft.

A threshold below 1 accepts more than the ratio test does. After a refusal the token is drawn from
the residual as before, so that what is accepted too often is missing elsewhere.

Source: the two settings are SGLang's ``speculative_accept_threshold_single`` and ``_acc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from .overlap import total_variation
from .reference import Law, residual

Knob = Literal["single", "acc"]


def accepted_masses(p: Law, q: Law, single: Fraction = 1, acc: Fraction = 1) -> Law:
    """Return the chance of each id to be drafted and accepted; the sum is the acceptance rate.

    An id with ``p(x) >= single`` is accepted whenever it is drafted, any other one with
    probability ``min(1, p(x) / (q(x) acc))``.

    Raises:
        ValueError: a threshold is outside (0, 1].

    Example:
        >>> half = Fraction(1, 2)
        >>> accepted_masses((half, half), (Fraction(1), Fraction(0)), acc=half)
        (Fraction(1, 1), Fraction(0, 1))
    """
    for name, value in (("single", single), ("acc", acc)):
        if not 0 < value <= 1:
            raise ValueError(f"{name}: {value}, expected above 0 and at most 1")
    return tuple(b if a >= single else min(b, a / acc) for a, b in zip(p, q, strict=True))


def threshold_law(p: Law, q: Law, single: Fraction = 1, acc: Fraction = 1) -> Law:
    """Return the law of the first emitted token.

    Raises:
        ValueError: a threshold is outside (0, 1].

    Example:
        >>> from specedu.theory.settings import law_of
        >>> p, q = law_of("1/4 3/4"), law_of("3/4 1/4")
        >>> threshold_law(p, q) == p, threshold_law(p, q, acc=Fraction(1, 2))
        (True, (Fraction(1, 2), Fraction(1, 2)))

    Book: eq-threshold-law.
    """
    accepted = accepted_masses(p, q, single, acc)
    left = residual(p, q)
    weights = left if sum(left) else p
    refused = (1 - sum(accepted)) / sum(weights)
    return tuple(mass + refused * weight for mass, weight in zip(accepted, weights, strict=True))


def bias_curve(
    p: Law, q: Law, knob: Knob, values: Sequence[Fraction]
) -> list[tuple[Fraction, Fraction]]:
    """Return (acceptance rate, total variation from p) for each value of one threshold.

    Raises:
        ValueError: the knob is unknown, or a value outside (0, 1].

    Example:
        >>> from specedu.theory.settings import law_of
        >>> bias_curve(law_of("1/4 3/4"), law_of("3/4 1/4"), "acc", [Fraction(1), Fraction(1, 2)])
        [(Fraction(1, 2), Fraction(0, 1)), (Fraction(3, 4), Fraction(1, 4))]
    """
    if knob not in ("single", "acc"):
        raise ValueError(f"knob: {knob!r}, expected 'single' or 'acc'")
    return [
        (
            sum(accepted_masses(p, q, **{knob: value})),
            total_variation(p, threshold_law(p, q, **{knob: value})),
        )
        for value in values
    ]
