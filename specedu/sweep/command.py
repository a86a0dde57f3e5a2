"""``specedu sweep``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import report
from .gains import lines
from .grid import Grid, GridError, load, presets
from .recorder import DONE, FAILED, SKIPPED, Record, Recorder, RecordError, latest, read
from .run import Outcome, calibrated, estimate, run, to_do
from .words import RANGE, best_kappa, verdicts

RECORDS, REPORT = "records.jsonl", "report.html"
RIGHT, WRONG = 0, 1
Mistakes = (GridError, RecordError, report.ReportError)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    command.add_argument("grid", metavar="GRID",
                         help=f"a YAML file, or one of {', '.join(presets())}")  # fmt: skip
    command.add_argument("--out", type=Path, metavar="DIR",
                         help="of records and report (default: sweep-NAME)")  # fmt: skip
    command.add_argument("--dry-run", action="store_true", help="tell time, memory and cost alone")
    command.add_argument("--max-minutes", type=float, metavar="N", help="begin no cell later")
    command.add_argument("--report-only", action="store_true", help="measure nothing")
    command.add_argument("--with", dest="others", type=Path, nargs="+", default=[],
                         metavar="FILE", help="further record files for the report")  # fmt: skip
    command.add_argument("--price", type=float, metavar="P", help="of the machine, an hour")


def run_command(arguments: argparse.Namespace) -> int:
    """Run a sweep, or tell what it would take; 1 where a cell failed.

    Raises:
        GridError: the grid, or an argument, is illegal.
        RecordError: a file of records cannot be used.
        ReportError: no report can be made.
    """
    for name, value in (("--max-minutes", arguments.max_minutes), ("--price", arguments.price)):
        if value is not None and not value >= 0:
            raise GridError(f"{name}: {value}, expected at least 0")
    grid = load(arguments.grid)
    folder = arguments.out or Path(f"sweep-{grid.name}")
    console = Console(highlight=False, soft_wrap=True)
    if arguments.dry_run:
        print_estimate(console, grid, read(folder / RECORDS)[0], arguments.price)
        return RIGHT
    report.check()
    others = [record for file in arguments.others for record in _others(file)]
    if arguments.report_only:
        records, _, note = read(folder / RECORDS)
        if not records and not others:
            raise RecordError(f"{folder / RECORDS}: no records, expected those of a sweep")
        outcome = None
    else:
        records, note, outcome = measure(grid, folder, arguments.max_minutes, console)
    if note:
        console.print(f"note: {note}", markup=False)
    everything = [*others, *records]
    print_findings(console, grid, everything, outcome)
    target = folder / REPORT
    costs = {m.name: m.draft_cost for m in grid.methods.values() if m.draft_cost is not None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report.write(target, everything, f"Sweep {grid.name}", costs)
    except OSError as error:
        raise RecordError(
            f"{target}: cannot be written: {error.strerror}; the records are kept, --report-only "
            "makes it from them"
        ) from error
    console.print(f"report: {target}", markup=False)
    failed = any(r.state == FAILED for r in latest(everything).values())
    return WRONG if failed else RIGHT


def _others(file: Path) -> list[Record]:
    records, _, _ = read(file)
    if not records:
        raise RecordError(f"--with: {file}: no records, expected a file of a sweep")
    return records


def measure(
    grid: Grid, folder: Path, max_minutes: float | None, console: Console
) -> tuple[list[Record], str, Outcome]:
    """Run what is left of a grid, with a bar; return records, a note, and how it ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"--out: {folder}: {error.strerror}") from error
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with (
        Recorder(folder / RECORDS) as recorder,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        interrupts(progress.console) as asked,
    ):
        cells = to_do(grid, recorder.records)
        task = progress.add_task("sweep", total=len(cells))

        def ended(record: Record) -> None:
            progress.advance(task)
            if record.state == FAILED:
                progress.console.print(f"failed: {record.cell}: {record.reason}", markup=False)

        outcome = run(
            grid,
            recorder,
            max_seconds=None if max_minutes is None else 60 * max_minutes,
            stop=lambda: bool(asked),
            begin=lambda cell: progress.update(task, description=str(cell)),
            ended=ended,
        )
        return recorder.records, recorder.note, outcome


@contextmanager
def interrupts(console: Console) -> Iterator[list[int]]:
    """Give a list that the first interrupt fills; the second one ends the program at once."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        console.print("stopping behind this cell; interrupt again to stop at once and lose it")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def print_estimate(
    console: Console, grid: Grid, records: list[Record], price: float | None
) -> None:
    """Print what is left of a grid, in cells, time, memory and money."""
    cells = to_do(grid, records)
    console.print(f"{len(grid.cells)} cells, {len(cells)} of them left")
    for cell in cells:
        console.print(f"  {cell}", markup=False)
    found = estimate(grid, records, price, calibrated)
    origin = "; ".join(f"{name}: {how}" for name, how in found.source.items())
    minutes = found.seconds / 60
    console.print(f"time: about {minutes:.1f} minutes, an estimate ({origin or 'nothing is left'})")
    if found.memory is not None:
        of = f" of {found.machine_memory / 1e9:.0f} GB" if found.machine_memory else ""
        console.print(f"memory: about {found.memory / 1e9:.1f} GB{of}, an estimate")
        if found.machine_memory and found.memory > found.machine_memory:
            console.print("  that is more than there is: lower concurrency or tokens")
    elif any(cell.engine == "specedu" for cell in cells):
        console.print("memory: not known before the model is here")
    elif any(cell.engine == "openai" for cell in cells):
        console.print("memory: the servers' own")
    if found.cost is not None:
        console.print(f"cost: about {found.cost:.2f} at the price an hour, an estimate")


def print_findings(
    console: Console, grid: Grid, records: list[Record], outcome: Outcome | None
) -> None:
    """Print how the run ended, and the verdict."""
    if outcome is not None:
        words = (f"{outcome.done} cells measured, {outcome.failed} failed, {outcome.skipped} not "
                 f"needed, {outcome.left} left")  # fmt: skip
        console.print(words + (f": {outcome.reason}" if outcome.reason else ""))
        if outcome.left:
            console.print("run it again to go on")
    last = list(latest(records).values())
    costs = {m.name: m.draft_cost for m in grid.methods.values() if m.draft_cost is not None}
    found = lines(last, costs)
    for words in (*verdicts(found), *best_kappa(found), *([RANGE] if found else [])):
        console.print(words, markup=False)
    for state in (FAILED, SKIPPED):
        of = [record for record in last if record.state == state]
        if of:
            console.print(f"{state}: {len(of)} cells, listed in the report")
    if not any(record.state == DONE for record in last):
        console.print("nothing was measured")
