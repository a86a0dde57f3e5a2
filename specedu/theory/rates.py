"""What a step yields: the expected number of tokens, from how often a draft is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Rate = TypeVar("Rate")  # float, Fraction or an array of floats


def expected_tokens(alpha: Rate, kappa: int) -> Rate:
    """Return E, the tokens that a step emits on average, between 1 and ``kappa + 1``.

    Every draft is accepted with probability ``alpha`` as long as all before it were, and a final
    token follows. The sum over i of P(the first i drafts are accepted) is what is added up: it has
    no division, and so no hole at ``alpha = 1``.

    Args:
        alpha: in [0, 1]; an array gives an array, a Fraction a Fraction.
        kappa: drafts a step, at least 0.

    Raises:
        ValueError: alpha is outside [0, 1], or kappa below 0.

    Example:
        >>> from fractions import Fraction
        >>> expected_tokens(Fraction(7, 10), 3)
        Fraction(2533, 1000)
        >>> expected_tokens(1.0, 3)
        4.0

    Book: eq-expected-tokens.
    """
    low, high = (alpha.min(), alpha.max()) if hasattr(alpha, "min") else (alpha, alpha)
    if not 0 <= low <= high <= 1:
        raise ValueError(f"alpha: {alpha}, expected 0 to 1")
    if kappa < 0:
        raise ValueError(f"kappa: {kappa}, expected at least 0")
    return sum((alpha**i for i in range(1, kappa + 1)), alpha**0)


def conditional_rates(rates: Sequence[Rate]) -> list[Rate]:
    """Return c_i, the share accepted of those that got so far, from the unconditional r_i.

    ``c_i = r_i / r_{i-1}`` with ``r_0 = 1``, and 0 where nothing gets so far.

    Raises:
        ValueError: a rate is outside [0, 1], or larger than the one before.

    Example:
        >>> conditional_rates([1.0, 0.6, 0.3])
        [1.0, 0.6, 0.5]

    Book: eq-conditional-rates.
    """
    for i, (rate, before) in enumerate(zip(rates, [1, *rates], strict=False)):
        if not 0 <= rate <= before:
            raise ValueError(f"rates[{i}]: {rate}, expected a number in [0, {before}]")
    pairs = zip(rates, [1, *rates], strict=False)
    return [rate / before if before else rate for rate, before in pairs]


def rates_of_length(length: float, kappa: int) -> list[float]:
    """Return unconditional rates whose mean acceptance length, bonus included, is ``length``.

    The first places are accepted always, the next one with what is left, the others never: the
    rates of vLLM's ``synthetic_acceptance_length``.

    Raises:
        ValueError: the length is outside [1, kappa + 1].

    Example:
        >>> rates_of_length(3.5, 4)
        [1.0, 1.0, 0.5, 0.0]

    Source: ``test_synthetic_rejection_sampler_utils.py`` in vLLM's ``tests/v1/spec_decode`` at
    2f41c894e320.
    """
    if not 1 <= length <= kappa + 1:
        raise ValueError(f"length: {length}, expected a number in [1, {kappa + 1}]")
    return [float(min(1.0, max(0.0, length - 1 - i))) for i in range(kappa)]
