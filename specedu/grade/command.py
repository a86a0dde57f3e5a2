"""``specedu exercise``: list, start, check, hint, diff."""

from __future__ import annotations

import argparse
import difflib
import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .broken import MARK, broken_source, exercise_name
from .checking import SECONDS, Report, check_file
from .exercises import EXERCISES, Exercise, find
from .sandbox import helpers
from .scan import refusals

LEGEND = {  # what a counter-example's signs mean, told where it has them
    "kappa =": "  (kappa: drafts of the step; p, q: the target's and the draft's law of each row)",
    "turning": "  (turning: laws that change with every token of the text before them)",
    "text [": "  (text: a step's tokens, filled up by plain decoding; emitted: the step's alone)",
    "about ": "  (about: the rule changes at coins where it should not; they were found by search)",
    "u =": "  (u: the coin that tests a draft; w: the coin that draws the final token)",
}
STATE = ".specedu-exercises.json"  # beside the files: how many hints were shown


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the five actions and their arguments."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("list", help="show the exercises")
    show.add_argument("--answers", action="store_true", help="say in which nothing is wrong")
    start = actions.add_parser("start", help="write an exercise's file")
    start.add_argument("name", metavar="NAME")
    start.add_argument("--to", type=Path, default=Path(), metavar="FOLDER",
                       help="where (default: here)")  # fmt: skip
    start.add_argument("--force", action="store_true", help="overwrite a file that is there")
    check = actions.add_parser("check", help="check a file and say what it is worth")
    check.add_argument("file", type=Path, nargs="?", metavar="FILE",
                       help="default: the one exercise in this folder")  # fmt: skip
    check.add_argument("--seconds", type=float, default=SECONDS, metavar="S",
                       help=f"stop after so long (default: {SECONDS})")  # fmt: skip
    hint = actions.add_parser("hint", help="show the next hint")
    hint.add_argument("name", metavar="NAME", help="of the exercise, or its file")
    hint.add_argument("--to", type=Path, default=Path(), metavar="FOLDER",
                      help="where the exercise was started (default: here)")  # fmt: skip
    diff = actions.add_parser("diff", help="show your changes")
    diff.add_argument("name", metavar="NAME", help="of the exercise, or its file")
    diff.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: NAME's, here")


def run(arguments: argparse.Namespace) -> bool:
    """Do what was asked; return False where a check did not pass.

    Raises:
        ValueError: an exercise or a file is not there, or would be overwritten.
        OSError: a file cannot be read or written.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if arguments.action == "list":
        console.print(table(arguments.answers))
    elif arguments.action == "start":
        start(find(arguments.name), arguments.to, arguments.force, console)
    elif arguments.action == "check":
        file = arguments.file or only_exercise(Path())
        return check(exercise_of(file), file, arguments.seconds, console)
    elif arguments.action == "hint":
        exercise, file = named(arguments.name)
        console.print(next_hint(exercise, file.parent if file else arguments.to))
    else:
        exercise, file = named(arguments.name)
        changes = diff(exercise, arguments.file or file or Path(exercise.file))
        console.print(changes or "nothing is changed yet", end="" if changes else "\n")
    return True


def table(answers: bool = False) -> Table:
    """Return the list of exercises; with ``answers``, which of them hold a fault."""
    grid = Table(box=SIMPLE_HEAD, caption="min: minutes; of 5: difficulty")
    grid.add_column("exercise", no_wrap=True)
    grid.add_column("report", ratio=1)
    grid.add_column("version")
    for heading in ("points", "min", "of 5"):
        grid.add_column(heading, justify="right")
    if answers:
        grid.add_column("fault")
    for each in EXERCISES:
        version = "Triton" if each.backend == "triton" else "torch"
        grid.add_row(each.name, each.title, version, str(each.points),
                     str(each.minutes), str(each.difficulty),
                     *([each.fault or "none"] if answers else []))  # fmt: skip
    return grid


def start(exercise: Exercise, folder: Path, force: bool, console: Console) -> None:
    """Write the exercise's file into a folder."""
    path = folder / exercise.file
    if path.exists() and not force:
        raise ValueError(f"{path} is there already; --force overwrites it")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(broken_source(exercise), encoding="utf-8")
    console.print(f"{path}: {exercise.title}\n\n{exercise.symptom}\n")
    console.print(f"specedu exercise check {path}")


def only_exercise(folder: Path) -> Path:
    """Return the one exercise in a folder.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = [
        path for path in sorted(folder.glob("*.py"))
        if path.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    ]  # fmt: skip
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise ValueError(f"FILE: exercises in this folder: {names}; say which to check")
    return found[0]


def exercise_of(file: Path) -> Exercise:
    """Return the exercise that a file belongs to: by its first line, else by its name.

    Raises:
        ValueError: neither says it.
    """
    if not file.is_file():
        raise ValueError(f"FILE: {file} is not there; specedu exercise start NAME writes one")
    text = file.read_text(encoding="utf-8", errors="replace")
    return find(exercise_name(text) or file.stem)


def named(word: str) -> tuple[Exercise, Path | None]:
    """Return the exercise of a name or a file, and the file where it was one.

    Raises:
        ValueError: it is neither.
    """
    file = Path(word)
    return (exercise_of(file), file) if file.is_file() else (find(word), None)


def check(exercise: Exercise, file: Path, seconds: float, console: Console) -> bool:
    """Check a file, print what was found, and return whether it passes."""

    def show(event: dict) -> None:
        if result := event.get("result"):
            console.print(f"  {'ok    ' if result['passed'] else 'FAILED'}  {result['name']}")

    if not seconds > 0:
        raise ValueError(f"--seconds: {seconds:g}, expected more than 0")
    console.print(f"{exercise.name}: {exercise.function}, {exercise.backend}")
    report = check_file(exercise, file, seconds, show)
    for words in verdict(exercise, report):
        console.print(words)
    for words in refused(exercise, file):
        console.print(f"a grader refuses this file, and gives no points: {words}")
    return report.passed


def refused(exercise: Exercise, file: Path) -> list[str]:
    """Return what a grader refuses in a file's text, whatever its rule does."""
    try:
        return refusals(file.read_text(encoding="utf-8"), helpers(exercise.source))
    except (SyntaxError, ValueError):
        return []  # the check has said so


def verdict(exercise: Exercise, report: Report) -> list[str]:
    """Return what stands below the properties: the first failure, the mistake, the points."""
    lines = []
    failed = [result for result in report.results if not result.passed]
    if report.error:
        lines.append(f"\n{report.error}")
    if failed:
        example = failed[0].counter_example
        lines.append(f"\n{failed[0].name}: {example}")
        lines += [words for sign, words in LEGEND.items() if sign in example]
    if report.mistake:
        lines.append(f"\n{report.mistake}")
    held = len(report.results) - len(failed)
    lines.append(
        f"\n{report.score(exercise)} of {exercise.points} points: {held} of {len(report.results)} "
        "public checks hold (public: a grader may ask other cases)"
    )
    if report.passed:
        lines.append(f"\n{exercise.post_mortem}")
    else:
        lines.append(f"specedu exercise hint {exercise.name}")
    return lines


def next_hint(exercise: Exercise, folder: Path) -> str:
    """Return the next hint, and remember beside the file that it was shown."""
    state = folder / STATE
    try:
        shown = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
        number = min(int(shown.get(exercise.name, 0)), len(exercise.hints) - 1)
    except (ValueError, TypeError, AttributeError):
        shown, number = {}, 0  # not ours any more: begin again
    state.write_text(json.dumps({**shown, exercise.name: number + 1}) + "\n", encoding="utf-8")
    return f"hint {number + 1} of {len(exercise.hints)}: {exercise.hints[number]}"


def diff(exercise: Exercise, file: Path) -> str:
    """Return the changes of a file against the one that was handed out, as a unified diff."""
    if not file.is_file():
        raise ValueError(f"FILE: {file} is not there; specedu exercise start NAME writes one")
    return "".join(
        difflib.unified_diff(
            broken_source(exercise).splitlines(keepends=True),
            file.read_text(encoding="utf-8").splitlines(keepends=True),
            f"{exercise.file} as handed out",
            str(file),
        )
    )
