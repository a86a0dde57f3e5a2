"""A run goes on where it ended, whatever ended it, and measures no cell twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sweeping
from sweeping import FakeBackend

from specedu.sweep.recorder import DONE, FAILED, SKIPPED, Recorder, latest, read
from specedu.sweep.run import cell_seconds, estimate, run, to_do


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


def go(file: Path, found=None, settings: dict | None = None, **options):
    """Run a grid with the fake, and return (outcome, cells that ran, records)."""
    made: list[FakeBackend] = []

    def make(backend, grid):
        made.append(FakeBackend(backend, grid, **(settings or {})))
        return made[-1]

    with Recorder(file) as recorder:
        outcome = run(found or sweeping.grid(), recorder, make_backend=make, **options)
        return outcome, [cell for one in made for cell in one.ran], list(recorder.records)


def test_a_killed_run_loses_one_cell_at_most(file: Path) -> None:
    script = Path(sweeping.__file__)
    process = subprocess.Popen([sys.executable, script, file], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parents[2])  # fmt: skip
    lines = [process.stdout.readline() for _ in range(4)]
    process.kill()
    process.wait()
    process.stdout.close()
    assert lines == ["locked\n", "cell\n", "cell\n", "cell\n"]
    kept = [record.cell for record in read(file)[0]]
    cells = sweeping.grid().cells
    assert len(kept) >= 3 and kept == list(cells[: len(kept)])
    outcome, ran, records = go(file)  # the lock went with the process
    assert ran == list(cells[len(kept) :]) and outcome.done == len(ran) and outcome.left == 0
    assert {record.cell for record in records} == set(cells)


def test_a_finished_run_has_nothing_to_do(file: Path) -> None:
    go(file)
    outcome, ran, records = go(file)
    assert not ran and outcome.done == 0 and len(records) == len(sweeping.grid().cells)


def test_a_failed_cell_is_recorded_and_tried_once_a_run(file: Path) -> None:
    outcome, _, records = go(file, settings={"failing": (2,)})
    assert (outcome.failed, outcome.left) == (1, 0)
    [failed] = [record for record in records if record.state == FAILED]
    assert failed.reason == "the fake fails here" and failed.cell.concurrency == 2
    outcome, ran, records = go(file, settings={"failing": (2,)})
    assert (outcome.failed, ran, len(records)) == (1, [], 9)
    outcome, ran, records = go(file)
    assert [cell.concurrency for cell in ran] == [2]
    assert {r.state for r in latest(records).values()} == {DONE}


def test_an_unexpected_error_is_one_cells_failure(file: Path, monkeypatch) -> None:
    monkeypatch.setattr(FakeBackend, "describe", lambda self, cell: 1 / 0)
    outcome, _, records = go(file)
    assert outcome.failed == len(records) and "ZeroDivisionError" in records[0].reason


def test_concurrency_is_not_raised_above_a_crossing(file: Path) -> None:
    found = sweeping.grid("[1, 2, 4, 8, 16]", crossing="true")
    outcome, ran, records = go(file, found)  # 3 / B: 0.75 at 4
    assert max(cell.concurrency for cell in ran if not cell.plain) == 4
    assert max(cell.concurrency for cell in ran) == 4
    skipped = [record for record in records if record.state == SKIPPED]
    assert outcome.skipped == len(skipped) == 4
    reasons = {record.cell.plain: record.reason for record in skipped}
    assert reasons == {False: "crossed at B = 4", True: "every method has crossed"}
    assert not to_do(found, records)
    assert len(to_do(sweeping.grid("[1, 2, 4, 8, 16]"), records)) == 4  # without crossing they run


def test_without_crossing_every_cell_runs(file: Path) -> None:
    _, ran, _ = go(file, sweeping.grid("[1, 2, 4, 8, 16]"))
    assert len(ran) == 10


def test_a_run_stops_between_cells_when_told(file: Path) -> None:
    asked: list[int] = []
    outcome, ran, _ = go(file, ended=lambda record: asked.append(1), stop=lambda: len(asked) >= 3)
    assert (outcome.reason, outcome.left, len(ran)) == ("interrupted", 5, 3)


def test_no_cell_begins_behind_the_limit(file: Path) -> None:
    outcome, ran, _ = go(file, max_seconds=0.0)
    assert not ran and outcome.left == 8 and "0 minutes is reached" in outcome.reason


def test_an_interrupt_inside_a_cell_closes_the_backends(file: Path, monkeypatch) -> None:
    closed: list[int] = []

    def interrupted(self, cell):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeBackend, "run", interrupted)
    monkeypatch.setattr(FakeBackend, "close", lambda self: closed.append(1))
    with pytest.raises(KeyboardInterrupt):
        go(file)
    assert closed == [1] and read(file)[0] == []
    monkeypatch.undo()
    assert go(file)[0].done == 8


def test_an_estimate_says_what_it_is_made_of(file: Path) -> None:
    found = sweeping.grid()
    stored = estimate(found, [], price_per_hour=3.6)
    assert stored.source["fake"].startswith("stored rates")
    assert stored.cost == pytest.approx(stored.seconds / 1000)
    timed = estimate(found, [], calibrate=lambda cell: (1.0, 0.0))
    assert timed.source["fake"] == "a short timing just now" and timed.seconds > stored.seconds
    assert timed.cost is None
    *_, records = go(file, settings={"seconds": 0.02}, max_seconds=0.05)
    half = estimate(found, records)
    assert half.source["fake"] == f"scaled by {len(records)} recorded cells"
    assert 0 < half.seconds < stored.seconds


def test_more_requests_and_more_drafts_take_longer() -> None:
    cells = sweeping.grid().cells
    plain = [cell_seconds(cell, 0.01, 0.01) for cell in cells if cell.plain]
    assert plain[-1] > plain[1]
