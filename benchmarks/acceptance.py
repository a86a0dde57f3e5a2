"""Record how many drafts each step accepts: every prompt, method and temperature.

python benchmarks/acceptance.py --record acceptance-cpu.json

Times do not matter here, so that all prompts run at once. A step's number of accepted drafts is
kept for every step of every prompt, in the order of the text, those without a draft as "-".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decode import EARLY_EXIT, INT4, NGRAM
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.prompts import KINDS
from specedu.theory.rates import fitted_alpha, tokens_of_rates

METHODS = {"n-gram": NGRAM, "int4 self-draft": INT4, "early exit": EARLY_EXIT}
NO_DRAFT = "-"


def accepted_of(
    base: LLM, config: dict[str, Any], prompts: Sequence[list[int]], params: SamplingParams
) -> list[str]:
    """Return a text for each prompt: the accepted drafts of each of its steps, a digit a step."""
    llm = LLM(base.model, config, tokenizer=base.tokenizer, num_blocks=2048, record=True)
    llm.generate(list(prompts), params)
    steps: dict[str, list[str]] = {}
    for part in (part for step in llm.engine.records for part in step.verifies):
        drafted = sum(token >= 0 for token in part.draft_token_ids)
        found = str(part.num_accepted) if drafted else NO_DRAFT
        steps.setdefault(part.request_id, []).append(found)
    return ["".join(found[1:]) for found in steps.values()]  # the prompt's own step has no draft


def rates_of(steps: Sequence[str], kappa: int) -> list[float]:
    """Return the unconditional rates over the steps that had a draft."""
    accepted = [int(step) for step in "".join(steps) if step != NO_DRAFT]
    return [sum(n >= i for n in accepted) / max(1, len(accepted)) for i in range(1, kappa + 1)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kappa", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    run = describe_run()
    print_run(run)
    base = LLM()
    chats = {
        kind: [base.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
        for kind, texts in KINDS.items()
    }
    found: list[dict[str, Any]] = []
    table = Table(title=f"kappa {arguments.kappa}: alpha fitted, E, share of steps with a draft")
    for heading in ("", "temperature", *chats):
        table.add_column(heading)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("acceptance", total=2 * len(METHODS) * len(chats))
        for name, config in METHODS.items():
            config = {**config, "num_speculative_tokens": arguments.kappa}
            for temperature in (0.0, 1.0):
                if temperature and name != "n-gram":
                    config = {**config, "draft_sample_method": "probabilistic"}
                params = SamplingParams(
                    temperature=temperature, max_tokens=arguments.tokens, seed=0
                )
                cells = []
                for kind, prompts in chats.items():
                    steps = accepted_of(base, config, prompts, params)
                    found.append({"method": name, "temperature": temperature, "kind": kind,
                                  "steps": steps})  # fmt: skip
                    rates, every = rates_of(steps, arguments.kappa), "".join(steps)
                    drafted = 1 - every.count(NO_DRAFT) / max(1, len(every))
                    cells.append(f"{fitted_alpha(rates):.2f} {tokens_of_rates(rates):.2f} "
                                 f"{drafted:.0%}")  # fmt: skip
                    progress.update(task, advance=1)
                table.add_row(name, str(temperature), *cells)
    Console(width=150).print(table)
    if arguments.record is not None:
        settings = {"kappa": arguments.kappa, "tokens": arguments.tokens}
        record(arguments.record, {**run, "settings": settings, "runs": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
