"""The table bug-atlas row -> tests, or why not yet: made from the tests that exist, not typed.

``make atlas`` prints it, and below it the same of the property cases. A row without a test must
need a part of the engine that does not exist yet; as soon as that part is there, the missing test
is an error.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ATLAS = ROOT / "tests" / "cases" / "atlas.json"
PROPERTIES = ROOT / "tests" / "cases" / "properties.json"
IN_TEST_ID = {ATLAS: r"atlas-(B\d+)", PROPERTIES: r"property-(D\d+)"}


def rows(file: Path = ATLAS) -> dict[str, dict[str, str]]:
    """Return the rows: id -> section, kind and, where a part is missing, what it needs."""
    return json.loads(file.read_text(encoding="utf-8"))["rows"]


@functools.cache
def collected() -> list[str]:
    """Return the id of every test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tests = [line for line in run.stdout.splitlines() if "::" in line]
    if run.returncode or not tests:
        raise RuntimeError(f"pytest collects nothing:\n{run.stdout}{run.stderr}")
    return tests


def tests_of(tests: Sequence[str], file: Path = ATLAS) -> dict[str, list[str]]:
    """Return, per row, the test functions that carry its id.

    Example:
        >>> tests_of(["a.py::test_x[torch-atlas-B01]", "a.py::test_x[triton-atlas-B01]"])
        {'B01': ['a.py::test_x']}
    """
    found: dict[str, list[str]] = {}
    for test in tests:
        for row in re.findall(IN_TEST_ID[file], test):
            function = test.partition("[")[0]
            if function not in found.setdefault(row, []):
                found[row].append(function)
    return found


def missing_part(need: str, root: Path = ROOT) -> bool:
    """Return whether a needed part is not there: a file, or a word in a file (``file::word``)."""
    file, _, word = need.partition("::")
    path = root / file
    return not path.exists() or bool(word) and word not in path.read_text(encoding="utf-8")


def state(row: Mapping[str, str], tests: Sequence[str]) -> str:
    """Return a row's tests, or why there is none yet, or that one is missing."""
    if tests:
        return ", ".join(test.removeprefix("tests/") for test in tests)
    need = row.get("needs", "")
    if need and missing_part(need):
        return f"not yet: needs {row.get('why') or need}"
    return "MISSING"


def table(file: Path = ATLAS) -> list[tuple[str, str, str, str]]:
    """Return (id, section, kind, state) of every row."""
    found = tests_of(collected(), file)
    return [
        (name, row["section"], row["kind"], state(row, found.get(name, [])))
        for name, row in rows(file).items()
    ]


def main() -> int:
    """Print the tables in Markdown; return 1 if a test is missing."""
    missing = False
    for file in IN_TEST_ID:
        entries = table(file)
        print("| row | section | kind | tests, or why not yet |\n|---|---|---|---|")
        for entry in entries:
            print("| " + " | ".join(entry) + " |")
        tested = sum(not entry[3].startswith(("not yet", "MISSING")) for entry in entries)
        print(f"\n{tested} of {len(entries)} rows are tested\n")
        missing |= any(entry[3] == "MISSING" for entry in entries)
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
