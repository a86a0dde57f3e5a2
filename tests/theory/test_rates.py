"""Expected tokens: the sum, the closed form, and the law of the run's length."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from engine_cases import group

from specedu.theory.rates import (
    conditional_rates,
    delivered_before_end,
    delivered_tokens,
    expected_tokens,
    fitted_alpha,
    mixed_rates,
    rates_of_length,
    tokens_of_rates,
    unconditional_rates,
)

ALPHAS = [Fraction(k, 10) for k in range(11)]


def test_seven_tenths_and_three_drafts_give_2_533() -> None:
    assert expected_tokens(Fraction(7, 10), 3) == Fraction(2533, 1000)


@pytest.mark.parametrize("kappa", [0, 1, 3, 8])
def test_it_is_the_mean_of_the_runs_length(kappa: int) -> None:
    for alpha in ALPHAS:
        run = [alpha**n * (1 - alpha) for n in range(kappa)] + [alpha**kappa]  # n accepted
        assert sum(run) == 1
        assert expected_tokens(alpha, kappa) == sum((n + 1) * p for n, p in enumerate(run))


@pytest.mark.parametrize("kappa", [0, 1, 3, 8])
def test_it_is_the_closed_form_where_that_is_defined(kappa: int) -> None:
    for alpha in ALPHAS[:-1]:
        assert expected_tokens(alpha, kappa) == (1 - alpha ** (kappa + 1)) / (1 - alpha)


def test_a_perfect_draft_gives_every_token_and_a_useless_one_a_single_token() -> None:
    for kappa in range(6):
        assert expected_tokens(Fraction(1), kappa) == kappa + 1
        assert expected_tokens(1.0, kappa) == kappa + 1
        assert expected_tokens(Fraction(0), kappa) == 1


def test_it_stays_right_just_below_one() -> None:
    assert expected_tokens(1 - 2**-53, 7) == pytest.approx(8, rel=1e-15)


def test_an_array_gives_an_array() -> None:
    alphas = np.array([0.0, 0.5, 0.7, 1.0])
    np.testing.assert_allclose(expected_tokens(alphas, 3), [1, 1.875, 2.533, 4], rtol=1e-15)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), np.array([0.5, 1.5])])
def test_what_is_no_probability_is_refused(alpha: object) -> None:
    with pytest.raises(ValueError, match="alpha: .*, expected 0 to 1"):
        expected_tokens(alpha, 3)


def test_a_negative_kappa_is_refused() -> None:
    with pytest.raises(ValueError, match="kappa: -1, expected at least 0"):
        expected_tokens(0.5, -1)


# --- rates by place -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", group("synthetic"))
def test_published_rates(case: dict) -> None:
    given, expected = case["input"], case["expect"]
    if case["check"] == "cond":
        assert conditional_rates(given["rates"]) == expected["conditional"]
    else:
        assert rates_of_length(given["length"], given["k"]) == expected["rates"]


def test_conditional_rates() -> None:
    """Their running products are the unconditional rates again."""
    rates = [Fraction(9, 10), Fraction(3, 4), Fraction(3, 4), Fraction(0), Fraction(0)]
    product, back = Fraction(1), []
    for c in conditional_rates(rates):
        product *= c
        back.append(product)
    assert back == rates
    assert conditional_rates([Fraction(7, 10) ** i for i in (1, 2, 3)]) == [Fraction(7, 10)] * 3


@pytest.mark.parametrize("rates", [[1.5], [-0.1], [0.5, 0.6]])
def test_rates_that_grow_or_are_none_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match=r"rates\[\d\]: .*, expected a number in \[0, "):
        conditional_rates(rates)


@pytest.mark.parametrize("length", [1, 1.25, 3.5, 5])
def test_rates_of_a_length_have_that_length(length: float) -> None:
    assert 1 + sum(rates_of_length(length, 4)) == length


@pytest.mark.parametrize("length", [0.9, 5.1])
def test_a_length_that_no_rates_have_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match=r"expected a number in \[1, 5\]"):
        rates_of_length(length, 4)


# --- rates that are not one alpha's ---------------------------------------------------------------


def test_the_two_kinds_of_rates_are_inverse() -> None:
    rates = [Fraction(3, 4), Fraction(1, 2), Fraction(1, 8)]
    assert unconditional_rates(conditional_rates(rates)) == rates


def test_the_mean_of_any_law_of_accepted_drafts_is_one_and_the_sum_of_its_rates() -> None:
    law = [Fraction(n, 10) for n in (1, 2, 3, 4)]  # of 0, 1, 2 and 3 accepted drafts
    rates = [sum(law[i:]) for i in range(1, 4)]
    assert tokens_of_rates(rates) == sum((n + 1) * m for n, m in enumerate(law))


def test_one_alpha_is_found_again() -> None:
    alpha = Fraction(7, 10)
    assert fitted_alpha([alpha**i for i in range(1, 5)]) == alpha


def test_the_fitted_alpha_is_the_likeliest() -> None:
    rates = [0.7, 0.55, 0.5]

    def log_likelihood(alpha: float) -> float:
        tested = [1.0, *rates[:-1]]
        return sum(
            r * math.log(alpha) + (t - r) * math.log(1 - alpha)
            for r, t in zip(rates, tested, strict=True)
        )

    best = fitted_alpha(rates)
    assert all(log_likelihood(best) > log_likelihood(best + d) for d in (-0.01, 0.01))


RISING, FALLING = ([Fraction(k, 10) for k in places] for places in ((3, 5, 5, 8), (9, 8, 8, 1)))


@pytest.mark.parametrize(
    "conditional", [RISING, FALLING, [*RISING, *FALLING], [Fraction(1, 2)] * 3]
)
def test_the_error_of_the_fit_is_that_of_its_last_place(conditional: list[Fraction]) -> None:
    rates = unconditional_rates(conditional)
    alpha, kappa = fitted_alpha(rates), len(rates)
    error = expected_tokens(alpha, kappa) - tokens_of_rates(rates)
    assert error == alpha / (1 - alpha) * (rates[-1] - alpha**kappa)


@pytest.mark.parametrize(("conditional", "sign"), [(RISING, 1), (FALLING, -1)])
def test_the_fit_is_too_large_where_conditional_rates_rise(
    conditional: list[Fraction], sign: int
) -> None:
    rates = unconditional_rates(conditional)
    alpha = fitted_alpha(rates)
    for kappa in range(1, len(rates) + 1):  # and for every shorter draft
        own = tokens_of_rates(rates[:kappa])
        assert sign * (expected_tokens(alpha, kappa) - own) > 0


def test_the_fit_of_a_mixture_is_too_small_for_long_drafts() -> None:
    rates = mixed_rates([Fraction(19, 20), Fraction(3, 10)], 40)
    alpha = fitted_alpha(rates[:7])
    assert expected_tokens(alpha, 7) > tokens_of_rates(rates[:7])
    assert expected_tokens(alpha, 40) < tokens_of_rates(rates)


def test_mixed_alphas_have_rising_conditional_rates() -> None:
    alphas = [Fraction(1, 5), Fraction(1, 2), Fraction(9, 10)]
    conditional = conditional_rates(mixed_rates(alphas, 6))
    assert all(a < b for a, b in zip(conditional, conditional[1:], strict=False))
    same = conditional_rates(mixed_rates([Fraction(1, 2)] * 3, 6))
    assert set(same) == {Fraction(1, 2)}


def test_a_stop_at_a_fixed_place_ends_the_sum() -> None:
    alpha = Fraction(1, 2)
    found = [delivered_tokens(alpha, 3, left) for left in (1, 2, 3, 4, 5)]
    assert found == [1, Fraction(3, 2), Fraction(7, 4), Fraction(15, 8), Fraction(15, 8)]


@pytest.mark.parametrize("kappa", [0, 1, 3])
def test_an_end_by_chance_is_the_mean_over_every_place_of_it(kappa: int) -> None:
    alpha, end = Fraction(2, 3), Fraction(1, 5)
    places = range(1, kappa + 1)
    mean = sum(end * (1 - end) ** (i - 1) * delivered_tokens(alpha, kappa, i) for i in places)
    mean += (1 - end) ** kappa * expected_tokens(alpha, kappa)  # no end within kappa
    assert delivered_before_end(alpha, kappa, end) == mean


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unconditional_rates([0.5, 1.5]), r"rates\[1\]: 1.5, expected"),
        (lambda: tokens_of_rates([0.5, 0.6]), r"rates\[1\]: 0.6, expected"),
        (lambda: fitted_alpha([]), "rates: none, expected at least one"),
        (lambda: delivered_tokens(0.5, 3, 0), "left: 0, expected at least 1"),
        (lambda: delivered_before_end(0.5, 3, 2), "end: 2, expected 0 to 1"),
        (lambda: mixed_rates([], 3), "alphas: none, expected at least one"),
        (lambda: mixed_rates([2.0], 3), r"alphas\[0\]: 2.0, expected"),
    ],
)
def test_rates_out_of_range_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
