"""The thresholds' law in the browser is the one of ``theory.thresholds``."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from specedu.figures import Thresholds
from specedu.figures.thresholds import PAIRS
from specedu.theory.thresholds import accepted_masses, threshold_law

STATES = list(itertools.product(PAIRS, (1.0, 0.25, 0.01), (1.0, 0.5, 0.01)))


def test_the_browser_has_the_law_of_the_theory(ask):
    asked = [
        {"p": PAIRS[pair][0], "q": PAIRS[pair][1], "single": single, "acc": acc}
        for pair, single, acc in STATES
    ]
    answers = ask(Thresholds.parts, "argument.map((s) => m.pointOf(s))", asked)
    for (pair, single, acc), found in zip(STATES, answers, strict=True):
        p, q = (tuple(map(Fraction, law)) for law in PAIRS[pair])
        knobs = Fraction(single), Fraction(acc)
        assert found["acceptance"] == pytest.approx(float(sum(accepted_masses(p, q, *knobs))))
        assert found["law"] == pytest.approx([float(m) for m in threshold_law(p, q, *knobs)])
        wanted = Thresholds(pair=pair, single=single, acc=acc).point()
        for name in ("acceptance", "exact", "bias"):
            assert found[name] == pytest.approx(wanted[name], abs=1e-12)


def test_what_is_bought_is_paid_for():
    for pair, single, acc in STATES:
        found = Thresholds(pair=pair, single=single, acc=acc).point()
        assert found["bias"] == pytest.approx(found["acceptance"] - found["exact"], abs=1e-12)
