"""The speed-up in the browser is the one of ``theory.speedup``."""

from __future__ import annotations

import itertools

import pytest
import traitlets

from specedu.figures import SpeedupExplorer
from specedu.figures.speedup_explorer import AXES, FREE, LEAST_GAIN, MOST_KAPPA
from specedu.theory import speedup as gains

STEEP = [[1, 1.0], [2, 1.1], [4, 1.1], [8, 1.6], [64, 5.0]]
ASKED = "argument.map((s) => m.pointOf({ ...s, curve: s.curves[s.verify] ?? null }))"


def states():
    return itertools.product([0.0, 0.3, 0.7, 0.95, 1.0], [0.0, 0.02, 0.165, 0.9], [FREE, "steep"])


def test_the_browser_finds_the_point_that_python_finds(ask):
    figures = [
        SpeedupExplorer(curves={"steep": STEEP}, alpha=alpha, c=c, verify=verify)
        for alpha, c, verify in states()
    ]
    found = ask(SpeedupExplorer.parts, ASKED, [figure.state() for figure in figures])
    for figure, point in zip(figures, found, strict=True):
        wanted = figure.point()
        assert point["kappa"] == wanted["kappa"]
        for name in ("best", "doubled", "even"):
            assert point[name] == pytest.approx(wanted[name], abs=1e-12)


def test_with_a_free_verify_it_is_the_theorys(ask):
    asked = [
        [alpha, kappa, c] for alpha in (0.1, 0.7, 1.0) for kappa in (1, 3, 8) for c in (0, 0.2)
    ]
    run = "argument.map(([alpha, kappa, c]) => m.speedupOf({ alpha, kappa, c, curve: null }))"
    for (alpha, kappa, c), found in zip(asked, ask(SpeedupExplorer.parts, run, asked), strict=True):
        assert found == pytest.approx(gains.speedup(alpha, kappa, c), rel=1e-12)
    asked = [[alpha, c] for alpha in (0.1, 0.5, 0.7, 0.9) for c in (0.05, 0.165, 0.5)]
    run = "argument.map(([alpha, c]) => m.bestKappa({ alpha, c, curve: null }))"
    found = ask(SpeedupExplorer.parts, run, asked)
    assert found == [gains.best_kappa(alpha, c, most=MOST_KAPPA) for alpha, c in asked]
    asked = [[kappa, c] for kappa in (1, 3, 8) for c in (0.0, 0.165, 0.9)]
    run = "argument.map(([kappa, c]) => m.breakEvenAlpha({ kappa, c, curve: null }))"
    for (kappa, c), found in zip(asked, ask(SpeedupExplorer.parts, run, asked), strict=True):
        assert found == pytest.approx(gains.break_even_alpha(kappa, c), abs=1e-12)


def test_between_two_measured_positions_time_is_a_line(ask):
    figure = SpeedupExplorer(curves={"steep": STEEP}, verify="steep")
    asked = [1, 2, 5, 7, 20, 63, 80]
    run = "argument[1].map((kappa) => m.verifyCost(argument[0], kappa))"
    found = ask(SpeedupExplorer.parts, run, [STEEP, asked])
    assert found == pytest.approx([figure.verify_cost(kappa) for kappa in asked], rel=1e-12)
    assert found[2] == pytest.approx(1.35) and found[-1] == 5.0


def test_where_even_perfect_drafts_lose_there_is_no_break_even():
    figure = SpeedupExplorer(curves={"dear": [[1, 1.0], [64, 200.0]]}, verify="dear")
    assert figure.point() == {"kappa": 0, "best": 1.0, "doubled": 1.0, "even": None}
    assert "Break-even alpha of 1 drafts: none" in figure.alternative


def test_both_sides_have_the_same_limits(ask):
    assert ask(SpeedupExplorer.parts, "[m.MOST, m.AXES, m.LEAST_GAIN]") == [
        MOST_KAPPA,
        list(AXES),
        LEAST_GAIN,
    ]


def test_its_first_state_is_the_books_example():
    figure = SpeedupExplorer()
    assert "Best kappa: 3, with S = 1.69" in figure.alternative
    assert figure.png().startswith(b"\x89PNG")


def test_a_verify_that_was_not_measured_is_refused():
    with pytest.raises(traitlets.TraitError, match="verify: 'warp', expected one of"):
        SpeedupExplorer(verify="warp")
