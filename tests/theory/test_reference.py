"""The reference: a few lines of fractions whose law is the target's."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from specedu.theory.reference import residual, sample, spec_step, verify
from specedu.theory.settings import PAIRS, law_of, turning

HALF = Fraction(1, 2)


def coins(*values: Fraction):
    left = iter(values)
    return lambda: next(left)


def test_the_step_drafts_then_verifies_then_draws() -> None:
    setting = turning(law_of("1/4 3/4"), law_of("3/4 1/4"), 2)
    # Drafts at coins 0, 0: ids 0, 0; the first has ratio 1/3, the second 3.
    kept = spec_step((), setting.target, setting.draft, 2, coins(0, 0, Fraction(1, 4), HALF, 0))
    assert kept == [0, 0, 0]
    refused = spec_step((), setting.target, setting.draft, 2, coins(0, 0, HALF, HALF, 0))
    assert refused == [1]


def test_no_draft_is_plain_sampling() -> None:
    target = turning(law_of("1/4 3/4"), law_of("1 0"), 0).target
    assert spec_step((), target, target, 0, coins(Fraction(1, 4))) == [1]
    assert spec_step((0,), target, target, 0, coins(Fraction(1, 4))) == [0]


@pytest.mark.parametrize(("p", "q"), PAIRS[3])
def test_accepted_and_replaced_mass_add_up_to_the_target(p: tuple, q: tuple) -> None:
    """min(p, q) + (1 - sum min)·residual/Z = p, without any cell or search."""
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    rest = residual(p, q)
    refusal = 1 - sum(accepted)
    assert refusal in (0, sum(rest))
    law = [a + refusal * r / sum(rest) for a, r in zip(accepted, rest, strict=True)]
    assert tuple(law) == p


def test_the_final_draw_takes_half_open_buckets() -> None:
    weights = law_of("1/4 0 3/4")
    assert [sample(weights, Fraction(n, 8)) for n in range(8)] == [0, 0, 2, 2, 2, 2, 2, 2]


def test_a_row_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one above 0"):
        sample((Fraction(0), Fraction(0)), HALF)


def test_a_placeholder_ends_the_run_with_its_own_residual() -> None:
    p, q = law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4")
    for w in (Fraction(0), Fraction(7, 8)):
        assert verify([p, p], [q], [-1], [Fraction(0)], w) == [1]


def test_every_row_behind_the_first_refusal_stays_unread() -> None:
    p, q = law_of("1/4 3/4"), law_of("3/4 1/4")
    for tail in product(range(2), repeat=2):
        forbidden = (Fraction(0), Fraction(0))  # drawing from it would raise
        run = verify([p, forbidden, forbidden, forbidden], [q] * 3, [0, *tail],
                     [HALF] * 3, Fraction(0))  # fmt: skip
        assert run == [1]
