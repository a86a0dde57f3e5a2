"""The timeline in the browser is the model of ``theory.cost`` and ``theory.rates``."""

from __future__ import annotations

import itertools

import pytest

from specedu.figures import Timeline
from specedu.theory.cost import speculative_step_seconds
from specedu.theory.rates import expected_tokens


def test_the_browser_computes_the_steps_of_the_theory(ask):
    figures = [
        Timeline(alpha=alpha, kappa=kappa, c=c)
        for alpha, kappa, c in itertools.product([0.0, 0.7, 1.0], [0, 1, 3, 8], [0.0, 0.165, 1.0])
    ]
    states = [figure.state() for figure in figures]
    for figure, found in zip(
        figures, ask(Timeline.parts, "argument.map(m.timelineOf)", states), strict=True
    ):
        step = speculative_step_seconds(figure.target_ms, figure.kappa, figure.c)
        tokens = expected_tokens(figure.alpha, figure.kappa)
        assert found["step"] == pytest.approx(step)
        assert found["tokens"] == pytest.approx(tokens)
        assert found["plain"] == pytest.approx(1e3 / figure.target_ms)
        assert found["speculative"] == pytest.approx(1e3 * tokens / step)
        assert found["speedup"] == pytest.approx(tokens * figure.target_ms / step)


def test_it_begins_with_6_70_ms_and_2_53_tokens():
    words = Timeline().alternative
    assert "6.70 ms" in words and "2.53 tokens" in words and "not measured" in words


@pytest.mark.parametrize(("end", "step"), [(26.9, 5), (90, 20), (0.5, 0.1), (6, 1)])
def test_the_axis_has_round_marks(ask, end: float, step: float):
    assert ask(Timeline.parts, "m.axisStep(argument)", end) == pytest.approx(step)
