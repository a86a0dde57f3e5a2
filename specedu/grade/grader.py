"""Grading a folder of submissions with cases that nobody has seen.

Each submission is asked the properties of its exercise, drawn from the instructor's seed, as a
:class:`RemoteRule`. One JSON line a submission is appended to ``results.jsonl`` as soon as it is
known; a run that was killed goes on from there. Points are given at the end, against the file as it
was handed out, asked the same cases.

``python -m specedu.grade.grader`` is a worker: it reads tasks from its standard input, a line each,
and writes the result's line. The seed is in no command line, where other processes could read it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specedu.theory.cells import Rule

from .broken import broken_source, load_rule
from .exercises import EXERCISES, Exercise, find
from .properties import INPUTS, PropertyResult, properties
from .recognise import recognise
from .sandbox import DEFAULT_LIMITS, SOURCE_BYTES, Limits, Nursery, RemoteRule

RESULTS = "results.jsonl"
HANDED_OUT = ""  # the student whose submission is the file as it was handed out
DRAWS = 8  # of cases, until the file as it was handed out fails all that it should
STEP = 1_000_003  # from the seed of one draw to the next's


@dataclass(frozen=True)
class Submission:
    """One file of one student.

    Attributes:
        student: name of the folder, or what stands before the exercise's name.
        exercise: the exercise's name.
        path: of the file; empty for the file as it was handed out.
    """

    student: str
    exercise: str
    path: str

    @property
    def key(self) -> tuple[str, str]:
        """What there is one result of."""
        return self.student, self.exercise


# --- finding submissions --------------------------------------------------------------------------


def collect(folder: Path) -> tuple[list[Submission], list[str]]:
    """Return the submissions of a folder, and in words what was passed over.

    ``STUDENT/EXERCISE.py`` and ``STUDENT_EXERCISE.py`` are read, whatever the case, and with what
    browsers add to a name. Links are not followed: the file behind one need not be the student's.

    Raises:
        ValueError: the folder is none.
    """
    if not folder.is_dir():
        raise ValueError(f"DIR: {folder} is no folder")
    found: dict[tuple[str, str], Submission] = {}
    over = []

    def pass_over(path: Path, why: str) -> None:
        name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
        over.append(f"{name}: {why}")

    def take(student: str, name: str | None, path: Path) -> None:
        if name is None:
            return pass_over(path, "no exercise has that name")
        if not stat.S_ISREG(path.lstat().st_mode):
            return pass_over(path, "no plain file")
        shown = os.fsencode(student).decode("utf-8", "backslashreplace")  # any bytes can be a name
        new = Submission(shown, name, str(path))
        if found.setdefault(new.key, new) is not new:
            taken = Path(found[new.key].path).name
            pass_over(path, f"{taken} of {shown} is taken for the same exercise")
        return None

    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            for file in sorted(entry.rglob("*.py")):
                if file.parent == entry:
                    take(entry.name, _exercise(file.stem), file)
                else:
                    pass_over(file, "too deep, expected STUDENT/EXERCISE.py")
        elif entry.suffix == ".py":
            stem = plain_stem(entry.stem)
            ends = [each for each in EXERCISES if stem == each.file.removesuffix(".py")
                    or stem.endswith("_" + each.file.removesuffix(".py"))]  # fmt: skip
            name = max((each.name for each in ends), key=len, default=None)
            student = entry.stem[: len(stem) - len(name) - 1] if name else ""
            take(student or entry.stem, name if student else None, entry)
        else:
            pass_over(entry, "neither a folder nor a Python file")
    return list(found.values()), over


def _exercise(stem: str) -> str | None:
    names = {each.file.removesuffix(".py"): each.name for each in EXERCISES}
    return names.get(plain_stem(stem))


def plain_stem(stem: str) -> str:
    """Return a file's stem without its case, and without what a second download adds to it.

    Example:
        >>> plain_stem("Rare-Words (1)")
        'rare_words'
    """
    return re.sub(r"\s*\(\d+\)$", "", stem).lower().replace("-", "_")


def read(submission: Submission) -> bytes:
    """Return a submission's bytes, cut behind the largest that is graded; b"" if unreadable."""
    if not submission.path:
        return broken_source(find(submission.exercise)).encode()
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(submission.path, flags), "rb") as file:
            return file.read(SOURCE_BYTES + 1)
    except OSError:
        return b""


# --- one submission -------------------------------------------------------------------------------


def grade_one(
    nursery: Nursery,
    exercise: Exercise,
    source: bytes,
    seed: int,
    limits: Limits = DEFAULT_LIMITS,
    scan: bool = True,
    explain: bool = True,
) -> dict[str, Any]:
    """Ask one submission every property and return what was found, ready for JSON.

    A submission that crashes, hangs or is refused ends here; its later properties are not asked.
    ``scan=False`` runs what the scan refuses, and ``explain=False`` looks for no known mistake.
    """
    results: list[PropertyResult] = []
    mistake = ""
    with RemoteRule(nursery, exercise, source, limits, scan) as rule:
        for each in properties(exercise.function, seed, quick=exercise.backend == "triton"):
            if rule.ended:
                break
            result = each.check(rule)
            if rule.ended:
                result = replace(result, passed=False, counter_example=rule.ended)
            results.append(result)
        if rule.written:
            words = "the submission's own process saw its inputs change"
            results = [PropertyResult(INPUTS, False, words) if result.name == INPUTS else result
                       for result in results]  # fmt: skip
        failed = [result for result in results if not result.passed]
        error = rule.ended
        if explain and failed and not error:
            mistake = recognise(rule, exercise.function, _handed_out(exercise))
        return {
            "exercise": exercise.name,
            "results": [asdict(result) for result in results],
            "error": error,
            "mistake": mistake,
            "output": rule.output.decode(errors="replace"),
            "missing": rule.missing,
            "pid": rule.pid,
        }


def draw_cases(
    nursery: Nursery, exercise: Exercise, source: bytes, seed: int, limits: Limits
) -> dict[str, Any]:
    """Ask the file as it was handed out under one draw of the cases after the other.

    Not every draw shows every fault. The first that fails all of the exercise's ``fails`` is taken,
    else the one that fails most of them; ``draw`` in the result says which.
    """
    best: dict[str, Any] = {}
    for draw in range(DRAWS):
        line = grade_one(nursery, exercise, source, seed + STEP * draw, limits, explain=False)
        line["draw"] = draw
        seen = len(_failed(line) & set(exercise.fails))
        if not best or seen > len(_failed(best) & set(exercise.fails)):
            best = line
        if line["error"] or seen == len(exercise.fails):
            break
    return best


@functools.cache
def _handed_out(exercise: Exercise) -> Rule | None:
    """Return the rule of the file as it was handed out; None where nothing is wrong in it."""
    if exercise.fault is None:
        return None
    where = exercise.source, exercise.function, exercise.backend
    return load_rule(broken_source(exercise), *where)


# --- points ---------------------------------------------------------------------------------------


def points(line: dict[str, Any], handed_out: dict[str, Any]) -> int:
    """Return the points of a result: the share of what failed in the handed-out file and now holds.

    None where anything fails that held there, or where the submission ended early. Both were asked
    the same cases.

    Example:
        >>> def line(*failed, error=""):
        ...     results = [{"name": n, "passed": n not in failed} for n in "abc"]
        ...     return {"exercise": "fair-coin", "results": results, "error": error}
        >>> broken = line("a", "b")
        >>> points(line(), broken), points(line("a"), broken), points(line("c"), broken)
        (10, 5, 0)
        >>> points(line(error="stopped"), broken)
        0
    """
    worth = find(line["exercise"]).points
    failed, failed_before = _failed(line), _failed(handed_out)
    if line["error"] or not line["results"] or failed - failed_before:
        return 0
    if not failed_before:
        return worth
    return worth * (len(failed_before) - len(failed)) // len(failed_before)


def _failed(line: dict[str, Any]) -> set[str]:
    return {result["name"] for result in line["results"] if not result["passed"]}


# --- all of them ----------------------------------------------------------------------------------


def grade(
    submissions: Sequence[Submission],
    seed: int,
    out: Path,
    jobs: int = 2,
    limits: Limits = DEFAULT_LIMITS,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Grade what has no result in ``out`` yet, and return every submission's line with its points.

    Raises:
        ValueError: ``out`` holds results of another seed, or an exercise itself cannot be asked.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / RESULTS
    mark = hashlib.sha256(f"specedu {seed}".encode()).hexdigest()
    known = _known(path, mark)
    names = sorted({each.exercise for each in submissions})
    tasks = [Submission(HANDED_OUT, name, "") for name in names] + list(submissions)
    digests = {task.key: hashlib.sha256(read(task)).hexdigest() for task in tasks}
    done = 0
    lock = threading.Lock()
    workers: list[Worker] = []
    mine = threading.local()

    with path.open("a", encoding="utf-8") as lines, ThreadPoolExecutor(jobs) as pool:

        def is_known(task: Submission) -> bool:
            line = known.get(task.key)
            if line is None or line["sha256"] != digests[task.key]:
                return False
            return not task.path or line["draw"] == known[HANDED_OUT, task.exercise]["draw"]

        def grade_task(task: Submission) -> None:
            nonlocal done
            if not hasattr(mine, "worker"):
                mine.worker = Worker()
                with lock:
                    workers.append(mine.worker)
            draw = known[HANDED_OUT, task.exercise]["draw"] if task.path else 0
            line = {"draw": draw} | mine.worker.ask(task, seed + STEP * draw, limits)
            line |= {"student": task.student, "exercise": task.exercise, "seed": mark}
            with lock:
                known[task.key] = line
                lines.write(json.dumps(line) + "\n")
                lines.flush()
                done += 1
                on_done(done, len(tasks))

        try:
            # The files as handed out first: they settle which cases the others are asked.
            for some in (False, True):
                these = [task for task in tasks if bool(task.path) is some]
                ahead = [task for task in these if not is_known(task)]
                done += len(these) - len(ahead)
                on_done(done, len(tasks))
                for _ in pool.map(grade_task, ahead):
                    pass
                for name in names:
                    line = known[HANDED_OUT, name]
                    if error := line["error"] or _blind(line):
                        raise ValueError(f"{name}, as it was handed out: {error}")
        finally:
            pool.shutdown(cancel_futures=True)
            for worker in workers:
                worker.close()
    graded = []
    for each in submissions:
        line = known[each.key]
        given = points(line, known[HANDED_OUT, each.exercise])
        graded.append(line | {"points": given, "of": find(each.exercise).points})
    return graded


def _blind(line: dict[str, Any]) -> str:
    """Return in words that the cases do not see what is wrong in the file as handed out."""
    blind = bool(find(line["exercise"]).fails) and not _failed(line)
    return "no check fails under this seed; take another" if blind else ""


def _known(path: Path, mark: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the lines of an earlier run; a line that was cut off is removed."""
    known: dict[tuple[str, str], dict[str, Any]] = {}
    if not path.exists():
        return known
    whole = []
    for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            line = json.loads(text) if text.endswith("\n") else None
        except ValueError:
            line = None
        if line is None:
            continue
        if line["seed"] != mark:
            raise ValueError(f"--out: {path.parent} holds results of another seed; name another "
                             "folder, or remove it")  # fmt: skip
        known[line["student"], line["exercise"]] = line
        whole.append(text)
    new = path.with_suffix(".new")
    new.write_text("".join(whole), encoding="utf-8")
    os.replace(new, path)
    return known


class Worker:
    """A process that grades one submission after the other; started anew where it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def ask(self, task: Submission, seed: int, limits: Limits) -> dict[str, Any]:
        """Return the line of one submission."""
        words = json.dumps({"task": asdict(task), "seed": seed, "limits": asdict(limits)}) + "\n"
        for _ in range(2):  # once more where another submission's end took it along
            if self.process is None or self.process.poll() is not None:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "specedu.grade.grader"],  # -P: not from here
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                    env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
            try:
                self.process.stdin.write(words)
                self.process.stdin.flush()
                return json.loads(self.process.stdout.readline())
            except (OSError, ValueError):
                self.close()
        return {"results": [], "error": "the process that asks it ended twice", "mistake": "",
                "output": "", "missing": [], "sha256": ""}  # fmt: skip

    def close(self) -> None:
        """End the process."""
        if self.process:
            self.process.stdin.close()
            self.process.stdout.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


def work(tasks: Iterable[str], say: Callable[[str], None]) -> None:
    """Grade each task of a stream of lines and say its result as a line."""
    with Nursery() as nursery:
        for words in tasks:
            order = json.loads(words)
            task = Submission(**order["task"])
            source = read(task)
            exercise = find(task.exercise)
            limits = Limits(**order["limits"])
            if task.path:
                line = grade_one(nursery, exercise, source, order["seed"], limits)
            else:
                line = draw_cases(nursery, exercise, source, order["seed"], limits)
            line["sha256"] = hashlib.sha256(source).hexdigest()
            del line["pid"]
            say(json.dumps(line))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints stays out of the answers

    def say_line(words: str) -> None:
        """Write one answer."""
        answers.write(words + "\n")
        answers.flush()

    work(sys.stdin, say_line)
