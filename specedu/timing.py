"""Where a step's time goes: draft, forward, verify and everything else, of a running engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .llm import LLM

PARTS = ("draft", "forward", "verify", "host")


class Clock:
    """Seconds that passed inside the functions it was put around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable) -> Callable:
        """Return the function with its time added up."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class PartTimer:
    """The clocks of one engine, put around its runner's parts; the engine must not run meanwhile.

    Args:
        llm: stays changed: its model is wrapped.
    """

    def __init__(self, llm: LLM) -> None:
        self.clocks = {part: Clock() for part in PARTS[:3]}
        runner = llm.engine.runner
        runner.propose = self.clocks["draft"].around(runner.propose)
        runner.model = SimpleNamespace(
            vocab_size=llm.model.vocab_size,
            eos_token_id=llm.model.eos_token_id,
            forward=self.clocks["forward"].around(llm.model.forward),
        )
        runner._verify = self.clocks["verify"].around(runner._verify)

    def reset(self) -> None:
        """Set every clock to 0."""
        for clock in self.clocks.values():
            clock.seconds = 0.0

    def parts(self, seconds: float) -> dict[str, float]:
        """Return the seconds of each part since ``reset``, out of so many in all."""
        found = {part: clock.seconds for part, clock in self.clocks.items()}
        return {**found, "host": seconds - sum(found.values())}
