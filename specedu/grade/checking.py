"""Checking an exercise: its properties one by one, in a process that may be stopped.

``python -m specedu.grade.checking NAME FILE REPORT`` is that process: it writes one line of JSON a
property to REPORT, as it goes. What the reader's file prints goes to the terminal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .broken import Unloadable, broken_source, load_rule
from .exercises import Exercise, find
from .properties import PropertyResult, properties
from .recognise import recognise

SECONDS = 60  # for a whole check; the interpreter needs about ten


@dataclass
class Report:
    """What a check found.

    Attributes:
        results: one a property, in their order; those that were not reached are missing.
        mistake: the recognised mistake in words, or empty.
        error: why the file could not be checked to its end, or empty.
        running: the property that was being checked last.
    """

    results: list[PropertyResult] = field(default_factory=list)
    mistake: str = ""
    error: str = ""
    running: str = ""

    @property
    def passed(self) -> bool:
        """Whether every property holds."""
        return not self.error and all(result.passed for result in self.results)

    def score(self, exercise: Exercise) -> int:
        """Return the points: the share of what was broken and now holds.

        No points while something fails that held in the file as it was handed out, or where the
        check did not come to its end.

        Example:
            >>> from specedu.grade.exercises import find
            >>> Report([PropertyResult("two ids", True)]).score(find("fair-coin"))
            10
        """
        failed = {result.name for result in self.results if not result.passed}
        if self.error or failed - set(exercise.fails):
            return 0
        if not exercise.fails:
            return exercise.points
        return exercise.points * (len(exercise.fails) - len(failed)) // len(exercise.fails)


def check_rule(
    exercise: Exercise,
    source: str,
    on_event: Callable[[dict], None] = lambda event: None,
    *,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    explain: bool = True,
) -> Report:
    """Check a file's text in this process.

    Args:
        exercise: which.
        source: the text.
        on_event: is told each property before and after it is checked, and the mistake.
        names: check only these properties.
        seed: draws other cases; None: the built-in ones.
        explain: look for a known mistake if something fails.
    """
    report = Report()
    where = exercise.source, exercise.function, exercise.backend
    try:
        rule = load_rule(source, *where)
    except Unloadable as error:
        report.error = str(error)
        on_event({"error": report.error})
        return report
    for each in properties(exercise.function, seed, quick=exercise.backend == "triton"):
        if names is None or each.name in names:
            on_event({"running": each.name})
            report.results.append(each.check(rule))
            on_event({"result": vars(report.results[-1])})
    if explain and not report.passed:
        on_event({"running": "known mistakes"})
        handed_out = load_rule(broken_source(exercise), *where) if exercise.fault else None
        report.mistake = recognise(rule, exercise.function, handed_out)
        on_event({"mistake": report.mistake})
    return report


def check_file(
    exercise: Exercise,
    file: Path,
    seconds: float = SECONDS,
    on_event: Callable[[dict], None] = lambda event: None,
) -> Report:
    """Check a file in a process of its own, which is stopped after ``seconds``."""
    report = Report()

    def take(event: dict) -> None:
        report.running = event.get("running", report.running)
        report.mistake = event.get("mistake", report.mistake)
        report.error = event.get("error", report.error)
        if "result" in event:
            report.results.append(PropertyResult(**event["result"]))
        on_event(event)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.jsonl")
        path.touch()
        environment = dict(os.environ)
        if exercise.backend == "triton":
            environment["TRITON_INTERPRET"] = "1"  # also where there is a GPU: tensors are on CPU
        command = [sys.executable, "-m", "specedu.grade.checking", exercise.name, str(file)]
        end = time.monotonic() + seconds
        with (
            path.open(encoding="utf-8") as lines,
            subprocess.Popen([*command, str(path)], env=environment) as child,
        ):
            try:
                while True:
                    status = child.poll()  # before reading: what it wrote last is read too
                    for line in lines:
                        take(json.loads(line))
                    if status is not None:
                        break
                    if time.monotonic() > end:
                        what = f"checking '{report.running}'" if report.running else "importing it"
                        take({"error": f"stopped after {seconds:g} seconds, while {what}: "
                              "is there a loop that never ends?"})  # fmt: skip
                        return report
                    time.sleep(0.05)
            finally:
                child.kill()
        if status != 0 and not report.error:
            take({"error": f"the process ended with status {status}, while checking "
                  f"'{report.running}'"})  # fmt: skip
    return report


def main(argv: Sequence[str]) -> int:
    """Check one file and write each event to the report as a line."""
    name, file, report = argv
    with open(report, "w", encoding="utf-8") as lines:

        def write(event: dict) -> None:
            lines.write(json.dumps(event) + "\n")
            lines.flush()

        check_rule(find(name), Path(file).read_text(encoding="utf-8"), write)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
