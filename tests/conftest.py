"""What every test may ask for: a backend, a browser, and how much the interpreter is asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

# Triton's interpreter takes milliseconds a request: no example is slow because something is wrong.
settings.register_profile("specedu", deadline=None, derandomize=True)
settings.load_profile("specedu")

# The tests' tensors are small, and several processes share the cores: a second thread only waits.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interpreter-share",
        type=float,
        default=0.3,
        help="share of the cells that the interpreter is asked (default: 0.3; make grids: 1)",
    )
    parser.addoption(
        "--stress-steps",
        type=int,
        default=5_000,
        help="engine steps of the stress test (default: 5000, a tenth of make stress)",
    )


@pytest.fixture
def stress_steps(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--stress-steps")


@pytest.fixture
def interpreter_share(request: pytest.FixtureRequest) -> float:
    return request.config.getoption("--interpreter-share")


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a chromium; without one, skip, and fail where CI should have installed it."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed: apt-get install chromium")
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": chromium, "args": ["--no-sandbox"]}
        opened = playwright.chromium.launch(**options)
        yield opened
        opened.close()
