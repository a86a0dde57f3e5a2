from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_cases import atlas, cases
from watching import Asked, Watched

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams, SchedulerConfig
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.kernels import Purpose
from specedu.llm import LLM
from specedu.models.toy import ContextModel, ProbingModel, hashed_law, mixed_law
from specedu.outputs import deliver
from specedu.request import Request, Status
from specedu.sampling.coins import CoinKey, CoinSource
from specedu.scheduler import Plan, Scheduled, Scheduler
from specedu.theory.reference import Law, Text

VOCAB, BLOCK = 4, 4
Accept = Callable[[Scheduled], int]


def all_drafts(part: Scheduled) -> int:
    return part.num_drafts


def no_draft(part: Scheduled) -> int:
    return 0


class Drive:
    """A scheduler without an engine: every emitted id is 0, and ``kappa`` drafts always follow."""

    def __init__(
        self, *, num_blocks: int = 64, block_size: int = BLOCK, kappa: int = 0, **config: int
    ) -> None:
        self.config = SchedulerConfig(**config)
        self.pool = BlockPool(num_blocks)
        self.scheduler = Scheduler(self.config)
        self.block_size, self.kappa = block_size, kappa

    def add(self, name: str, prompt: int, max_tokens: int = 64) -> Request:
        params, table = (
            SamplingParams(max_tokens=max_tokens),
            BlockTable(self.pool, self.block_size),
        )
        request = Request(name, [0] * prompt, params, 0, table)
        self.scheduler.add(request)
        return request

    def update(self, plan: Plan, accept: Accept = all_drafts) -> None:
        accepted = [accept(part) for part in plan.sampled]
        deliveries = [
            deliver(
                part.request,
                [0] * (count + 1),
                eos_token_id=None,
                max_model_len=self.config.max_model_len,
            )
            for part, count in zip(plan.sampled, accepted, strict=True)
        ]
        self.scheduler.update(plan, accepted, deliveries)
        for request in self.scheduler.running:
            if request.decoding and not request.num_draft_tokens:
                room = self.config.max_model_len - request.num_tokens - 1
                request.num_draft_tokens = min(self.kappa, room)

    def step(self, accept: Accept = all_drafts) -> Plan:
        plan = self.scheduler.schedule()
        self.update(plan, accept)
        self.pool.check()
        for request in (*self.scheduler.waiting, *self.scheduler.running):
            request.check(self.config.max_model_len)
        return plan


def counts(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return per request its fed tokens and the drafts among them."""
    return {part.request.request_id: (part.num_tokens, part.num_drafts) for part in plan.scheduled}


def names(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


# --- chunks of a prompt ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("K12"))
def test_drafts_are_ignored_while_a_prompt_is_unfinished(case: dict[str, Any]) -> None:
    given = case["input"]
    drive = Drive(max_num_seqs=1, max_num_batched_tokens=given["budget"])
    request = drive.add("a", given["prompt"])
    scheduled = []
    for _ in range(3):
        request.num_draft_tokens = given["drafts_offered"]
        plan = drive.scheduler.schedule()
        scheduled.append(plan.num_tokens)
        drive.update(plan)
    assert scheduled == case["expect"]["scheduled"]


@atlas("B124")
def test_the_first_drafts_come_after_the_first_token(atlas_row: str) -> None:
    drive = Drive(kappa=3, max_num_seqs=1, max_num_batched_tokens=4)
    request = drive.add("a", 10)
    plans = [drive.step() for _ in range(4)]
    assert [counts(plan)["a"] for plan in plans] == [(4, 0), (4, 0), (2, 0), (4, 3)]
    assert [plan.scheduled[0].samples for plan in plans] == [False, False, True, True]
    assert request.step == 2


def test_the_step_that_completes_the_prompt_is_step_0() -> None:
    drive = Drive(max_num_seqs=1, max_num_batched_tokens=4)
    request = drive.add("a", 9)
    steps = []
    for _ in range(5):
        plan = drive.scheduler.schedule()
        steps.append((plan.scheduled[0].samples, request.step))
        drive.update(plan)
    assert steps == [(False, 0), (False, 0), (True, 0), (True, 1), (True, 2)]


def test_a_chunk_that_leaves_a_rest_is_not_verified_and_uses_no_coin() -> None:
    coins = Asked()
    llm = LLM(
        ContextModel(VOCAB), coins=coins, record=True, max_num_seqs=1, max_num_batched_tokens=4
    )
    llm.engine.add_request("a", [0] * 10, SamplingParams(), seed=6)
    for _ in range(2):
        assert llm.engine.step() == []
    assert coins.keys == []
    assert [record.verifies for record in llm.engine.records] == [[], []]
    llm.engine.step()
    assert coins.keys == [(Purpose.FINAL, CoinKey("a", 6, 0, 10))]


def preempt(drive: Drive, request: Request) -> None:
    drive.scheduler.running.remove(request)
    request.preempt()
    drive.scheduler.waiting.appendleft(request)


def test_parts_that_are_verified_come_first_in_the_batch() -> None:
    # Both join in one step, a first: it computes its cache again, b its whole prompt.
    drive = Drive(kappa=2)
    a = drive.add("a", 2)
    drive.step()
    preempt(drive, a)
    drive.add("b", 4)
    plan = drive.step()
    assert [p.request.request_id for p in plan.scheduled] == ["b", "a"]
    assert [p.samples for p in plan.scheduled] == [True, False]
    assert plan.sampled == plan.scheduled[:1]


# --- optimism and its undoing ---------------------------------------------------------------------


@pytest.mark.parametrize("accepted", range(4))
def test_scheduled_drafts_count_as_computed_until_they_are_rejected(accepted: int) -> None:
    drive = Drive(kappa=3)
    request = drive.add("a", 5)
    drive.step()
    plan = drive.scheduler.schedule()
    assert request.num_computed_tokens == 5 + 1 + 3
    drive.update(plan, lambda part: accepted)
    assert request.num_computed_tokens == 5 + 1 + accepted
    assert request.num_tokens == request.num_computed_tokens + 1


def test_the_cache_of_an_ended_request_ends_where_delivery_ends() -> None:
    drive = Drive(kappa=3)
    request = drive.add("a", 5, max_tokens=3)
    drive.step()
    drive.step()  # emits 4 tokens, of which 2 are delivered
    assert request.finish_reason == "length"
    assert request.num_computed_tokens == request.num_tokens == 8


# --- the budget -----------------------------------------------------------------------------------


def three_decodes(kappa: int, budget: int, slots: int = 0) -> tuple[Drive, list[Request]]:
    """Return three running decodes, in an engine whose budget is small from now on."""
    drive = Drive(kappa=kappa)
    requests = [drive.add(name, 2) for name in "abc"]
    drive.step()
    drive.scheduler.config = SchedulerConfig(3, budget, draft_slots=slots)
    return drive, requests


@pytest.mark.parametrize("kappa", [0, 2])
@pytest.mark.parametrize("slots", [0, 3])
def test_a_decode_costs_its_tokens_and_its_draft_slots_drafting_or_not(
    slots: int, kappa: int
) -> None:
    drive, _ = three_decodes(kappa, budget=30, slots=slots)
    drive.scheduler.config = SchedulerConfig(4, 30, draft_slots=slots)
    drive.add("d", 99)
    assert counts(drive.scheduler.schedule())["d"] == (30 - 3 * (1 + kappa + slots), 0)


def test_a_prompt_is_charged_no_draft_slots() -> None:
    drive = Drive(max_num_seqs=2, max_num_batched_tokens=20, draft_slots=3)
    drive.add("a", 10)
    drive.add("b", 30)
    assert counts(drive.scheduler.schedule()) == {"a": (10, 0), "b": (10, 0)}


def test_what_is_left_of_the_budget_goes_to_the_next_in_line() -> None:
    drive, _ = three_decodes(3, budget=6)
    assert counts(drive.scheduler.schedule()) == {"a": (4, 3), "b": (2, 1)}


def test_a_draft_that_the_budget_trims_is_told() -> None:
    drive, requests = three_decodes(3, budget=6)
    drive.scheduler.schedule()
    assert [request.draft_length_varied for request in requests] == [False, True, False]


def test_a_draft_that_the_budget_trims_to_nothing_is_told() -> None:
    drive, requests = three_decodes(3, budget=5)
    assert counts(drive.scheduler.schedule())["b"] == (1, 0)
    assert [request.draft_length_varied for request in requests] == [False, True, False]


def test_a_decode_without_budget_keeps_its_whole_draft_for_later() -> None:
    drive, [_, second, _] = three_decodes(3, budget=4)
    assert counts(drive.step()) == {"a": (4, 3)}
    assert second.num_draft_tokens == 3
    assert not second.draft_length_varied


def test_a_decode_that_waits_for_budget_gets_its_turn() -> None:
    drive = Drive(kappa=3, max_num_seqs=2, max_num_batched_tokens=4)
    for name in "ab":
        drive.add(name, 2, max_tokens=9)
        drive.step()
    seen = [counts(drive.step()) for _ in range(6)]
    assert {name for plan in seen for name in plan} == {"a", "b"}


class Scripted(StatelessProposer):
    """Proposes the same ids every time."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [Draft(list(self.ids[: task.limit])) for task in tasks]


def test_only_an_output_whose_draft_was_trimmed_says_that_its_length_varied() -> None:
    config = {"method": "custom", "proposer": Scripted([0] * 3), "num_speculative_tokens": 3}
    llm = LLM(ContextModel(VOCAB), config, max_num_seqs=2, max_num_batched_tokens=6, audit=True)
    outputs = llm.generate([[0], [1]], SamplingParams(max_tokens=8, seed=0))
    assert [o.outputs[0].draft_length_varied for o in outputs] == [False, True]
    [alone] = llm.generate([[0]], SamplingParams(max_tokens=8, seed=0))
    assert not alone.outputs[0].draft_length_varied


# --- draft lengths by batch size ------------------------------------------------------------------


def by_batch(schedule: list[tuple[int, int, int]], **settings: Any) -> LLM:
    config = {
        "method": "custom",
        "proposer": Scripted([0] * 3),
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": schedule,
    }
    return LLM(ContextModel(VOCAB), config, audit=True, **settings)


def lengths_seen(llm: LLM, names: Sequence[str], prompts: Sequence[Sequence[int]]) -> list[set]:
    """Return the draft lengths of every step in which the requests, all prompts computed, ran."""
    engine, seen = llm.engine, []
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    requests = [
        engine.add_request(name, list(prompt), params, i)
        for i, (name, prompt) in enumerate(zip(names, prompts, strict=True))
    ]
    while engine.has_unfinished():
        engine.step()
        running = [r for r in requests if r.decoding and not r.finished]
        seen.append({r.num_draft_tokens for r in running})
    return seen


@atlas("B155")
def test_draft_lengths_go_by_the_requests_that_decode_and_not_by_prompts(atlas_row: str) -> None:
    llm = by_batch([(1, 2, 2), (3, 64, 0)], max_num_batched_tokens=7, max_num_seqs=5)
    engine, params = llm.engine, SamplingParams(max_tokens=40, ignore_eos=True)
    decodes = [engine.add_request(name, [0], params, 0) for name in "ab"]
    while not all(request.decoding for request in decodes):
        engine.step()
    prompts = [engine.add_request(name, [1] * 40, params, 0) for name in "cde"]
    engine.step()
    assert not any(request.decoding for request in prompts)
    assert any(request.num_computed_tokens for request in prompts)
    assert [request.num_draft_tokens for request in decodes] == [2, 2]


def test_every_request_drafts_what_the_schedule_says() -> None:
    seen = lengths_seen(by_batch([(1, 1, 3), (2, 2, 1), (3, 3, 0)]), "abc", [[0], [1], [2]])
    assert {0} in seen[:-1] and seen[0] == {0}  # three at once draft nothing


def test_behind_the_last_range_its_length_goes_on() -> None:
    seen = lengths_seen(by_batch([(1, 1, 3), (2, 2, 1)]), "abc", [[0], [1], [2]])
    assert seen[0] == {1}


def test_a_schedule_keeps_the_law_and_tells_that_lengths_varied() -> None:
    params = SamplingParams(max_tokens=6, temperature=0)
    outputs = by_batch([(1, 1, 3), (2, 8, 1)]).generate([[0], [1]], params)
    plain = LLM(ContextModel(VOCAB)).generate([[0], [1]], params)
    assert [o.outputs[0].token_ids for o in outputs] == [p.outputs[0].token_ids for p in plain]
    assert all(output.outputs[0].draft_length_varied for output in outputs)
    [alone] = by_batch([(1, 1, 3), (2, 8, 1)]).generate([[0]], params)
    assert not alone.outputs[0].draft_length_varied


# --- who runs -------------------------------------------------------------------------------------


def test_requests_join_in_the_order_of_their_arrival() -> None:
    drive = Drive(max_num_seqs=2)
    for name in "abc":
        drive.add(name, 3, max_tokens=3)
    assert list(counts(drive.step())) == ["a", "b"]
    assert names(drive.scheduler.running) == ["a", "b"]
    assert names(drive.scheduler.waiting) == ["c"]


def test_a_seat_is_taken_in_the_step_after_it_is_left() -> None:
    drive = Drive(max_num_seqs=1)
    drive.add("a", 3, max_tokens=1)
    drive.add("b", 3)
    assert [list(counts(drive.step())) for _ in range(2)] == [["a"], ["b"]]


def test_nobody_overtakes_a_request_that_does_not_fit() -> None:
    drive = Drive(num_blocks=4, max_num_seqs=3, max_model_len=16)
    for name, prompt in (("a", 8), ("b", 12), ("c", 1)):
        drive.add(name, prompt)
    assert list(counts(drive.step())) == ["a"]
    assert names(drive.scheduler.waiting) == ["b", "c"]


def test_the_last_to_join_is_the_first_to_lose_its_cache() -> None:
    drive = Drive(num_blocks=3, max_num_seqs=3, max_model_len=12)
    for name in "abc":
        drive.add(name, 4)
    drive.step()
    plan = drive.step()  # each wants a second block: b takes c's for a, and then its own goes
    assert names(plan.preempted) == ["c", "b"]
    assert list(counts(plan)) == ["a"]


def test_a_preempted_request_comes_back_in_front_of_those_that_wait() -> None:
    drive = Drive(num_blocks=3, max_num_seqs=3, max_model_len=12)
    for name in "abc":
        drive.add(name, 4)
    drive.add("d", 1)
    for _ in range(2):
        drive.step()
    assert names(drive.scheduler.waiting) == ["b", "c", "d"]


def test_a_preempted_request_gives_up_its_cache_and_its_drafts_and_keeps_its_tokens() -> None:
    drive = Drive(num_blocks=4, kappa=2, max_num_seqs=2, max_model_len=16)
    drive.add("a", 4)
    b = drive.add("b", 4)
    drive.step()
    drive.step()
    text, step = list(b.token_ids), b.step
    while b.status is Status.RUNNING:
        text, step = list(b.token_ids), b.step
        drive.step()
    assert (b.num_computed_tokens, b.num_draft_tokens, b.table.blocks) == (0, 0, [])
    assert (b.token_ids, b.step, b.num_preemptions) == (text, step, 1)


def test_a_step_that_preempts_admits_nobody() -> None:
    drive = Drive(num_blocks=4, max_model_len=16)
    for name in "ab":
        drive.add(name, 8)
    drive.step()
    drive.add("c", 1)
    # a takes one of b's two blocks. What this budget lets b feed would fit into the other.
    drive.scheduler.config = SchedulerConfig(3, 5, max_model_len=16)
    plan = drive.step()
    assert names(plan.preempted) == ["b"]
    assert drive.pool.num_free == 1
    assert list(counts(plan)) == ["a"]
    assert list(counts(drive.step())) == ["a", "b"]


def test_a_resumed_request_feeds_all_but_its_last_token_and_is_not_verified() -> None:
    drive = Drive(kappa=2, max_num_seqs=1)
    request = drive.add("a", 5)
    drive.step()
    drive.step()
    preempt(drive, request)
    [part] = drive.step().scheduled
    assert (part.start, part.num_tokens, part.num_drafts) == (0, request.num_tokens - 1, 0)
    assert not part.samples
    assert request.step == 2
    assert counts(drive.step())["a"] == (3, 2)


def test_a_cancelled_request_leaves_whatever_it_was_in() -> None:
    drive = Drive(max_num_seqs=1)
    a, b = drive.add("a", 3), drive.add("b", 3)
    drive.step()
    drive.scheduler.cancel(b)
    drive.scheduler.cancel(a)
    assert not drive.scheduler.waiting
    assert not drive.scheduler.running
    assert (a.finish_reason, b.finish_reason) == ("abort", "abort")
    assert drive.pool.num_free == drive.pool.num_blocks


def test_cancelling_an_ended_request_leaves_its_reason() -> None:
    drive = Drive()
    request = drive.add("a", 3, max_tokens=1)
    drive.step()
    drive.scheduler.cancel(request)
    assert request.finish_reason == "length"


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert Drive().scheduler.schedule() == Plan([], [])


# --- blocks ---------------------------------------------------------------------------------------


@atlas("B91")
def test_slots_behind_the_text_are_reserved_before_drafting(atlas_row: str) -> None:
    drive = Drive(block_size=16, num_lookahead_tokens=4)
    request = drive.add("a", 14)
    drive.scheduler.schedule()
    assert len(request.table.blocks) == 2


def test_without_look_ahead_no_block_is_reserved_for_it() -> None:
    drive = Drive(block_size=16)
    request = drive.add("a", 14)
    drive.scheduler.schedule()
    assert len(request.table.blocks) == 1


@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize("block_size", [1, 2, 16])
@atlas("B91")
def test_a_drafter_never_runs_out_of_its_table(atlas_row: str, block_size: int, kappa: int) -> None:
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": kappa}
    model = ContextModel(VOCAB, max_model_len=48)
    llm = LLM(model, config, block_size=block_size, num_blocks=200, audit=True, poison=True)
    [output] = llm.generate([[0] * 14], SamplingParams(temperature=0, max_tokens=99))
    assert output.metrics.num_rejected_tokens == 0
    assert len(output.outputs[0].token_ids) == 48 - 14


def test_nothing_is_reserved_behind_the_end_of_the_context() -> None:
    drive = Drive(num_blocks=2, max_model_len=8, num_lookahead_tokens=4, kappa=4)
    request = drive.add("a", 5)
    for _ in range(2):
        drive.step(no_draft)
        assert len(request.table.blocks) == 2
    drive.step(no_draft)
    assert request.num_tokens == 8


@atlas("B95")
def test_requests_one_after_another_are_all_drafted_for(atlas_row: str) -> None:
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3}
    model = ContextModel(VOCAB, max_model_len=12)
    llm = LLM(model, config, block_size=4, num_blocks=3, audit=True, poison=True)
    for token in range(5):
        [output] = llm.generate([[token % VOCAB, 1]], SamplingParams(temperature=0, max_tokens=6))
        assert output.metrics.num_drafts > 0
        assert output.metrics.num_rejected_tokens == 0


def law(text: Text) -> Law:
    return hashed_law(text, VOCAB)


def at_the_context_end(method: str) -> tuple[LLM, Watched, Watched]:
    target = Watched(ProbingModel(law, VOCAB, max_model_len=8))
    draft = Watched(ProbingModel(mixed_law(law, VOCAB), VOCAB, max_model_len=8))
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "custom":
        config["proposer"] = Scripted([0, 1, 2])
    else:
        config["model"] = draft
    return LLM(target, config, block_size=4, num_blocks=6, audit=True), target, draft


@pytest.mark.parametrize("method", ["custom", "draft_model"])
@atlas("B92")
def test_no_position_at_or_past_the_context_end_is_fed(atlas_row: str, method: str) -> None:
    llm, target, draft = at_the_context_end(method)
    prompts = [[0] * n for n in range(1, 8)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=99, seed=1))
    assert {len(o.prompt_token_ids) + len(o.outputs[0].token_ids) for o in outputs} == {8}
    assert max(target.positions) == 6  # the last token is emitted, and never fed
    assert max(draft.positions, default=5) == 5


@pytest.mark.parametrize("method", ["custom", "draft_model"])
@atlas("B92")
def test_the_first_block_is_not_written_again(atlas_row: str, method: str) -> None:
    llm, _, _ = at_the_context_end(method)
    engine = llm.engine
    request = engine.add_request("a", [3, 2, 1, 0, 1], SamplingParams(max_tokens=99), seed=0)
    engine.step()
    first = request.table.blocks[0]
    while engine.has_unfinished():
        assert engine.runner.cache[first].tolist() == [3, 2, 1, 0]
        engine.step()
    assert engine.runner.cache[first].tolist() == [3, 2, 1, 0]
    assert request.num_tokens == 8


# --- preemption through an engine -----------------------------------------------------------------


METHODS = ["ngram", "draft_model", "probabilistic"]


def crowded(method: str, num_blocks: int, **options: Any) -> LLM:
    """Return an engine whose blocks hold one long request and little more."""
    target = ProbingModel(law, VOCAB, max_model_len=32)
    config: dict[str, Any] = {"num_speculative_tokens": 3}
    if method == "ngram":
        config |= {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    else:
        draft = ProbingModel(mixed_law(law, VOCAB), VOCAB, max_model_len=32)
        sampling = "probabilistic" if method == "probabilistic" else "greedy"
        config |= {"method": "draft_model", "model": draft, "draft_sample_method": sampling}
    return LLM(
        target, config, block_size=4, num_blocks=num_blocks, audit=True, poison=True, **options
    )


PROMPTS = [[0, 1, 2], [3, 0, 3, 0], [1], [2, 2, 1, 1, 2]]
PARAMS = [SamplingParams(max_tokens=24, temperature=t, seed=s) for s, t in enumerate((1, 0, 1, 1))]


@pytest.mark.parametrize("method", METHODS)
@atlas("B97")
def test_the_first_step_of_a_resumed_request_has_no_drafts(atlas_row: str, method: str) -> None:
    llm = crowded(method, 9, record=True)
    llm.generate(PROMPTS, PARAMS)
    pending: set[str] = set()
    resumed = 0
    for record in llm.engine.records:
        for name in pending & record.fed.keys():
            start, _, drafts = record.fed[name]
            assert (start, drafts) == (0, 0)
            assert name not in [verify.request_id for verify in record.verifies]
            resumed += 1
        pending = (pending - record.fed.keys()) | set(record.preempted)
    assert resumed > 3


@pytest.mark.parametrize("method", METHODS)
@atlas("B97")
def test_a_preempted_request_says_what_it_says_in_peace(atlas_row: str, method: str) -> None:
    llm = crowded(method, 9, record=True)
    ours = llm.generate(PROMPTS, PARAMS)
    peace = crowded(method, 64).generate(PROMPTS, PARAMS)
    assert [o.outputs[0].token_ids for o in ours] == [o.outputs[0].token_ids for o in peace]
    assert sum(len(record.preempted) for record in llm.engine.records) > 3


@pytest.mark.parametrize("method", METHODS)
@atlas("B97")
def test_drafts_of_a_preempted_request_are_dropped_at_once(atlas_row: str, method: str) -> None:
    llm = crowded(method, 9)
    engine = llm.engine
    for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(i), prompt, params, seed=i)
    dropped = 0
    while engine.has_unfinished():
        had = set(engine.runner.drafts.pending())
        engine.step()
        lost = {r.request_id for r in engine.scheduler.waiting} & had
        assert not lost & set(engine.runner.drafts.pending())
        dropped += len(lost)
    assert dropped > 3


@pytest.mark.parametrize("method", METHODS)
def test_every_verify_of_a_request_has_a_step_number_of_its_own(method: str) -> None:
    coins = Asked()
    crowded(method, 9, coins=coins).generate(PROMPTS, PARAMS)
    steps: dict[str, list[int]] = {}
    for purpose, key in coins.keys:
        if purpose is Purpose.FINAL:
            steps.setdefault(key.request_id, []).append(key.step)
    assert len(steps) == 4
    assert all(seen == list(range(len(seen))) for seen in steps.values())


@pytest.mark.parametrize("seed", range(20))
def test_many_requests_and_few_blocks_always_finish(seed: int) -> None:
    dice = random.Random(seed)
    kappa, longest = dice.randint(0, 4), dice.randint(8, 32)
    block_size = dice.randint(1, 5)
    seats, slots = dice.randint(1, 8), dice.randint(0, 2)
    drive = Drive(
        num_blocks=-(-longest // block_size) + dice.randint(0, 3),
        block_size=block_size,
        kappa=kappa,
        max_num_seqs=seats,
        max_num_batched_tokens=seats * (1 + slots) + dice.randint(0, 8),
        max_model_len=longest,
        draft_slots=slots,
        num_lookahead_tokens=dice.choice([0, kappa]),
    )
    requests = [drive.add(str(i), dice.randint(1, longest - 1), 24) for i in range(15)]
    # The oldest running request never waits for blocks, so every step feeds a token at least:
    # 15 requests of `longest` tokens, each fed again after every preemption.
    for _ in range(15 * longest * 15):
        if not drive.scheduler.running and not drive.scheduler.waiting:
            break
        plan = drive.step(lambda part: dice.randint(0, part.num_drafts))
        assert plan.scheduled
        assert plan.num_tokens <= drive.config.max_num_batched_tokens
    assert all(request.finish_reason == "length" for request in requests)
    assert drive.pool.num_free == drive.pool.num_blocks


def test_the_oldest_request_is_never_preempted() -> None:
    drive = Drive(num_blocks=4, kappa=2, max_num_seqs=4, max_model_len=16)
    for i in range(6):
        drive.add(str(i), 3, max_tokens=12)
    while drive.scheduler.running or drive.scheduler.waiting:
        oldest = drive.scheduler.running[:1]
        plan = drive.step()
        assert not set(names(oldest)) & set(names(plan.preempted))


def test_a_request_that_is_preempted_before_its_cut_draft_is_fed_has_not_varied() -> None:
    drive = Drive(num_blocks=3, block_size=4, kappa=3)
    first, second = drive.add("first", 4), drive.add("second", 3)
    drive.step()
    drive.scheduler.config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=6)
    plan = drive.scheduler.schedule()
    assert [part.request for part in plan.scheduled] == [first]
    assert plan.preempted == [second]
    assert not second.draft_length_varied  # its draft will be made again, in full
