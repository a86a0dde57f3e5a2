"""``specedu grade``: grade a folder of submissions with held-out cases."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import pages
from .grader import collect, grade
from .sandbox import Limits


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    command.add_argument("folder", type=Path, metavar="DIR",
                         help="DIR/STUDENT/EXERCISE.py or DIR/STUDENT_EXERCISE.py")  # fmt: skip
    command.add_argument("--seed", type=int, required=True,
                         help="draws the cases; keep it to yourself")  # fmt: skip
    command.add_argument("--out", type=Path, metavar="FOLDER",
                         help="results, and where a run goes on (default: DIR-grades)")  # fmt: skip
    command.add_argument("--jobs", type=int, default=2, help="submissions at once (default: 2)")
    command.add_argument("--seconds", type=float, default=Limits.seconds, metavar="S",
                         help=f"for one question (default: {Limits.seconds:g})")  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Grade, write the results, and print them.

    Raises:
        ValueError: the folder, the seed or a number is not legal.
        OSError: a result cannot be written.
    """
    if not hasattr(os, "fork"):
        raise ValueError("submissions are run in forked processes: grade on Linux or macOS")
    if arguments.jobs < 1:
        raise ValueError(f"--jobs: {arguments.jobs}, expected at least 1")
    if not arguments.seconds > 0:
        raise ValueError(f"--seconds: {arguments.seconds:g}, expected more than 0")
    folder = arguments.folder.resolve()
    out = arguments.out or folder.with_name(folder.name + "-grades")
    if out.resolve().is_relative_to(folder):
        raise ValueError(f"--out: {out} lies inside {folder}, among the submissions")
    submissions, over = collect(folder)
    if not submissions:
        raise ValueError(f"DIR: {folder} holds no STUDENT/EXERCISE.py")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("grading")
        graded = grade(
            submissions, arguments.seed, out, arguments.jobs,
            replace(Limits(), seconds=arguments.seconds),
            lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    pages.write(out, graded, over)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    grid = Table(box=SIMPLE_HEAD)
    for heading in ("student", "exercise", "points", "of"):
        grid.add_column(heading, justify="right" if heading in ("points", "of") else "left")
    grid.add_column("why it ended early")
    for line in graded:
        grid.add_row(_plain(line["student"]), line["exercise"], str(line["points"]),
                     str(line["of"]), _plain(line["error"])[:100])  # fmt: skip
    console.print(grid)
    for words in over:
        console.print(f"passed over: {_plain(words)}")
    for words in sorted({words for line in graded for words in line["missing"]}):
        console.print(f"not held back on this system: {words}")
    console.print(f"held-out checks; {out / 'results.csv'}, students.csv, results.json, "
                  "students/*.html")  # fmt: skip


def _plain(words: str) -> str:
    """Return words without what a terminal or markup would act on."""
    return "".join(c if c.isprintable() else "?" for c in words)
