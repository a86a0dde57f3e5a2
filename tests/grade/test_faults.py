"""The planted faults: each changes one place of the real source, and names a test that exists."""

from __future__ import annotations

import ast

import pytest

from specedu.grade.faults import FAULTS, Fault, plant
from specedu.grade.matrix import UNBROKEN, catches, failures, table
from specedu.grade.plant import ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_and_leaves_valid_python(fault: Fault) -> None:
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    broken = plant(fault, source)
    assert broken != source
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_test_named_for_a_fault_exists(fault: Fault) -> None:
    file, _, function = fault.caught_by.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_names_are_unique_and_tell_the_version() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 12
    for fault in FAULTS:
        assert fault.name.endswith("-kernel") == (fault.backend == "triton")


def test_every_kind_that_implementations_get_wrong_is_there() -> None:
    names = {fault.name.removesuffix("-kernel") for fault in FAULTS}
    assert names >= {
        "wrong-row",
        "reused-coin",
        "p-instead-of-residual",
        "threshold-on-p",
        "top-k-membership",
        "tail-not-discarded",
        "bonus-row-after-a-refusal",
        "unmasked-vocabulary-tail",
        "placeholder-as-index",
        "placeholder-drawn-from-p",
        "inclusive-test",
        "prefix-sum-off-by-one",
    }


@pytest.mark.parametrize("source", ["nothing here", "x = 1\nx = 1\n"])
def test_a_place_that_moved_is_noticed(source: str) -> None:
    fault = Fault("moved", "a.py", "x = 1\n", "x = 2\n", "", "tests/a.py::test_a")
    with pytest.raises(ValueError, match=r"moved: its place stands \d times in a.py, expected 1"):
        plant(fault, source)


def test_a_planted_fault_fails_its_test_and_the_unbroken_source_passes() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "threshold-on-p")
    assert failures(None, [fault.caught_by]) == set()
    failed = failures(fault, [fault.caught_by])
    assert catches(fault, failed)
    assert all("torch" in test for test in failed)  # the kernel is left as it is


def test_a_fault_that_its_own_test_misses_is_not_caught() -> None:
    fault = FAULTS[0]
    another = {"tests/kernels/test_chain.py::test_something_else[torch]"}
    assert not catches(fault, another)
    assert not catches(fault, {f"{fault.caught_by}[triton]"})
    marks = table([fault], [fault.caught_by], {UNBROKEN: set(), fault.name: another})
    assert [list(column.cells) for column in marks.columns][1] == ["·", "·"]
