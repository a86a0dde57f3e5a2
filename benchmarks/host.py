"""Measure the host's share of a step, on a model that costs nothing.

python benchmarks/host.py                         1, 8, 64 and 256 running requests
python benchmarks/host.py --record toy-host.json  keep every sample

The model returns one row of logits for every row asked, so that what is left is the engine: the
scheduler, filling the batch, the transforms, the rule, stops and n-gram drafts. Batch sizes take
turns in one process; medians and ratios are reported, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

import torch
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress

from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.models.base import ForwardBatch

BATCHES = (1, 8, 64, 256)
VOCAB, PROMPT, KAPPA = 64, 64, 3
torch.set_num_threads(1)  # host work is one thread's
ROUNDS, STEPS = 5, 12  # in each round every batch size runs that many steps


class FreeModel:
    """Logits that are there already: the same row for every row that is asked."""

    vocab_size = VOCAB
    max_model_len = 4096
    eos_token_id = None

    def __init__(self) -> None:
        self.row = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))

    def make_cache(self, num_blocks: int, block_size: int) -> None:
        """Keep nothing."""

    def forward(self, batch: ForwardBatch, cache: None) -> torch.Tensor:
        """Return the row as often as it is asked for."""
        return self.row.expand(len(batch.logits_indices), -1)


def busy_engine(requests: int) -> LLM:
    """Return an engine whose requests have read their prompts and decode."""
    block_size, context = 16, PROMPT + 4 * ROUNDS * (STEPS + 2) * (KAPPA + 1)
    llm = LLM(
        FreeModel(),
        {"method": "ngram", "num_speculative_tokens": KAPPA, "prompt_lookup_min": 1,
         "prompt_lookup_max": 3},
        block_size=block_size,
        num_blocks=requests * -(-context // block_size) + 256,
        max_num_seqs=requests,
        max_num_batched_tokens=requests * PROMPT,
    )  # fmt: skip
    dice = torch.Generator().manual_seed(1)
    for i in range(requests):
        prompt = torch.randint(VOCAB, (PROMPT,), generator=dice).tolist()
        llm.engine.add_request(str(i), prompt, SamplingParams(max_tokens=3000), seed=i)
    for _ in range(2):
        llm.engine.step()
    return llm


def measure() -> dict[int, list[float]]:
    """Return the seconds of every step, by the number of running requests."""
    engines = {requests: busy_engine(requests).engine for requests in BATCHES}
    seconds: dict[int, list[float]] = {requests: [] for requests in BATCHES}
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("steps of an engine", total=ROUNDS * len(BATCHES))
        for _ in range(ROUNDS):
            for requests, engine in engines.items():
                for _ in range(STEPS):
                    start = time.perf_counter()
                    engine.step()
                    seconds[requests].append(time.perf_counter() - start)
                assert len(engine.scheduler.running) == requests
                progress.update(task, advance=1, refresh=True)
    return seconds


def report(seconds: dict[int, list[float]]) -> None:
    print(f"\nhost work of a step: n-gram, kappa = {KAPPA}, a vocabulary of {VOCAB}, no model")
    print(f"{'requests':>9}{'median ms':>11}{'quartiles':>18}{'us a request':>14}{'x before':>10}")
    before = None
    for requests, times in seconds.items():
        low, middle, high = quantiles(times, n=4, method="inclusive")
        growth = f"{middle / before:.2f}" if before else ""
        spread = f"{low * 1e3:.2f} .. {high * 1e3:.2f}"
        each = middle / requests * 1e6
        print(f"{requests:>9}{middle * 1e3:>11.2f}{spread:>18}{each:>14.1f}{growth:>10}")
        before = middle
    sizes = list(seconds)
    slope = (median(seconds[sizes[-1]]) - median(seconds[sizes[-2]])) / (sizes[-1] - sizes[-2])
    fixed = median(seconds[sizes[-2]]) - slope * sizes[-2]
    print(f"between {sizes[-2]} and {sizes[-1]}: {slope * 1e6:.1f} us a request, the rest "
          f"{fixed * 1e3:.2f} ms")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    run = describe_run()
    print_run(run)
    seconds = measure()
    report(seconds)
    if arguments.record is not None:
        record(arguments.record, {**run, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
