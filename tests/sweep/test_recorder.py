"""A record is on the disk before the next cell begins, and no accident loses one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import sweeping

from specedu.sweep import recorder as recording
from specedu.sweep.recorder import DONE, FAILED, Record, Recorder, RecordError, read

CELLS = sweeping.grid().cells


def record(i: int, state: str = DONE) -> Record:
    cell = CELLS[i]
    samples = sweeping.FakeBackend(None, None).run(cell) if state == DONE else []
    return Record(cell, state, "", tuple(samples), {"device": "x"}, {"a": "1"}, "h", "today", 1.5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(record(0))
        recorder.append(record(1, FAILED))
    return tmp_path / "r.jsonl"


def test_what_is_written_is_read(file: Path) -> None:
    assert read(file) == ([record(0), record(1, FAILED)], file.stat().st_size, "")


def test_every_line_is_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(os.fstat(file).st_size))
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(record(0))
        recorder.append(record(1))
    assert len(seen) == 2 and seen[1] == (tmp_path / "r.jsonl").stat().st_size > seen[0]


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_dropped_with_a_note(file: Path, cut: int) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    with Recorder(file) as recorder:
        assert recorder.records == [record(0)] and "the last line is torn" in recorder.note
        recorder.append(record(1, FAILED))
    assert file.read_bytes() == whole


def test_a_broken_line_inside_is_no_torn_one(file: Path) -> None:
    first, second = file.read_text().splitlines(keepends=True)
    file.write_text(first + '{"cell": 1}\n' + second)
    with pytest.raises(RecordError, match="line 2 is no record .* expected a line of a sweep"):
        Recorder(file)
    with pytest.raises(RecordError, match="line 2"):  # the lock was given back
        Recorder(file)


def test_two_runs_on_one_file_are_refused(file: Path) -> None:
    with Recorder(file), pytest.raises(RecordError, match="another run writes to it"):
        Recorder(file)
    Recorder(file).close()


def test_a_full_disk_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = file.read_bytes(), os.write

    def full(target: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(target, bytes(content)[:-50])  # a part still fits

    with Recorder(file) as recorder:
        monkeypatch.setattr(recording.os, "write", full)
        with pytest.raises(RecordError, match="No space left on device; 2 records are kept: free"):
            recorder.append(record(2))
        assert file.read_bytes() == before
        monkeypatch.setattr(recording.os, "write", write)
        recorder.append(record(2))
    assert [r.cell for r in read(file)[0]] == list(CELLS[:3])


def test_a_folder_is_no_file_of_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read|cannot be written"):
        Recorder(tmp_path / "." / "x").close() or Recorder(tmp_path)
