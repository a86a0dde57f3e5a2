"""The bias of thresholds: the closed form against the exact law of the shipped rule."""

from __future__ import annotations

import functools
from fractions import Fraction

import pytest

from specedu.kernels import verify_threshold
from specedu.theory.exact import joint_law
from specedu.theory.overlap import acceptance_rate, total_variation
from specedu.theory.settings import PAIRS, fixed, law_of
from specedu.theory.thresholds import accepted_masses, bias_curve, threshold_law

DYADIC = [(law_of("1/4 3/4"), law_of("3/4 1/4")), (law_of("3/8 3/8 1/4"), law_of("1/8 1/8 3/4")),
          (law_of("1/4 0 1/2 1/4"), law_of("0 1/2 1/4 1/4"))]  # fmt: skip
VALUES = [Fraction(1), Fraction(3, 4), Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)]


@pytest.mark.parametrize(("p", "q"), DYADIC)
@pytest.mark.parametrize("knob", ["single", "acc"])
@pytest.mark.parametrize("value", VALUES)
def test_the_shipped_rule_has_this_law(p, q, knob: str, value: Fraction) -> None:
    rule = functools.partial(verify_threshold, **{f"accept_threshold_{knob}": float(value)})
    law = joint_law(rule, fixed(p, q, 1))
    expected = threshold_law(p, q, **{knob: value})
    for found, mass in zip(law.first(), expected, strict=True):
        assert abs(found - mass) <= law.bound
    assert law.bound < Fraction(1, 10**9)


@pytest.mark.parametrize(("p", "q"), [pair for vocab in (2, 3, 4) for pair in PAIRS[vocab]])
def test_without_thresholds_it_is_the_targets_law(p, q) -> None:
    assert threshold_law(p, q) == p
    assert sum(accepted_masses(p, q)) == acceptance_rate(p, q)


@pytest.mark.parametrize(("p", "q"), [pair for vocab in (2, 3, 4) for pair in PAIRS[vocab]])
@pytest.mark.parametrize("knob", ["single", "acc"])
def test_it_stays_a_law_and_neither_number_ever_falls(p, q, knob: str) -> None:
    for value in VALUES:
        assert sum(threshold_law(p, q, **{knob: value})) == 1
    curve = bias_curve(p, q, knob, VALUES)
    assert curve == sorted(curve) and [bias for _, bias in curve] == sorted(b for _, b in curve)


@pytest.mark.parametrize(("p", "q"), DYADIC)
@pytest.mark.parametrize("knob", ["single", "acc"])
def test_what_is_bought_is_paid_for_one_to_one(p, q, knob: str) -> None:
    """Every acceptance beyond the ratio test's moves as much mass from the residual's ids."""
    for value in VALUES:
        [(acceptance, bias)] = bias_curve(p, q, knob, [value])
        assert bias == acceptance - acceptance_rate(p, q)


def test_the_bias_is_at_most_the_distance_of_the_draft() -> None:
    for p, q in DYADIC:
        [(acceptance, bias)] = bias_curve(p, q, "acc", [Fraction(1, 2**20)])
        assert acceptance <= 1 and bias <= total_variation(p, q)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: threshold_law(p, p, single=0), r"single: 0, expected above 0 and at most 1"),
        (lambda p: threshold_law(p, p, acc=2), r"acc: 2, expected above 0 and at most 1"),
        (lambda p: bias_curve(p, p, "both", [1]), r"knob: 'both', expected 'single' or 'acc'"),
    ],
)
def test_what_is_out_of_range_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(law_of("1/2 1/2"))
