"""The step loop: schedule, execute, deliver, update, propose.

Data flows one way through a step. Nothing reaches back: the scheduler knows no tensors, the rules
know no requests. It is the loop of ``specedu.single`` for many requests at a time; the docstring
there says which of its lines grew into which file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import audit
from .cache.block_pool import BlockPool
from .cache.block_table import BlockTable
from .config import CacheConfig, SamplingParams, SchedulerConfig, check_int, refuse
from .draft.base import NO_DRAFT
from .metrics import SpecDecodeStats
from .outputs import Decode, Delivery, deliver
from .record import StepRecord, VerifyRecord
from .request import Request
from .runner import Runner, Verdict, num_real
from .scheduler import Plan, Scheduler


@dataclass(frozen=True)
class Progress:
    """What a step did for one request."""

    request: Request
    new_token_ids: list[int]


class Engine:
    """Requests in, tokens out, one step at a time.

    Args:
        runner: the model with its caches and drafts.
        cache_config: the pool.
        scheduler_config: the budget.
        decoder: makes, for each request, what gives the text that new ids add; without it there is
            no text and no stop string.
        audited: check every invariant after every step.
        poisoned: overwrite what must not be read after every step (toys only).
        recorded: keep a :class:`StepRecord` of every step in ``records``.

    Attributes:
        requests: every request that waits or runs, by id.
        stats: counters of all requests that have ended.
        num_steps: steps that ran.
    """

    def __init__(
        self,
        runner: Runner,
        cache_config: CacheConfig,
        scheduler_config: SchedulerConfig,
        *,
        decoder: Callable[[], Decode] | None = None,
        audited: bool = False,
        poisoned: bool = False,
        recorded: bool = False,
    ) -> None:
        self.runner = runner
        self.pool = BlockPool(cache_config.num_blocks)
        self.block_size = cache_config.block_size
        self.scheduler = Scheduler(scheduler_config)
        self.decoder = decoder
        self.audited, self.poisoned, self.recorded = audited, poisoned, recorded
        runner.recorded = recorded
        self.requests: dict[str, Request] = {}
        self.stats = SpecDecodeStats()
        self.records: list[StepRecord] = []
        self.num_steps = 0

    # --- requests ---------------------------------------------------------------------------------

    def check_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Refuse a request that could not run.

        Raises:
            ValueError: the prompt is empty, too long, or holds an illegal id; or a stop does.
        """
        longest = self.scheduler.config.max_model_len - 1
        vocab_size = self.runner.model.vocab_size
        if not prompt_token_ids:
            refuse("prompt", list(prompt_token_ids), "at least one token")
        if len(prompt_token_ids) > longest:
            legal = f"at most {longest}, one less than max_model_len"
            refuse("prompt", prompt_token_ids, legal, f"{len(prompt_token_ids)} tokens")
        for name, ids in (("prompt", prompt_token_ids), ("stop_token_ids", params.stop_token_ids)):
            for i, token in enumerate(ids):
                check_int(f"{name}[{i}]", token, 0, vocab_size - 1)
        if params.stop and self.decoder is None:
            refuse("stop", params.stop, "none where there is no tokenizer")

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, seed: int
    ) -> Request:
        """Let a request wait; the ones that run go on whatever is wrong with it.

        Raises:
            ValueError: the id is taken, or :meth:`check_request` refuses it.
        """
        if request_id in self.requests:
            refuse("request_id", request_id, "an id that no other request has")
        self.check_request(prompt_token_ids, params)
        table = BlockTable(self.pool, self.block_size)
        request = Request(request_id, list(prompt_token_ids), params, seed, table)
        request.decode = self.decoder() if self.decoder else None
        self.requests[request_id] = request
        self.scheduler.add(request)
        return request

    def cancel(self, request_id: str) -> None:
        """End a request between two steps; an unknown id, or an ended request, changes nothing."""
        if request_id in self.requests:
            self.scheduler.cancel(self.requests[request_id])
            self._retire(self.requests[request_id])

    def has_unfinished(self) -> bool:
        """Return whether a step would do anything."""
        return bool(self.requests)

    # --- one step ---------------------------------------------------------------------------------

    def step(self) -> list[Progress]:
        """Run one step and return what it did for each sampled request."""
        recorded = self.requests.values() if self.recorded else ()
        before = {request.request_id: list(request.table.blocks) for request in recorded}
        plan = self.scheduler.schedule()
        for request in plan.preempted:
            self._drop_drafts(request)
        if not plan.scheduled:
            return []
        verdicts = self.runner.execute(plan)
        deliveries = [
            self._deliver(part.request, verdict)
            for part, verdict in zip(plan.sampled, verdicts, strict=True)
        ]
        self._count(plan, verdicts, deliveries)
        if self.recorded:
            self.records.append(self._record(plan, verdicts, deliveries, before))
        self.scheduler.update(plan, [verdict.num_accepted for verdict in verdicts], deliveries)
        progress = [
            Progress(part.request, verdict.run[: delivery.kept])
            for part, verdict, delivery in zip(plan.sampled, verdicts, deliveries, strict=True)
        ]
        for part in plan.sampled:
            if part.request.finished:
                self._retire(part.request)
        self._propose()
        self.num_steps += 1
        if self.poisoned:
            audit.poison(self)
        if self.audited:
            audit.check(self)
        return progress

    def _deliver(self, request: Request, verdict: Verdict) -> Delivery:
        return deliver(
            request,
            verdict.run,
            eos_token_id=self.runner.model.eos_token_id,
            max_model_len=self.scheduler.config.max_model_len,
            decode=request.decode,
        )

    def _propose(self) -> None:
        running = self.scheduler.running
        made = self.runner.propose(running, self.scheduler.config.max_model_len)
        for request, draft in made:
            request.num_draft_tokens = len(draft.token_ids)
            request.stats.num_proposed_tokens += num_real(draft.token_ids)

    # --- counting ---------------------------------------------------------------------------------

    def _count(
        self, plan: Plan, verdicts: Sequence[Verdict], deliveries: Sequence[Delivery]
    ) -> None:
        for part, verdict, delivery in zip(plan.sampled, verdicts, deliveries, strict=True):
            stats, drafts = part.request.stats, num_real(verdict.drafts)
            stats.observe(drafts, verdict.num_accepted, delivery.kept)
            stats.num_never_scheduled_tokens += verdict.num_cut

    def _drop_drafts(self, request: Request) -> None:
        request.stats.num_never_scheduled_tokens += self.runner.forget(request)

    def _retire(self, request: Request) -> None:
        """Forget a request that has ended; its counters stay in the total."""
        self._drop_drafts(request)
        del self.requests[request.request_id]
        self.stats.add(request.stats)

    def check_stats(self) -> None:
        """Assert that every drafted token is accounted for, pending ones included.

        Raises:
            AssertionError: one is not.
        """
        self.stats.check()
        pending = self.runner.drafts.pending()
        for request in self.requests.values():
            _, draft = pending.get(request.request_id, (0, NO_DRAFT))
            request.stats.check(num_real(draft.token_ids))

    def _record(
        self,
        plan: Plan,
        verdicts: Sequence[Verdict],
        deliveries: Sequence[Delivery],
        before: dict[str, list[int]],
    ) -> StepRecord:
        seen, verifies, row, draft = self.runner.seen, [], 0, 0
        for i, (part, verdict, delivery) in enumerate(
            zip(plan.sampled, verdicts, deliveries, strict=True)
        ):
            request, n = part.request, part.num_drafts
            q_rows = None if seen.q is None or seen.onehot[i] else seen.q[draft : draft + n]
            verifies.append(
                VerifyRecord(
                    request.request_id,
                    request.step,
                    request.num_tokens - delivery.kept,
                    verdict.drafts,
                    [top(p) for p in seen.p[row : row + n + 1]],
                    [None] * n if q_rows is None else [top(q) for q in q_rows],
                    seen.accept_coins[draft : draft + n].tolist(),
                    seen.final_coins[i].item(),
                    verdict.num_accepted,
                    verdict.run,
                    delivery.kept,
                    before[request.request_id],
                    list(request.table.blocks),
                )
            )
            row, draft = row + n + 1, draft + n
        fed = {
            part.request.request_id: (part.start, part.num_tokens, part.num_drafts)
            for part in plan.scheduled
        }
        return StepRecord(fed, verifies, [request.request_id for request in plan.preempted])


def top(law: object, count: int = 8) -> list[tuple[int, float]]:
    """Return the likeliest ids of a row with their probability.

    Example:
        >>> import torch
        >>> top(torch.tensor([0.25, 0.75]), 1)
        [(1, 0.75)]
    """
    best = law.topk(min(count, len(law)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
