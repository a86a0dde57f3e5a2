"""The exercises: each fails just what it says, its unbroken file passes, and the commands work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specedu import cli
from specedu.grade import properties as has
from specedu.grade.broken import absolute, broken_source, exercise_name, load_rule, unbroken_source
from specedu.grade.checking import Report, check_file, check_rule
from specedu.grade.command import STATE, only_exercise
from specedu.grade.exercises import EXERCISES, Exercise, find
from specedu.grade.faults import FAULTS
from specedu.grade.properties import KINDS, PropertyResult, properties

TRICKS = [each for each in EXERCISES if each.fault is None]


def named(exercise: Exercise) -> str:
    return exercise.name


# --- the matrix: exercise x property --------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES, ids=named)
def test_a_handed_out_file_fails_just_what_it_says(exercise: Exercise) -> None:
    report = check_rule(exercise, broken_source(exercise), explain=False)
    assert report.error == ""
    failed = {result.name for result in report.results if not result.passed}
    assert failed == set(exercise.fails)
    assert report.score(exercise) == (0 if exercise.fault else exercise.points)


WAYS = {(each.source, each.function, each.backend): each for each in EXERCISES}


@pytest.mark.parametrize("exercise", WAYS.values(), ids=named)
def test_an_unbroken_file_passes_all(exercise: Exercise) -> None:
    # The interpreter is slow: a part of a kernel is asked what its fault had broken.
    whole = exercise.backend == "torch" or f"def {exercise.function}(" in unbroken_source(exercise)
    names = None if whole else exercise.fails
    report = check_rule(exercise, unbroken_source(exercise), names=names)
    assert report.results
    assert report.passed
    assert report.score(exercise) == exercise.points


def test_the_kernel_of_the_chain_rule_passes_all() -> None:
    exercise = find("forbidden-word")
    report = check_rule(exercise, unbroken_source(exercise))
    assert [result.name for result in report.results if not result.passed] == []


# --- what is written about them -------------------------------------------------------------------


def test_there_are_enough_and_some_are_tricks() -> None:
    assert len(EXERCISES) >= 14
    assert len(TRICKS) >= 2
    assert sum(each.backend == "triton" for each in EXERCISES) >= 3
    assert {each.function for each in EXERCISES} == set(KINDS)
    assert len({each.name for each in EXERCISES}) == len(EXERCISES)


@pytest.mark.parametrize("exercise", EXERCISES, ids=named)
def test_an_exercise_is_described(exercise: Exercise) -> None:
    assert exercise.fault in {None, *(fault.name for fault in FAULTS)}
    assert exercise.points > 0
    assert exercise.minutes > 0
    assert 1 <= exercise.difficulty <= 5
    assert len(set(exercise.hints)) == 3
    assert re.search(r"[\w-]+/[\w.-]+(#\d+| )", exercise.post_mortem)  # a public report
    quick = exercise.backend == "triton"
    names = {each.name for each in properties(exercise.function, quick=quick)}
    assert set(exercise.fails) <= names
    assert bool(exercise.fails) == bool(exercise.fault)


@pytest.mark.parametrize("exercise", EXERCISES, ids=named)
def test_nothing_that_is_handed_out_names_the_fault(exercise: Exercise) -> None:
    given = f"{exercise.name} {exercise.title} {broken_source(exercise)}".lower()
    assert exercise.fault is None or exercise.fault not in given
    assert "fault=" not in given


@pytest.mark.parametrize("exercise", EXERCISES, ids=named)
def test_a_file_stands_on_its_own(exercise: Exercise) -> None:
    text = broken_source(exercise)
    assert exercise_name(text) == exercise.name
    assert not re.search(r"^from \.", text, re.MULTILINE)
    assert all(len(line) <= 100 for line in text.splitlines() if line.startswith("#"))
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert exercise.symptom in header
    assert f"{exercise.points} points, about {exercise.minutes} minutes" in header


def test_imports_are_made_absolute() -> None:
    assert absolute("from .ratio import a\nx = '.y'\n") == (
        "from specedu.kernels.ratio import a\nx = '.y'\n"
    )


# --- scores ---------------------------------------------------------------------------------------


def test_points_go_by_what_was_broken_and_holds_now() -> None:
    exercise = find("optimist")

    def score(*failed: str, error: str = "") -> int:
        names = [each.name for each in properties(exercise.function)]
        results = [PropertyResult(name, name not in failed) for name in names]
        return Report(results, error=error).score(exercise)

    assert score() == exercise.points
    assert score(*exercise.fails) == 0
    assert score(*exercise.fails[1:]) == exercise.points // len(exercise.fails)
    assert score(has.INPUTS) == 0  # it held before
    assert score(error="stopped") == 0


# --- the commands ---------------------------------------------------------------------------------


def test_list_shows_every_exercise_and_gives_none_away(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["exercise", "list"]) == 0
    out = capsys.readouterr().out
    assert all(each.name in out for each in EXERCISES)
    assert not any(each.fault in out for each in EXERCISES if each.fault)


def test_start_check_diff_and_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    exercise = find("second-chance")
    assert cli.main(["exercise", "start", "second-chance"]) == 0
    assert only_exercise(Path()) == Path(exercise.file)
    for named in ("second-chance", exercise.file):  # a file is as good as a name
        assert cli.main(["exercise", "diff", named]) == 0
        assert "nothing is changed yet" in capfd.readouterr().out

    assert cli.main(["exercise", "check"]) == 1
    out = capfd.readouterr().out
    assert f"FAILED  {has.TWO_IDS}" in out
    assert f"ok      {has.GREEDY}" in out
    assert "emitted [0], expected [1]" in out
    assert "the fault is still there" in out
    assert "0 of 10 points" in out
    assert "public checks" in out
    assert exercise.post_mortem not in out

    file = Path(exercise.file)
    fault = exercise.planted
    file.write_text(file.read_text().replace(fault.wrong, fault.right))
    assert cli.main(["exercise", "check", exercise.file]) == 0
    out = capfd.readouterr().out
    assert "FAILED" not in out
    assert "10 of 10 points" in out
    assert exercise.post_mortem in out
    file.write_text(file.read_text() + "\nimport sys\n")  # right, and no grader would run it
    assert cli.main(["exercise", "check", exercise.file]) == 0
    assert re.search(r"gives no points: line \d+: import of sys", capfd.readouterr().out)
    assert cli.main(["exercise", "diff", "second-chance", exercise.file]) == 0
    assert f"+    q_rows = {fault.right}" in capfd.readouterr().out

    for number in (1, 2, 3, 3):
        assert cli.main(["exercise", "hint", "second-chance"]) == 0
        assert f"hint {number} of 3: {exercise.hints[number - 1]}" in capfd.readouterr().out
    assert (tmp_path / STATE).exists()


def test_a_loop_that_never_ends_is_stopped(tmp_path: Path) -> None:
    exercise = find("crowded-room")
    file = tmp_path / exercise.file
    file.write_text("while True:\n    pass\n")
    report = check_file(exercise, file, seconds=1)
    assert "stopped after 1 seconds" in report.error
    assert not report.passed
    assert report.score(exercise) == 0


def test_a_wrong_fix_is_told_by_its_law() -> None:
    exercise = find("close-call")
    source = unbroken_source(exercise).replace("q_rows, excluded, final", "-1 - 0 * q_rows, "
                                               "excluded, final")  # fmt: skip
    report = check_rule(exercise, source)
    assert "you drew from p" in report.mistake


@pytest.mark.parametrize("text", ["", "def other(): pass\n", "1 / 0\n", "not python"])
def test_a_file_without_the_function_is_no_solution(text: str) -> None:
    report = check_rule(find("close-call"), text)
    assert "verify_chain" in report.error or "cannot be imported" in report.error
    assert not report.passed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["start", "nothing"], "exercise: 'nothing', expected one of rare-words, "),
        (["check", "nothing.py"], "FILE: nothing.py is not there"),
        (["check"], "FILE: exercises in this folder: none"),
        (["diff", "blank"], "FILE: blank.py is not there"),
        (["hint", "blank", "--to", "nowhere"], "nowhere"),
        (["check", "other.py"], "exercise: 'other', expected one of"),
        (["check", "blank_started.py", "--seconds", "0"], "--seconds: 0, expected more than 0"),
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
    Path("other.py").write_text("x = 1\n")
    if "blank_started.py" in words:
        Path("blank_started.py").write_text(broken_source(find("blank")))
    assert cli.main(["exercise", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    start = ["exercise", "start", "blank", "--to", str(tmp_path)]
    assert cli.main(start) == 0
    (tmp_path / "blank.py").write_text("mine\n")
    assert cli.main(start) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert (tmp_path / "blank.py").read_text() == "mine\n"
    assert cli.main([*start, "--force"]) == 0
    assert exercise_name((tmp_path / "blank.py").read_text()) == "blank"


def test_a_solution_may_be_written_anew() -> None:
    source = (Path(__file__).with_name("alternatives") / "division.py").read_text(encoding="utf-8")
    for exercise in EXERCISES:
        if exercise.function == "verify_chain" and exercise.backend == "torch":
            assert load_rule(source, exercise.source, exercise.function, "torch")
    report = check_rule(find("rare-words"), source)
    assert report.score(find("rare-words")) == find("rare-words").points
