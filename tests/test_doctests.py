"""Every example in a docstring runs, and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import specedu
from specedu import kernels

MODULES = sorted(
    name
    for package in (specedu, kernels)
    for _, name, _ in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert failed == 0, f"{failed} of {attempted} examples"


def test_every_module_is_looked_at() -> None:
    assert {"specedu.kernels.chain", "specedu.theory.exact", "specedu.ragged"} <= set(MODULES)
