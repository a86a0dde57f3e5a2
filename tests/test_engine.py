from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import pytest
import torch
from engine_cases import atlas

from specedu import audit
from specedu.config import CacheConfig, SamplingParams, SchedulerConfig
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.engine import Engine
from specedu.kernels import Purpose
from specedu.llm import LLM
from specedu.metrics import SpecDecodeStats
from specedu.models.toy import POISON, ProbingModel, TableModel, hashed_law, mixed_law
from specedu.record import VerifyRecord
from specedu.request import Request, Status
from specedu.runner import Runner
from specedu.sampling.coins import CoinKey, CoinSource, PhiloxCoins
from specedu.theory.settings import law_of

VOCAB, CONTEXT = 12, 40
TARGET = ProbingModel(lambda text: hashed_law(text, VOCAB), VOCAB, max_model_len=CONTEXT)
DRAFT = ProbingModel(mixed_law(TARGET.law, VOCAB), VOCAB, max_model_len=CONTEXT)
PROMPTS = {"a": [0, 1, 2, 3, 4], "b": [5, 6, 7, 8, 9, 10, 11, 5, 6]}


def params(name: str, **settings: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "seed": sum(name.encode()), **settings})


def drafting_llm(method: str = "probabilistic", kappa: int = 3, **options: Any) -> LLM:
    config = {
        "method": "draft_model",
        "model": DRAFT,
        "draft_sample_method": method,
        "num_speculative_tokens": kappa,
    }
    return LLM(TARGET, config, **{"block_size": 2, "audit": True, "poison": True, **options})


def scripted_llm(model: TableModel, proposer: StatelessProposer, kappa: int, **options: Any) -> LLM:
    config = {"method": "custom", "proposer": proposer, "num_speculative_tokens": kappa}
    return LLM(model, config, audit=True, poison=True, **options)


def add(engine: Engine, name: str, **settings: Any) -> Request:
    settings = params(name, **settings)
    return engine.add_request(name, PROMPTS[name], settings, seed=settings.seed)


def run_dry(engine: Engine) -> None:
    while engine.has_unfinished():
        engine.step()


def alone(name: str, **settings: Any) -> list[int]:
    """Return what a request says in an engine of its own."""
    engine = drafting_llm().engine
    request = add(engine, name, **settings)
    run_dry(engine)
    return request.output_token_ids


def state(engine: Engine) -> tuple[Any, ...]:
    """Return everything of an engine that a refusal must leave alone."""
    scheduler = engine.scheduler
    return (
        {
            name: (
                list(r.token_ids),
                r.status,
                r.num_computed_tokens,
                r.num_draft_tokens,
                r.step,
                list(r.table.blocks),
                repr(r.stats),
            )
            for name, r in engine.requests.items()
        },
        [request.request_id for request in scheduler.waiting],
        [request.request_id for request in scheduler.running],
        list(engine.pool.ref_counts),
        engine.runner.drafts.pending().keys(),
        engine.num_steps,
    )


# --- one step -------------------------------------------------------------------------------------


def test_a_step_with_nothing_to_do_does_nothing() -> None:
    engine = drafting_llm(record=True).engine
    assert not engine.has_unfinished()
    assert engine.step() == []
    assert (engine.num_steps, engine.records, engine.stats) == (0, [], SpecDecodeStats())


def test_a_step_reports_the_tokens_that_it_added() -> None:
    engine = drafting_llm().engine
    requests = [add(engine, name) for name in PROMPTS]
    told: dict[str, list[int]] = {name: [] for name in PROMPTS}
    while engine.has_unfinished():
        for progress in engine.step():
            told[progress.request.request_id] += progress.new_token_ids
        for request in requests:
            assert told[request.request_id] == request.output_token_ids
    assert [len(ids) for ids in told.values()] == [12, 12]


def test_a_step_that_takes_in_a_part_of_a_prompt_reports_nothing() -> None:
    engine = drafting_llm(max_num_seqs=1, max_num_batched_tokens=2).engine
    add(engine, "a")
    progress = [engine.step() for _ in range(3)]
    assert [len(reported) for reported in progress] == [0, 0, 1]


def test_a_request_that_has_ended_is_forgotten() -> None:
    engine = drafting_llm().engine
    request = add(engine, "a")
    run_dry(engine)
    assert request.finished
    assert (engine.requests, engine.scheduler.running) == ({}, [])
    assert (len(engine.runner.drafts), engine.runner.proposer.fed) == (0, {})
    assert engine.pool.num_used == 0


def test_a_name_may_be_used_again_once_its_request_has_ended() -> None:
    engine = drafting_llm().engine
    first = add(engine, "a")
    run_dry(engine)
    second = add(engine, "a")
    run_dry(engine)
    assert first.output_token_ids == second.output_token_ids


def test_a_draft_that_the_budget_cuts_is_never_scheduled() -> None:
    # Of seven tokens four go to the first request and its drafts, two to slots, one to the second.
    engine = drafting_llm(max_num_seqs=2, max_num_batched_tokens=14).engine
    requests = [add(engine, name) for name in PROMPTS]
    while not all(request.num_draft_tokens == 3 for request in requests):
        engine.step()
    before = [request.stats.num_never_scheduled_tokens for request in requests]
    engine.scheduler.config = SchedulerConfig(2, 7, CONTEXT, draft_slots=1, num_lookahead_tokens=3)
    engine.step()
    after = [request.stats.num_never_scheduled_tokens for request in requests]
    assert (before, after) == ([0, 0], [0, 3])
    assert [request.draft_length_varied for request in requests] == [False, True]


@pytest.mark.parametrize("poison", [False, True])
def test_a_step_poisons_the_cache_where_it_is_asked_to(poison: bool) -> None:
    engine = drafting_llm(poison=poison).engine
    request = add(engine, "a", max_tokens=1)
    run_dry(engine)
    assert request.finished
    assert bool((engine.runner.cache == POISON).all()) is poison


def test_every_step_that_runs_is_counted() -> None:
    engine = drafting_llm(record=True).engine
    add(engine, "a")
    run_dry(engine)
    assert engine.num_steps == len(engine.records) > 1


# --- a bad request --------------------------------------------------------------------------------

BAD = {
    "empty-prompt": ([], {}, r"prompt: \[\], expected at least one token"),
    "long-prompt": (
        [0] * CONTEXT,
        {},
        r"prompt: 40 tokens, expected at most 39, one less than max_model_len",
    ),
    "id-past-the-vocabulary": ([0, 12], {}, r"prompt\[1\]: 12, expected an int in \[0, 11\]"),
    "negative-id": ([-1], {}, r"prompt\[0\]: -1, expected an int in \[0, 11\]"),
    "id-that-is-no-int": ([0.5], {}, r"prompt\[0\]: 0.5, expected an int in \[0, 11\]"),
    "stop-id-past-the-vocabulary": (
        [0],
        {"stop_token_ids": [1, 12]},
        r"stop_token_ids\[1\]: 12, expected an int in \[0, 11\]",
    ),
}


@pytest.mark.parametrize(("prompt", "settings", "words"), BAD.values(), ids=BAD)
def test_a_bad_request_is_refused_and_the_others_go_on(
    prompt: list[int], settings: dict[str, Any], words: str
) -> None:
    engine = drafting_llm().engine
    requests = [add(engine, name) for name in PROMPTS]
    engine.step()
    before = state(engine)
    with pytest.raises(ValueError, match=f"^{words}"):
        engine.add_request("bad", prompt, SamplingParams(**settings), seed=0)
    assert state(engine) == before
    run_dry(engine)
    assert [r.output_token_ids for r in requests] == [alone(name) for name in PROMPTS]


def test_a_taken_name_is_refused_and_its_request_goes_on() -> None:
    engine = drafting_llm().engine
    request = add(engine, "a")
    engine.step()
    before = state(engine)
    with pytest.raises(ValueError, match="^request_id: 'a', expected an id that no other request"):
        engine.add_request("a", [0], SamplingParams(), seed=0)
    assert state(engine) == before
    run_dry(engine)
    assert request.output_token_ids == alone("a")


def engine_without_tokenizer() -> Engine:
    runner = Runner(TARGET, 32, 2, PhiloxCoins())
    return Engine(runner, CacheConfig(2, 32), SchedulerConfig(max_model_len=CONTEXT), audited=True)


def test_a_stop_string_is_refused_where_there_is_no_tokenizer() -> None:
    engine = engine_without_tokenizer()
    request = add(engine, "a")
    engine.step()
    with pytest.raises(ValueError, match=r"^stop: \('x',\), expected none where there is no tok"):
        add(engine, "b", stop="x")
    run_dry(engine)
    assert (len(request.output_token_ids), request.text) == (12, "")


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    engine = drafting_llm().engine
    request = engine.add_request("a", [0] * (CONTEXT - 1), params("a"), seed=0)
    run_dry(engine)
    assert (request.num_output_tokens, request.finish_reason) == (1, "length")


def test_one_bad_prompt_of_many_lets_none_begin() -> None:
    llm = drafting_llm()
    with pytest.raises(ValueError, match=r"^prompt\[0\]: 12"):
        llm.generate([[0], [12]], params("a"))
    assert (llm.engine.requests, list(llm.engine.scheduler.waiting)) == ({}, [])


# --- cancelling -----------------------------------------------------------------------------------


def step_until(engine: Engine, phase: Callable[[Request], bool]) -> None:
    while not phase(engine.requests["b"]):
        engine.step()


PHASES: dict[str, Callable[[Request], bool]] = {
    "waiting": lambda r: r.status is Status.WAITING and not r.num_preemptions,
    "prefilling": lambda r: r.num_computed_tokens > 0 and not r.num_output_tokens,
    "decoding-with-drafts": lambda r: r.num_output_tokens > 3 and r.num_draft_tokens > 0,
    "preempted": lambda r: r.status is Status.WAITING and r.num_preemptions > 0,
    "resumed-in-part": lambda r: (
        r.num_preemptions > 0 and r.status is Status.RUNNING and not r.decoding
    ),
}
# One prompt and a half in the first step, and blocks for one request and a half.
TIGHT = {"max_num_seqs": 2, "max_num_batched_tokens": 10, "num_blocks": 26}


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_a_cancelled_request_ends_at_once_and_the_other_goes_on(
    phase: Callable[[Request], bool],
) -> None:
    engine = drafting_llm(**TIGHT).engine
    settings = {"max_tokens": 30, "temperature": 0}  # a draft that is cut changes no argmax
    other, request = add(engine, "a", **settings), add(engine, "b", **settings)
    step_until(engine, phase)
    said = list(request.output_token_ids)
    engine.cancel("b")
    assert (request.finished, request.finish_reason) == (True, "abort")
    assert "b" not in engine.requests and "b" not in engine.runner.drafts
    assert set(other.table.blocks) == {b for b, n in enumerate(engine.pool.ref_counts) if n}
    audit.check(engine)
    run_dry(engine)
    assert request.output_token_ids == said == alone("b", **settings)[: len(said)]
    assert other.output_token_ids == alone("a", **settings)
    assert engine.pool.num_used == 0


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_the_drafts_of_a_cancelled_request_are_accounted_for(
    phase: Callable[[Request], bool],
) -> None:
    engine = drafting_llm(**TIGHT).engine
    add(engine, "a", max_tokens=30)
    request = add(engine, "b", max_tokens=30)
    step_until(engine, phase)
    before, pending = request.stats.num_never_scheduled_tokens, request.num_draft_tokens
    engine.cancel("b")
    assert request.stats.num_never_scheduled_tokens == before + pending
    request.stats.check()
    assert engine.stats == request.stats


def test_cancelling_a_request_that_has_ended_changes_nothing() -> None:
    engine = drafting_llm().engine
    request = add(engine, "a")
    run_dry(engine)
    stats = engine.stats.prometheus()
    engine.cancel("a")
    assert (request.finish_reason, engine.stats.prometheus()) == ("length", stats)


def test_cancelling_an_unknown_request_changes_nothing() -> None:
    engine = drafting_llm().engine
    add(engine, "a")
    engine.step()
    before = state(engine)
    engine.cancel("z")
    assert state(engine) == before


def test_cancelling_twice_is_cancelling_once() -> None:
    engine = drafting_llm().engine
    request = add(engine, "a")
    engine.step()
    engine.cancel("a")
    engine.cancel("a")
    assert (request.finish_reason, engine.requests, engine.pool.num_used) == ("abort", {}, 0)
    assert engine.stats == request.stats


# --- what goes wrong inside a step ----------------------------------------------------------------


class Faulty(StatelessProposer):
    """Proposes two ids, or, for one request while ``bad`` is set, one that is illegal."""

    bad: str | None = None

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [Draft([VOCAB] if task.request_id == self.bad else [1, 2]) for task in tasks]


def test_an_illegal_draft_is_refused_and_leaves_the_other_requests_whole() -> None:
    proposer = Faulty()
    config = {"method": "custom", "proposer": proposer, "num_speculative_tokens": 2}
    engine = LLM(TARGET, config, audit=True).engine
    other, _ = (add(engine, name, temperature=0) for name in PROMPTS)
    engine.step()
    proposer.bad = "b"
    with pytest.raises(ValueError, match="^proposer, request b: draft 0 is 12, expected an id in"):
        engine.step()
    engine.cancel("b")
    audit.check(engine)
    run_dry(engine)
    assert other.output_token_ids == alone("a", temperature=0)


class Interrupting(StatelessProposer):
    """Is interrupted when it is asked for the second time."""

    asked = 0

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return [Draft([1]) for _ in tasks]


def test_an_interrupted_generate_leaves_no_request_behind() -> None:
    config = {"method": "custom", "proposer": Interrupting(), "num_speculative_tokens": 1}
    llm = LLM(TARGET, config)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[0], [1]], params("a"))
    assert (llm.engine.requests, llm.engine.pool.num_used) == ({}, 0)


def test_a_stream_that_is_closed_before_it_begins_leaves_no_request_behind() -> None:
    llm = drafting_llm()
    llm.stream([[0], [1]], params("a")).close()
    assert llm.engine.requests == {}


# --- stops ----------------------------------------------------------------------------------------

ROWS = [[int(t == (i + 1) % VOCAB) for t in range(VOCAB)] for i in range(VOCAB)]
COUNTING = [law_of(" ".join(map(str, row))) for row in ROWS]  # behind i comes i + 1


class Counting(StatelessProposer):
    """Proposes what the counting model says."""

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [
            Draft([(task.token_ids[-1] + 1 + i) % VOCAB for i in range(task.limit)])
            for task in tasks
        ]


@atlas("B102")
def test_tokens_and_cache_both_end_at_the_end_of_text(atlas_row: str) -> None:
    # The first token is 5; the run is 6, 7 and two more, and 7 ends the text.
    llm = scripted_llm(TableModel(COUNTING, eos_token_id=7), Counting(), kappa=4)
    request = llm.engine.add_request("a", [0, 1, 2, 3, 4], params("a"), seed=0)
    llm.engine.step()
    llm.engine.step()
    assert (request.finish_reason, request.output_token_ids) == ("stop", [5, 6, 7])
    assert request.num_computed_tokens == request.num_tokens == 8


@atlas("B154")
@pytest.mark.parametrize("kappa", [1, 3])
def test_kappa_counts_drafts_and_a_verify_has_one_row_more(kappa: int, atlas_row: str) -> None:
    llm = scripted_llm(TableModel(COUNTING), Counting(), kappa, record=True)
    llm.generate([[0]], params("a", max_tokens=20))
    verifies = [verify for step in llm.engine.records for verify in step.verifies]
    assert [len(verify.draft_token_ids) for verify in verifies[1:]] == [kappa] * len(verifies[1:])
    assert [len(verify.top_p) for verify in verifies[1:]] == [kappa + 1] * len(verifies[1:])
    assert max(len(verify.emitted) for verify in verifies) == kappa + 1


@atlas("B158")
def test_the_rows_that_are_kept_for_the_verify_grow_linearly_with_kappa(atlas_row: str) -> None:
    model = TableModel([law_of(" ".join(["1/100"] * 100))] * 100, max_model_len=CONTEXT)
    config = {
        "method": "draft_model",
        "model": "self",
        "draft_sample_method": "probabilistic",
        "num_speculative_tokens": 8,
    }
    engine = LLM(model, config, audit=True).engine
    for name in PROMPTS:
        add(engine, name)
    engine.step()
    stored = [draft.probs for _, draft in engine.runner.drafts.pending().values()]
    assert sum(probs.untyped_storage().nbytes() // 4 for probs in stored) == 8 * 100 * 2


@atlas("B160")
def test_a_drafter_has_room_for_every_sequence_that_the_target_has_room_for(atlas_row: str) -> None:
    # Four texts of eight tokens, and a pool of exactly four times eight slots.
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3}
    llm = LLM(TARGET, config, block_size=4, num_blocks=8, max_model_len=8, audit=True, record=True)
    outputs = llm.generate([[i, i + 1] for i in range(4)], params("a", max_tokens=6))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [6] * 4
    assert all(output.metrics.num_draft_tokens > 0 for output in outputs)
    assert not any(step.preempted for step in llm.engine.records)


# --- records --------------------------------------------------------------------------------------


def recorded(method: str = "probabilistic", **options: Any) -> tuple[Engine, list[Request]]:
    """Run both requests and return the engine with its records."""
    engine = drafting_llm(method, record=True, **options).engine
    requests = [add(engine, name, max_tokens=30) for name in PROMPTS]
    run_dry(engine)
    return engine, requests


def by_request(engine: Engine, request_id: str) -> list[VerifyRecord]:
    return [v for step in engine.records for v in step.verifies if v.request_id == request_id]


RECORDED = pytest.mark.parametrize(
    ("method", "options"),
    [
        pytest.param("probabilistic", {}, id="sampled-drafts"),
        pytest.param("greedy", {}, id="one-hot-drafts"),
        pytest.param("probabilistic", TIGHT, id="preempting"),
    ],
)


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    engine = drafting_llm().engine
    add(engine, "a")
    run_dry(engine)
    assert engine.records == []


@RECORDED
def test_the_recorded_runs_are_the_output(method: str, options: dict[str, int]) -> None:
    engine, requests = recorded(method, **options)
    for request in requests:
        verifies = by_request(engine, request.request_id)
        kept = [token for verify in verifies for token in verify.emitted[: verify.kept]]
        assert kept == request.output_token_ids


@RECORDED
def test_recorded_verifies_follow_each_other(method: str, options: dict[str, int]) -> None:
    engine, requests = recorded(method, **options)
    for request in requests:
        verifies = by_request(engine, request.request_id)
        assert [verify.step for verify in verifies] == [*range(len(verifies))]
        position = request.num_prompt_tokens
        for verify in verifies:
            assert verify.position == position
            position += verify.kept


@RECORDED
def test_a_recorded_run_is_the_accepted_drafts_and_one_token(
    method: str, options: dict[str, int]
) -> None:
    engine, _ = recorded(method, **options)
    accepted = 0
    for verify in [verify for step in engine.records for verify in step.verifies]:
        assert len(verify.emitted) == verify.num_accepted + 1
        assert verify.emitted[:-1] == verify.draft_token_ids[: verify.num_accepted]
        accepted += verify.num_accepted
    assert accepted > 0


def law_after(model: ProbingModel, request: Request, verify: VerifyRecord, row: int) -> list[float]:
    text = request.token_ids[: verify.position] + verify.draft_token_ids[:row]
    return [float(mass) for mass in model.law(tuple(text))]


def assert_top(top: list[tuple[int, float]], law: list[float]) -> None:
    """Check a recorded row: the eight likeliest ids, the likeliest first, with their mass."""
    assert [mass for _, mass in top] == pytest.approx(sorted(law, reverse=True)[:8], abs=1e-6)
    assert [mass for _, mass in top] == pytest.approx([law[token] for token, _ in top], abs=1e-6)
    assert len({token for token, _ in top}) == 8


@RECORDED
def test_the_recorded_rows_are_the_laws_of_both_models(
    method: str, options: dict[str, int]
) -> None:
    engine, requests = recorded(method, **options)
    for request in requests:
        for verify in by_request(engine, request.request_id):
            drafts = len(verify.draft_token_ids)
            assert (len(verify.top_p), len(verify.top_q)) == (drafts + 1, drafts)
            for row, top in enumerate(verify.top_p):
                assert_top(top, law_after(TARGET, request, verify, row))
            for row, top in enumerate(verify.top_q):
                if method == "greedy":
                    assert top is None
                else:
                    assert_top(top, law_after(DRAFT, request, verify, row))


@RECORDED
def test_the_recorded_coins_are_the_requests_own(method: str, options: dict[str, int]) -> None:
    engine, requests = recorded(method, **options)
    for request in requests:
        for verify in by_request(engine, request.request_id):
            keys = [
                CoinKey("", request.seed, verify.step, verify.position + i)
                for i in range(max(1, len(verify.draft_token_ids)))
            ]
            accept = PhiloxCoins().coins(keys, Purpose.ACCEPT).tolist()
            assert verify.accept_coins == accept[: len(verify.draft_token_ids)]
            assert [verify.final_coin] == PhiloxCoins().coins(keys[:1], Purpose.FINAL).tolist()


@RECORDED
def test_the_recorded_verdicts_follow_from_the_recorded_rows_and_coins(
    method: str, options: dict[str, int]
) -> None:
    engine, _ = recorded(method, **options)
    checked = 0
    for verify in [verify for step in engine.records for verify in step.verifies]:
        for i, token in enumerate(verify.draft_token_ids[: verify.num_accepted + 1]):
            p = dict(verify.top_p[i]).get(token)
            q = 1.0 if verify.top_q[i] is None else dict(verify.top_q[i]).get(token)
            if p is None or q is None:
                continue  # not among the eight that are kept
            assert (verify.accept_coins[i] * q < p) == (i < verify.num_accepted)
            checked += 1
    assert checked > 10


@RECORDED
def test_the_recorded_tables_tell_what_a_step_reserved(
    method: str, options: dict[str, int]
) -> None:
    engine, requests = recorded(method, **options)
    grown = 0
    for request in requests:
        verifies = by_request(engine, request.request_id)
        for verify in verifies:
            before, after = verify.blocks_before, verify.blocks_after
            assert after[: len(before)] == before
            grown += len(after) - len(before)
            fed_until = verify.position + len(verify.draft_token_ids)
            assert len(after) * engine.block_size >= fed_until
        if not request.num_preemptions:
            for verify, following in zip(verifies, verifies[1:], strict=False):
                assert following.blocks_before == verify.blocks_after
    assert grown > 0


@RECORDED
def test_the_recorded_feed_is_what_the_cache_lacked(method: str, options: dict[str, int]) -> None:
    engine, requests = recorded(method, **options)
    computed = {request.request_id: 0 for request in requests}
    for step in engine.records:
        for name in step.preempted:
            computed[name] = 0
        verifies = {verify.request_id: verify for verify in step.verifies}
        assert verifies.keys() <= step.fed.keys()
        for name, (start, num_tokens, num_drafts) in step.fed.items():
            assert start == computed[name]
            computed[name] = start + num_tokens
            if name in verifies:
                assert num_drafts == len(verifies[name].draft_token_ids)
                computed[name] -= num_drafts - verifies[name].num_accepted
            else:
                assert num_drafts == 0
    assert all(computed.values())


def test_a_preemption_is_recorded() -> None:
    engine, requests = recorded(**TIGHT)
    preempted = [name for step in engine.records for name in step.preempted]
    assert len(preempted) == sum(request.num_preemptions for request in requests) > 0


# --- the audit ------------------------------------------------------------------------------------


def audited() -> Engine:
    """Return an engine with two requests that decode, each with drafts, and one that waits."""
    engine = drafting_llm(max_num_seqs=2).engine
    for name in PROMPTS:
        add(engine, name)
    engine.add_request("c", [0, 1], params("c"), seed=0)
    engine.step()
    engine.step()
    audit.check(engine)
    return engine


def share_a_block(engine: Engine) -> None:
    a, b = (engine.requests[name].table for name in "ab")
    engine.pool.free(b.blocks[:1])
    b.blocks[0] = a.blocks[0]
    engine.pool.ref_counts[a.blocks[0]] += 1


def lose_a_block(engine: Engine) -> None:
    engine.requests["a"].table.blocks.pop()


def lose_a_free_block(engine: Engine) -> None:
    [block] = engine.pool.allocate(1)
    engine.pool.ref_counts[block] = 0


def put_another_in_its_place(engine: Engine) -> None:
    engine.scheduler.waiting[0] = copy(engine.scheduler.waiting[0])


def preempt_and_let_it_run(engine: Engine) -> None:
    request = engine.requests["b"]
    request.stats.num_never_scheduled_tokens += engine.runner.forget(request)
    request.preempt()


def lose_a_draft_and_count_it(engine: Engine) -> None:
    request = engine.requests["a"]
    request.stats.num_never_scheduled_tokens += engine.runner.drafts.drop("a")


def stand_in_two_places(engine: Engine) -> None:
    engine.scheduler.waiting.append(engine.scheduler.waiting[0])


def draft_for_one_that_waits(engine: Engine) -> None:
    engine.runner.drafts.put("c", 0, Draft([1]))


def draft_for_one_that_has_ended(engine: Engine) -> None:
    engine.runner.drafts.put("z", 0, Draft([1]))


def run_one_too_many(engine: Engine) -> None:
    request = engine.scheduler.waiting.popleft()
    request.status = Status.RUNNING
    engine.scheduler.running.append(request)


def tamper(name: str, attribute: str, by: int) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        request = engine.requests[name]
        setattr(request, attribute, getattr(request, attribute) + by)

    return change


def tamper_stats(attribute: str, total: bool) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        stats = engine.stats if total else engine.requests["a"].stats
        setattr(stats, attribute, getattr(stats, attribute) + 1)

    return change


TAMPERING: dict[str, Callable[[Engine], object]] = {
    "a-block-leaks": lambda engine: engine.pool.allocate(1),
    "a-block-is-lost": lose_a_block,
    "a-free-block-is-lost": lose_a_free_block,
    "a-block-is-shared": share_a_block,
    "a-count-is-negative": lambda engine: engine.pool.ref_counts.__setitem__(-1, -1),
    "too-many-run": run_one_too_many,
    "a-request-stands-nowhere": lambda engine: engine.scheduler.waiting.clear(),
    "a-request-stands-twice": stand_in_two_places,
    "another-stands-in-its-place": put_another_in_its_place,
    "a-preempted-request-runs": preempt_and_let_it_run,
    "a-request-is-unknown": lambda engine: engine.requests.pop("c"),
    "a-running-request-says-it-waits": lambda engine: setattr(
        engine.requests["a"], "status", Status.WAITING
    ),
    "a-waiting-request-says-it-runs": lambda engine: setattr(
        engine.requests["c"], "status", Status.RUNNING
    ),
    "a-request-has-computed-too-much": tamper("a", "num_computed_tokens", 1),
    "a-draft-is-stale": tamper("a", "step", 1),
    "a-draft-count-is-high": tamper("a", "num_draft_tokens", 1),
    "a-draft-count-is-low": tamper("a", "num_draft_tokens", -1),
    "a-draft-is-lost": lambda engine: engine.runner.drafts.drop("a"),
    "a-draft-is-lost-and-counted": lose_a_draft_and_count_it,
    "a-draft-waits-for-its-prompt": draft_for_one_that_waits,
    "a-draft-has-no-request": draft_for_one_that_has_ended,
    "a-proposed-token-is-lost": tamper_stats("num_proposed_tokens", total=False),
    "an-emitted-token-is-lost": tamper_stats("num_emitted_tokens", total=False),
    "the-total-is-off": tamper_stats("num_rejected_tokens", total=True),
}


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING)
def test_the_audit_trips(change: Callable[[Engine], object]) -> None:
    engine = audited()
    change(engine)
    with pytest.raises(AssertionError):
        audit.check(engine)


def test_an_audited_step_trips_on_what_was_wrong_before_it() -> None:
    engine = audited()
    engine.pool.allocate(1)
    with pytest.raises(AssertionError, match="a block leaked"):
        engine.step()


def test_a_step_that_is_not_audited_does_not_look() -> None:
    engine = audited()
    engine.audited = False
    engine.pool.allocate(1)
    assert engine.step()


def test_the_audit_changes_nothing() -> None:
    engine = audited()
    before = state(engine)
    cache = engine.runner.cache.clone()
    audit.check(engine)
    assert state(engine) == before
    assert torch.equal(engine.runner.cache, cache)


def test_poison_fills_every_slot_but_those_of_computed_tokens() -> None:
    engine = audited()
    live = {
        slot: request.token_ids[i]
        for request in engine.scheduler.running
        for i, slot in enumerate(request.table.slots(0, request.num_computed_tokens))
    }
    cache = engine.runner.cache.view(-1)
    cache[[slot for slot in range(len(cache)) if slot not in live]] = 3
    audit.poison(engine)
    held = cache.tolist()
    assert held == [live.get(slot, POISON) for slot in range(len(held))]


def test_poison_leaves_a_cache_that_is_no_toys_alone() -> None:
    engine = audited()
    engine.runner.cache = torch.zeros(4, 2)
    audit.poison(engine)
    assert not engine.runner.cache.any()
