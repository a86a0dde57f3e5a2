"""A pytest plugin that plants one fault before any test is imported.

``pytest -p specedu.grade.plant --fault NAME tests/...`` runs the tests on the broken source. The
files on disk stay as they are: the package with the fault is written to a temporary folder and
takes the place of the real one in this process alone.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import specedu

from .faults import FAULTS, Fault, plant
from .loading import load_module

ROOT = Path(specedu.__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fault``."""
    parser.addoption("--fault", choices=[fault.name for fault in FAULTS], help="fault to plant")


def pytest_configure(config: pytest.Config) -> None:
    """Plant the fault that was asked for."""
    if name := config.getoption("--fault"):
        load_with(next(fault for fault in FAULTS if fault.name == name))


def load_with(fault: Fault) -> None:
    """Import the changed module, or the package of kernels around it, in place of the real one."""
    changed = write_changed(fault)
    if changed.name == "__init__.py":
        for loaded in [name for name in sys.modules if name.startswith("specedu.kernels")]:
            del sys.modules[loaded]
        specedu.kernels = load_module("specedu.kernels", changed)
    else:
        load_module(fault.file.removesuffix(".py").replace("/", "."), changed)


def write_changed(fault: Fault) -> Path:
    """Write the changed module, or the package of kernels around it, and return what to import."""
    source = plant(fault, (ROOT / fault.file).read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp(prefix=f"{fault.name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if not fault.file.startswith("kernels/"):
        changed = folder / Path(fault.file).name
        changed.write_text(source, encoding="utf-8")
        return changed
    package = folder / "kernels"
    shutil.copytree(ROOT / "kernels", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / Path(fault.file).name).write_text(source, encoding="utf-8")
    return package / "__init__.py"
