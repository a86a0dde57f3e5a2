"""Expected tokens: the sum, the closed form, and the law of the run's length."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from engine_cases import group

from specedu.theory.rates import conditional_rates, expected_tokens, rates_of_length

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
