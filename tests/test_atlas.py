"""Every row of the bug atlas, and every property case, has a test or needs what is not there."""

from __future__ import annotations

from pathlib import Path

import atlas_table
import pytest


@pytest.fixture(scope="module")
def table() -> list[tuple[str, str, str, str]]:
    return atlas_table.table()


def test_no_row_is_without_a_test_or_a_reason(table: list[tuple[str, str, str, str]]) -> None:
    assert [row for row in table if row[3] == "MISSING"] == []
    assert len(table) == 130


def test_no_property_case_is_without_a_test_or_a_reason() -> None:
    table = atlas_table.table(atlas_table.PROPERTIES)
    assert [row for row in table if row[3] == "MISSING"] == []
    assert [row[0] for row in table] == [f"D{i:02}" for i in range(1, 14)]


@pytest.mark.parametrize("file", atlas_table.IN_TEST_ID, ids=lambda file: file.stem)
def test_no_test_carries_an_unknown_row(file: Path) -> None:
    found = atlas_table.tests_of(atlas_table.collected(), file)
    assert found.keys() <= atlas_table.rows(file).keys()


def test_a_reason_ends_when_the_part_exists(tmp_path: Path) -> None:
    assert atlas_table.missing_part("specedu/later.py", tmp_path)
    (tmp_path / "specedu").mkdir()
    (tmp_path / "specedu" / "later.py").write_text("nothing", encoding="utf-8")
    assert not atlas_table.missing_part("specedu/later.py", tmp_path)
    assert atlas_table.missing_part("specedu/later.py::placeholder", tmp_path)
    there = {"section": "A", "kind": "x", "needs": "specedu/llm.py"}
    assert atlas_table.state(there, []) == "MISSING"
    assert (
        atlas_table.state({**there, "needs": "specedu/no.py"}, []) == "not yet: needs specedu/no.py"
    )
    assert atlas_table.state(there, ["tests/test_a.py::test_x"]) == "test_a.py::test_x"
