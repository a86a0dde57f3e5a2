"""Measure the time of grading a course's worth of submissions.

python benchmarks/grading.py               100 submissions: right, broken, rewritten, hanging
python benchmarks/grading.py --count 6     a few, to see that it runs
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from specedu.grade.broken import broken_source, unbroken_source
from specedu.grade.exercises import EXERCISES
from specedu.grade.grader import collect, grade

ROOT = Path(__file__).resolve().parents[1]
GOAL_SECONDS = 600  # of 100 submissions on two cores: a lecturer's coffee
HANGING = "def {function}(*arguments, **options):\n    while True:\n        pass\n"


def main() -> None:
    """Write submissions, grade them, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="submissions (default: 100)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = write(Path(folder, "course"), arguments.count)
        submissions, _ = collect(Path(folder, "course"))
        started = time.perf_counter()
        graded = grade(submissions, arguments.seed, Path(folder, "grades"), arguments.jobs)
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(graded)} submissions, {arguments.jobs} jobs: {seconds:.0f} s by the clock, "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU")  # fmt: skip
    print(f"goal for 100 submissions on two cores: {GOAL_SECONDS} s")
    wrong = 0
    for line in graded:
        kind = kinds[line["student"]]
        right = line["points"] == (line["of"] if kind in ("right", "rewritten") else 0)
        # A trick exercise is handed out right.
        right |= kind == "broken" and line["points"] == line["of"]
        wrong += not right
        mark = "" if right else "   UNEXPECTED"
        print(f"  {kind:<10} {line['exercise']:<16} {line['points']:>3} of {line['of']}{mark}")
    raise SystemExit(1 if wrong else 0)


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
