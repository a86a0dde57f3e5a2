"""``specedu advise``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu.config import SamplingParams
from specedu.generate import shown
from specedu.llm import LLM
from specedu.models.loading import resolve
from specedu.prompts import first_of_each
from specedu.theory.cost import T_star
from specedu.theory.hardware import HARDWARE, hardware

from . import page, pair


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what the command takes besides model and draft."""
    command.add_argument("--prompts", metavar="FILE", help="one a line (default: eight built-in)")
    command.add_argument("--raw", action="store_true", help="no chat template")
    command.add_argument("--temp", type=float, default=0.0)
    command.add_argument("--output-len", type=int, default=48, help="of each answer (default: 48)")
    command.add_argument("--check", action="store_true", help="run the advice against plain")
    server = command.add_argument_group("a running vLLM or SGLang")
    server.add_argument("--metrics", metavar="URL", help="its metrics page, or a file of it")
    server.add_argument("--seconds", type=float, default=0.0, metavar="S",
                        help="read twice, so far apart (default: once)")  # fmt: skip
    server.add_argument("--draft-cost", type=float, metavar="C",
                        help="one draft pass over one target step; 0 for n-gram")  # fmt: skip
    server.add_argument("--hardware", choices=list(HARDWARE), help="for the load where it loses")


def run(arguments: argparse.Namespace, speculative_config: dict[str, Any]) -> None:
    """Print what was measured, or read, and what follows.

    Raises:
        ValueError: a setting is refused, or a page says too little.
        LoadingError: the model cannot be had.
        OSError: the file of prompts cannot be read.
    """
    console = Console(highlight=False, soft_wrap=True)
    if arguments.metrics:
        advise_server(arguments, console)
    else:
        advise_pair(arguments, speculative_config, console)


def advise_server(arguments: argparse.Namespace, console: Console) -> None:
    """Read a metrics page, once or twice, and print what follows."""
    for name, value in (("--draft-cost", arguments.draft_cost), ("--seconds", arguments.seconds)):
        if value is not None and not value >= 0:
            raise ValueError(f"{name}: {value}, expected at least 0")
    if arguments.hardware and arguments.draft_cost is None:
        raise ValueError(f"--hardware: {arguments.hardware!r}, expected with --draft-cost only")
    seen = page.read(page.fetch(arguments.metrics))
    if arguments.seconds:
        time.sleep(arguments.seconds)
        seen = page.between(seen, page.read(page.fetch(arguments.metrics)))
    reading = page.interpret(seen, arguments.num_spec_tokens)
    ridge = T_star(hardware(arguments.hardware)) if arguments.hardware else None
    origin = "" if reading.measured else " (of one alpha; the page has none)"
    console.print(f"accepted by place: {shown(reading.rates)}{origin}")
    for sentence in page.verdict(reading, arguments.draft_cost, ridge):
        console.print(sentence)
    for note in reading.notes:
        console.print(f"note: {note}")


def advise_pair(arguments: argparse.Namespace, config: dict[str, Any], console: Console) -> None:
    """Measure a pair, print what follows, and run the advice where that is asked for."""
    if arguments.temp > 0 and config["method"] != "ngram":
        config = {**config, "draft_sample_method": "probabilistic"}
    params = SamplingParams(temperature=arguments.temp, max_tokens=arguments.output_len)
    texts = list(first_of_each().values())
    if arguments.prompts:
        texts = [line for line in Path(arguments.prompts).read_text().splitlines() if line.strip()]
    llm = LLM(arguments.model or resolve(), dtype=arguments.dtype)
    chat, encode = llm.tokenizer.chat, llm.tokenizer.encode
    prompts = [
        encode(text) if arguments.raw else chat([{"role": "user", "content": text}])
        for text in texts
    ]
    for ids in prompts:
        llm.engine.check_request(ids, params)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        total = pair.units(config["num_speculative_tokens"], len(prompts))
        task = progress.add_task("measuring", total=total)
        found = pair.measure(llm, config, prompts, params, lambda: progress.advance(task))
    console.print(gains_table(found))
    console.print(
        f"accepted by place: {shown(found.rates)}, of all steps; one draft pass costs "
        f"{found.draft_cost:.2f} of a plain step"
    )
    for sentence in pair.verdict(found):
        console.print(sentence)
    for batch in pair.BATCHES if arguments.check else ():
        kappa, predicted = found.best(batch)
        settings = {**config, "num_speculative_tokens": kappa}
        measured = pair.check(llm, settings, prompts, params, batch)
        console.print(
            f"run with {batch} at once, {kappa} drafts: {measured:.2f} measured, {predicted} "
            "predicted"
        )


def gains_table(found: pair.Measured) -> Table:
    """Return predicted gains by drafts and load."""
    title = "times plain decoding's speed, predicted (90 % of the draws)"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("drafts", justify="right")
    for batch in pair.BATCHES:
        table.add_column(f"{batch} request{'s' * (batch > 1)}", justify="right")
    for kappa in range(1, found.kappa + 1):
        table.add_row(str(kappa), *(str(found.gain(batch, kappa)) for batch in pair.BATCHES))
    return table
