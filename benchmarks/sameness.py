"""Compare texts with and without speculation, on the real model and the project's own prompts.

python benchmarks/sameness.py                                50 prompts greedy, then match
python benchmarks/sameness.py --record sameness-cpu.json     keep the outcome

Greedy: the text with drafts against plain decoding's. Where they part, the two ids' gap in the
plain logits is compared with the largest difference that the shape of the pass makes to any logit
there; below twice that it is a near-tie, and neither text is wrong.

Match: one seed, plain decoding alone against every draft length, in batches of several sizes, with
and without ``batch_invariant``; where the machine's products do not allow that, the refusal is
kept. What is measured is recorded as it comes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress

from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.models.base import ForwardBatch
from specedu.prompts import all_prompts

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
INT4 = {"method": "draft_model", "model": "self", "quantization": "int4"}
BATCHES = (1, 4, 16)


class Watched:
    """A model that keeps, by position, the logits of one request's rows; the last pass counts."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.logits: dict[int, torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        logits = self.model.forward(batch, cache)
        positions = batch.positions[batch.logits_indices].tolist()
        self.logits |= dict(zip(positions, logits, strict=True))
        return logits


def compare_greedy(base: LLM, config: dict[str, Any], tokens: int, prompts: Sequence) -> dict:
    """Return how many texts are equal, and every place where two part."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    watched = Watched(base.model), Watched(base.model)
    plain = LLM(watched[0], tokenizer=base.tokenizer)
    drafted = LLM(watched[1], config, tokenizer=base.tokenizer)
    equal, parted = 0, []
    for name, ids in steps(prompts, f"greedy, {base.model.dtype}, {config['method']}"):
        texts = []
        for llm, seen in zip((plain, drafted), watched, strict=True):
            seen.logits.clear()
            texts.append(llm.generate(ids, params)[0].outputs[0].token_ids)
        pairs = enumerate(zip(*texts, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), None)
        if place is None:
            equal += 1
            continue
        ours, theirs = (seen.logits[len(ids) + place - 1] for seen in watched)
        a, b = texts[0][place], texts[1][place]
        gap, difference = (ours[a] - ours[b]).item(), (ours - theirs).abs().max().item()
        parted.append(
            {"prompt": name, "place": place, "plain": a, "drafted": b, "gap": gap,
             "largest_difference": difference, "near_tie": gap < 2 * difference}
        )  # fmt: skip
    stats = drafted.metrics
    return {"prompts": len(prompts), "equal": equal, "parted": parted,
            "mean_acceptance_length": stats.mean_acceptance_length}  # fmt: skip


def compare_match(base: LLM, tokens: int, prompts: Sequence, kappas: Sequence[int]) -> list[dict]:
    """Return, for each draft length and batch size, how many texts are plain decoding's.

    Where ``batch_invariant`` is refused, one entry says so.
    """
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, max_tokens=tokens, seed=i)
        for i in range(len(prompts))
    ]
    outcome = []
    for invariant in (True, False):
        settings = {"tokenizer": base.tokenizer, "batch_invariant": invariant}
        try:
            plain = LLM(base.model, **settings)
        except ValueError as error:
            outcome.append({"batch_invariant": invariant, "refused": str(error)})
            continue
        alone = texts_of(plain, prompts, params, 1)
        runs = [(kappa, batch) for kappa in kappas for batch in BATCHES]
        what = f"match, {base.model.dtype}, batch_invariant={invariant}"
        for kappa, batch in steps(runs, what):
            config = {**(NGRAM if kappa % 2 else INT4), "num_speculative_tokens": kappa,
                      "rejection_sample_method": "match"}  # fmt: skip
            found = texts_of(LLM(base.model, config, **settings), prompts, params, batch)
            same = sum(a == b for a, b in zip(alone, found, strict=True))
            outcome.append({"batch_invariant": invariant, "kappa": kappa, "batch": batch,
                            "method": config["method"], "same": same,
                            "prompts": len(prompts)})  # fmt: skip
    return outcome


def texts_of(
    llm: LLM, prompts: Sequence, params: Sequence[SamplingParams], batch: int
) -> list[list[int]]:
    texts = []
    for i in range(0, len(prompts), batch):
        ids = [ids for _, ids in prompts[i : i + batch]]
        outputs = llm.generate(ids, params[i : i + batch])
        texts += [output.outputs[0].token_ids for output in outputs]
    return texts


def steps(items: Sequence, what: str):
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(what, total=len(items))
        for item in items:
            yield item
            progress.update(task, advance=1, refresh=True)


def report(outcome: dict[str, Any]) -> None:
    for (dtype, method), found in outcome["greedy"].items():
        print(f"greedy, {dtype}, {method}: {found['equal']} of {found['prompts']} texts equal, "
              f"mean acceptance length {found['mean_acceptance_length']:.2f}")  # fmt: skip
        for one in found["parted"]:
            kind = "near-tie" if one["near_tie"] else "NO NEAR-TIE"
            print(f"  {one['prompt']} parts at token {one['place']}: gap {one['gap']:.2e}, largest "
                  f"difference {one['largest_difference']:.2e}: {kind}")  # fmt: skip
    for dtype, runs in outcome["match"].items():
        for invariant in (True, False):
            of = [run for run in runs if run["batch_invariant"] is invariant]
            if refused := [run["refused"] for run in of if "refused" in run]:
                print(f"match, {dtype}, {refused[0]}")
                continue
            same = sum(run["same"] for run in of)
            total = sum(run["prompts"] for run in of)
            worst = min(run["same"] for run in of)
            print(f"match, {dtype}, batch_invariant={invariant}: {same} of {total} texts are plain "
                  f"decoding's; at least {worst} of {of[0]['prompts']} in each run")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--match-prompts", type=int, default=16)
    parser.add_argument("--match-tokens", type=int, default=24)
    parser.add_argument("--kappa", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    arguments = parser.parse_args(argv)
    run = describe_run()
    print_run(run)
    outcome: dict[str, Any] = {"greedy": {}, "match": {}}
    for dtype in ("float32", "bfloat16"):
        base = LLM(dtype=dtype)
        prompts = [
            (name, base.tokenizer.chat([{"role": "user", "content": text}]))
            for name, text in all_prompts()
        ]
        for config in (NGRAM, INT4):
            settings = {**config, "num_speculative_tokens": 5}
            found = compare_greedy(base, settings, arguments.tokens, prompts)
            outcome["greedy"][dtype, config["method"]] = found
            save(arguments, run, outcome)
        # Every third prompt: some of each kind.
        some = prompts[::3][: arguments.match_prompts]
        outcome["match"][dtype] = compare_match(base, arguments.match_tokens, some, arguments.kappa)
        save(arguments, run, outcome)
    report(outcome)
    return 0


def save(arguments: argparse.Namespace, run: dict[str, Any], outcome: dict[str, Any]) -> None:
    """Record what there is so far, if asked to."""
    if arguments.record is None:
        return
    greedy = [{"dtype": d, "method": m, **v} for (d, m), v in outcome["greedy"].items()]
    settings = {k: v for k, v in vars(arguments).items() if k != "record"}
    content = {"settings": settings, "greedy": greedy, "match": outcome["match"]}
    record(arguments.record, {**run, **content})


if __name__ == "__main__":
    sys.exit(main())
