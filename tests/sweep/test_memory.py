"""A model that does not fit fails its cells with the reason, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specedu.sweep import backends, grid
from specedu.sweep.backends import BackendError, make
from specedu.sweep.recorder import FAILED, Recorder
from specedu.sweep.run import run

LARGE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
         "num_key_value_heads": 2}  # fmt: skip
FREE = 4_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of three gigabytes, none of them on the disk; four are free."""
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    sparse(tmp_path / "model.safetensors", 3 * 10**9)
    monkeypatch.setattr(backends, "free_bytes", lambda: FREE)
    return tmp_path


def sparse(file: Path, size: int) -> None:
    with file.open("wb") as opened:
        opened.truncate(size)


def of(folder: Path, kind: str) -> grid.Grid:
    return grid.parse(
        f"backends: {{one: {{kind: {kind}, model: {folder}}}}}\n"
        "sweeps: [{kind: [copy], concurrency: [1, 2], kappa: [1]}]\n"
        "methods: {n-gram: {method: ngram}}\n"
    )


def test_every_cell_says_what_it_would_take(folder: Path, tmp_path: Path) -> None:
    found = of(folder, "specedu")
    with Recorder(tmp_path / "r.jsonl") as recorder:
        outcome = run(found, recorder)
        assert outcome.failed == len(found.cells)
        for record in recorder.records:
            assert record.state == FAILED
            assert "for 2 requests at once takes about 6.0 GB, expected" in record.reason


def test_weights_that_do_not_fit_are_not_loaded_by_transformers(folder: Path) -> None:
    found = of(folder, "transformers")
    sparse(folder / "model.safetensors", 5 * 10**9)
    with pytest.raises(BackendError, match="takes about 5.0 GB, expected at most the 4.0 GB"):
        make(found.backends["one"], found).open(found.cells[0])


def test_a_system_that_does_not_tell_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "free_bytes", lambda: None)
    backends.check_fits("anything", 10**18)


def test_the_free_memory_is_part_of_the_machines() -> None:
    free = backends.free_bytes()
    if free is None:
        pytest.skip("/proc/meminfo is not here")
    assert 0 < free <= backends.memory_bytes()
