"""A browser without a network, and the figures' source as a module in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specedu.figures.figure import module


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
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


@pytest.fixture(scope="session")
def ask(browser: Any) -> Callable[..., Any]:
    """Return ``ask(parts, expression, argument)``: evaluates with the module's exports as ``m``."""
    page = browser.new_context(offline=True).new_page()
    run = """async ([source, expression, argument]) => {
        const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        const m = await import(address);
        return await new Function("m", "argument", "return " + expression)(m, argument);
    }"""

    def evaluate(parts: tuple[str, ...], expression: str, argument: Any = None) -> Any:
        # Exported names of every part, not of the last alone.
        source = "\n".join(module(part) for part in parts)
        return page.evaluate(run, [source, expression, argument])

    return evaluate
