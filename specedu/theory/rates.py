"""What a step yields: the expected number of tokens, from how often a draft is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TypeVar

import numpy as np

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


def unconditional_rates(rates: Sequence[Rate]) -> list[Rate]:
    """Return r_i, the chance that the first i drafts are all accepted, from the conditional c_i.

    The inverse of :func:`conditional_rates` as far as any draft gets.

    Raises:
        ValueError: a rate is outside [0, 1].

    Example:
        >>> unconditional_rates([1.0, 0.5, 0.5])
        [1.0, 0.5, 0.25]

    Book: eq-unconditional-rates.
    """
    for i, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            raise ValueError(f"rates[{i}]: {rate}, expected a number in [0, 1]")
    return list(accumulate(rates, mul))


def tokens_of_rates(rates: Sequence[Rate]) -> Rate:
    """Return E of any acceptance, independent or not: one and the sum of the unconditional r_i.

    Raises:
        ValueError: a rate is outside [0, 1], or larger than the one before.

    Example:
        >>> tokens_of_rates([0.75, 0.5, 0.5])
        2.75

    Book: eq-tokens-of-rates.
    """
    conditional_rates(rates)
    return sum(rates, 1)


def fitted_alpha(rates: Sequence[Rate]) -> Rate:
    """Return the alpha under which the rates are likeliest: accepted drafts over tested ones.

    A draft is tested when all before it were accepted, so that ``r_0 = 1`` to ``r_{kappa-1}`` add
    up to the tested drafts of a step and ``r_1`` to ``r_kappa`` to the accepted ones. Its E exceeds
    that of the rates by ``alpha / (1 - alpha) * (r_kappa - alpha**kappa)``: it is too large where
    conditional rates rise from place to place, and too small where they fall.

    Raises:
        ValueError: there is no rate, or one is outside [0, 1] or larger than the one before.

    Example:
        >>> fitted_alpha([0.5, 0.25, 0.125])
        0.5

    Book: eq-fitted-alpha.
    """
    if not rates:
        raise ValueError("rates: none, expected at least one")
    conditional_rates(rates)
    return sum(rates) / sum(rates[:-1], 1)


def delivered_tokens(alpha: Rate, kappa: int, left: int) -> Rate:
    """Return the tokens that a step delivers on average when the request may take ``left`` more.

    A stop at a fixed place cuts the run there: the sum of E ends after ``left`` terms.

    Args:
        alpha: as of :func:`expected_tokens`.
        kappa: drafts a step, at least 0.
        left: tokens until ``max_tokens``, at least 1.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> delivered_tokens(1.0, 3, left=2)
        2.0

    Book: eq-delivered.
    """
    if left < 1:
        raise ValueError(f"left: {left}, expected at least 1")
    return expected_tokens(alpha, min(kappa, left - 1))


def delivered_before_end(alpha: Rate, kappa: int, end: Rate) -> Rate:
    """Return the tokens that a step delivers on average where each token ends the text by chance.

    Token i is delivered if the first i - 1 drafts are accepted and none of them ends the text: each
    draft counts ``alpha (1 - end)`` instead of alpha. Ends are taken as independent of acceptance.

    Args:
        alpha: as of :func:`expected_tokens`.
        kappa: drafts a step, at least 0.
        end: chance that a token is the last one, in [0, 1].

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> delivered_before_end(1.0, 1, end=0.25)
        1.75

    Book: eq-delivered-before-end.
    """
    if not np.all((0 <= np.asarray(end)) & (np.asarray(end) <= 1)):
        raise ValueError(f"end: {end}, expected 0 to 1")
    return expected_tokens(alpha * (1 - end), kappa)


def mixed_rates(alphas: Sequence[Rate], kappa: int) -> list[Rate]:
    """Return r_i of steps that have different alphas, all equally frequent: the mean of alpha^i.

    Their conditional rates never fall from place to place: steps that get far are the easy ones.
    They stay level only where all alphas that get there are equal, and no single alpha describes
    them otherwise.

    Raises:
        ValueError: there is no alpha, or one is outside [0, 1].

    Example:
        >>> mixed_rates([1.0, 0.5], 2)
        [0.75, 0.625]

    Book: eq-mixed-rates.
    """
    if not alphas:
        raise ValueError("alphas: none, expected at least one")
    for i, alpha in enumerate(alphas):
        if not 0 <= alpha <= 1:
            raise ValueError(f"alphas[{i}]: {alpha}, expected a number in [0, 1]")
    return [sum(alpha**i for alpha in alphas) / len(alphas) for i in range(1, kappa + 1)]


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
