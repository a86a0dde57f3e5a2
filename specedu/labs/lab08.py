"""Checks of Lab 08: the acceptance sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from specedu.sweep.grid import GridError, load, parse
from specedu.sweep.recorder import Record
from specedu.sweep.samples import pooled
from specedu.theory.rates import fitted_alpha

from . import report

ALMOST = 1e-9
PRESET = "cpu-5min"
Records = Sequence[Mapping[str, Any]]


def check_guess(guess: object) -> None:
    """Check that a number of requests was guessed."""
    number = isinstance(guess, int | float) and not isinstance(guess, bool)
    report([("the guess is a number of at least 0", number and guess >= 0, repr(guess))])


def check_cells(cells: object, plain: object) -> None:
    """Check the numbers of cells of the preset."""
    own = load(PRESET).cells
    report(
        [
            ("so many decode plainly", plain == sum(c.plain for c in own), repr(plain)),
            ("so many cells in all", cells == len(own), repr(cells)),
        ]
    )


def check_grid(text: str) -> None:
    """Check that a grid has two concurrencies, each with a plain cell, and nothing else."""
    try:
        cells, words = parse(text).cells, ""
    except GridError as error:
        cells, words = (), str(error)
    found = sorted((c.concurrency, c.method, c.kappa, c.kind) for c in cells)
    drafting = [cell for cell in cells if not cell.plain]
    batches = [cell.concurrency for cell in drafting]
    report(
        [
            ("it can be read", bool(cells), words),
            ("drafts at 1 and at 4 requests at once", sorted(batches) == [1, 4], f"{batches}"),
            ("three drafts a step", {c.kappa for c in drafting} == {3}, f"{found}"),
            ("the kind is copy", {c.kind for c in cells} == {"copy"}, f"{found}"),
            ("four cells, two of them plain", len(cells) == 4, f"{found}"),
        ]
    )


def check_acceptance(
    acceptance: Callable[[list[dict]], tuple[list[float], float, float]], records: Records
) -> None:
    """Check pooled rates, E and alpha on a case, and on the record's own cells."""
    case = [
        {"acceptance": {"tokens": 2.5, "kappa": 2, "rates": [0.75, 0.75], "verifies": 12}},
        {"acceptance": {"tokens": 1.25, "kappa": 2, "rates": [0.25, 0.0], "verifies": 4}},
    ]
    rates, tokens, alpha = acceptance(case)
    rows = [
        ("12 and 4 verifies: the rates", close(rates, [0.625, 0.5625]), f"{rates}"),
        ("E is one more than their sum", close([tokens], [2.1875]), f"{tokens}"),
        ("alpha is accepted over tested drafts", close([alpha], [1.1875 / 1.625]), f"{alpha}"),
    ]
    for record in records:
        samples = record["samples"]
        kept = [s.acceptance for s in Record.of(json.dumps(record)).samples if s.acceptance]
        own = pooled(kept)
        if own is None:
            continue
        rates, tokens, alpha = acceptance(samples)
        same = close([*rates, tokens, alpha], [*own.rates, own.tokens, fitted_alpha(own.rates)])
        words = f"B = {record['cell']['concurrency']}: what the report has"
        rows.append((words, same, f"{rates}, {tokens}, {alpha}"))
    report(rows)


def check_speedups(speedups: Callable[[Records], dict[int, float]], records: Records) -> None:
    """Check the speed-up of a case and of the record."""

    def cell(method: str, concurrency: int, *rates: float) -> dict[str, Any]:
        return {"cell": {"method": method, "concurrency": concurrency, "kappa": 3},
                "samples": [{"rate": rate} for rate in rates]}  # fmt: skip

    case = [cell("plain", 1, 10.0, 30.0), cell("n-gram", 1, 30.0, 30.0),
            cell("plain", 4, 80.0), cell("n-gram", 4, 60.0, 60.0)]  # fmt: skip
    found = speedups(case)
    rows = [("a made-up record", found == {1: 1.5, 4: 0.75}, f"{found}, expected 1.5 and 0.75")]
    means = {
        (r["cell"]["concurrency"], r["cell"]["method"] == "plain"): fmean(
            sample["rate"] for sample in r["samples"]
        )
        for r in records
    }
    own = speedups(records)
    for batch in sorted({batch for batch, _ in means}):
        expected = means[batch, False] / means[batch, True]
        same = close([own.get(batch, math.nan)], [expected])
        rows.append((f"this sweep, B = {batch}", same, f"{own.get(batch)}, expected {expected}"))
    report(rows)


def check_crossing(crossing: Callable[[dict[int, float]], tuple[float | None, str]]) -> None:
    """Check the crossing of made-up lines, and where there is none."""
    rows = []
    for words, gains, at, why in (
        ("half-way in the logarithm", {1: 1.5, 16: 0.5}, 4.0, "crosses"),
        ("between the last two", {1: 1.75, 4: 1.25, 16: 0.75}, 8.0, "crosses"),
        ("a quarter of the way", {16: 0.25, 1: 1.25}, 2.0, "crosses"),
        ("it still gains at the end", {1: 2.0, 16: 1.125}, None, "gains"),
        ("it loses from the start", {1: 0.875, 16: 0.5}, None, "loses"),
    ):
        found = crossing(gains)
        place, reason = found if isinstance(found, tuple) else (found, None)
        same = place is None if at is None else place is not None and close([place], [at])
        rows.append((words, same and reason == why, f"{found}, expected {(at, why)}"))
    report(rows)


def close(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether two lists hold the same numbers."""
    return len(found) == len(expected) and all(
        abs(a - b) < ALMOST for a, b in zip(found, expected, strict=True)
    )
