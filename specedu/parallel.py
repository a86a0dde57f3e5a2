"""Ranks in step: processes that each run the engine on one model, and must come to one text.

A tensor-parallel engine splits every product over its ranks and adds the parts up. Each rank then
holds all logits, chooses tokens by itself, and builds the next pass from what it chose. Where the
choice differs the passes differ, and a collective whose size the other rank does not share never
returns. So one rank decides: its drafts, emitted ids and accepted counts are broadcast.

Source: SGLang broadcasts ``predict``, ``accept_index`` and ``num_correct_drafts`` from rank 0 when
its verify ends (python/sglang/srt/speculative/eagle_utils.py L869-871, and L745-758 for the greedy
path on ROCm, at d315eb725044).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .config import (
    CacheConfig,
    SamplingParams,
    SchedulerConfig,
    check_choice,
    check_int,
    check_list,
    check_number,
)
from .draft.base import Draft, DraftTask
from .draft.ngram import NgramProposer
from .engine import Engine
from .models.base import ForwardBatch, Model
from .models.toy import TableModel
from .runner import Runner, Verdict
from .sampling.coins import CoinSource, PhiloxCoins
from .scheduler import Plan
from .theory.reference import Law

SHARED = ("drafts", "ids", "counts")
DIFFERENCES = ("logits", "drafts")
KAPPA = 3
NOISE = 1e-6  # the largest change of a logit; the toy's ties are exact, so that any change will do
STARTUP = timedelta(seconds=120)  # a loaded machine takes long to import torch
PROMPT = (0, 1, 2, 3, 4, 5, 0, 1)
REQUESTS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_k=1, seed=1),
    SamplingParams(temperature=1.0, seed=2),
)


@dataclass(frozen=True)
class RankReport:
    """What became of one rank.

    Attributes:
        rank: its number.
        texts: the output ids of each request.
        lengths: how many there are.
        steps: steps that it finished.
        passes: tokens that each step's pass fed, the unfinished one's included.
        hung_at: the step at whose collective it waited in vain; None where it came to the end.
        waited_for: that collective, in words.
        seconds_waited: how long it waited there.
    """

    rank: int
    texts: list[list[int]]
    lengths: list[int]
    steps: int
    passes: list[int]
    hung_at: int | None = None
    waited_for: str | None = None
    seconds_waited: float | None = None


class RanksParted(RuntimeError):
    """A collective that another rank never joined."""


class Ranks:
    """This rank's place in the group, and the three collectives that the engine needs.

    Args:
        rank: of this process.
        size: how many there are.
        group: of torch.distributed, with the timeout that ends a wait.
        timeout: that timeout.

    Attributes:
        since: when the present collective began.
    """

    def __init__(self, rank: int, size: int, group: Any, timeout: timedelta) -> None:
        self.rank, self.size, self.group, self.timeout = rank, size, group, timeout
        self.since = time.perf_counter()

    def add_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of float64 ``[tokens, width]``; not written.

        A row at a time, then a barrier. A single call of unequal sizes would hang with NCCL, and
        may return anything with gloo; so it waits, and what it waits for has a name.

        Raises:
            RanksParted: another rank has more rows, or fewer, or is elsewhere.
        """
        rows = rows.clone()
        for i, row in enumerate(rows):
            self.since = time.perf_counter()
            try:
                dist.all_reduce(row, group=self.group)
            except RuntimeError as error:
                raise RanksParted(f"row {i + 1} of {len(rows)}") from error
        self.meet(f"the barrier behind {len(rows)} rows")
        return rows

    def meet(self, name: str) -> None:
        """Wait until every rank is here.

        Raises:
            RanksParted: one did not come.
        """
        self.since = time.perf_counter()
        try:
            dist.monitored_barrier(self.group, self.timeout)
        except RuntimeError as error:
            raise RanksParted(name) from error

    def from_first(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return rank 0's ``numbers``; those of the others, which are of that shape, are lost.

        Raises:
            RanksParted: another rank does not ask.
        """
        numbers, self.since = numbers.clone(), time.perf_counter()
        try:
            dist.broadcast(numbers, 0, group=self.group)
        except RuntimeError as error:
            raise RanksParted("rank 0's numbers") from error
        return numbers


class RankModel:
    """A model of which each rank computes its share, with the rounding of its own device.

    Every rank adds up all shares of the logits; then rank r > 0 moves each by a seeded number below
    ``noise``, as another device's sums would.
    """

    def __init__(self, model: Model, ranks: Ranks, noise: float) -> None:
        self.model, self.ranks, self.noise = model, ranks, noise
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        """Return what is the model's own."""
        return getattr(self.model, name)

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        """Return logits as the model does; every token of the batch is summed over the ranks.

        Raises:
            RanksParted: another rank's batch has another number of tokens.
        """
        self.passes.append(len(batch.input_ids))
        logits = self.model.forward(batch, cache)
        shares = torch.zeros(len(batch.input_ids), logits.shape[1], dtype=logits.dtype)
        shares[batch.logits_indices] = logits / self.ranks.size
        logits = self.ranks.add_rows(shares)[batch.logits_indices]
        if self.ranks.rank and self.noise:
            for row, position in zip(logits, batch.positions[batch.logits_indices], strict=True):
                row += self.noise * seeded(len(row), self.ranks.rank, int(position))
        return logits


class RankRunner(Runner):
    """A runner whose verdicts are rank 0's, as far as they are shared."""

    def __init__(self, ranks: Ranks, shared: Sequence[str], seats: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ranks, self.shared, self.seats = ranks, shared, seats

    def execute(self, plan: Plan) -> list[Verdict]:
        """Run one pass and verify it; then take over what rank 0 emitted and accepted.

        Raises:
            RanksParted: another rank's pass is not this one's.
            RuntimeError: ids and counts of different ranks do not fit together.
        """
        verdicts = super().execute(plan)
        ids = torch.full((self.seats, self.kappa + 1), -1)
        counts = torch.zeros(self.seats, dtype=torch.int64)
        for r, verdict in enumerate(verdicts):
            ids[r, : len(verdict.run)] = torch.tensor(verdict.run)
            counts[r] = verdict.num_accepted
        if "ids" in self.shared:
            ids = self.ranks.from_first(ids)
        if "counts" in self.shared:
            counts = self.ranks.from_first(counts)
        taken = []
        for verdict, row, count in zip(verdicts, ids.tolist(), counts.tolist(), strict=False):
            run = row[: count + 1]
            if -1 in run:
                raise RuntimeError(
                    f"run: {run}, expected {count + 1} ids: the count is another rank's"
                )
            taken.append(verdict._replace(num_accepted=count, run=run))
        return taken


class RankProposer:
    """A proposer whose drafts are rank 0's, if drafts are shared.

    Args:
        inner: makes this rank's own.
        ranks: the group.
        shared: what is shared.
        seats: requests at most.
        short: whether ranks above 0 lose the last draft of every third step.
    """

    def __init__(
        self, inner: Any, ranks: Ranks, shared: Sequence[str], seats: int, short: bool
    ) -> None:
        self.inner, self.ranks, self.shared, self.seats = inner, ranks, shared, seats
        self.short = short

    def __getattr__(self, name: str) -> Any:
        """Return what is the inner proposer's own."""
        return getattr(self.inner, name)

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Return one draft a task.

        Raises:
            RanksParted: another rank proposes nothing.
        """
        drafts = self.inner.propose(tasks, coins)
        if self.short and self.ranks.rank:
            drafts = [
                Draft(draft.token_ids[:-1]) if task.step % 3 == 0 else draft
                for task, draft in zip(tasks, drafts, strict=True)
            ]
        if "drafts" not in self.shared:
            return drafts
        numbers = torch.zeros(self.seats, 1 + KAPPA, dtype=torch.int64)
        for row, draft in zip(numbers, drafts, strict=False):
            row[0] = len(draft.token_ids)
            row[1 : 1 + len(draft.token_ids)] = torch.tensor(draft.token_ids)
        rows = self.ranks.from_first(numbers).tolist()[: len(tasks)]
        return [Draft(ids[:count]) for count, *ids in rows]


def run_ranks(
    world_size: int = 2,
    *,
    broadcast: Sequence[str] = SHARED,
    differ: str = "logits",
    max_tokens: int = 24,
    timeout: float = 2.0,
) -> list[RankReport]:
    """Run three requests on ranks that differ a little, and return what became of each rank.

    One request is greedy, one samples among the likeliest ids, one from the whole law. The toy
    model has ties, which noise of ``NOISE`` breaks: in an argmax, and at the border of a top-k,
    where equals stay together. The processes talk over the loopback interface alone.

    Args:
        world_size: how many processes.
        broadcast: what comes from rank 0: any of ``drafts``, ``ids`` and ``counts``.
        differ: in what the ranks differ: ``logits``, or ``drafts`` (ranks above 0 lose some).
        max_tokens: of each request.
        timeout: seconds that a rank waits for the others before it counts as hung.

    Raises:
        ValueError: an argument is illegal.
        RuntimeError: a process failed otherwise than by waiting.

    Example:
        >>> run_ranks(1, max_tokens=4)[0].texts[0]
        [2, 3, 4, 5]
    """
    check_int("world_size", world_size, 1, 8)
    for i, name in enumerate(check_list("broadcast", broadcast, f"some of {', '.join(SHARED)}")):
        check_choice(f"broadcast[{i}]", name, SHARED)
    check_choice("differ", differ, DIFFERENCES)
    check_int("max_tokens", max_tokens, 1, 200)
    check_number("timeout", timeout, 0.1, 60)
    settings = {"broadcast": list(broadcast), "differ": differ, "max_tokens": max_tokens,
                "timeout": timeout, "world_size": world_size}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        started = [
            start({**settings, "rank": r, "meeting": str(meeting)}) for r in range(world_size)
        ]
        try:
            results = [process.communicate() for process in started]
        finally:
            for process in started:
                process.kill()
    for rank, (process, (_, wrong)) in enumerate(zip(started, results, strict=True)):
        if process.returncode:
            last = (wrong.strip() or "no message").splitlines()[-1]
            raise RuntimeError(f"rank {rank} failed: {last}")
    return [RankReport(**json.loads(out.splitlines()[-1])) for out, _ in results]


def start(settings: dict[str, Any]) -> subprocess.Popen:
    """Start one rank's process, which reports on its last line."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return subprocess.Popen(
        [sys.executable, "-m", "specedu.parallel", json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"},
    )


def work(settings: dict[str, Any]) -> RankReport:
    """Be one rank: join the others, generate, and report."""
    rank, size = settings["rank"], settings["world_size"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['meeting']}",
        rank=rank,
        world_size=size,
        timeout=STARTUP,
    )
    wait = timedelta(seconds=settings["timeout"])
    group = dist.new_group(backend="gloo", timeout=wait)
    dist.barrier()  # with the long timeout: from here on all are up
    ranks = Ranks(rank, size, group, wait)
    model = RankModel(tied_model(), ranks, NOISE if settings["differ"] == "logits" else 0.0)
    engine = make_engine(model, ranks, settings)
    requests = [
        engine.add_request(str(i), PROMPT, params, params.seed or 0)
        for i, params in enumerate(with_limit(settings["max_tokens"]))
    ]
    hung_at = waited_for = waited = None
    try:
        while engine.has_unfinished():
            engine.step()
        ranks.meet("the barrier at the end")
    except RanksParted as parted:
        hung_at, waited_for = engine.num_steps, str(parted)
        waited = time.perf_counter() - ranks.since
    texts = [request.output_token_ids for request in requests]
    lengths = [len(text) for text in texts]
    steps, passes = engine.num_steps, model.passes
    return RankReport(rank, texts, lengths, steps, passes, hung_at, waited_for, waited)


def make_engine(model: RankModel, ranks: Ranks, settings: dict[str, Any]) -> Engine:
    """Return the engine of one rank: n-gram drafts, the chain rule, and what is shared."""
    shared, seats = settings["broadcast"], len(REQUESTS)
    inner = NgramProposer(1, 3)
    proposer = RankProposer(inner, ranks, shared, seats, settings["differ"] == "drafts")
    cache = CacheConfig(block_size=16, num_blocks=64)
    runner = RankRunner(ranks, shared, seats, model, 64, 16, PhiloxCoins(), proposer, KAPPA)
    return Engine(runner, cache, SchedulerConfig(seats, 256, model.max_model_len))


def with_limit(max_tokens: int) -> list[SamplingParams]:
    """Return the settings of the three requests with that limit."""
    return [SamplingParams(**{**vars(params), "max_tokens": max_tokens}) for params in REQUESTS]


def tied_model() -> TableModel:
    """Return a toy that mostly counts upwards and is of two minds behind 2 and behind 5.

    Example:
        >>> [str(mass) for mass in tied_model().law((2,))]
        ['1/16', '1/16', '1/16', '3/8', '1/16', '3/8']
    """
    return TableModel([successors(1), successors(2), successors(3, 5), successors(4),
                       successors(5), successors(0, 3)])  # fmt: skip


def successors(*likely: int) -> Law:
    """Return a law over six ids: one sixteenth each, and the rest in equal parts on some."""
    more = Fraction(10, 16 * len(likely))
    return tuple(Fraction(1, 16) + (more if token in likely else 0) for token in range(6))


def seeded(count: int, rank: int, position: int) -> torch.Tensor:
    """Return ``count`` float64 numbers in [-1, 1), a function of rank and position."""
    generator = torch.Generator().manual_seed(1000 * position + rank)
    return 2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1


if __name__ == "__main__":
    report = work(json.loads(sys.argv[1]))
    print(json.dumps(asdict(report)), flush=True)
    os._exit(0)  # a rank that hung leaves connections that nobody else will close
