"""The unit square of chance: areas are probabilities, in Python and in the browser."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from specedu.figures import LawGrid
from specedu.figures.law_grid import patches
from specedu.figures.laws import fractions
from specedu.theory.settings import PAIRS

PARTS = ("common", "law", "law_grid")
LAWS = [([6, 6, 4], [2, 2, 12]), ([4, 12, 0], [8, 4, 4]), ([0, 0, 16], [16, 0, 0]),
        ([5, 5, 6], [5, 5, 6])]  # fmt: skip


@pytest.mark.parametrize("vocab", PAIRS)
def test_the_area_of_a_first_id_is_its_probability(vocab: int) -> None:
    for p, q in PAIRS[vocab]:
        areas = [Fraction(0)] * vocab
        for patch in patches(p, q):
            areas[patch.run[0]] += patch.area
        assert tuple(areas) == p


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_browser_draws_the_areas_of_the_laws(ask, p: list[int], q: list[int]) -> None:
    shown = ask(
        PARTS,
        "m.areas(m.makeSetting({ ...argument, kappa: 1 }))"
        ".map(({ accepted, refused }) => m.show(m.add(accepted, refused)))",
        {"p": p, "q": q},
    )
    assert [Fraction(area) for area in shown] == list(fractions(p))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_browser_draws_the_runs_of_the_patches(ask, p, q, whole: bool) -> None:
    def name(run: tuple[int, ...]) -> object:
        return tuple(run) if whole else (run[0], len(run))

    expression = (
        "m.squares(m.makeSetting({ ...argument.laws, kappa: 1 }), argument.whole)"
        ".map(({ run, area }) => [run, m.show(area)])"
    )
    drawn: dict[object, Fraction] = defaultdict(Fraction)
    for run, area in ask(PARTS, expression, {"laws": {"p": p, "q": q}, "whole": whole}):
        drawn[name(run)] += Fraction(area)
    wanted: dict[object, Fraction] = defaultdict(Fraction)
    for patch in patches(fractions(p), fractions(q)):
        wanted[name(patch.run)] += patch.area
    assert drawn == wanted


def test_the_alternative_tells_the_areas() -> None:
    assert "id 2: 1/4, where p is 1/4" in LawGrid().alternative
