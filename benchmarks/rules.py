"""Measure the acceptance rules against the memory they must read and against obvious versions.

python benchmarks/rules.py                          every rule at one serving shape
python benchmarks/rules.py --batch 8 --vocab 49152  another shape
python benchmarks/rules.py --grid --device cuda     every rule at 32 shapes, on a GPU
python benchmarks/rules.py --record rules-cpu.json  keep every sample, with machine and versions

Times of one run can be compared, times of two runs cannot: a machine's speed drifts. So everything
runs in one process, each repeat runs every contender once in a new order (a slow one only in every
nth repeat), all of them from cold caches, and medians, quartiles and ratios are reported. Each rule
stands beside its own floor, a plain sum over the rows that it must read, and beside the bandwidth
of a copy measured in the same run.

On a GPU the kernels are compared with their twins on the same data first, then timed by
``triton.testing.do_bench``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress

from specedu.kernels import (
    Verified,
    verify_block,
    verify_chain,
    verify_greedy,
    verify_logspace,
    verify_match,
    verify_race,
    verify_synthetic,
    verify_threshold,
)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Logits that differ by N(0, s²) noise have Σ min(p, q) = 2·Φ(-s/2) in a large vocabulary: .70 here.
LOGIT_NOISE = 0.77


class Shape(NamedTuple):
    batch: int
    kappa: int
    vocab: int
    dtype: str


@dataclass(frozen=True)
class Inputs:
    """What a rule is given; every request has ``kappa`` drafts, drawn from its q rows."""

    shape: Shape
    p: torch.Tensor  # [batch * (kappa + 1), vocab], a request's bonus row last
    q: torch.Tensor  # [batch * kappa, vocab]
    drafts: torch.Tensor
    cu: torch.Tensor
    accept_coins: torch.Tensor
    final_coins: torch.Tensor

    def rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """View p and q by request: the drafts' p rows, their q rows, the bonus rows."""
        batch, kappa, vocab, _ = self.shape
        p = self.p.view(batch, kappa + 1, vocab)
        return p[:, :kappa], self.q.view(batch, kappa, vocab), p[:, kappa]

    @cached_property
    def noise(self) -> torch.Tensor:
        shape = self.shape.batch, self.shape.vocab
        return torch.empty(shape, device=self.p.device).exponential_().clamp_(min=1e-9)

    @cached_property
    def logits(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.p.log(), self.q.log()

    @cached_property
    def argmax(self) -> torch.Tensor:
        return self.p.argmax(1)

    @cached_property
    def row_coins(self) -> torch.Tensor:
        rows = len(self.p)
        return torch.rand(rows, dtype=torch.float64, device=self.p.device)

    def to(self, device: str) -> Inputs:
        tensors = (self.p, self.q, self.drafts, self.cu, self.accept_coins, self.final_coins)
        return Inputs(self.shape, *(tensor.to(device) for tensor in tensors))


def make_inputs(shape: Shape, device: str = "cpu", seed: int = 0) -> Inputs:
    batch, kappa, vocab, dtype = shape
    generator = torch.Generator(device).manual_seed(seed)
    options = {"generator": generator, "device": device}
    logits = torch.randn(batch, kappa + 1, vocab, **options)
    noise = LOGIT_NOISE * torch.randn(batch, kappa, vocab, **options)
    q = (logits[:, :kappa] + noise).softmax(2).to(DTYPES[dtype]).view(-1, vocab)
    return Inputs(
        shape,
        p=logits.softmax(2).to(DTYPES[dtype]).view(-1, vocab),
        q=q,
        drafts=torch.multinomial(q.float(), 1, generator=generator)[:, 0].int(),
        cu=torch.arange(1, batch + 1, dtype=torch.int32, device=device) * kappa,
        accept_coins=torch.rand(batch * kappa, dtype=torch.float64, **options),
        final_coins=torch.rand(batch, dtype=torch.float64, **options),
    )


# --- the rules, and what they are measured against ------------------------------------------------


def with_coins(rule: Callable[..., Verified], **more: Any) -> Callable[..., Verified]:
    """Return a run of a rule of ``verify_chain``'s signature."""

    def run(x: Inputs, backend: str | None = None) -> Verified:
        arguments = x.p, x.q, x.drafts, x.cu, x.accept_coins
        last = x.noise if rule is verify_race else x.final_coins
        return rule(
            *arguments, last, max_spec_len=x.shape.kappa, backend=backend, check=False, **more
        )

    return run


def synthetic(x: Inputs, backend: str | None = None) -> Verified:
    rates = torch.full((x.shape.kappa,), 0.7, dtype=torch.float64, device=x.p.device)
    return with_coins(verify_synthetic, conditional_rates=rates)(x, backend)


def greedy(x: Inputs, backend: str | None = None) -> Verified:
    options = {"max_spec_len": x.shape.kappa, "backend": backend, "check": False}
    return verify_greedy(x.argmax, x.drafts, x.cu, **options)


def match(x: Inputs, backend: str | None = None) -> Verified:
    options = {"max_spec_len": x.shape.kappa, "backend": backend, "check": False}
    return verify_match(x.p, x.drafts, x.cu, x.row_coins, **options)


def logspace(x: Inputs, backend: str | None = None) -> Verified:
    batch, device = x.shape.batch, x.p.device
    words = torch.arange(batch, dtype=torch.int32, device=device)
    return verify_logspace(
        *x.logits, x.drafts, x.cu, torch.ones(batch, device=device), words.long(), words, words,
        max_spec_len=x.shape.kappa, accept_coins=x.accept_coins, backend=backend, check=False,
    )  # fmt: skip


class Reads(NamedTuple):
    """Rows of the vocabulary that a rule reads for one request."""

    p: float
    q: float
    noise: float = 0.0


def final_draw(x: Inputs, accepted: float, refused: float) -> Reads:
    """One p row, and a q row after a refusal; of the tested drafts single entries."""
    return Reads(1, refused)


def race_draw(x: Inputs, accepted: float, refused: float) -> Reads:
    return Reads(1, refused, noise=1)


def every_draft(x: Inputs, accepted: float, refused: float) -> Reads:
    """Block verification weighs every run by the row behind it: all but the first, and a draw."""
    return Reads(x.shape.kappa, x.shape.kappa - 1 + refused)


def tested_rows(x: Inputs, accepted: float, refused: float) -> Reads:
    """A row's sum of exponentials for each tested draft, and the last row a second time."""
    return Reads(accepted + 2, accepted + 2 * refused)


def drawn_rows(x: Inputs, accepted: float, refused: float) -> Reads:
    return Reads(accepted + 1, 0)


def nothing(x: Inputs, accepted: float, refused: float) -> Reads:
    """Of an argmax that somebody else took."""
    return Reads(0, 0)


def read_rows(x: Inputs, rows: Reads) -> None:
    """Sum whole p rows, q rows and noise where they lie: the floor.

    Always a request's first ones, so that one call reads them all through a strided view. One call
    a row could read the very rows that the rule does, but would measure the calls too.
    """
    batch, kappa, vocab, _ = x.shape
    for table, count, here in ((x.p, rows.p, kappa + 1), (x.q, rows.q, kappa)):
        if whole := min(here, round(count)):
            table.view(batch, here, vocab)[:, :whole].sum(2)
    if rows.noise:
        x.noise.sum(1)


def loop_with_multinomial(x: Inputs) -> Verified:
    """One request after the other, as the algorithm reads: clamp the difference, multinomial."""
    batch, kappa = x.shape.batch, x.shape.kappa
    token_ids = torch.full((batch, kappa + 1), -1)
    num_accepted = torch.zeros(batch, dtype=torch.int32)
    for r in range(batch):
        accepted = 0
        for i in range(r * kappa, (r + 1) * kappa):
            draft = x.drafts[i].item()
            if not x.accept_coins[i].item() * x.q[i, draft].item() < x.p[i + r, draft].item():
                break
            token_ids[r, accepted] = draft
            accepted += 1
        weights = x.p[r * (kappa + 1) + accepted].float()
        if accepted < kappa:
            weights = (weights - x.q[r * kappa + accepted].float()).clamp(min=0)
        token_ids[r, accepted] = torch.multinomial(weights, 1)
        num_accepted[r] = accepted
    return Verified(token_ids, num_accepted)


def race_over_every_row(x: Inputs) -> Verified:
    """Draw a recovered id at every position and a bonus id, then keep the ones that are needed.

    An exponential race: the largest residual / noise wins. vLLM's version 0 worked this way.
    """
    batch, kappa = x.shape.batch, x.shape.kappa
    p, q, bonus = (rows.float() for rows in x.rows())
    drafts = x.drafts.long().view(batch, kappa, 1)
    ratio = (p.gather(2, drafts).double() / q.gather(2, drafts).double())[:, :, 0]
    kept = (x.accept_coins.view(batch, kappa) < ratio).cumprod(1)

    residual = (p - q).clamp_(min=0)
    residual /= residual.sum(2, keepdim=True)
    recovered = (residual / torch.empty_like(residual).exponential_()).argmax(2)
    bonus_id = (bonus / torch.empty_like(bonus).exponential_()).argmax(1, keepdim=True)

    end = kept.sum(1, keepdim=True)
    token_ids = torch.full((batch, kappa + 1), -1)
    token_ids[:, :kappa] = drafts[:, :, 0].where(kept > 0, -1)
    token_ids.scatter_(1, end, torch.cat([recovered, bonus_id], 1).gather(1, end))
    return Verified(token_ids, end[:, 0].int())


class Contender(NamedTuple):
    run: Callable[[Inputs], Any]
    every: int = 1  # it runs in every nth repeat
    at_least: float = 0.0  # the rule is to be this many times faster


class Rule(NamedTuple):
    run: Callable[..., Verified]
    must_read: Callable[[Inputs, float, float], Reads]
    at_most: float | None = None  # the rule is to take at most this many times its floor
    baselines: dict[str, Contender] = {}


CHAIN_BASELINES = {
    "loop, multinomial": Contender(loop_with_multinomial, every=4, at_least=20),
    "race, every row": Contender(race_over_every_row, every=10, at_least=100),
}
RULES = {
    "chain": Rule(with_coins(verify_chain), final_draw, 4, CHAIN_BASELINES),
    "race": Rule(with_coins(verify_race), race_draw),
    "logspace": Rule(logspace, tested_rows),
    "block": Rule(with_coins(verify_block), every_draft),
    "match": Rule(match, drawn_rows),
    "threshold": Rule(with_coins(verify_threshold, accept_threshold_acc=0.9), final_draw),
    "synthetic": Rule(synthetic, final_draw),
    "greedy": Rule(greedy, nothing),
}
SHAPES = {
    "serving": Shape(64, 3, 128256, "float32"),
    "laptop": Shape(1, 5, 49152, "float32"),
}
GRID = [
    Shape(*sizes, "float32") for sizes in product((1, 16, 64, 256), (1, 3, 5, 8), (32000, 128256))
]
TARGET_SHAPE = SHAPES["serving"]  # small ones measure the calls, not the memory


# --- the measuring loop ---------------------------------------------------------------------------


def measure(x: Inputs, contenders: dict[str, Contender], repeats: int) -> dict[str, list[float]]:
    """Return each contender's times in seconds, every call from cold caches."""
    elsewhere = torch.ones(1 << 26)  # 256 MiB, more than the caches keep
    rounds = [[n for n, c in contenders.items() if i % c.every == 0] for i in range(repeats)]
    order, console = random.Random(0), Console(stderr=True)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    # Refreshed between the samples: a thread that refreshes on its own would run within them.
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden, auto_refresh=False) as bar:
        task = bar.add_task(" ".join(map(str, x.shape)), total=sum(map(len, rounds)))
        for names in rounds:
            order.shuffle(names)
            for name in names:
                elsewhere.sum()
                start = time.perf_counter()
                contenders[name].run(x)
                seconds[name].append(round(time.perf_counter() - start, 7))
                bar.update(task, advance=1, refresh=True)
    return seconds


def check_same(name: str, found: Verified, wanted: Verified, vocab: int) -> None:
    """Refuse a baseline that does other work: only the id of the final draw may differ."""
    final = torch.arange(wanted.token_ids.shape[1]) == wanted.num_accepted[:, None]
    if not torch.equal(found.num_accepted, wanted.num_accepted):
        raise AssertionError(f"{name}: accepts other counts than the rule on the same coins")
    if not torch.equal(found.token_ids.where(~final, 0), wanted.token_ids.where(~final, 0)):
        raise AssertionError(f"{name}: accepted ids, or the padding behind them, differ")
    if not bool(((found.token_ids[final] >= 0) & (found.token_ids[final] < vocab)).all()):
        raise AssertionError(f"{name}: a final id is outside [0, {vocab})")


def copy_bandwidth(device: str) -> float:
    """Return the bandwidth of copying 256 MiB, read and written, in B/s: the best of ten."""
    source = torch.ones(1 << 26, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.numel() * source.element_size() / min(times)


def measure_on_gpu(x: Inputs, contenders: dict[str, Contender]) -> dict[str, list[float]]:
    """Return each contender's times in seconds, with the cache flushed between them."""
    from triton.testing import do_bench

    return {
        name: [1e-3 * ms for ms in do_bench(lambda c=c: c.run(x), rep=30, return_mode="all")]
        for name, c in contenders.items()
    }


def run_rule(name: str, x: Inputs, repeats: int, device: str) -> dict[str, Any]:
    """Check and measure one rule at one shape."""
    rule, batch, vocab = RULES[name], x.shape.batch, x.shape.vocab
    wanted = rule.run(x)
    if device == "cuda":
        twin = rule.run(x.to("cpu"), "torch") if name not in ("race", "match", "logspace") else None
        if twin is not None and not torch.equal(twin.token_ids, wanted.token_ids.cpu()):
            raise AssertionError(f"{name} at {x.shape}: kernel and twin emit other ids")
    accepted = wanted.num_accepted.double().mean().item()
    refused = (wanted.num_accepted < x.shape.kappa).double().mean().item()
    rows = rule.must_read(x, accepted, refused)
    contenders = {name: Contender(rule.run)}
    if rows.p:
        contenders = {"floor": Contender(lambda x: read_rows(x, rows)), **contenders}
    if device == "cpu":
        contenders |= rule.baselines
    for other, contender in contenders.items():  # also the call that warms up
        result = contender.run(x)
        if other in rule.baselines:
            check_same(other, result, wanted, vocab)
    seconds = measure_on_gpu(x, contenders) if device == "cuda" else measure(x, contenders, repeats)

    goals = [(name, "floor", "at most", rule.at_most)] if rule.at_most else []
    goals += [(other, name, "at least", c.at_least) for other, c in rule.baselines.items()]
    targets = []
    for above, below, sense, goal in goals if x.shape == TARGET_SHAPE and device == "cpu" else []:
        ratio = median(seconds[above]) / median(seconds[below])
        met = ratio <= goal if sense == "at most" else ratio >= goal
        targets.append(
            {"ratio": f"{above} / {below}", "value": ratio, "goal": f"{sense} {goal}", "met": met}
        )
    p, q, _ = x.rows()
    size = x.p.element_size()
    return {
        "rule": name,
        "shape": x.shape._asdict(),
        "mean_acceptance": torch.minimum(p, q).sum(2, dtype=torch.float32).mean().item(),
        "mean_accepted": accepted,
        "bytes": {
            "p and q once": batch * (2 * x.shape.kappa + 1) * vocab * size,
            name: round(batch * vocab * (size * (rows.p + rows.q) + 4 * rows.noise)),
        },
        "targets": targets,
        "seconds": seconds,
    }


# --- the report -----------------------------------------------------------------------------------


def report(result: dict[str, Any], copied: float) -> None:
    alpha, accepted = result["mean_acceptance"], result["mean_accepted"]
    print(f"\n{result['rule']}: " + ", ".join(f"{k} {v}" for k, v in result["shape"].items()))
    print(f"p: softmax of N(0, 1) logits; q: of the same plus N(0, {LOGIT_NOISE}²) noise")
    print(f"mean acceptance {alpha:.3f}, mean accepted drafts {accepted:.2f}")
    print("floor: the rows that the rule must read, rounded to whole ones, summed where they lie")
    print(
        f"{'':18}{'median ms':>10}{'quartiles':>22}{'x floor':>9}{'GB/s':>7}{'copy':>7}{'runs':>6}"
    )
    floor = median(result["seconds"].get("floor", [float("nan")]))
    for name, times in result["seconds"].items():
        low, middle, high = quantiles(times, n=4, method="inclusive")
        moved = result["bytes"].get(name, 0)
        rate = f"{moved / middle / 1e9:.1f}" if moved else ""
        share = f"{moved / middle / copied:.0%}" if moved else ""
        spread = f"{low * 1e3:.3f} .. {high * 1e3:.3f}"
        row = f"{name:18}{middle * 1e3:10.3f}{spread:>22}{middle / floor:9.2f}{rate:>7}{share:>7}"
        print(f"{row}{len(times):6}")
    for target in result["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        print(f"{target['ratio']} = {target['value']:.1f}, target {target['goal']}: {verdict}")


def table(results: list[dict[str, Any]], copied: float) -> None:
    """Print one line a rule and shape: microseconds, and both rates against the copy's."""
    print(f"\n{'rule':10}{'B':>5}{'κ':>3}{'V':>8}{'µs':>10}{'x floor':>9}{'GB/s':>8}{'copy':>6}"
          f"{'GB/s of p, q':>14}")  # fmt: skip
    for result in results:
        name, shape, seconds = result["rule"], result["shape"], result["seconds"]
        middle = median(seconds[name])
        ratio = f"{middle / median(seconds['floor']):.2f}" if "floor" in seconds else ""
        moved, once = result["bytes"][name] / middle, result["bytes"]["p and q once"] / middle
        print(f"{name:10}{shape['batch']:5}{shape['kappa']:3}{shape['vocab']:8}{middle * 1e6:10.1f}"
              f"{ratio:>9}{moved / 1e9:8.1f}{moved / copied:6.0%}{once / 1e9:14.1f}")  # fmt: skip


def integer(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r}, expected an integer of at least {lowest}")
        return int(text)

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--shape", choices=SHAPES, default="serving")
    parser.add_argument("--batch", type=integer(1), help="requests, in place of the shape's")
    parser.add_argument("--kappa", type=integer(1), help="drafts a request")
    parser.add_argument("--vocab", type=integer(2), help="ids a row")
    parser.add_argument("--dtype", choices=DTYPES, help="of the probabilities")
    parser.add_argument("--repeats", type=integer(11), default=41)  # 11: two of every 10th
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--grid", action="store_true", help=f"{len(GRID)} shapes instead of one")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    parser.add_argument("--assert-targets", action="store_true", help="exit 1 if one is missed")
    arguments = parser.parse_args()
    given = {field: getattr(arguments, field) for field in Shape._fields}
    changes = {k: v for k, v in given.items() if v is not None}
    shape = SHAPES[arguments.shape]._replace(**changes)
    shapes = [one for one in GRID if one._replace(**changes) == one] if arguments.grid else [shape]
    if not shapes:
        parser.error(f"--grid: no shape with {changes}, expected sizes of {GRID[0]} .. {GRID[-1]}")
    if arguments.assert_targets and (shape != TARGET_SHAPE or arguments.device != "cpu"):
        parser.error(f"--assert-targets: {shape}, expected {TARGET_SHAPE}, which targets are for")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no GPU is here, expected cpu")

    run = describe_run()
    if arguments.device == "cuda":
        run["device"] = torch.cuda.get_device_name()
    print_run(run)
    copied = copy_bandwidth(arguments.device)
    print(f"copy: {copied / 1e9:.1f} GB/s, read and written")
    results = []
    for seed, one in enumerate(shapes):
        x = make_inputs(one, arguments.device, seed)
        results += [
            run_rule(rule, x, arguments.repeats, arguments.device) for rule in arguments.rules
        ]
    if arguments.grid:
        table(results, copied)
    else:
        for result in results:
            report(result, copied)
    if arguments.record is not None:
        record(arguments.record, {**run, "copy_bandwidth": copied, "results": results})
    missed = [target for result in results for target in result["targets"] if not target["met"]]
    return int(arguments.assert_targets and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
