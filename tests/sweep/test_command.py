"""``specedu sweep`` from the call to the page, on the toy; mistakes are told in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specedu import cli
from specedu.sweep.recorder import DONE, Recorder, read

TOY = """
name: toy
tokens: {tokens}
prompts: 2
backends: {{toy: {{kind: specedu, model: toy}}}}
methods:
  n-gram: {{method: ngram, prompt_lookup_min: 1, prompt_lookup_max: 2}}
  self: {{method: draft_model, model: self, draft_sample_method: probabilistic}}
sweeps:
  - {{kappa: [2], kind: [copy], concurrency: [1, 4]}}
  - {{kappa: [1, 2], kind: [copy], temperature: [1], concurrency: [2], methods: [self]}}
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(TOY.format(tokens=6))
    return tmp_path / "toy.yaml"


def sweep(*words: object) -> int:
    return cli.main(["sweep", *map(str, words)])


def test_the_toy_is_swept_and_reported(grid: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert sweep(grid, "--out", out) == cli.RIGHT
    said = capsys.readouterr().out
    assert "9 cells measured, 0 failed, 0 not needed, 0 left" in said
    records, _, note = read(out / "records.jsonl")
    assert not note and {r.state for r in records} == {DONE}
    for record in records:
        for sample in record.samples:
            assert sum(sample.parts.values()) == pytest.approx(sample.step)
            assert sample.rate > 0 and sample.tokens >= record.cell.requests * 7
            if record.cell.plain:
                assert sample.acceptance is None and sample.parts["draft"] < 0.01
            elif record.cell.method == "self":  # draft and target agree in every law
                assert sample.acceptance.rates == (1.0,) * record.cell.kappa
        assert record.versions["torch"] and record.model_hash == "none: a toy"
        assert record.device["cores"] and record.date
    page = (out / "report.html").read_text()
    assert "rossing" in page or "It crosses 1" in page
    assert sweep(grid, "--out", out) == cli.RIGHT
    assert "0 cells measured" in capsys.readouterr().out


def test_without_matplotlib_nothing_is_measured_in_vain(
    grid: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sweep(grid, "--out", tmp_path / "out") != cli.RIGHT
    assert "pip install 'specedu[figures]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_measures_nothing(grid: Path, tmp_path: Path, capsys) -> None:
    assert sweep(grid, "--out", tmp_path / "out", "--dry-run", "--price", "2") == cli.RIGHT
    said = capsys.readouterr().out
    assert "9 cells, 9 of them left" in said and "minutes, an estimate (toy: stored" in said
    assert "memory: about 0.0 GB" in said and "cost: about" in said
    assert not (tmp_path / "out").exists()


def test_a_report_is_made_again_from_several_files(grid: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert sweep(grid, "--out", out, "--max-minutes", "0") == cli.RIGHT
    assert "9 left: the limit of 0 minutes is reached" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        sweep(grid, "--report-only", "--out")
    assert sweep(grid, "--report-only", "--out", tmp_path / "none") == cli.USAGE
    assert "no records, expected those of a sweep" in capsys.readouterr().err
    assert sweep(grid, "--report-only", "--out", out, "--with", out / "nothing") == cli.USAGE
    assert "--with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.yaml"], "specedu sweep: GRID: 'nowhere.yaml', expected a YAML file or one of"),
        (["cpu", "--max-minutes", "-1"], "--max-minutes: -1.0, expected at least 0"),
        (["cpu", "--price", "-1"], "--price: -1.0, expected at least 0"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys) -> None:
    assert sweep(*words) == cli.USAGE
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_a_second_run_on_a_folder_is_refused(grid: Path, tmp_path: Path, capsys) -> None:
    with Recorder(tmp_path / "out" / "records.jsonl"):
        assert sweep(grid, "--out", tmp_path / "out") == cli.USAGE
    assert "another run writes to it" in capsys.readouterr().err


def test_an_interrupt_finishes_the_cell_and_stops(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "toy.yaml").write_text(TOY.format(tokens=40))
    out = tmp_path / "out"
    words = ["sweep", str(tmp_path / "toy.yaml"), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "specedu.cli", *words], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    until = time.monotonic() + 40
    kept = out / "records.jsonl"
    while not (kept.exists() and kept.stat().st_size) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=50)
    records, _, note = read(out / "records.jsonl")
    assert process.returncode == cli.RIGHT and "left: interrupted" in said, said
    assert not note and 1 <= len(records) < 9 and {r.state for r in records} == {DONE}
