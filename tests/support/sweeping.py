"""A grid and a backend for tests of sweeps: as fast as one likes, and with any speed-up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specedu.sweep.backends import BackendError
from specedu.sweep.grid import Backend, Cell, Grid, parse
from specedu.sweep.recorder import Recorder
from specedu.sweep.run import run
from specedu.sweep.samples import Acceptance, Sample

GRID = """
name: test
tokens: 8
prompts: 2
crossing: {crossing}
backends: {{fake: {{kind: specedu, model: toy}}}}
methods: {{n-gram: {{method: ngram}}}}
sweeps:
  - {{kappa: [3], kind: {kinds}, concurrency: {concurrency}}}
"""


def grid(concurrency: str = "[1, 2, 4, 8]", crossing: str = "false", kinds: str = "[copy]") -> Grid:
    return parse(GRID.format(concurrency=concurrency, crossing=crossing, kinds=kinds))


class FakeBackend:
    """Gives the speed-up that is asked for, by concurrency.

    Args:
        backend: not looked at.
        grid: not looked at.
        gains: speed-ups by concurrency; 1 / B where one is missing, twice that at first.
        seconds: that a cell takes.
        failing: concurrencies that fail.
    """

    def __init__(
        self,
        backend: Backend,
        grid: Grid,
        gains: Mapping[int, float] | None = None,
        seconds: float = 0.0,
        failing: tuple[int, ...] = (),
    ) -> None:
        self.gains, self.seconds, self.failing = gains or {}, seconds, failing
        self.ran: list[Cell] = []

    def open(self, cell: Cell) -> None:
        if cell.concurrency in self.failing and not cell.plain:
            raise BackendError("the fake fails here")

    def run(self, cell: Cell) -> list[Sample]:
        time.sleep(self.seconds)
        self.ran.append(cell)
        gain = 1.0 if cell.plain else self.gains.get(cell.concurrency, 3 / cell.concurrency)
        parts = {"draft": 0.1, "forward": 1.0, "verify": 0.1, "host": 0.1}
        accepted = None if cell.plain else Acceptance(1.75, 3, (0.5, 0.25, 0.0), 100)
        return [
            Sample(10 * gain * (1 + 0.01 * i), 8, 1.0, 0.1, 1.0, parts, accepted)
            for i in range(cell.repeats)
        ]

    def describe(self, cell: Cell) -> dict[str, Any]:
        return {"device": {"device": "none"}, "versions": {"fake": "1"}, "model_hash": "0"}

    def close(self) -> None:
        pass


def main() -> None:
    """Run the slow grid into a file until somebody ends this process."""
    with Recorder(Path(sys.argv[1])) as recorder:
        print("locked", flush=True)
        run(grid(), recorder, make_backend=lambda b, g: FakeBackend(b, g, seconds=0.15),
            ended=lambda record: os.write(1, b"cell\n"))  # fmt: skip


if __name__ == "__main__":
    main()
