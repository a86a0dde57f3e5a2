"""Ask how far n-gram lookup could speed up these texts if a verify cost no more than a plain step.

python benchmarks/lookup.py                          the best settings for each kind of prompt
python benchmarks/lookup.py --record lookup-cpu.json keep every setting's steps

Plain decoding gives each text once. Which drafts a lookup makes of it, and how many are accepted,
follows from the text alone; nothing is timed. Tokens over steps bounds any speed-up from above.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from machine import describe_run, print_run, record

from specedu.config import SamplingParams
from specedu.draft.ngram import lookup
from specedu.llm import LLM
from specedu.prompts import first_of_each

SHORTEST, LONGEST, LENGTHS, LATEST = (1, 2, 3), (3, 4, 5, 8), (5, 8, 12, 16, 32), (False, True)


def steps_of(prompt: Sequence[int], text: Sequence[int], settings: tuple) -> int:
    """Return the steps behind the first token in which drafts of these settings give the text."""
    shortest, longest, kappa, latest = settings
    known, steps = [*prompt, text[0]], 0
    while len(known) < len(prompt) + len(text):
        rest = text[len(known) - len(prompt) :]
        drafts = lookup(known, shortest, longest, min(kappa, len(rest) - 1), latest)
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == rest[accepted]:
            accepted += 1
        known += rest[: accepted + 1]
        steps += 1
    return steps


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    run = describe_run()
    print_run(run)
    llm = LLM(dtype=arguments.dtype)
    params = SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    choices = list(product(SHORTEST, LONGEST, LENGTHS, LATEST))
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, words in first_of_each().items():
        prompt = llm.tokenizer.chat([{"role": "user", "content": words}])
        text = llm.generate([prompt], params)[0].outputs[0].token_ids
        found[kind] = [
            {"prompt_lookup_min": a, "prompt_lookup_max": b, "num_speculative_tokens": k,
             "prompt_lookup_latest": latest,
             "tokens_a_step": (len(text) - 1) / steps_of(prompt, text, (a, b, k, latest))}
            for a, b, k, latest in choices
        ]  # fmt: skip
        best = max(found[kind], key=lambda one: one["tokens_a_step"])
        print(f"{kind}: at most {best['tokens_a_step']:.2f} tokens a step, with "
              + ", ".join(f"{k} {v}" for k, v in best.items() if k != "tokens_a_step"))  # fmt: skip
    means = [harmonic_mean([of[i]["tokens_a_step"] for of in found.values()])
             for i in range(len(choices))]  # fmt: skip
    print(f"of {len(choices)} settings the best one for all kinds: {max(means):.2f} in the "
          "harmonic mean")  # fmt: skip
    if arguments.record is not None:
        settings = {"tokens": arguments.tokens, "dtype": arguments.dtype}
        record(arguments.record, {**run, "settings": settings, "kinds": found})


if __name__ == "__main__":
    main()
