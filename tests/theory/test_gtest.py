"""The G-test: its tail against published quantiles, and counts that must sound the alarm."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch

from specedu.theory.gtest import chi_squared_tail, g_test

HALVES = {0: Fraction(1, 2), 1: Fraction(1, 2)}


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(6.634897, 1, 0.01), (9.487729, 4, 0.05), (29.588298, 10, 0.001), (57.1, 8, 1.7e-9)],
)
def test_the_tail_is_the_tables(statistic: float, freedom: int, tail: float) -> None:
    assert chi_squared_tail(statistic, freedom) == pytest.approx(tail, rel=0.05)


@pytest.mark.parametrize("freedom", [2, 4, 8])
def test_the_tail_of_even_freedom_is_a_finite_sum(freedom: int) -> None:
    """exp(-x/2) times the first terms of exp(x/2), far out in the tail too."""
    for statistic in (1.0, 20.0, 80.0):
        half = statistic / 2
        terms = sum(half**i / math.factorial(i) for i in range(freedom // 2))
        assert chi_squared_tail(statistic, freedom) == pytest.approx(math.exp(-half) * terms)


def test_the_statistic_is_twice_the_log_likelihood_ratio() -> None:
    test = g_test({0: 30, 1: 70}, HALVES)
    assert test.statistic == pytest.approx(2 * (30 * math.log(0.6) + 70 * math.log(1.4)))
    assert test.freedom == 1


def test_counts_of_the_law_pass_as_often_as_they_should() -> None:
    """400 seeded tests of a right die; more than 40 below 0.05 has a chance below 1e-5."""
    generator = torch.Generator().manual_seed(0)
    law = {face: Fraction(1, 6) for face in range(6)}
    rolls = torch.randint(0, 6, (400, 600), generator=generator).tolist()
    assert sum(g_test(Counter(row), law).p_value < 0.05 for row in rolls) <= 40


def test_what_cannot_be_is_called_wrong_at_once() -> None:
    assert g_test({0: 50, 1: 50, 2: 1}, HALVES) == (math.inf, 1, 0.0)


def test_an_outcome_that_was_never_seen_counts() -> None:
    assert g_test({0: 100}, HALVES).p_value < 1e-9


def test_an_outcome_without_mass_adds_no_freedom() -> None:
    assert g_test({0: 5, 1: 5, 2: 0}, HALVES | {2: Fraction(0)}) == (0.0, 1, 1.0)


@pytest.mark.parametrize(
    ("counts", "law", "words"),
    [
        ({}, HALVES, "counts: a sum of 0, expected at least 1"),
        ({0: 1}, {0: 1.0}, "law: 1 outcomes of mass 1, expected at least 2"),
        ({0: 1}, {0: 0.5, 1: 0.25}, "law: 2 outcomes of mass 0.75, expected at least 2 of mass 1"),
    ],
)
def test_a_law_that_is_none_is_refused(counts: dict, law: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        g_test(counts, law)
