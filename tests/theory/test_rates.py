"""Expected tokens: the sum, the closed form, and the law of the run's length."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from specedu.theory.rates import expected_tokens

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
