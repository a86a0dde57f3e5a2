"""Recursive rejection over siblings: whatever the candidates, the emitted token has the law p."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations, product

import pytest

from specedu.theory.overlap import acceptance_rate
from specedu.theory.reference import Law, sibling_laws, siblings, siblings_by_mass
from specedu.theory.settings import PAIRS, law_of
from specedu.theory.siblings import (
    accepted,
    certain,
    emitted,
    mass_law,
    sibling_law,
    tuples,
    with_replacement,
    without_replacement,
)

EVERY = [pair for vocab in (2, 3, 4) for pair in PAIRS[vocab]]
P, Q = law_of("1/10 1/2 2/5"), law_of("3/5 3/10 1/10")
HALF = Fraction(1, 2)


def support(q: Law) -> int:
    return sum(mass > 0 for mass in q)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize(("p", "q"), EVERY)
def test_candidates_drawn_with_replacement_emit_the_target_law(p: Law, q: Law, number: int) -> None:
    assert emitted(sibling_law(p, with_replacement(q), number), len(p)) == p


@pytest.mark.parametrize(("p", "q"), EVERY)
def test_candidates_drawn_without_replacement_emit_the_target_law(p: Law, q: Law) -> None:
    for number in range(1, min(3, support(q)) + 1):
        assert emitted(sibling_law(p, without_replacement(q), number), len(p)) == p


@pytest.mark.parametrize(("p", "q"), EVERY)
def test_certain_candidates_emit_the_target_law(p: Law, q: Law) -> None:
    for number in range(1, min(3, len(p)) + 1):
        for ids in permutations(range(len(p)), number):
            assert emitted(sibling_law(p, certain(ids, len(p)), number), len(p)) == p


def test_a_candidates_law_may_depend_on_the_earlier_ones_in_any_way() -> None:
    p, q = PAIRS[3][0]

    def turned(earlier: tuple[int, ...]) -> Law:
        by = sum(earlier) % len(q)
        return q[by:] + q[:by]

    assert emitted(sibling_law(p, turned, 3), 3) == p


@pytest.mark.parametrize(("p", "q"), EVERY)
def test_one_candidate_is_the_ratio_test(p: Law, q: Law) -> None:
    assert accepted(sibling_law(p, with_replacement(q), 1)) == acceptance_rate(p, q)


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_one_coin_for_all_certain_candidates_has_the_same_law(vocab: int) -> None:
    """Also where ids come twice: the law of the place and the token is the same, not p's alone."""
    for p, _ in PAIRS[vocab]:
        for ids in product(range(vocab), repeat=2 if vocab == 4 else 3):
            assert mass_law(p, ids) == sibling_law(p, certain(ids, vocab), len(ids))
            assert emitted(mass_law(p, ids), vocab) == p


def test_certain_candidates_are_accepted_with_their_mass() -> None:
    assert accepted(mass_law(P, [1, 2])) == Fraction(9, 10)
    assert accepted(mass_law(P, [1, 1])) == HALF  # B110: a mass counts once


def test_the_second_candidate_takes_its_share_of_what_is_left() -> None:
    """B109: of (1/2, 3/10, 1/5), without id 0, id 1 has three fifths."""
    p = law_of("1/2 3/10 1/5")
    laws = sibling_laws(p, [certain([0], 3)(())])
    assert laws[1] == law_of("0 3/5 2/5")


def test_a_coin_on_the_border_and_an_id_without_mass_are_refused() -> None:
    p = law_of("0 1/2 1/2")
    assert siblings_by_mass(p, [0], Fraction(0), Fraction(0)) == (-1, 1)
    assert siblings(p, [0], [certain([0], 3)(())], [Fraction(0)], Fraction(0)) == (-1, 1)
    assert siblings_by_mass(p, [1], HALF, Fraction(0)) == (-1, 2)


def test_drawn_without_replacement_and_tested_with_q_is_biased() -> None:
    """B109: the second candidate's q must be that of the draw, without the first id."""
    assert emitted(sibling_law(P, without_replacement(Q), 2), 3) == P
    wrong = emitted(sibling_law(P, without_replacement(Q), 2, told=with_replacement(Q)), 3)
    assert wrong == law_of("1/10 27/40 9/40")


def test_the_likeliest_ids_tested_with_q_are_biased() -> None:
    """EAGLE-2 chooses children by q and does not draw them: they are certain."""
    best = certain([0, 1], 3)
    assert emitted(sibling_law(P, best, 2, told=without_replacement(Q)), 3) == law_of(
        "1/6 4/9 7/18"
    )
    assert emitted(sibling_law(P, best, 2), 3) == P


def test_the_tuples_are_all_there() -> None:
    for draws in (with_replacement(Q), without_replacement(Q)):
        assert sum(weight for _, weight in tuples(draws, 3)) == 1


def test_more_candidates_than_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="at most the 2 ids"):
        sibling_law(PAIRS[2][0][0], without_replacement(PAIRS[2][0][1]), 3)
