"""The scheduler: which requests run, how many tokens each feeds, and who has to wait.

It knows counts, never tensors or ids. ``schedule`` counts every scheduled token as computed, drafts
included; ``update`` takes back what was rejected. Requests join and leave between any two steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .config import SchedulerConfig
from .outputs import Delivery
from .request import Request, Status


class Scheduled(NamedTuple):
    """One request's part of a step.

    Attributes:
        request: the request.
        start: how many of its tokens are in the cache already.
        num_tokens: how many it feeds, drafts included.
        num_drafts: how many of them are drafts.
        samples: whether its last rows are verified; a prompt chunk that leaves a rest is not.
    """

    request: Request
    start: int
    num_tokens: int
    num_drafts: int
    samples: bool


@dataclass(frozen=True)
class Plan:
    """One step: the scheduled requests, those that are verified first.

    Attributes:
        scheduled: the parts, in the order of the batch.
        preempted: requests whose cache was taken away while this step was planned.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Fed tokens in all."""
        return sum(part.num_tokens for part in self.scheduled)

    @property
    def sampled(self) -> list[Scheduled]:
        """The parts that are verified."""
        return [part for part in self.scheduled if part.samples]


class Scheduler:
    """First come, first served: the last to join is the first to lose its cache.

    Attributes:
        waiting: requests without a cache, the next one first; preempted ones come back in front.
        running: requests with a cache, the oldest first.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """Plan one step, and count its tokens as computed.

        Running requests come first, in the order of their arrival: a decode feeds its last token
        and its drafts, an unfinished prompt the next chunk. Then waiting requests join while
        budget, seats and blocks last. Where blocks run out, the last to join is preempted; a step
        that preempts admits nobody.
        """
        plan = Plan()
        decodes = sum(request.decoding for request in self.running)
        budget = self.config.max_num_batched_tokens - decodes * self.config.draft_slots
        for request in list(self.running):
            if request.status is not Status.RUNNING:
                continue  # preempted for one before it
            part = self._part(request, budget)
            if part and self._make_room(part, plan):
                plan.scheduled.append(part)
                budget -= part.num_tokens
                request.draft_length_varied |= part.num_drafts < request.num_draft_tokens
        while self.waiting and not plan.preempted and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            part = self._part(request, budget)
            if not part or self._missing_blocks(part) > 0:
                break
            self.waiting.popleft()
            self.running.append(request)
            request.status = Status.RUNNING
            request.table.reserve(self._end(part))
            plan.scheduled.append(part)
            budget -= part.num_tokens
        for part in plan.scheduled:
            part.request.num_computed_tokens += part.num_tokens
        plan.scheduled.sort(key=lambda part: not part.samples)
        return plan

    def _part(self, request: Request, budget: int) -> Scheduled | None:
        """Return what the request would feed within the budget; None where that is nothing."""
        start, drafts = request.num_computed_tokens, 0
        if request.decoding:
            drafts = min(request.num_draft_tokens, budget - 1)
            wanted = 1 + drafts
        else:
            wanted = request.prefill_end - start
        fed = min(wanted, budget)
        if fed < 1:
            return None
        first_token = not request.num_output_tokens and start + fed == request.prefill_end
        return Scheduled(request, start, fed, drafts, request.decoding or first_token)

    def _end(self, part: Scheduled) -> int:
        """Return how many tokens the request's blocks must hold, look-ahead included."""
        end = part.start + part.num_tokens + self.config.num_lookahead_tokens
        return min(end, self.config.max_model_len)

    def _missing_blocks(self, part: Scheduled) -> int:
        table = part.request.table
        return table.blocks_needed(self._end(part)) - table.pool.num_free

    def _make_room(self, part: Scheduled, plan: Plan) -> bool:
        """Reserve the part's blocks, preempting the last to join; False if that is itself."""
        while self._missing_blocks(part) > 0:
            victim = self.running.pop()
            victim.preempt()
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is part.request:
                return False
        part.request.table.reserve(self._end(part))
        return True

    def update(
        self, plan: Plan, num_accepted: Sequence[int], deliveries: Sequence[Delivery]
    ) -> None:
        """Undo the optimism of ``schedule``: roll back, count the verify, finish.

        Args:
            plan: the step.
            num_accepted: accepted drafts of each sampled part, before any stop.
            deliveries: what was delivered of each sampled part; the tokens are committed already.
        """
        for part, accepted, delivery in zip(plan.sampled, num_accepted, deliveries, strict=True):
            request = part.request
            request.num_computed_tokens -= part.num_drafts - accepted
            request.num_draft_tokens = 0
            request.step += 1
            if delivery.finish_reason is not None:
                # The cache ends where delivery ends.
                request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
                request.finish(delivery.finish_reason, delivery.stop_reason)
        self.running = [request for request in self.running if not request.finished]

    def cancel(self, request: Request) -> None:
        """End a request between two steps, wherever it is; one that has ended stays as it is."""
        if request.finished:
            return
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
        request.finish("abort")
