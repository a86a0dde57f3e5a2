"""Measure the speed-up against the number of requests at once, and what the model predicts of it.

python benchmarks/concurrency.py --record concurrency-cpu.json

The same 16 prompts are served in groups of B, so that the texts are the same at every B. A group's
prompts are computed first; then a fixed number of steps is timed, the parts of each apart. Passes
of B requests with 1 and kappa + 1 tokens each are timed beside them, for the prediction. Every
contender takes its turn before the next B; medians over repeats are reported.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from decode import INT4, NGRAM, Timed
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu.advise.pair import pass_seconds
from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.prompts import KINDS
from specedu.theory.rates import expected_tokens, fitted_alpha
from specedu.theory.speedup import measured_speedup
from specedu.timing import PARTS

BATCHES = (1, 2, 4, 8, 16)
PROMPTS = [texts[i] for i in (0, 1) for texts in KINDS.values()]  # 16, two of each kind
CONTENDERS: dict[str, dict[str, Any] | None] = {"plain": None, "n-gram": NGRAM,
                                                "int4 self-draft": INT4}  # fmt: skip


def decode(timed: Timed, prompts: Sequence[list[int]], steps: int) -> dict[str, Any]:
    """Time ``steps`` steps of requests whose prompts are computed; return what was emitted."""
    engine = timed.llm.engine
    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
    requests = [engine.add_request(f"r{i}", ids, params, 0) for i, ids in enumerate(prompts)]
    while not all(request.decoding for request in requests):
        engine.step()
    timed.timer.reset()
    emitted: list[int] = []
    start = time.perf_counter()
    for _ in range(steps):
        emitted += [len(part.new_token_ids) for part in engine.step()]
    seconds = time.perf_counter() - start
    for request in requests:
        engine.cancel(request.request_id)
    parts = timed.timer.parts(seconds)
    return {"seconds": seconds, "steps": steps, "emitted": emitted, "parts": parts}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    base = LLM(dtype=arguments.dtype)
    chats = [base.tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    configs = {
        name: config and {**config, "num_speculative_tokens": arguments.kappa}
        for name, config in CONTENDERS.items()
    }
    timed = {name: Timed(base, config, 0.0) for name, config in configs.items()}
    samples: list[dict[str, Any]] = []
    passes: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("concurrency", total=(arguments.repeats) * len(BATCHES))
        for contender in timed.values():
            decode(contender, chats[:2], 2)  # warms up
        for repeat in range(arguments.repeats):
            for batch in BATCHES:
                for width in (1, arguments.kappa + 1):
                    taken = median(pass_seconds(base, batch, width))
                    passes.append({"repeat": repeat, "batch": batch, "width": width,
                                   "seconds": taken})  # fmt: skip
                for at in range(0, len(chats), batch):
                    for name, contender in timed.items():
                        steps = arguments.steps if name == "plain" else arguments.steps // 2
                        found = decode(contender, chats[at : at + batch], steps)
                        samples.append({"name": name, "batch": batch, "repeat": repeat,
                                        "group": at // batch, **found})  # fmt: skip
                progress.update(task, advance=1)
    report(samples, passes, arguments)
    return {"kappa": arguments.kappa, "samples": samples, "passes": passes}


def total(samples: Sequence[dict[str, Any]], name: str, batch: int, repeat: int) -> dict[str, Any]:
    """Return one contender's groups of a repeat added up."""
    of = [s for s in samples if (s["name"], s["batch"], s["repeat"]) == (name, batch, repeat)]
    emitted = [n for s in of for n in s["emitted"]]
    parts = {part: sum(s["parts"][part] for s in of) for part in PARTS}
    return {"seconds": sum(s["seconds"] for s in of), "steps": sum(s["steps"] for s in of),
            "emitted": emitted, "parts": parts}  # fmt: skip


def report(
    samples: Sequence[dict[str, Any]],
    passes: Sequence[dict[str, Any]],
    arguments: argparse.Namespace,
) -> None:
    kappa, repeats = arguments.kappa, range(arguments.repeats)
    of_pass = {(p["repeat"], p["batch"], p["width"]): p["seconds"] for p in passes}
    table = Table(title=f"x plain at B requests, kappa {kappa}: measured, predicted")
    for heading in ("", *(f"B = {b}" for b in BATCHES)):
        table.add_column(heading, justify="right")
    for name in list(CONTENDERS)[1:]:
        cells = []
        for batch in BATCHES:
            gains, predicted = [], []
            for repeat in repeats:
                plain, other = (total(samples, n, batch, repeat) for n in ("plain", name))
                rate = sum(plain["emitted"]) / plain["seconds"]
                gains.append(sum(other["emitted"]) / other["seconds"] / rate)
                accepted = [n - 1 for n in other["emitted"]]
                rates = [sum(n >= i for n in accepted) / len(accepted) for i in range(1, kappa + 1)]
                one, verify = (of_pass[repeat, batch, width] for width in (1, kappa + 1))
                draft = other["parts"]["draft"] / other["steps"]
                tokens = expected_tokens(fitted_alpha(rates), kappa)
                predicted.append(measured_speedup(tokens, one, verify, draft))
            cells.append(f"{median(gains):.2f} {median(predicted):.2f}")
        table.add_row(name, *cells)
    Console(width=120).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kappa", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help="of plain decoding; half for others")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    run = describe_run()
    print_run(run)
    found = measure(arguments)
    if arguments.record is not None:
        settings = {k: v for k, v in vars(arguments).items() if k != "record"}
        record(arguments.record, {**run, "settings": settings, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
