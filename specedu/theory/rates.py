"""What a step yields: the expected number of tokens, from how often a draft is accepted."""

from __future__ import annotations

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
