"""What was measured, a line of JSON a cell, kept the moment it is known.

A line is written and synchronised before the next cell begins: whatever ends the run, finished
cells are there. The file may be copied, joined with others, and read by anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .grid import Cell
from .samples import Sample

BINARY = getattr(os, "O_BINARY", 0)  # Windows would write two characters for a line's end
DONE, FAILED, SKIPPED = "done", "failed", "not run"


class RecordError(Exception):
    """A file of records cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class Record:
    """One cell with what became of it.

    Attributes:
        cell: its settings.
        state: ``done``, ``failed`` or ``not run``.
        reason: why it failed or was not run.
        samples: one a repeat.
        device: what it ran on.
        versions: of what ran.
        model_hash: of the weights.
        date: when it ended.
        seconds: that it took.
    """

    cell: Cell
    state: str
    reason: str = ""
    samples: tuple[Sample, ...] = ()
    device: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    model_hash: str = ""
    date: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """Return it as one line of JSON."""
        content = {
            "key": self.cell.key, "state": self.state, "reason": self.reason,
            "cell": asdict(self.cell), "samples": [one.content() for one in self.samples],
            "device": self.device, "versions": self.versions, "model_hash": self.model_hash,
            "date": self.date or now(), "seconds": round(self.seconds, 3),
        }  # fmt: skip
        return json.dumps(content) + "\n"

    @classmethod
    def of(cls, line: str) -> Record:
        """Return what :meth:`line` gave.

        Raises:
            ValueError: it is another line, or a part of one.
        """
        try:
            content = json.loads(line)
            content.pop("key")
            cell = Cell(**content.pop("cell"))
            samples = tuple(map(Sample.of, content.pop("samples")))
            return cls(cell=cell, samples=samples, **content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a record: {error!r}") from error


def now() -> str:
    """Return the date and time, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read(path: Path) -> tuple[list[Record], int, str]:
    """Return a file's records, the bytes of its whole lines, and a note where the last is torn.

    Raises:
        RecordError: it cannot be read, or a line that is not the last is no record.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0, ""
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    lines = content.splitlines(keepends=True)
    records, kept = [], 0
    for i, line in enumerate(lines):
        last = i == len(lines) - 1
        try:
            if not line.endswith(b"\n"):
                raise ValueError("torn")
            if line.strip():
                records.append(Record.of(line.decode()))
        except ValueError as error:
            if last:
                return records, kept, f"{path}: the last line is torn; its cell runs again"
            raise RecordError(
                f"{path}: line {i + 1} is no record ({error}), expected a line of a sweep; "
                "remove it to go on"
            ) from error
        kept += len(line)
    return records, kept, ""


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """Return the last record of each cell, by key."""
    return {record.cell.key: record for record in records}


class Recorder:
    """A file of records, held by one run at a time.

    Args:
        path: the file; it is made, and a torn last line is cut off.

    Raises:
        RecordError: another run holds it, or it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(f"{path}.lock")
        try:
            self.lock.acquire(timeout=0)
        except Timeout as error:
            raise RecordError(
                f"{path}: another run writes to it, expected one at a time; wait, or give another "
                "--out"
            ) from error
        except OSError as error:
            raise RecordError(f"{path}: cannot be locked: {error}") from error
        try:
            self.records, self.size, self.note = read(path)
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o644)
            os.ftruncate(self.file, self.size)
        except OSError as error:
            self.lock.release()
            raise RecordError(f"{path}: cannot be written: {error}") from error
        except RecordError:
            self.lock.release()
            raise

    def append(self, record: Record) -> None:
        """Write a record, and wait until it is on the disk.

        Raises:
            RecordError: it cannot be written; what was there before stays as it was.
        """
        line = record.line().encode()
        left = memoryview(line)
        try:
            os.lseek(self.file, self.size, os.SEEK_SET)
            while left:
                left = left[os.write(self.file, left) :]
            os.fsync(self.file)
        except OSError as error:
            try:
                os.ftruncate(self.file, self.size)
            except OSError:
                pass  # a torn last line is cut off by the next run
            raise RecordError(
                f"{self.path}: cannot be written: {error.strerror}; {len(self.records)} records "
                "are kept: free some space and run it again, it goes on there"
            ) from error
        self.size += len(line)
        self.records.append(record)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.file)
        self.lock.release()

    def __enter__(self) -> Recorder:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
