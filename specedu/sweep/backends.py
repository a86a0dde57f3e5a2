"""Who generates: one interface, three ways behind it.

A backend is opened, runs cells, says what it is, and is closed. Whatever goes wrong with one cell
is a :class:`BackendError` with a reason; the sweep records it and goes on.
"""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from specedu.prompts import KINDS

from .grid import Backend, Cell, Grid
from .samples import Sample


class BackendError(Exception):
    """A cell cannot be measured; the message says why."""


class Runs(Protocol):
    """What every backend offers."""

    def open(self, cell: Cell) -> None:
        """Make ready what a cell needs; what is ready already stays.

        Raises:
            BackendError: it cannot be had.
        """

    def run(self, cell: Cell) -> list[Sample]:
        """Measure a cell that was opened.

        Raises:
            BackendError: it cannot be measured.
        """

    def describe(self, cell: Cell) -> dict[str, Any]:
        """Return device, versions and the model's hash of a cell that was opened."""

    def close(self) -> None:
        """Give everything back, and end what was started."""


def make(backend: Backend, grid: Grid) -> Runs:
    """Return what serves a backend of a grid."""
    most = max((c.concurrency for c in grid.cells if c.backend == backend.name), default=1)
    if backend.kind == "specedu":
        from .engine_backend import EngineBackend

        return EngineBackend(backend, most)
    if backend.kind == "transformers":
        from .transformers_backend import TransformersBackend

        return TransformersBackend(backend)
    from .server_backend import ServerBackend

    return ServerBackend(backend)


def texts_of(cell: Cell) -> list[str]:
    """Return the prompts of a sample's requests: the same few, in turn, at every concurrency."""
    texts = KINDS[cell.kind][: cell.prompts]
    return [texts[i % len(texts)] for i in range(cell.requests)]


def this_machine() -> dict[str, Any]:
    """Return the device of this process: cores, memory, and a GPU where there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    device: dict[str, Any] = {
        "device": "cpu",
        "cpu": found[1] if found else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory_bytes() / 1e9, 1),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    import torch

    if torch.cuda.is_available():
        device["gpu"] = torch.cuda.get_device_name()
    return device


def memory_bytes() -> int:
    """Return the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def free_bytes() -> int | None:
    """Return the memory that processes may still take; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) * 1024 if found else None


def check_fits(what: str, needed: int) -> None:
    """Refuse what would take more memory than is free; the system would kill the run otherwise.

    Raises:
        BackendError: it does not fit.
    """
    free = free_bytes()
    if free is not None and needed > free:
        raise BackendError(
            f"memory: {what} takes about {needed / 1e9:.1f} GB, expected at most the "
            f"{free / 1e9:.1f} GB that are free: take a smaller model, fewer requests at once, or "
            "fewer tokens"
        )


def versions_of(*names: str) -> dict[str, str]:
    """Return Python's version and those of distributions.

    Example:
        >>> sorted(versions_of("rich"))
        ['python', 'rich']
    """
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
