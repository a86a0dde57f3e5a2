"""The engine cases and bug-atlas rows as test parameters: inputs with right answers.

``@pytest.mark.parametrize("case", cases("M13"))`` or ``group("metadata")``: the test is given the
case as a dict with ``input`` and ``expect``, and its id ends in ``case-M13``. Several tests may
share a case, and tests must not write to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[1] / "cases" / "engine_cases.json"
_CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads(_PATH.read_text(encoding="utf-8"))["cases"]
}


def cases(*ids: str) -> list[pytest.ParameterSet]:
    """Return the cases with these ids, in this order; no id or an unknown one is an error."""
    unknown = [case_id for case_id in ids if case_id not in _CASES]
    if unknown or not ids:
        raise ValueError(f"engine cases {unknown or 'without ids'}, expected some of {[*_CASES]}")
    return [pytest.param(_CASES[case_id], id=f"case-{case_id}") for case_id in ids]


def group(name: str) -> list[pytest.ParameterSet]:
    """Return every case of a group, in the order of the file; an unknown group is an error."""
    groups = {case["group"] for case in _CASES.values()}
    if name not in groups:
        raise ValueError(f"engine case group {name!r}, expected one of {sorted(groups)}")
    return cases(*(case_id for case_id, case in _CASES.items() if case["group"] == name))


def atlas(row: str) -> pytest.MarkDecorator:
    """Put a bug-atlas id into a test's id; the test takes it as ``atlas_row``."""
    return pytest.mark.parametrize("atlas_row", [pytest.param(row, id=f"atlas-{row}")])


def prop(row: str) -> pytest.MarkDecorator:
    """Put the id of a property case into a test's id; the test takes it as ``property_row``."""
    return pytest.mark.parametrize("property_row", [pytest.param(row, id=f"property-{row}")])
