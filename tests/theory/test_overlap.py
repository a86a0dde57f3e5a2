"""The quantities of the one-position proof, on every pair of laws and on random ones."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random

import pytest

from specedu.kernels import verify_chain
from specedu.theory.adapters import match
from specedu.theory.cells import match_cuts
from specedu.theory.exact import joint_law
from specedu.theory.overlap import (
    acceptance_rate,
    accepted_mass,
    branches,
    match_rate,
    residual_mass,
    total_variation,
)
from specedu.theory.reference import Law
from specedu.theory.settings import PAIRS, fixed, law_of


def random_pairs(count: int) -> Iterator[tuple[Law, Law]]:
    dice = Random(0)
    for _ in range(count):
        vocab = dice.randint(2, 9)
        laws = []
        for _ in "pq":
            weights = [dice.choice([0, 0, 1, 2, 5, 11]) for _ in range(vocab - 1)] + [1]
            laws.append(tuple(Fraction(weight, sum(weights)) for weight in weights))
        yield laws[0], laws[1]


EVERY = [pair for pairs in PAIRS.values() for pair in pairs] + list(random_pairs(200))


def test_the_acceptance_rate_is_one_minus_the_total_variation() -> None:
    assert all(acceptance_rate(p, q) == 1 - total_variation(p, q) for p, q in EVERY)


def test_the_residual_mass_is_the_probability_of_a_refusal() -> None:
    assert all(residual_mass(p, q) == 1 - acceptance_rate(p, q) for p, q in EVERY)


def test_the_branches_add_up_to_the_target() -> None:
    for p, q in EVERY:
        accepted, refused = branches(p, q)
        assert tuple(a + b for a, b in zip(accepted, refused, strict=True)) == p


def test_the_refuse_branch_gives_nothing_where_the_draft_has_enough() -> None:
    for p, q in EVERY:
        given = zip(branches(p, q)[1], p, q, strict=True)
        assert all(mass == 0 for mass, a, b in given if a <= b)


def test_equal_laws_are_never_refused() -> None:
    p = law_of("1/5 1/2 3/10")
    assert (acceptance_rate(p, p), residual_mass(p, p)) == (1, 0)
    assert branches(p, p) == (p, (0, 0, 0))


def test_laws_without_a_common_id_are_always_refused() -> None:
    p, q = law_of("1/4 3/4 0"), law_of("0 0 1")
    assert (acceptance_rate(p, q), total_variation(p, q)) == (0, 1)


def test_the_total_variation_is_symmetric() -> None:
    assert all(total_variation(p, q) == total_variation(q, p) for p, q in EVERY)


@pytest.mark.parametrize("vocab", PAIRS)
def test_the_accepted_mass_is_what_the_rule_accepts(vocab: int) -> None:
    for p, q in PAIRS[vocab]:
        law = joint_law(verify_chain, fixed(p, q, 1))
        kept = [Fraction(0)] * vocab
        for cell in law.cells:
            if len(cell.run) == 2:
                kept[cell.run[0]] += cell.volume
        assert tuple(kept) == accepted_mass(p, q)


@pytest.mark.parametrize("vocab", PAIRS)
def test_the_match_rate_is_what_sample_and_match_accepts(vocab: int) -> None:
    for p, q in PAIRS[vocab]:
        law = joint_law(match, fixed(p, q, 1), cuts=match_cuts)
        assert law.emitted - 1 == match_rate(p, q)


def test_sample_and_match_never_accepts_more_than_the_ratio_test() -> None:
    assert all(match_rate(p, q) <= acceptance_rate(p, q) for p, q in EVERY)
    assert all(match_rate(p, certain) == acceptance_rate(p, certain)
               for p, _ in PAIRS[3] for certain in [law_of("1 0 0")])  # fmt: skip
