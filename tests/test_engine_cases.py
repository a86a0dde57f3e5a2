from __future__ import annotations

import pytest
from engine_cases import cases, group


def test_a_case_brings_its_id_into_the_test_id() -> None:
    assert [parameter.id for parameter in cases("M13", "M03")] == ["case-M13", "case-M03"]


def test_a_group_is_all_of_its_cases_in_order() -> None:
    ids = "M03 M04 M05 M06 M08 M09 M11 M12 M13 M14 M15".split()
    assert [parameter.id for parameter in group("metadata")] == [f"case-{i}" for i in ids]


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['M99'\], expected some of"):
        cases("M03", "M99")


def test_no_id_is_refused() -> None:
    with pytest.raises(ValueError, match="without ids"):
        cases()


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'meta', expected one of \['block'"):
        group("meta")
