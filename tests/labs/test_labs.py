"""The gate of the labs: notebooks are fresh, students' fail their first check, solutions pass."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

from specedu.grade.loading import load_module
from specedu.labs import NotYet
from specedu.labs.lab01 import check_rate, check_residual
from specedu.theory.settings import PAIRS

ROOT = Path(__file__).resolve().parents[2]
LABS = ROOT / "labs"
SOURCES = sorted(LABS.glob("lab[0-9][0-9].py"))
make = load_module("labs_make", LABS / "make.py")


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in the labs' folder; its first error is raised.

    One thread: other tests run on the other cores, and two threads would wait for each other.
    """
    from nbclient import NotebookClient

    os.environ["OMP_NUM_THREADS"] = "1"

    notebook = nbformat.read(path, as_version=4)
    notebook.cells = notebook.cells[1:]  # the install cell: specedu is here
    NotebookClient(notebook, timeout=400, resources={"metadata": {"path": LABS}}).execute()
    return notebook


def test_the_notebooks_are_fresh() -> None:
    stale = [path.name for path, text in make.made().items() if path.read_text() != text]
    assert not stale, "run python labs/make.py"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_solution_runs_from_top_to_bottom(source: Path) -> None:
    execute(LABS / "solutions" / f"{source.stem}.ipynb")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_students_notebook_stops_at_its_first_exercise(source: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError) as stopped:
        execute(LABS / f"{source.stem}.ipynb")
    assert stopped.value.ename in ("NotYet", "NotImplementedError")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_lab_says_how_long_and_how_hard_it_is_and_what_it_needs(source: Path) -> None:
    top = source.read_text(encoding="utf-8")[:1000]
    assert re.search(r"\d+ minutes · difficulty [1-5] of 5 · (runs on a CPU|GPU only)", top)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_doctor_is_asked_first(source: Path) -> None:
    first = next(
        cell.source
        for cell in nbformat.read(LABS / f"{source.stem}.ipynb", as_version=4).cells[1:]
        if cell.cell_type == "code"
    )
    assert "doctor" in first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# BEGIN SOLUTION\n# BEGIN SOLUTION\n", "line 2: BEGIN SOLUTION, expected"),
        ("# END SOLUTION\n", "line 1: END SOLUTION, expected"),
        ("# STUB x\n", "line 1: STUB, expected"),
        ("# BEGIN SOLUTION\n", "END SOLUTION missing"),
    ],
)
def test_markers_out_of_place_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make.split(text, student=True)


def test_a_solution_without_a_stub_leaves_a_line_that_raises() -> None:
    text = "def f():\n    # BEGIN SOLUTION\n    return 1\n    # END SOLUTION\n"
    assert make.split(text, student=True) == f"def f():\n    {make.YOURS}\n"
    assert make.split(text, student=False) == "def f():\n    return 1\n"


def test_a_blank_is_told_from_a_wrong_answer(capsys: pytest.CaptureFixture) -> None:
    for wrong in (
        lambda: check_rate(..., *PAIRS[2][0]),
        lambda: check_residual(lambda p, q: None),
    ):
        with pytest.raises(NotYet):
            wrong()
        assert "not filled in yet" in capsys.readouterr().out
