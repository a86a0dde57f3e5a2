"""The regimes in the browser are those of ``theory.speedup``."""

from __future__ import annotations

import itertools
import math

import pytest

from specedu.figures import Regimes
from specedu.theory.speedup import batch_speedup, crossing

ASKED = """argument.map((s) => {
    const [pair, ridge] = [s.pairs[s.pair], s.ridges[s.machine]];
    const setting = { ...s, c: pair.c, ridge, own: ridge * pair.ridge };
    return {
        speedup: m.batchSpeedup(s.batch, setting),
        regime: m.regimeOf(s.batch, setting),
        crossing: String(m.crossingOf(setting)),
        best: m.bestKappa(s.batch, setting),
    };
})"""


def figures() -> list[Regimes]:
    return [
        Regimes(machine=machine, pair=pair, alpha=alpha, kappa=kappa, batch=batch)
        for machine, pair, alpha, kappa, batch in itertools.product(
            ["H100 SXM", "L4"], Regimes().pairs, [0.1, 0.7, 1.0], [1, 3, 8], [1, 74, 150, 1024]
        )
    ]


def test_the_browser_computes_the_speed_up_the_regime_and_the_crossing_of_the_theory(ask):
    many = figures()
    found = ask(Regimes.parts, ASKED, [figure.state() for figure in many])
    words = {None: "null", math.inf: "Infinity"}
    for figure, answer in zip(many, found, strict=True):
        wanted = figure.step()
        assert answer["speedup"] == pytest.approx(wanted["speedup"], rel=1e-12)
        assert answer["regime"] == wanted["regime"]
        if wanted["crossing"] in words:
            assert answer["crossing"] == words[wanted["crossing"]]
        else:
            assert float(answer["crossing"]) == pytest.approx(wanted["crossing"], abs=1e-5)


def test_the_browsers_best_length_is_the_fastest_of_nine(ask):
    many = figures()
    found = ask(Regimes.parts, ASKED, [figure.state() for figure in many])
    for figure, answer in zip(many, found, strict=True):
        pair, ridge = figure.pairs[figure.pair], figure.ridges[figure.machine]
        gained = [
            batch_speedup(figure.batch, figure.alpha, k, pair["c"], ridge, ridge * pair["ridge"])
            for k in range(9)
        ]
        assert gained[answer["best"]] == pytest.approx(max(gained), abs=1e-11)


def test_it_begins_with_the_crossing_near_150():
    figure = Regimes()
    ridge, pair = figure.ridges[figure.machine], figure.pairs[figure.pair]
    assert figure.step()["crossing"] == pytest.approx(crossing(0.7, 3, pair["c"], ridge), abs=1e-5)
    assert "above 151 requests" in figure.alternative and "Modelled" in figure.alternative


def test_the_rungs_rise_within_the_traits_limits(ask):
    rungs = ask(Regimes.parts, "m.BATCHES")
    assert rungs == sorted(set(rungs)) and (rungs[0], rungs[-1]) == (1, 1024)
