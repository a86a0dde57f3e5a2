"""Print the exact law of every rule and backend: deviation 0, or how far it is off.

python benchmarks/laws.py           two minutes
python benchmarks/laws.py --quick   vocabularies of two ids alone

Rules that take coins are asked on the whole grid of settings (the twins) or on its first pairs (the
kernels, in Triton's interpreter, which takes milliseconds a request). The two that race have no
coin to cut: their score is compared with fractions at random requests, and their runs with the
exact law by a G-test whose false-alarm rate is given.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu.kernels import (
    Purpose,
    exponential,
    uniform,
    verify_block,
    verify_chain,
    verify_logspace,
    verify_race,
    verify_threshold,
)
from specedu.theory import adapters
from specedu.theory.cells import block_cuts, match_cuts
from specedu.theory.exact import joint_law, joint_laws
from specedu.theory.gtest import GTest, g_test
from specedu.theory.settings import PAIRS, Setting, fixed, grid, turning

SIZES = [(v, k) for v in (2, 3, 4) for k in (1, 2, 3) if (v, k) != (4, 3)]
# rule, its cuts, whether every setting is greedy
COINS: dict[str, tuple[Callable[..., Any], Callable | None, bool]] = {
    "chain": (verify_chain, None, False),
    "block": (verify_block, block_cuts, False),
    "match": (adapters.match, match_cuts, False),
    "threshold 1, 1": (verify_threshold, None, False),
    "greedy": (adapters.greedy, None, True),
}
ROUNDED = Fraction(1, 2**20)  # more than float32 logarithms lose
FALSE_ALARM = 1e-9


def settings_of(vocab: int, kappa: int, backend: str, greedy: bool) -> list[Setting]:
    if backend == "triton":
        p, q = PAIRS[vocab][0]
        return [make(p, q, kappa, greedy=greedy) for make in (fixed, turning)]
    if greedy:
        return [
            make(p, q, kappa, greedy=True) for p, q in PAIRS[vocab] for make in (fixed, turning)
        ]
    return list(grid([vocab], [kappa], [False] if vocab == 4 else [False, True]))


def deviation(name: str, backend: str, vocab: int, kappa: int) -> str:
    """Return the largest deviation of all settings, as a fraction."""
    rule, cuts, greedy = COINS[name]
    settings = settings_of(vocab, kappa, backend, greedy)
    laws = joint_laws(functools.partial(rule, backend=backend), settings, cuts=cuts)
    worst = max(laws, key=lambda law: law.deviation)
    bound = max(law.bound for law in laws)
    return f"{worst.deviation}" + (f" ± {float(bound):.0e}" if bound else "")


# --- rules that race ------------------------------------------------------------------------------


def race(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, coins: torch.Tensor,
         noise: torch.Tensor, backend: str, logarithms: bool) -> list[tuple[int, ...]]:  # fmt: skip
    """Return the runs of one-draft requests, by ``verify_race`` or by ``verify_logspace``."""
    n = len(drafts)
    cu = torch.arange(1, n + 1, dtype=torch.int32)
    if logarithms:
        words = torch.zeros(n, dtype=torch.int32)
        result = verify_logspace(
            p.log(), q.log(), drafts, cu, torch.ones(n), words.long(), words, words,
            accept_coins=coins, noise=noise, max_spec_len=1, backend=backend,
        )  # fmt: skip
    else:
        result = verify_race(p, q, drafts, cu, coins, noise, max_spec_len=1, backend=backend)
    ends = result.num_accepted.tolist()
    return [tuple(row[: n + 1]) for row, n in zip(result.token_ids.tolist(), ends, strict=True)]


def wrong_winners(backend: str, logarithms: bool, n: int) -> int:
    """Count requests whose run is not the one that fractions give.

    Logarithms and back round a mass in its last bits: there, of scores that are equal but for
    2**-20, either may win.
    """
    dice = random.Random(1)
    rows = [[dice.choice([0.125, 0.25, 0.5, 1.0]) for _ in range(3)] for _ in range(3 * n)]
    laws = [[entry / sum(row) for entry in row] for row in rows]
    p, q = torch.tensor(laws[: 2 * n]), torch.tensor(laws[2 * n :])
    drafts = torch.tensor([dice.randrange(3) for _ in range(n)], dtype=torch.int32)
    coins = torch.tensor([(dice.randrange(64) + 0.37) / 64 for _ in range(n)], dtype=torch.float64)
    noise = torch.tensor([[2.0 ** dice.randint(-5, 3) * dice.choice([1.0, 1.1, 1.3])
                           for _ in range(3)] for _ in range(n)])  # fmt: skip
    wrong = 0
    for i, run in enumerate(race(p, q, drafts, coins, noise, backend, logarithms)):
        first, bonus, draft = p[2 * i].tolist(), p[2 * i + 1].tolist(), q[i].tolist()
        x, masses, expected = int(drafts[i]), bonus, (int(drafts[i]),)
        if not Fraction(coins[i].item()) * Fraction(draft[x]) < Fraction(first[x]):
            masses = [max(Fraction(0), Fraction(a) - Fraction(b))
                      for a, b in zip(first, draft, strict=True)]  # fmt: skip
            expected = ()
        scores = [Fraction(m) / Fraction(e) for m, e in zip(masses, noise[i].tolist(), strict=True)]
        best = max(scores)
        winners = [scores.index(best)]
        if logarithms:
            winners = [x for x, score in enumerate(scores) if score >= best * (1 - ROUNDED)]
        wrong += run not in [(*expected, x) for x in winners]
    return wrong


def compared(logarithms: bool, n: int) -> GTest:
    """Compare n seeded runs of the twin with the exact law."""
    p, q = PAIRS[3][0]
    expected = joint_law(verify_chain, fixed(p, q, 1)).runs()
    seeds, zero = torch.arange(n), torch.zeros(n, dtype=torch.int32)
    cuts = torch.tensor([float(q[0]), float(q[0] + q[1])], dtype=torch.float64)
    drafts = torch.bucketize(uniform(seeds, zero, zero, Purpose.DRAFT), cuts, right=True).int()
    noise = exponential(seeds, zero, zero, 3)
    rows = torch.tensor([list(map(float, p))] * 2).repeat(n, 1)
    q_rows = torch.tensor([list(map(float, q))]).repeat(n, 1)
    coins = uniform(seeds, zero, zero, Purpose.ACCEPT)
    counts = Counter(race(rows, q_rows, drafts, coins, noise, "torch", logarithms))
    return g_test(counts, expected)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="vocabularies of two ids alone")
    arguments = parser.parse_args(argv)
    sizes = [size for size in SIZES if size[0] == 2 or not arguments.quick]
    asked = {"torch": sizes, "triton": [s for s in sizes if s in ((2, 1), (2, 2), (3, 1))]}
    table = Table(title="Largest deviation of the joint law", box=SIMPLE_HEAD, title_justify="left")
    for heading in ("rule", "backend", *(f"V {v}, κ {k}" for v, k in sizes)):
        table.add_column(heading)
    right = True
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("laws", total=len(COINS) * sum(map(len, asked.values())))
        for name in COINS:
            for backend, here in asked.items():
                row = []
                for size in sizes:
                    row.append(deviation(name, backend, *size) if size in here else "")
                    progress.advance(task, size in here)
                right &= set(row) <= {"0", ""}
                table.add_row(name, backend, *row)
    Console(width=140).print(table)

    n, runs = (200, 2_000) if arguments.quick else (1_000, 20_000)
    for name, logarithms in (("race", False), ("logspace", True)):
        for backend in ("torch", "triton"):
            size = n if backend == "torch" else n // 5
            wrong = wrong_winners(backend, logarithms, size)
            right &= wrong == 0
            print(f"{name}, {backend}: {wrong} of {size} runs differ from fractions")
        test = compared(logarithms, runs)
        right &= test.p_value > FALSE_ALARM
        print(f"{name}: G = {test.statistic:.1f} with {test.freedom} degrees of freedom over "
              f"{runs:,} runs, p = {test.p_value:.3f}; a right rule is called wrong at "
              f"{FALSE_ALARM:.0e}")  # fmt: skip
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
