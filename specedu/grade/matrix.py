"""The matrix fault × test: every planted fault against every test that one of them names.

``python -m specedu.grade.matrix`` prints it and exits with 1 if a fault escapes its test, or if the
unbroken source fails one. It needs a checkout: the tests are not part of the installed package.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .faults import FAULTS, Fault
from .plant import ROOT

SECONDS = 300  # for one fault; a loop that never ends is cut here and counts as caught
UNBROKEN = "unbroken source"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m specedu.grade.matrix", description=__doc__)
    parser.add_argument("faults", nargs="*", help="names of faults (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    parser.add_argument(
        "--own", action="store_true", help="run each fault's own test alone: a third of the time"
    )
    arguments = parser.parse_args(argv)
    names = {fault.name for fault in FAULTS}
    if unknown := set(arguments.faults) - names:
        parser.error(f"faults: {sorted(unknown)}, expected some of {sorted(names)}")
    if arguments.jobs < 1:
        parser.error(f"--jobs: {arguments.jobs}, expected at least 1")
    faults = [fault for fault in FAULTS if not arguments.faults or fault.name in arguments.faults]

    tests = sorted({fault.caught_by for fault in FAULTS})
    failed: dict[str, set[str]] = {}
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        task = progress.add_task("planting faults", total=len(faults) + 1)
        plans = {UNBROKEN: pool.submit(failures, None, tests)}
        for fault in faults:
            asked = [fault.caught_by] if arguments.own else tests
            plans[fault.name] = pool.submit(failures, fault, asked)
        for name, plan in plans.items():
            failed[name] = plan.result()
            progress.advance(task)
    Console(width=max(Console().width, 60 + 4 * len(tests))).print(table(faults, tests, failed))
    for i, test in enumerate(tests):
        print(f"{i + 1:>4}  {test.removeprefix('tests/')}")
    escaped = [fault.name for fault in faults if not catches(fault, failed[fault.name])]
    print(
        f"\n{len(faults) - len(escaped)} of {len(faults)} faults caught by the test named for them"
    )
    for name in escaped:
        print(f"ESCAPED: {name}")
    for test in sorted(failed[UNBROKEN]):
        print(f"FAILS ON THE UNBROKEN SOURCE: {test}")
    return 1 if escaped or failed[UNBROKEN] else 0


def failures(fault: Fault | None, tests: Sequence[str]) -> set[str]:
    """Return the tests that fail, as ``file::function[parameters]``; a timeout fails them all."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "specedu.grade.plant"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        command += ["--assert=plain", "--tb=no"]  # that a test fails counts here, not why
        command += [f"--fault={fault.name}"] if fault else []
        try:
            run = subprocess.run(
                [*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {f"{test}[{backend}]" for test in tests for backend in ("torch", "triton")}
        if not report.exists():
            name = fault.name if fault else UNBROKEN
            raise RuntimeError(f"{name}: pytest wrote no report:\n{run.stdout}{run.stderr}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    if not cases:
        raise RuntimeError(f"pytest ran no test:\n{run.stdout}")
    return {
        f"{case.get('file')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }


def catches(fault: Fault, failed: set[str]) -> bool:
    """Return whether the fault's own test failed, for the version that the fault breaks.

    Example:
        >>> fault = Fault("a", "a.py", "x", "y", "", "t.py::test_a", "torch")
        >>> catches(fault, {"t.py::test_a[torch-1]"}), catches(fault, {"t.py::test_a[triton-1]"})
        (True, False)
    """
    return any(
        test == fault.caught_by and (fault.backend is None or fault.backend in parameters)
        for test, _, parameters in (name.partition("[") for name in failed)
    )


def table(faults: Sequence[Fault], tests: Sequence[str], failed: dict[str, set[str]]) -> Table:
    """Return the matrix: ● the test named beforehand fails, ○ another one does."""
    grid = Table(
        title=f"{len(faults)} faults × {len(tests)} tests: ● caught by the test named for it, "
        "○ caught by another, · not caught",
        box=SIMPLE_HEAD,
        title_justify="left",
        padding=(0, 0),
    )
    grid.add_column("fault", no_wrap=True)
    for i in range(len(tests)):
        grid.add_column(f"{i + 1:>3}", justify="right", no_wrap=True)
    for fault in (None, *faults):
        broken = {name.partition("[")[0] for name in failed[fault.name if fault else UNBROKEN]}
        own = fault is not None and catches(fault, failed[fault.name])
        marks = [
            "●" if own and test == fault.caught_by else "○" if test in broken else "·"
            for test in tests
        ]
        grid.add_row(fault.name if fault else UNBROKEN, *marks)
    return grid


if __name__ == "__main__":
    sys.exit(main())
