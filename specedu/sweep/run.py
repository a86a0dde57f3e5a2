"""Lead through a grid cell by cell: go on where a run ended, stop when told, lose one at most."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .backends import Runs, make, memory_bytes
from .gains import gain_of
from .grid import Cell, Grid
from .recorder import DONE, FAILED, SKIPPED, Record, Recorder, latest, now


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        done: cells measured in this run.
        failed: cells that failed in it.
        skipped: cells that crossing made unnecessary.
        left: cells that were not begun.
        reason: why it stopped early; empty where it did not.
    """

    done: int
    failed: int
    skipped: int
    left: int
    reason: str = ""


def to_do(grid: Grid, records: Iterable[Record]) -> list[Cell]:
    """Return the cells that are neither measured nor unnecessary; failed ones are tried again."""
    found = latest(records)
    finished = {DONE, SKIPPED} if grid.crossing else {DONE}
    return [c for c in grid.cells if c.key not in found or found[c.key].state not in finished]


def run(
    grid: Grid,
    recorder: Recorder,
    *,
    make_backend: Callable[..., Runs] = make,
    max_seconds: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    begin: Callable[[Cell], None] = lambda cell: None,
    ended: Callable[[Record], None] = lambda record: None,
) -> Outcome:
    """Measure what is left of a grid, each cell once.

    Args:
        grid: what to measure.
        recorder: keeps every cell as it comes.
        make_backend: gives what serves a backend of the grid.
        max_seconds: no cell begins later.
        stop: asked before each cell.
        begin: told of each cell that begins.
        ended: told of each record.

    Raises:
        RecordError: a record cannot be kept.
    """
    began = time.monotonic()
    cells = to_do(grid, recorder.records)
    backends: dict[str, Runs] = {}
    counts = {DONE: 0, FAILED: 0, SKIPPED: 0}
    reason = ""
    try:
        for cell in cells:
            if stop():
                reason = "interrupted"
                break
            if max_seconds is not None and time.monotonic() - began >= max_seconds:
                reason = f"the limit of {max_seconds / 60:g} minutes is reached"
                break
            begin(cell)
            unneeded = unnecessary(cell, grid, recorder.records) if grid.crossing else None
            if unneeded:
                record = Record(cell, SKIPPED, unneeded, date=now())
            else:
                record = measure(cell, grid, backends, make_backend)
            recorder.append(record)
            counts[record.state] += 1
            ended(record)
    finally:
        for backend in backends.values():
            backend.close()
    left = len(cells) - sum(counts.values())
    return Outcome(counts[DONE], counts[FAILED], counts[SKIPPED], left, reason)


def measure(
    cell: Cell, grid: Grid, backends: dict[str, Runs], make_backend: Callable[..., Runs]
) -> Record:
    """Return one cell's record, a failed one with the reason; opened backends stay open."""
    start = time.monotonic()
    try:
        if cell.backend not in backends:
            backends[cell.backend] = make_backend(grid.backends[cell.backend], grid)
        backend = backends[cell.backend]
        backend.open(cell)
        samples = backend.run(cell)
        about = backend.describe(cell)
    except Exception as error:  # whatever it is, the other cells are still worth measuring
        words = str(error) if type(error).__name__ == "BackendError" else f"{error!r}"
        return Record(cell, FAILED, words, date=now(), seconds=time.monotonic() - start)
    return Record(cell, DONE, "", tuple(samples), **about, date=now(),
                  seconds=time.monotonic() - start)  # fmt: skip


def unnecessary(cell: Cell, grid: Grid, records: Sequence[Record]) -> str | None:
    """Return why a cell need not run, its method having lost at fewer requests; None if it must.

    A method has lost where the whole range of its speed-up is below 1. Plain decoding is not needed
    where every method has.
    """
    if cell.plain:
        others = [c for c in grid.cells if c.group == cell.group and not c.plain]
        reasons = [unnecessary(other, grid, records) for other in others]
        return "every method has crossed" if others and all(reasons) else None
    done = [record for record in latest(records).values() if record.state == DONE]
    plains = {record.cell.group: record for record in done if record.cell.plain}
    lost = [
        record.cell.concurrency
        for record in done
        if record.cell.line == cell.line
        and record.cell.concurrency < cell.concurrency
        and record.cell.group in plains
        and gain_of(record, plains[record.cell.group]).high < 1
    ]
    return f"crossed at B = {min(lost)}" if lost else None


# --- beforehand -----------------------------------------------------------------------------------

STORED = {  # seconds of a step, and of each of its positions, where nothing was timed
    "specedu": (0.030, 0.004),  # SmolLM2-135M in float32 on two cores
    "transformers": (0.045, 0.004),  # the same
    "openai": (0.012, 0.00005),  # assumed for 8 billion parameters in bfloat16 on an H100: twice
    # the 16 GB over 3.35 TB/s, and three times 2 x 8e9 operations over 989 TFLOP/s
}
PROMPT = 150  # tokens of the project's prompts, about the mean
LENGTH = 1.6  # tokens of a speculative step, low rather than high
OPENING = 4.0  # seconds until an engine with a new draft is ready
STARTING = 90.0  # until a server with 8 billion parameters is, where the sweep starts it; a guess


@dataclass(frozen=True)
class Estimate:
    """What a run will take, roughly.

    Attributes:
        seconds: of the whole.
        source: from what, by backend.
        memory: bytes of this engine's weights and caches; None where none is or it is not known.
        machine_memory: bytes of this machine; 0 where it is not known.
        cost: at the price an hour; None without one.
    """

    seconds: float
    source: Mapping[str, str]
    memory: int | None
    machine_memory: int
    cost: float | None


def estimate(
    grid: Grid,
    records: Sequence[Record],
    price_per_hour: float | None = None,
    calibrate: Callable[[Cell], tuple[float, float] | None] = lambda cell: None,
) -> Estimate:
    """Return what is left of a grid in seconds, bytes and money.

    Args:
        grid: what to measure.
        records: what was measured already; its times are used where there are any.
        price_per_hour: of the machine; None takes the grid's.
        calibrate: gives seconds of a step and of a position, or None where it cannot.
    """
    cells = to_do(grid, records)
    done = [record for record in latest(records).values() if record.state == DONE]
    seconds, source = 0.0, {}
    for name in dict.fromkeys(cell.backend for cell in cells):
        of = [cell for cell in cells if cell.backend == name]
        times = [record for record in done if record.cell.backend == name]
        timed = None if times else calibrate(of[0])
        a, b = timed or STORED[of[0].engine]
        total = sum(cell_seconds(cell, a, b) for cell in of)
        engines = len({(cell.model, cell.settings, cell.kappa) for cell in of})
        if times:
            expected = sum(cell_seconds(record.cell, a, b) for record in times)
            total *= sum(record.seconds for record in times) / expected
            source[name] = f"scaled by {len(times)} recorded cells"
        else:
            started = grid.backends[name].one_at_a_time
            total += (STARTING if started else OPENING) * engines
            source[name] = (
                "a short timing just now" if timed else "stored rates, not of this machine"
            )
        seconds += total
    price = grid.price_per_hour if price_per_hour is None else price_per_hour
    cost = None if price is None else price * seconds / 3600
    ours = [cell for cell in cells if cell.engine == "specedu"]
    memory = None
    if ours:
        from .engine_backend import estimate_memory

        memory = estimate_memory(ours)
    return Estimate(seconds, source, memory, memory_bytes(), cost)


def cell_seconds(cell: Cell, a: float, b: float) -> float:
    """Return what a cell takes where a step of T positions takes ``a + b T``."""
    groups = cell.requests / cell.concurrency
    step = a + b * cell.concurrency * (cell.kappa + 1)
    drafts = not cell.plain and json.loads(cell.settings).get("method") not in ("ngram", "suffix")
    if drafts:
        step += 0.6 * cell.kappa * (a + b * cell.concurrency)  # a draft in four bits
    steps = cell.tokens / (1 if cell.plain else LENGTH)
    prompts = b * PROMPT * cell.requests  # once: repeats find them in the prefix cache
    return cell.repeats * groups * steps * step + prompts + 3 * step


def calibrated(cell: Cell) -> tuple[float, float] | None:
    """Return a step's and a position's seconds, timed on this engine; None for other backends.

    A model that is not on this machine is not fetched for it.
    """
    from specedu.advise.pair import pass_seconds
    from specedu.llm import LLM

    from .engine_backend import is_here

    if cell.engine != "specedu" or not is_here(cell.model):
        return None
    llm = LLM(cell.model, dtype=cell.dtype)
    one, many = (min(pass_seconds(llm, batch, 2, 2)) for batch in (1, 8))
    b = max(0.0, (many - one) / 14)
    return max(one - 2 * b, 1e-4), b
