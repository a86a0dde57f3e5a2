"""What every engine's script shares: a line of JSON in, a line of JSON out, until the input ends.

python SCRIPT '{"model": FOLDER, "threads": 2, "kappa": 5, "lookup": [2, 4]}'

    answers  {"versions": {...}}                         when the model is loaded
    reads    {"token_ids": [...], "max_tokens": 96}      a prompt, and how many tokens to add
    answers  {"token_ids": [...], "seconds": 1.25}       the new ids, the end-of-text id or not

Only the standard library is used here: each engine lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from time import perf_counter
from typing import Any, NamedTuple

Generate = Callable[[list[int], int], list[int]]


class Settings(NamedTuple):
    """What an engine is made with.

    Attributes:
        model: our checkpoint's folder.
        threads: to compute with.
        kappa: drafted tokens a step; 0 decodes plainly.
        lookup: shortest and longest suffix that is looked up.
    """

    model: str
    threads: int
    kappa: int
    lookup: list[int]

    def ngram(self) -> dict[str, Any] | None:
        """Return the n-gram settings under vLLM's names, which are ours too; None plainly."""
        low, high = self.lookup
        config = {
            "method": "ngram",
            "num_speculative_tokens": self.kappa,
            "prompt_lookup_min": low,
            "prompt_lookup_max": high,
        }
        return config if self.kappa else None


def serve(load: Callable[[Settings], Generate], *distributions: str) -> None:
    """Load an engine and answer requests; only answers go to standard output.

    Args:
        load: makes the engine, and returns what generates greedily past the end-of-text id.
        distributions: whose versions are told.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engines print themselves

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    generate = load(Settings(**json.loads(sys.argv[1])))
    versions = {name: metadata.version(name) for name in distributions}
    answer({"versions": {"python": platform.python_version(), **versions}})
    for line in sys.stdin:
        request = json.loads(line)
        start = perf_counter()
        token_ids = generate(request["token_ids"], request["max_tokens"])
        answer({"token_ids": token_ids, "seconds": perf_counter() - start})
