"""The figures' source as a module in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specedu.figures.figure import module


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
