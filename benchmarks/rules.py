"""Measure the acceptance rules against the memory they must read and against obvious versions.

python benchmarks/rules.py                          every rule at its targets' shape
python benchmarks/rules.py --batch 8 --vocab 49152  another shape
python benchmarks/rules.py --record chain-cpu.json  keep every sample, with machine and versions

Times of one run can be compared, times of two runs cannot: a machine's speed drifts. So everything
runs in one process, each repeat runs every contender once in a new order (a slow one only in every
nth repeat), all of them from cold caches, and medians, quartiles and ratios are reported.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from machine import describe_run, print_run, record
from rich.console import Console
from rich.progress import Progress

from specedu.kernels import Verified, verify_chain

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Logits that differ by N(0, s²) noise have Σ min(p, q) = 2·Φ(-s/2) in a large vocabulary: .70 here.
LOGIT_NOISE = 0.77


class Shape(NamedTuple):
    batch: int
    kappa: int
    vocab: int
    dtype: str


class Inputs(NamedTuple):
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


def make_inputs(shape: Shape) -> Inputs:
    batch, kappa, vocab, dtype = shape
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, kappa + 1, vocab, generator=generator)
    noise = LOGIT_NOISE * torch.randn(batch, kappa, vocab, generator=generator)
    q = (logits[:, :kappa] + noise).softmax(2).to(DTYPES[dtype]).view(-1, vocab)
    return Inputs(
        shape,
        p=logits.softmax(2).to(DTYPES[dtype]).view(-1, vocab),
        q=q,
        drafts=torch.multinomial(q.float(), 1, generator=generator)[:, 0].int(),
        cu=torch.arange(1, batch + 1, dtype=torch.int32) * kappa,
        accept_coins=torch.rand(batch * kappa, generator=generator, dtype=torch.float64),
        final_coins=torch.rand(batch, generator=generator, dtype=torch.float64),
    )


# --- the rules, and what they are measured against ------------------------------------------------


def chain(x: Inputs) -> Verified:
    coins, kappa = (x.accept_coins, x.final_coins), x.shape.kappa
    return verify_chain(x.p, x.q, x.drafts, x.cu, *coins, max_spec_len=kappa, backend="torch")


def bytes_of_final_draw(x: Inputs, verified: Verified) -> int:
    """Count what must be read: p(x), q(x) of tested drafts; a p row, after a refusal a q row."""
    refused = int((verified.num_accepted < x.shape.kappa).sum())
    tested = int(verified.num_accepted.sum()) + refused
    return x.p.element_size() * (2 * tested + x.shape.vocab * (x.shape.batch + refused))


def read_rows(x: Inputs) -> None:
    """Sum one p row and one q row a request where they lie: the floor.

    Always the first, so that one call reads them all through a strided view. One call a row could
    read the very rows of the final draws, but would measure the calls too.
    """
    x.p[:: x.shape.kappa + 1].sum(1)
    x.q[:: x.shape.kappa].sum(1)


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
    run: Callable[[Inputs], Verified]
    must_read: Callable[[Inputs, Verified], int]
    at_most: float  # the rule is to take at most this many times the floor
    baselines: dict[str, Contender]


CHAIN_BASELINES = {
    "loop, multinomial": Contender(loop_with_multinomial, every=4, at_least=20),
    "race, every row": Contender(race_over_every_row, every=10, at_least=100),
}
RULES = {"chain": Rule(chain, bytes_of_final_draw, 4, CHAIN_BASELINES)}
SHAPES = {
    "serving": Shape(64, 3, 128256, "float32"),
    "laptop": Shape(1, 5, 49152, "float32"),
}
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


def run_rule(name: str, x: Inputs, repeats: int) -> dict[str, Any]:
    """Check and measure one rule at one shape."""
    rule, batch, vocab = RULES[name], x.shape.batch, x.shape.vocab
    wanted = rule.run(x)
    contenders = {"floor": Contender(read_rows), name: Contender(rule.run), **rule.baselines}
    for other, contender in contenders.items():  # also the call that warms up
        result = contender.run(x)
        if other != "floor":
            check_same(other, result, wanted, vocab)
    seconds = measure(x, contenders, repeats)

    goals = [(name, "floor", "at most", rule.at_most)]
    goals += [(other, name, "at least", c.at_least) for other, c in rule.baselines.items()]
    targets = []
    for above, below, sense, goal in goals if x.shape == TARGET_SHAPE else []:
        ratio = median(seconds[above]) / median(seconds[below])
        met = ratio <= goal if sense == "at most" else ratio >= goal
        targets.append(
            {"ratio": f"{above} / {below}", "value": ratio, "goal": f"{sense} {goal}", "met": met}
        )
    p, q, _ = x.rows()
    return {
        "rule": name,
        "shape": x.shape._asdict(),
        "mean_acceptance": torch.minimum(p, q).sum(2, dtype=torch.float32).mean().item(),
        "mean_accepted": wanted.num_accepted.double().mean().item(),
        "bytes": {
            "floor": 2 * batch * vocab * x.p.element_size(),
            name: rule.must_read(x, wanted),
        },
        "targets": targets,
        "seconds": seconds,
    }


# --- the report -----------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> None:
    alpha, accepted = result["mean_acceptance"], result["mean_accepted"]
    print(f"\n{result['rule']}: " + ", ".join(f"{k} {v}" for k, v in result["shape"].items()))
    print(f"p: softmax of N(0, 1) logits; q: of the same plus N(0, {LOGIT_NOISE}²) noise")
    print(f"mean acceptance {alpha:.3f}, mean accepted drafts {accepted:.2f}")
    print("floor: one p row and one q row a request, summed where they lie")
    print(f"{'':18}{'median ms':>10}{'quartiles':>20}{'x floor':>9}{'GB/s':>7}{'runs':>6}")
    floor = median(result["seconds"]["floor"])
    for name, times in result["seconds"].items():
        low, middle, high = quantiles(times, n=4, method="inclusive")
        rate = f"{result['bytes'][name] / middle / 1e9:.1f}" if name in result["bytes"] else ""
        spread = f"{low * 1e3:.2f} .. {high * 1e3:.2f}"
        row = f"{name:18}{middle * 1e3:10.2f}{spread:>20}{middle / floor:9.2f}{rate:>7}"
        print(f"{row}{len(times):6}")
    for target in result["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        print(f"{target['ratio']} = {target['value']:.1f}, target {target['goal']}: {verdict}")


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
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON, in benchmarks/recorded/")
    parser.add_argument("--assert-targets", action="store_true", help="exit 1 if one is missed")
    arguments = parser.parse_args()
    given = {field: getattr(arguments, field) for field in Shape._fields}
    shape = SHAPES[arguments.shape]._replace(**{k: v for k, v in given.items() if v is not None})
    if arguments.assert_targets and shape != TARGET_SHAPE:
        parser.error(f"--assert-targets: {shape}, expected {TARGET_SHAPE}, which targets are for")

    run = describe_run()
    print_run(run)
    x = make_inputs(shape)
    results = [run_rule(rule, x, arguments.repeats) for rule in arguments.rules]
    for result in results:
        report(result)
    if arguments.record is not None:
        record(arguments.record, {**run, "results": results})
    missed = [target for result in results for target in result["targets"] if not target["met"]]
    return int(arguments.assert_targets and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
