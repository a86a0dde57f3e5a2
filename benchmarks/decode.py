"""Measure decoding on the real model: alone, beside each other, and what a verify costs.

python benchmarks/decode.py single   eight prompts, transformers and specedu, plain and speculating
python benchmarks/decode.py verify   a pass of T tokens for each of B requests, over one of T = 1
python benchmarks/decode.py rows     the products of a pass alone, by their number of rows
python benchmarks/decode.py many     16 requests at once against transformers' batched generate

Every contender runs in one process, taking turns; medians, and ratios within a repeat, are
reported, since a machine's speed drifts. ``--record FILE`` keeps every sample.

The int4 draft flatters itself here: the embedded weights come out of a four-bit file, so that the
target is a dequantised four-bit model, and its copy in four bits agrees with it nearly always.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import torch
import transformers
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu.advise.pair import BLOCK, CONTEXT, pass_of
from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.models.loading import resolve
from specedu.prompts import all_prompts, first_of_each
from specedu.timing import PARTS, PartTimer

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2,
         "prompt_lookup_max": 4}  # fmt: skip
# Where more rows cost nearly nothing, longer drafts pay, and suffixes of one token.
LONG = {"method": "ngram", "num_speculative_tokens": 12, "prompt_lookup_min": 1,
        "prompt_lookup_max": 3, "prompt_lookup_latest": True}  # fmt: skip
INT4 = {"method": "draft_model", "model": "self", "quantization": "int4",
        "num_speculative_tokens": 8}  # fmt: skip
EARLY_EXIT = {"method": "early_exit", "early_exit_layers": 24, "num_speculative_tokens": 2}
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "n-gram": NGRAM,
    "n-gram, long": LONG,
    "int4 self-draft": INT4,
    "early exit": EARLY_EXIT,
}


class Timed:
    """An engine whose draft, forward and verify are timed apart."""

    def __init__(self, base: LLM, config: dict[str, Any] | None, temperature: float) -> None:
        if config and temperature and config["method"] != "ngram":
            config = {**config, "draft_sample_method": "probabilistic"}
        self.llm = LLM(base.model, config, tokenizer=base.tokenizer, num_blocks=1024)
        self.timer = PartTimer(self.llm)

    def __call__(self, ids: list[int], params: SamplingParams) -> dict[str, Any]:
        self.timer.reset()
        start = time.perf_counter()
        first, tokens, verifies = None, 0, 0
        for part in self.llm.stream(ids, params):
            first = first or time.perf_counter()
            tokens, verifies = tokens + len(part.token_ids), verifies + 1
        end = time.perf_counter()
        return {"seconds": end - start, "tokens": tokens, "steps": verifies - 1,
                "decode_seconds": end - first,
                "parts": self.timer.parts(end - start)}  # fmt: skip


class Transformers:
    """transformers' own ``generate``, with the settings of one of its ways to speculate."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.model, self.settings = model, settings

    def __call__(self, ids: list[int], params: SamplingParams) -> dict[str, Any]:
        n, sampled = params.max_tokens, not params.greedy
        torch.manual_seed(params.seed or 0)
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=n,
                min_new_tokens=n, do_sample=sampled, top_k=0 if sampled else None, **self.settings,
            )  # fmt: skip
        return {"seconds": time.perf_counter() - start, "tokens": out.shape[1] - len(ids)}


def load(dtype: str) -> tuple[LLM, Any]:
    folder = resolve()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return LLM(folder, dtype=dtype), theirs.eval()


def streamed_bytes(base: LLM) -> int:
    """Bytes of weights that one token streams: all of them, the tied embedding once."""
    size = torch.finfo(base.model.dtype).bits // 8
    return size * sum(tensor.numel() for tensor in base.model.read_weights().values())


def floor_seconds(buffer: torch.Tensor) -> float:
    start = time.perf_counter()
    buffer.sum()
    return time.perf_counter() - start


# --- one request ----------------------------------------------------------------------------------


def single(arguments: argparse.Namespace) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    for dtype in arguments.dtype:
        base, theirs = load(dtype)
        buffer = torch.zeros(streamed_bytes(base) // 4)
        ids = {
            kind: base.tokenizer.chat([{"role": "user", "content": text}])
            for kind, text in first_of_each().items()
        }
        for temperature in arguments.temperature:
            contenders: dict[str, Callable] = {
                f"specedu {name}": Timed(base, config, temperature)
                for name, config in METHODS.items()
            }
            if temperature == 0:
                contenders |= {
                    "transformers": Transformers(theirs),
                    "transformers prompt lookup": Transformers(theirs, prompt_lookup_num_tokens=5),
                    "transformers assisted": Transformers(theirs, assistant_early_exit=24),
                }
            if arguments.only:
                contenders = {name: contenders[name] for name in arguments.only}
            what = f"{dtype}, temperature {temperature}"
            with Progress(console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task(what, total=(arguments.repeats + 1) * len(ids))
                for repeat in range(-1, arguments.repeats):  # the first warms up
                    tokens = arguments.tokens if repeat >= 0 else 4
                    for kind, prompt in ids.items():
                        params = SamplingParams(
                            temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=repeat
                        )
                        about = {"dtype": dtype, "temperature": temperature, "kind": kind,
                                 "repeat": repeat}  # fmt: skip
                        floor = floor_seconds(buffer)
                        for name, contender in contenders.items():
                            result = contender(prompt, params)
                            assert result["tokens"] == tokens, (name, result)
                            if repeat >= 0:
                                samples.append({**about, "name": name, "floor": floor, **result})
                        progress.update(task, advance=1)
    report_single(samples, arguments)
    return {"methods": METHODS, "samples": samples}


def report_single(samples: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    kinds = list(first_of_each())
    for dtype in arguments.dtype:
        for temperature in arguments.temperature:
            of = [s for s in samples if s["dtype"] == dtype and s["temperature"] == temperature]
            by = {(s["name"], s["kind"], s["repeat"]): s for s in of}
            names = list(dict.fromkeys(s["name"] for s in of))
            repeats = sorted({s["repeat"] for s in of})
            table = Table(title=f"{dtype}, temperature {temperature}: tokens/s, x specedu plain")
            for heading in ("", *kinds, "mean", "x plain"):
                table.add_column(heading, justify="right")
            for name in names:
                rates = [median(s["tokens"] / s["seconds"] for s in of
                                if s["name"] == name and s["kind"] == kind)
                         for kind in kinds]  # fmt: skip
                ratios = [
                    median(by["specedu plain", k, r]["seconds"] / by[name, k, r]["seconds"]
                           for r in repeats)
                    for k in kinds
                ]  # fmt: skip
                cells = [f"{a:.0f} {b:.2f}" for a, b in zip(rates, ratios, strict=True)]
                table.add_row(name, *cells, f"{harmonic_mean(rates):.1f}",
                              f"{harmonic_mean(ratios):.2f}")  # fmt: skip
            Console(width=160).print(table)
            for name in names:
                if "parts" in by[name, kinds[0], repeats[0]]:
                    behind = [
                        median(by["specedu plain", k, r]["decode_seconds"]
                               / by[name, k, r]["decode_seconds"] for r in repeats)
                        for k in kinds
                    ]  # fmt: skip
                    cells = (f"{k} {b:.2f}" for k, b in zip(kinds, behind, strict=True))
                    print(f"  {name}, behind the first token, x plain: {', '.join(cells)}; "
                          f"harmonic mean {harmonic_mean(behind):.2f}")  # fmt: skip
            plain = [s for s in of if s["name"] == "specedu plain"]
            step = median(s["decode_seconds"] / s["steps"] for s in plain)
            share = median(s["floor"] / (s["decode_seconds"] / s["steps"]) for s in plain)
            floor = median(s["floor"] for s in plain)
            print(f"plain step {step * 1e3:.1f} ms; reading the weights once {floor * 1e3:.1f} ms: "
                  f"{share:.0%} of the streaming floor")  # fmt: skip
            for name in names:
                parts = [s["parts"] for s in of if s["name"] == name and "parts" in s]
                if parts:
                    total = sum(sum(p.values()) for p in parts)
                    shares = (f"{part} {sum(p[part] for p in parts) / total:.0%}" for part in PARTS)
                    print(f"  {name}: {', '.join(shares)}")


# --- what a verify costs --------------------------------------------------------------------------

LENGTHS, WIDTHS = (1, 4, 16), (1, 2, 4, 8, 16, 32, 64)


def verify(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one pass of T tokens for each of B requests behind 256 tokens of context."""
    seconds: dict[str, list[float]] = {}
    for dtype in arguments.dtype:
        model = LLM(dtype=dtype).model
        each = -(-(CONTEXT + max(WIDTHS)) // BLOCK)
        cache = model.make_cache(max(LENGTHS) * each, BLOCK)
        shapes = [(b, t) for b in LENGTHS for t in WIDTHS]
        passes = {(b, t): pass_of(b, t, each) for b, t in shapes}
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"verify cost, {dtype}", total=arguments.repeats * len(shapes))
            for _ in range(arguments.repeats):
                for shape, batch in passes.items():
                    small = shape[0] * shape[1] < 64
                    if small:
                        model.forward(batch, cache)  # warms up: large passes take seconds
                    for _ in range(4 if small else 1):
                        start = time.perf_counter()
                        model.forward(batch, cache)
                        key = f"{dtype} B={shape[0]} T={shape[1]}"
                        seconds.setdefault(key, []).append(time.perf_counter() - start)
                    progress.update(task, advance=1)
        table = Table(title=f"{dtype}: t(T)/t(1) behind {CONTEXT} tokens (t(1) in ms)")
        for heading in ("B", "t(1)", *map(str, WIDTHS[1:])):
            table.add_column(heading, justify="right")
        for b in LENGTHS:
            one, *rest = (median(seconds[f"{dtype} B={b} T={t}"]) for t in WIDTHS)
            ratios = [f"{more / one:.2f}" for more in rest]
            table.add_row(str(b), f"{one * 1e3:.1f}", *ratios)
        Console(width=120).print(table)
    return {"context": CONTEXT, "seconds": seconds}


# --- the products alone ---------------------------------------------------------------------------

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def rows(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time all products of one pass of T rows: streaming weights costs more to one than to six."""
    seconds: dict[str, list[float]] = {}
    for dtype in arguments.dtype:
        base = LLM(dtype=dtype)
        products = [p for layer in base.model.layers for p in base.model._products(layer)]
        buffer = torch.zeros(streamed_bytes(base) // 4)
        for repeat in range(-1, 3 * arguments.repeats):  # the first warms up
            taken = {"floor": floor_seconds(buffer)}
            for count in ROWS:
                taken[str(count)] = products_seconds(base.model, products, count)
            for name, spent in taken.items():
                if repeat >= 0:
                    seconds.setdefault(f"{dtype} {name}", []).append(spent)
        one, floor = (median(seconds[f"{dtype} {name}"]) for name in ("1", "floor"))
        found = (f"{n}: {median(seconds[f'{dtype} {n}']) / one:.2f}" for n in ROWS)
        print(f"{dtype}: one row {one * 1e3:.1f} ms, reading the weights {floor * 1e3:.1f} ms; "
              f"over one row {', '.join(found)}")  # fmt: skip
    return {"seconds": seconds}


def products_seconds(model: Any, products: Sequence[Any], count: int) -> float:
    inputs = {length: torch.zeros(count, length, dtype=model.dtype) for _, length in products}
    start = time.perf_counter()
    for apply, length in products:
        apply(inputs[length])
    model._linear(inputs[model.config.hidden_size], model.head)
    return time.perf_counter() - start


# --- many requests --------------------------------------------------------------------------------


REQUESTS = 16


def many(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time 16 requests at once, plain and n-gram, against transformers' batched generate."""
    seconds: dict[str, list[float]] = {}
    for dtype in arguments.dtype:
        runs = contenders_of_many(dtype, arguments.tokens)
        for repeat in range(-1, arguments.repeats):  # the first warms up
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if repeat >= 0:
                    taken = time.perf_counter() - start
                    seconds.setdefault(f"{dtype} {name}", []).append(taken)
        for name in runs:
            taken = seconds[f"{dtype} {name}"]
            pairs = zip(seconds[f"{dtype} transformers"], taken, strict=True)
            print(f"{dtype}, {REQUESTS} requests, {name}: "
                  f"{REQUESTS * arguments.tokens / median(taken):.0f} tokens/s, "
                  f"{median(a / b for a, b in pairs):.2f} x transformers")  # fmt: skip
    return {"requests": REQUESTS, "seconds": seconds}


def contenders_of_many(dtype: str, tokens: int) -> dict[str, Callable[[], object]]:
    """Return what generates for all requests at once, by name; prompts of every kind."""
    base, theirs = load(dtype)
    texts = [text for _, text in all_prompts()[::3][:REQUESTS]]
    ids = [base.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    longest = max(map(len, ids))
    padded = torch.tensor([[0] * (longest - len(i)) + i for i in ids])
    mask = torch.tensor([[0] * (longest - len(i)) + [1] * len(i) for i in ids])
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def batched() -> None:
        with torch.inference_mode():
            theirs.generate(padded, attention_mask=mask, max_new_tokens=tokens,
                            min_new_tokens=tokens, do_sample=False, pad_token_id=0)  # fmt: skip

    def ours(config: dict[str, Any] | None) -> Callable[[], object]:
        llm = LLM(base.model, config, tokenizer=base.tokenizer, num_blocks=1024)
        return lambda: llm.generate(ids, params)

    short = {**NGRAM, "num_speculative_tokens": 3}
    return {"transformers": batched, "specedu plain": ours(None), "specedu n-gram": ours(short)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["single", "verify", "rows", "many"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some contenders of single")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    run = describe_run()
    run["versions"]["transformers"] = transformers.__version__
    print_run(run)
    ways = {"single": single, "verify": verify, "rows": rows, "many": many}
    found = ways[arguments.what](arguments)
    if arguments.record is not None:
        settings = {k: v for k, v in vars(arguments).items() if k != "record"}
        record(arguments.record, {**run, "settings": settings, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
