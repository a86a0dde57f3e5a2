"""Measure the time of grading a course's worth of submissions, killed in the middle and whole.

python benchmarks/grading.py               100 submissions: right, broken, rewritten, hanging
python benchmarks/grading.py --count 6     a few, to see that it runs

``specedu grade`` runs three times: killed with SIGKILL when half of the results are written, again
over what that left, and from the start into another folder. The scores of both folders must be the
same, and those that each submission deserves.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe_run, print_run, record

from specedu.grade.broken import broken_source, unbroken_source
from specedu.grade.exercises import EXERCISES
from specedu.grade.grader import RESULTS

ROOT = Path(__file__).resolve().parents[1]
GOAL_SECONDS = 600  # of 100 submissions on two cores: a lecturer's coffee
HANGING = "def {function}(*arguments, **options):\n    while True:\n        pass\n"


def main() -> None:
    """Write submissions, grade them, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="submissions (default: 100)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args()
    machine = describe_run()
    print_run(machine)
    with tempfile.TemporaryDirectory() as folder:
        course, halved, whole = (Path(folder, name) for name in ("course", "halved", "whole"))
        kinds = write(course, arguments.count)
        started = time.perf_counter()
        kept = killed(command(course, halved, arguments), halved / RESULTS, arguments.count // 2)
        cut = time.perf_counter()
        subprocess.run(command(course, halved, arguments), check=True, stdout=subprocess.DEVNULL)
        resumed = time.perf_counter()
        subprocess.run(command(course, whole, arguments), check=True, stdout=subprocess.DEVNULL)
        ended = time.perf_counter()
        first, second = scores(halved), scores(whole)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = {"until the kill": cut - started, "resumed": resumed - cut, "whole": ended - resumed}
    told = ", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items())
    print(f"{arguments.count} submissions, {arguments.jobs} jobs: {told}; "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU in all")  # fmt: skip
    print(f"goal for 100 submissions on two cores: {GOAL_SECONDS} s")
    print(f"killed with {kept} results written; the same scores in both folders: {first == second}")
    wrong = [line for line in second if not deserved(line, kinds)]
    for line in wrong:
        print(f"  UNEXPECTED: {line} of a {kinds[line['student']]} submission")
    print(f"{len(second) - len(wrong)} of {len(second)} scores as deserved")
    if arguments.record is not None:
        settings = {"count": arguments.count, "jobs": arguments.jobs, "seed": arguments.seed}
        outcome = {"seconds": seconds, "results_at_the_kill": kept, "same": first == second,
                   "scores": len(second), "unexpected": len(wrong)}  # fmt: skip
        record(arguments.record, {**machine, "settings": settings, **outcome})
    raise SystemExit(1 if wrong or first != second or len(second) != arguments.count else 0)


def command(course: Path, out: Path, arguments: argparse.Namespace) -> list[str]:
    program = Path(sys.executable).with_name("specedu")
    return [str(program), "grade", str(course), "--out", str(out),
            "--seed", str(arguments.seed), "--jobs", str(arguments.jobs)]  # fmt: skip


def killed(words: list[str], results: Path, lines: int) -> int:
    """Run until so many results are written, kill it with what it started, and return how many."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and written(results) < lines:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return written(results)


def written(results: Path) -> int:
    return results.read_bytes().count(b"\n") if results.exists() else 0


def scores(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        return [{name: line[name] for name in ("student", "exercise", "points", "of")}
                for line in csv.DictReader(file)]  # fmt: skip


def deserved(line: dict[str, str], kinds: dict[str, str]) -> bool:
    """Return whether a score is all or nothing, as the submission's kind deserves."""
    kind = kinds[line["student"]]
    everything = line["points"] == line["of"]
    if kind == "broken" and everything:  # a trick exercise is handed out right
        return not next(e for e in EXERCISES if e.name == line["exercise"]).planted
    return everything if kind in ("right", "rewritten") else line["points"] == "0"


def write(course: Path, count: int) -> dict[str, str]:
    """Write submissions of every exercise in turn and return each student's kind."""
    alternatives = sorted((ROOT / "tests/grade/alternatives").glob("*.py"))
    kinds = {}
    for i in range(count):
        exercise = EXERCISES[i * 5 % len(EXERCISES)]  # 5 has no divisor in common with 21
        kind = ("right", "broken", "right", "rewritten", "broken", "hanging")[i % 6]
        if kind == "rewritten" and (exercise.function, exercise.backend) != (
            "verify_chain", "torch"
        ):  # fmt: skip
            kind = "right"
        if kind == "right":
            source = unbroken_source(exercise)
        elif kind == "broken":
            source = broken_source(exercise)
        elif kind == "rewritten":
            source = alternatives[i % len(alternatives)].read_text(encoding="utf-8")
        else:
            source = HANGING.format(function=exercise.function)
        student = f"student{i:03}"
        (course / student).mkdir(parents=True)
        (course / student / exercise.file).write_text(source, encoding="utf-8")
        kinds[student] = kind
    return kinds


if __name__ == "__main__":
    main()
