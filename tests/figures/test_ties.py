"""The ties in the browser are those of the Python figure, and its words follow the definition."""

from __future__ import annotations

import itertools

import pytest

from specedu.figures import Ties
from specedu.figures.ties import DIRECTIONS

STATES = [
    {"gap": gap, "change": change, "direction": direction, "draft": draft, "highest": highest}
    for gap, change, direction, draft, highest in itertools.product(
        [0, 1, 3, 4, 12], [0, 1, 2, 8], DIRECTIONS, ["1", "2"], [False, True]
    )
]


def test_the_browser_comes_to_the_outcomes_of_python(ask):
    found = ask(Ties.parts, "argument.map(m.outcome)", STATES)
    assert found == [Ties(**state).outcome() for state in STATES]


def test_only_a_near_tie_or_another_tie_break_makes_the_runs_differ():
    for state in STATES:
        found = Ties(**state).outcome()
        differs = found["chosen"] != found["emitted"]
        assert not differs or found["near"] or (state["gap"] == 0 and state["highest"])


def test_the_bound_is_the_least_that_covers_every_flip():
    """At a gap of twice the change the worst case is a tie, which the lowest id wins."""
    assert Ties(gap=4, change=2).outcome()["kind"] == "same"
    assert Ties(gap=3, change=2).outcome()["kind"] == "near-tie"


@pytest.mark.parametrize("draft", ["0", "1", "2", "3"])
def test_a_draft_never_decides_what_is_emitted(draft):
    for state in STATES:
        found = Ties(**{**state, "draft": draft}).outcome()
        assert found["emitted"] == Ties(**state).outcome()["emitted"]
        assert found["accepted"] == (int(draft) == found["emitted"])


def test_the_alternative_tells_the_verdict_and_the_kind():
    words = Ties(gap=0, change=0, draft="2").alternative
    assert "draft 2 is refused" in words and "emits id 1" in words and "no near-tie" in words
