"""What follows from records: speed-ups, the crossing between two concurrencies, the prediction."""

from __future__ import annotations

import math

import pytest
import sweeping

from specedu.sweep.gains import ALL, crossing, fitted, lines, predict, step_at
from specedu.sweep.recorder import DONE, FAILED, Record
from specedu.sweep.samples import Acceptance, pooled
from specedu.sweep.words import crossing_words, verdicts


def records(gains: dict[int, float], kinds: str = "[copy]") -> list[Record]:
    found = sweeping.grid(str(sorted(gains)), kinds=kinds)
    fake = sweeping.FakeBackend(None, None, gains)
    return [Record(cell, DONE, "", tuple(fake.run(cell))) for cell in found.cells]


def test_a_crossing_lies_between_the_two_concurrencies_around_it() -> None:
    [line] = lines(records({1: 2.0, 2: 1.5, 4: 0.5}))
    assert [p.gain.middle for p in line.points] == pytest.approx([2.0, 1.5, 0.5], rel=0.02)
    at = crossing(line)  # half way in the logarithm of B
    assert at.at == pytest.approx(2 * 2**0.5, rel=0.02) and at.low < at.at < at.high < 4
    assert "It crosses 1 at 2.8 requests at once" in crossing_words(line)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ({1: 2.0, 2: 1.5}, "No crossing: it still gains at 2 requests, the most that was measured"),
        ({1: 0.9, 2: 0.5}, "No crossing to tell: it is below 1 already at 1 request."),
        ({4: 2.0}, "No crossing: only 4 requests was measured."),
    ],
)
def test_where_there_is_no_crossing_the_reason_is_told(gains: dict, words: str) -> None:
    assert words in verdicts(lines(records(gains)))[0]


def test_a_crossing_that_only_some_draws_have_ends_beyond_the_last() -> None:
    found = records({1: 2.0, 2: 1.0})  # repeats differ by 1 %: some lie below 1, some above
    at = crossing(lines(found)[0])
    assert at.at is None or at.high == math.inf


def test_kinds_are_also_told_of_together() -> None:
    found = lines(records({1: 2.0, 2: 0.5}, "[copy, story]"))
    assert [line.kind for line in found] == ["copy", "story", ALL]
    assert found[2].points[0].acceptance.verifies == 400  # two kinds, two repeats
    assert verdicts(found)[0].split(": ")[0].endswith(ALL)


def test_a_cell_without_its_plain_cell_has_no_speed_up() -> None:
    found = records({1: 2.0, 2: 0.5})
    kept = [r for r in found if not (r.cell.plain and r.cell.concurrency == 2)]
    assert [p.batch for p in lines(kept)[0].points] == [1]
    failed = [Record(r.cell, FAILED, "x") if r.cell.plain else r for r in found]
    assert lines(failed) == []


def test_the_prediction_uses_the_parts_where_there_are_any() -> None:
    [line] = lines(records({1: 2.0}))
    # E of alpha 3/7 with three drafts over 1.0 + 0.1 + 0.2 of a plain step
    alpha = 0.75 / 1.75
    expected = (1 + alpha + alpha**2 + alpha**3) / 1.3
    assert line.points[0].predicted.gain == pytest.approx(expected)


def test_without_parts_a_verify_is_read_off_plain_steps() -> None:
    accepted = Acceptance(1.75, 3, (0.5, 0.25, 0.0), 10)
    steps = {1: 10.0, 2: 11.0, 4: 13.0}
    ngram = predict("a", {"method": "ngram"}, 1, 3, accepted, {}, steps, {})
    e = sum((0.75 / 1.75) ** i for i in range(4))
    assert ngram.gain == pytest.approx(e * 10 / 13) and "of as many positions" in ngram.how
    beyond = predict("a", {"method": "ngram"}, 4, 3, accepted, {}, steps, {})
    assert beyond.gain == pytest.approx(e * 13 / 25) and "the line through" in beyond.how
    priced = predict("a", {"method": "draft_model"}, 1, 3, accepted, {}, steps, {"a": 0.1})
    assert priced.gain == pytest.approx(e * 10 / (13 + 3))


@pytest.mark.parametrize(
    ("accepted", "steps", "costs", "why"),
    [
        (None, {1: 1.0}, {"a": 0.1}, "acceptance is not known"),
        (Acceptance(1.0, 0), {1: 1.0}, {"a": 0.1}, "no draft was made"),
        (Acceptance(1.5, 3), {2: 1.0}, {"a": 0.1}, "a plain step's time is not known"),
        (Acceptance(1.5, 3), {1: 1.0, 4: 2.0}, {}, "give draft_cost in the grid"),
        (Acceptance(1.5, 3), {1: 1.0}, {"a": 0.1}, "plain steps at one concurrency alone"),
    ],
)
def test_a_prediction_that_cannot_be_made_says_why(accepted, steps, costs, why: str) -> None:
    found = predict("a", {"method": "draft_model"}, 1, 3, accepted, {}, steps, costs)
    assert found.gain is None and why in found.how


def test_a_verify_costs_no_less_than_the_largest_plain_step() -> None:
    assert step_at(64, {1: 10.0, 2: 9.0})[0] == 9.0


def test_acceptance_is_pooled_by_verifies() -> None:
    both = pooled([Acceptance(2.0, 2, (1.0, 0.0), 30), Acceptance(1.0, 2, (0.0,), 10)])
    assert both == Acceptance(1.75, 2, (0.75, 0.0), 40)
    assert pooled([Acceptance(2.0, 2, (1.0,), 30), Acceptance(1.0, 2)]) == Acceptance(1.5, 2)
    assert pooled([]) is None


def test_alpha_comes_from_the_length_where_there_are_no_rates() -> None:
    assert fitted(Acceptance(2.533, 3)) == pytest.approx(0.7)
    assert fitted(Acceptance(1.0, 0.0)) is None
