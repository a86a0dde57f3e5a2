"""Grading a folder: points, odd files, and a run that was killed goes on where it was."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specedu import cli
from specedu.grade import pages
from specedu.grade.broken import broken_source, unbroken_source
from specedu.grade.exercises import find
from specedu.grade.grader import RESULTS, collect, draw_cases, grade, grade_one, points
from specedu.grade.properties import properties
from specedu.grade.sandbox import DEFAULT_LIMITS, Nursery

ALTERNATIVES = Path(__file__).with_name("alternatives")
ONE, TRICK = find("same-guess"), find("fair-coin")  # a wrong one is told fast
SEED = 41


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of submissions: right, other, partly and wholly wrong, and no Python."""
    folder = tmp_path_factory.mktemp("submissions")
    for student, exercise, source in (
        ("right", ONE, unbroken_source(ONE).encode()),
        ("right", TRICK, unbroken_source(TRICK).encode()),
        ("other", ONE, (ALTERNATIVES / "tiles.py").read_bytes()),
        ("untouched", ONE, broken_source(ONE).encode()),
        ("worse", TRICK, unbroken_source(TRICK).replace("coins * q < p", "coins < p").encode()),
        ("empty", ONE, b""),
        ("syntax", ONE, b"def verify_chain(:\n"),
        ("binary", ONE, bytes(range(256)) * 40),
        ("null", ONE, b"x = 1\0\n"),
        ("=cmd|' /C calc'!A0 <script>alert(1)</script>".replace("/", "\u2215"), ONE, b"print(1)"),
        ("huge", ONE, b"#" * (2 << 20)),
    ):
        (folder / student).mkdir(exist_ok=True)
        (folder / student / exercise.file).write_bytes(source)
    (folder / f"flat_name_{ONE.file}").write_bytes(unbroken_source(ONE).encode())
    (folder / "notes.txt").write_text("no submission")
    (folder / "right" / "unknown.py").write_text("x = 1")
    (folder / "linked").mkdir()
    (folder / "linked" / ONE.file).symlink_to("/etc/passwd")
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / ONE.file)
    raw = os.fsencode(folder) + b"/\xff\xfe bytes"
    os.mkdir(raw)
    Path(os.fsdecode(raw), ONE.file).write_bytes(broken_source(ONE).encode())
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    assert cli.main(["grade", str(folder), "--seed", str(SEED), "--out", str(out)]) == 0
    return out


def scores(out: Path) -> dict[tuple[str, str], int]:
    report = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return {(line["student"], line["exercise"]): line["points"] for line in report["submissions"]}


def test_right_files_get_their_points_and_others_fewer(whole: Path) -> None:
    found = scores(whole)
    full = {key for key, given in found.items() if given == find(key[1]).points}
    assert full == {
        ("right", ONE.name),
        ("right", TRICK.name),
        ("other", ONE.name),
        ("flat_name", ONE.name),
    }
    assert all(given == 0 for key, given in found.items() if key not in full)
    assert len(found) == 13


def test_what_is_no_submission_is_passed_over_and_said(folder: Path) -> None:
    _, over = collect(folder)
    assert sorted(over) == [
        f"linked/{ONE.file}: no plain file",
        "notes.txt: neither a folder nor a Python file",
        f"piped/{ONE.file}: no plain file",
        "right/unknown.py: no exercise has that name",
    ]


def test_names_are_read_as_browsers_and_people_write_them(tmp_path: Path) -> None:
    dashed, stem = ONE.file.replace("_", "-"), ONE.file.removesuffix(".py")
    for path in (f"ann/{stem} (1).py", f"bob/{ONE.file.title()[:-3]}.py", f"Cy_{dashed}",
                 f"dee/{ONE.file}", f"dee/{dashed}", f"eve/week1/{ONE.file}"):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    found, over = collect(tmp_path)
    assert [(one.student, one.exercise) for one in found] == [
        (name, ONE.name) for name in ("Cy", "ann", "bob", "dee")
    ]
    assert over == [
        f"dee/{ONE.file}: {dashed} of dee is taken for the same exercise",
        f"eve/week1/{ONE.file}: too deep, expected STUDENT/EXERCISE.py",
    ]


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("empty", "cannot import name"),
        ("syntax", "SyntaxError"),
        ("binary", "UnicodeDecodeError"),
        ("null", "null bytes"),
        ("huge", "expected at most"),
    ],
)
def test_a_file_that_cannot_be_asked_says_why(student: str, words: str, whole: Path) -> None:
    report = json.loads((whole / "results.json").read_text(encoding="utf-8"))
    (line,) = [line for line in report["submissions"] if line["student"] == student]
    assert words in line["error"]


def test_each_student_gets_a_page_that_runs_nothing(whole: Path) -> None:
    with (whole / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["page"] for row in rows}) == 12  # one student sent two files
    for row in rows:
        text = (whole / row["page"]).read_text(encoding="utf-8")
        assert "<script" not in text
        assert "held-out checks" in text
        assert str(SEED) not in (whole / row["page"]).name
        for each in properties(find(row["exercise"]).function):
            assert each.name in text
    assert not any(row["student"].startswith(("=", "+", "-", "@")) for row in rows)
    with (whole / "students.csv").open(newline="", encoding="utf-8") as file:
        totals = list(csv.DictReader(file))
    assert len(totals) == 12
    assert sum(int(row["points"]) for row in totals) == sum(scores(whole).values())
    page = (whole / "students" / "untouched.html").read_text(encoding="utf-8")
    assert "emitted" in page
    assert "What its law looks like: it answers as the file that was handed out" in page


def test_a_run_that_was_killed_goes_on_and_gives_the_same(
    folder: Path, whole: Path, tmp_path: Path
) -> None:
    command = ["-m", "specedu.cli", "grade", str(folder), "--seed", str(SEED)]
    command += ["--out", str(tmp_path), "--jobs", "1"]
    lines = tmp_path / RESULTS
    run = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        while not (lines.exists() and lines.read_text().count("\n") >= 4):
            assert run.poll() is None
            time.sleep(0.05)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    time.sleep(0.5)
    kept = lines.read_text(encoding="utf-8").splitlines()
    with lines.open("a", encoding="utf-8") as file:
        file.write('{"student": "cut o')  # as if it had been killed while writing
    assert cli.main(command[2:]) == 0
    assert lines.read_text(encoding="utf-8").splitlines()[: len(kept)] == kept
    assert scores(tmp_path) == scores(whole)
    assert _findings(tmp_path) == _findings(whole)


def _findings(out: Path) -> list[Any]:
    report = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return [(line["student"], line["results"], line["error"]) for line in report["submissions"]]


def test_another_seed_needs_another_folder(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["grade", str(folder), "--seed", "42", "--out", str(whole)]) == 2
    assert "holds results of another seed" in capsys.readouterr().err


def test_a_known_result_is_not_asked_again(folder: Path, whole: Path) -> None:
    before = (whole / RESULTS).read_bytes()
    done: list[tuple[int, int]] = []
    submissions, _ = collect(folder)
    grade(submissions, SEED, whole, on_done=lambda *numbers: done.append(numbers))
    assert done == [(2, len(submissions) + 2), (len(submissions) + 2,) * 2]
    assert (whole / RESULTS).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder"),
        (["."], "holds no STUDENT/EXERCISE.py"),
        ([".", "--jobs", "0"], "--jobs: 0"),
        ([".", "--seconds", "nan"], "--seconds: nan"),
        ([".", "--out", "inside"], "among the submissions"),
    ],
)
def test_a_mistake_in_the_call_is_told(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["grade", *words, "--seed", "1"]) == 2
    assert message in capsys.readouterr().err


def test_part_of_what_was_broken_gives_part_of_the_points() -> None:
    def line(*failed: str) -> dict[str, Any]:
        names = [each.name for each in properties("verify_chain")]
        results = [{"name": name, "passed": name not in failed} for name in names]
        return {"exercise": "rare-words", "results": results, "error": ""}

    broken = line("two ids", "coin endpoints")
    assert points(line("two ids"), broken) == 5
    assert points(line("two ids", "a mixed batch"), broken) == 0


def test_cases_are_drawn_until_they_show_the_fault() -> None:
    exercise, seed = find("lucky-run"), 3  # of its first draw the broken file fails nothing
    source = broken_source(exercise).encode()
    with Nursery() as nursery:
        first = grade_one(nursery, exercise, source, seed, explain=False)
        line = draw_cases(nursery, exercise, source, seed, DEFAULT_LIMITS)
    assert all(result["passed"] for result in first["results"])
    assert line["draw"] > 0
    failed = {result["name"] for result in line["results"] if not result["passed"]}
    assert failed >= set(exercise.fails)
    assert points(line, line) == 0


def test_page_names_are_one_a_student() -> None:
    names = ["ada", "Ada", "../ada", "ada.", "a" * 300, "\u00e5da", ""]
    assert len({pages.page_name(name).lower() for name in names}) == len(names)
    assert all("/" not in pages.page_name(name) for name in names)
