from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from engine_cases import atlas, cases
from watching import Asked, Watched

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.kernels import Purpose
from specedu.llm import LLM
from specedu.models.base import ForwardBatch
from specedu.models.toy import (
    POISON,
    ContextModel,
    ProbingModel,
    TableModel,
    hashed_law,
    mixed_law,
)
from specedu.request import Request, Status
from specedu.rule import Rule
from specedu.runner import DraftStore, Runner, num_real
from specedu.sampling.coins import CoinSource, PhiloxCoins
from specedu.scheduler import Plan, Scheduled
from specedu.theory.reference import Law, Text
from specedu.theory.settings import law_of

VOCAB, BLOCK = 4, 4
GREEDY = SamplingParams(temperature=0)
RANDOM = SamplingParams(temperature=1)


def law(text: Text) -> Law:
    return hashed_law(text, VOCAB)


class Bench:
    """A runner without a scheduler: requests that decode, and plans written by hand."""

    def __init__(
        self, model: Any = None, proposer: Any = None, kappa: int = 3, rule: str = "standard"
    ) -> None:
        self.model = Watched(model or ProbingModel(law, VOCAB))
        self.coins = Asked()
        self.runner = Runner(self.model, 64, BLOCK, self.coins, proposer, kappa, rule=Rule(rule))
        self.pool = BlockPool(64)
        self.requests: dict[str, Request] = {}

    def add(
        self, name: str, prompt: Sequence[int], params: SamplingParams = RANDOM, seed: int = 0
    ) -> Request:
        """Add a request whose prompt is computed and whose first token is emitted."""
        table = BlockTable(self.pool, BLOCK)
        request = Request(name, list(prompt), params, seed, table)
        request.status = Status.RUNNING
        table.reserve(len(prompt) + 16)
        self.requests[name] = request
        self._execute([Scheduled(request, 0, len(prompt), 0, True)])
        return request

    def verify(self, order: str) -> dict[str, list[int]]:
        """Verify each request with the draft that is stored for it; return what was emitted."""
        pending = self.runner.drafts.pending()
        parts = []
        for name in order:
            request, (_, draft) = self.requests[name], pending.get(name, (0, Draft([])))
            n = len(draft.token_ids)
            parts.append(Scheduled(request, request.num_tokens - 1, n + 1, n, True))
        return self._execute(parts)

    def _execute(self, parts: list[Scheduled]) -> dict[str, list[int]]:
        runs = {}
        for part, verdict in zip(parts, self.runner.execute(Plan(parts)), strict=True):
            request = part.request
            request.token_ids += verdict.run
            request.num_computed_tokens = request.num_tokens - 1
            request.step += 1
            runs[request.request_id] = verdict.run
        return runs

    def put(self, name: str, ids: Sequence[int], probs: torch.Tensor | None = None) -> None:
        self.runner.drafts.put(name, self.requests[name].step, Draft(list(ids), probs))


def q_rows(seed: int, count: int) -> torch.Tensor:
    return torch.rand(count, VOCAB, generator=torch.Generator().manual_seed(seed)).softmax(dim=1)


# --- DraftStore -----------------------------------------------------------------------------------


def test_a_stored_draft_comes_back_once() -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5, 6]))
    assert store.take("a", 3, 2) == (Draft([5, 6]), 0)
    assert store.take("a", 3, 0) == (Draft([]), 0)


def test_a_draft_that_is_cut_tells_how_much_is_lost() -> None:
    store, probs = DraftStore(), q_rows(0, 3)
    store.put("a", 3, Draft([5, 6, 7], probs))
    kept, cut = store.take("a", 3, 1)
    assert (kept.token_ids, cut) == ([5], 2)
    assert torch.equal(kept.probs, probs[:1])


@pytest.mark.parametrize(
    ("ids", "kept", "cut"), [([4, -1, 5], 1, 0), ([4, 5, -1], 1, 1), ([-1, 4, 5], 2, 0)]
)
def test_what_stands_behind_a_placeholder_is_not_counted_as_cut(
    ids: list[int], kept: int, cut: int
) -> None:
    store = DraftStore()
    store.put("a", 1, Draft(ids))
    assert store.take("a", 1, kept) == (Draft(ids[:kept]), cut)


@pytest.mark.parametrize("step", [2, 4])
def test_a_draft_for_another_step_is_refused(step: int) -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5]))
    with pytest.raises(ValueError, match=f"a draft of 1 for step 3, expected .* for step {step}"):
        store.take("a", step, 1)


def test_more_drafts_than_are_stored_are_refused() -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5]))
    with pytest.raises(ValueError, match="a draft of 1 for step 3, expected at least 2"):
        store.take("a", 3, 2)


def test_drafts_of_a_request_without_any_are_refused() -> None:
    with pytest.raises(ValueError, match="b: a draft of 0"):
        DraftStore().take("b", 0, 1)


def test_a_second_draft_for_one_request_is_refused() -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5]))
    with pytest.raises(ValueError, match="'a' has a draft, expected none"):
        store.put("a", 4, Draft([6]))


def test_a_dropped_draft_is_gone_and_counted() -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5, 6, -1]))
    store.put("b", 1, Draft([7]))
    assert store.drop("a") == 2
    assert "a" not in store
    assert store.pending() == {"b": (1, Draft([7]))}
    assert len(store) == 1


def test_dropping_what_is_not_there_drops_nothing() -> None:
    assert DraftStore().drop("a") == 0


def test_what_is_pending_is_told_in_a_dictionary_of_its_own() -> None:
    store = DraftStore()
    store.put("a", 3, Draft([5]))
    store.pending().clear()
    assert "a" in store


@pytest.mark.parametrize(("ids", "real"), [([], 0), ([-1], 0), ([3, -1, 3], 1), ([3, 3], 2)])
def test_drafts_are_real_up_to_the_first_placeholder(ids: list[int], real: int) -> None:
    assert num_real(ids) == real


# --- rows and drafts belong to a request, not to a place ------------------------------------------


@atlas("B58")
def test_drafts_follow_the_batch_and_not_the_order_of_the_store(atlas_row: str) -> None:
    bench = Bench()
    for name in "AB":
        bench.add(name, [0, 1])
    bench.put("B", [])
    bench.put("A", [2, 3])
    bench.verify("AB")
    metadata = bench.runner.seen.metadata
    assert metadata.num_draft_tokens == [2, 0]
    assert metadata.draft_token_ids.tolist() == [2, 3]
    assert metadata.target_logits_indices.tolist() == [0, 1]
    assert metadata.bonus_logits_indices.tolist() == [2, 3]


@atlas("B64")
def test_q_rows_stay_with_their_request_when_the_batch_is_reordered(atlas_row: str) -> None:
    bench, q = Bench(), {name: q_rows(i, 2) for i, name in enumerate("ABC")}
    for name in "ABC":
        bench.add(name, [0, 1])
    bench.verify("ABC")
    for name in "ABC":
        bench.put(name, [0, 1], q[name])
    bench.runner.forget(bench.requests["B"])
    bench.verify("CA")
    assert torch.equal(bench.runner.seen.q, torch.cat((q["C"], q["A"])))


@atlas("B64")
def test_a_verify_does_not_depend_on_the_order_of_the_batch(atlas_row: str) -> None:
    def run(order: str) -> dict[str, list[int]]:
        bench = Bench()
        for i, name in enumerate("ABCD"):
            bench.add(name, [i, 1, 2], GREEDY if name == "C" else RANDOM, seed=i + 10)
        bench.put("A", [0, 1, 2], q_rows(0, 3))
        bench.put("B", [3])
        bench.put("C", [2, -1])
        return {name: run for name, run in sorted(bench.verify(order).items())}

    wanted = run("ABCD")
    assert wanted == run("DCBA") == run("BDAC") == run("CABD")
    assert wanted == {name: run(name)[name] for name in "ABCD"}


def test_rows_of_one_hot_drafts_beside_sampled_ones_are_not_read() -> None:
    bench = Bench()
    for name in "AB":
        bench.add(name, [0, 1])
    bench.put("A", [0, 1])
    bench.put("B", [2], q_rows(0, 1))
    bench.verify("AB")
    assert bench.runner.seen.onehot == [True, False]
    assert torch.equal(bench.runner.seen.q[2:], q_rows(0, 1))


def test_a_chunks_row_is_not_asked_of_the_model() -> None:
    bench = Bench()
    decode = bench.add("A", [0, 1])
    bench.put("A", [2, 3])
    table = BlockTable(bench.pool, BLOCK)
    table.reserve(8)
    chunk = Request("B", [0] * 8, RANDOM, 0, table)
    parts = [Scheduled(decode, 2, 3, 2, True), Scheduled(chunk, 0, 5, 0, False)]
    verdicts = bench.runner.execute(Plan(parts))
    assert len(verdicts) == 1
    assert bench.model.batches[-1].logits_indices.tolist() == [0, 1, 2]
    assert bench.model.batches[-1].ragged.num_scheduled_tokens == [3, 5]


def test_a_plan_of_chunks_alone_is_not_verified() -> None:
    bench = Bench()
    bench.add("A", [0])
    table = BlockTable(bench.pool, BLOCK)
    table.reserve(8)
    asked = len(bench.coins.keys)
    chunk = Request("B", [0] * 8, RANDOM, 0, table)
    assert bench.runner.execute(Plan([Scheduled(chunk, 0, 5, 0, False)])) == []
    assert bench.runner.seen is None
    assert len(bench.coins.keys) == asked


@atlas("B60")
def test_a_batch_without_any_draft_emits_a_token_each(atlas_row: str) -> None:
    bench = Bench()
    for name in "AB":
        bench.add(name, [0, 1])
    runs = bench.verify("AB")
    metadata = bench.runner.seen.metadata
    assert metadata.cu_num_draft_tokens.tolist() == [0, 0]
    assert metadata.logits_indices.tolist() == [0, 1]
    assert metadata.target_logits_indices.tolist() == []
    assert metadata.bonus_logits_indices.tolist() == [0, 1]
    assert [len(run) for run in runs.values()] == [1, 1]


class Scripted(StatelessProposer):
    """Proposes the same ids every time."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [Draft(list(self.ids[: task.limit])) for task in tasks]


@atlas("B60")
def test_a_proposer_that_never_proposes_changes_nothing(atlas_row: str) -> None:
    config = {"method": "custom", "proposer": Scripted([]), "num_speculative_tokens": 3}
    prompts, params = [[0], [1, 2]], SamplingParams(max_tokens=8, seed=0)
    ours = LLM(ContextModel(VOCAB), config, audit=True).generate(prompts, params)
    plain = LLM(ContextModel(VOCAB)).generate(prompts, params)
    assert [o.outputs[0].token_ids for o in ours] == [o.outputs[0].token_ids for o in plain]


# Every way in which a request's drafts can be verified exactly.
EVERY_RULE = [
    pytest.param({"sampler": sampler}, id=sampler) for sampler in ("chain", "race", "logspace")
] + [pytest.param({"rejection_sample_method": rule}, id=rule) for rule in ("block", "match")]


def emitted_by(
    certain: Sequence[int], drafts: Sequence[int], settings: dict[str, Any], **params: Any
) -> tuple[list[int], int]:
    """Return what one verify emits where the target is certain of one id a place, and accepts."""
    vocab = 1 + max(*certain, *drafts)
    ids = [0, *certain]  # the first token comes without drafts

    def target(text: Text) -> Law:
        wanted = ids[min(len(text) - 1, len(ids) - 1)]
        return law_of(" ".join(str(int(token == wanted)) for token in range(vocab)))

    config = {
        "method": "custom",
        "proposer": Scripted(drafts),
        "num_speculative_tokens": len(drafts),
        **settings,
    }
    llm = LLM(ProbingModel(target, vocab), config, audit=True, poison=True, record=True)
    llm.generate([[0]], SamplingParams(max_tokens=2, seed=3, **params))
    [verify] = llm.engine.records[1].verifies
    return verify.emitted, verify.num_accepted


@pytest.mark.parametrize("settings", EVERY_RULE)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("case", cases("R02", "R03"))
def test_placeholders_yield_the_targets_token_through_the_engine(
    case: dict[str, Any], temperature: float, settings: dict[str, Any]
) -> None:
    given = case["input"]
    emitted, accepted = emitted_by(
        [*given["recovered"], 1], given["drafts"], settings, temperature=temperature
    )
    assert emitted == [token for token in case["expect"]["output"] if token != -1]
    assert accepted == 0


@pytest.mark.parametrize("settings", EVERY_RULE)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("case", cases("R10"))
def test_peaked_rows_accept_to_the_first_disagreement_through_the_engine(
    case: dict[str, Any], temperature: float, settings: dict[str, Any]
) -> None:
    given = case["input"]
    emitted, accepted = emitted_by(
        [*given["target_peaks"], 0], given["drafts"], settings, temperature=temperature
    )
    assert emitted == case["expect"]["output"]
    assert accepted == case["expect"]["n_matches"]


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_row_of_zeros_beside_a_placeholder_is_no_law_in_logarithms(backend: str) -> None:
    """A sampled request's -1 that was decided before its id was drawn: the last token is p's."""

    class Withdrawn(StatelessProposer):
        def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
            return [Draft([-1], torch.zeros(1, 3)) for _ in tasks]

    model = TableModel([law_of("0 0 1")] * 3)
    config = {"method": "custom", "proposer": Withdrawn(), "num_speculative_tokens": 1,
              "sampler": "logspace"}  # fmt: skip
    llm = LLM(model, config, audit=True, backend=backend)
    [output] = llm.generate([[0]], SamplingParams(max_tokens=4, seed=0))
    assert output.outputs[0].token_ids == [2, 2, 2, 2]


@pytest.mark.parametrize("sampler", ["race", "logspace"])
def test_a_request_that_races_says_the_same_alone_and_in_company(sampler: str) -> None:
    """Filters, bans, a greedy request and one-hot drafts beside each other."""
    params = [
        SamplingParams(temperature=0, max_tokens=9),
        SamplingParams(temperature=0.7, top_k=2, max_tokens=9, seed=1),
        SamplingParams(min_tokens=5, stop_token_ids=[1], max_tokens=9, seed=2),
        SamplingParams(top_p=0.9, max_tokens=9, seed=3),
    ]
    draft = TableModel([law_of("1/2 1/4 1/8 1/8")] * VOCAB)
    settings = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3,
                "draft_sample_method": "probabilistic", "sampler": sampler}  # fmt: skip

    def texts(asked: Sequence[SamplingParams], **options: Any) -> list[list[int]]:
        llm = LLM(ContextModel(VOCAB), settings, audit=True, **options)
        outputs = llm.generate([[0, 1]] * len(asked), list(asked))
        return [output.outputs[0].token_ids for output in outputs]

    together = texts(params)
    assert together == [texts([one], record=True)[0] for one in params]
    assert together == texts(params, max_num_batched_tokens=16, max_num_seqs=2)
    greedy = LLM(ContextModel(VOCAB)).generate([0, 1], params[0])
    assert together[0] == greedy[0].outputs[0].token_ids


def test_logspace_makes_the_noise_that_the_engines_coins_give() -> None:
    """The same noise made inside the kernel and handed to it."""

    class Handed:
        """The engine's coins, from a source that the runner does not know."""

        def __init__(self) -> None:
            self.inner = PhiloxCoins()
            self.coins, self.noise = self.inner.coins, self.inner.noise

    config = {"method": "ngram", "num_speculative_tokens": 2, "sampler": "logspace",
              "prompt_lookup_min": 1, "prompt_lookup_max": 2}  # fmt: skip
    prompts, params = [[0, 1, 0, 1]] * 4, [SamplingParams(max_tokens=12, seed=i) for i in range(4)]
    inside = LLM(ContextModel(VOCAB), config, audit=True).generate(prompts, params)
    handed = LLM(ContextModel(VOCAB), config, audit=True, coins=Handed()).generate(prompts, params)
    assert [o.outputs[0].token_ids for o in inside] == [o.outputs[0].token_ids for o in handed]
    assert sum(o.metrics.num_draft_tokens for o in inside) > 0


# --- what the model is fed ------------------------------------------------------------------------


class Flat:
    """A model of many ids to which everything is equally likely."""

    max_model_len, eos_token_id = 256, None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def make_cache(self, num_blocks: int, block_size: int) -> None:
        return None

    def forward(self, batch: ForwardBatch, cache: None) -> torch.Tensor:
        return torch.zeros(len(batch.logits_indices), self.vocab_size)


@pytest.mark.parametrize("case", cases("M11"))
def test_the_last_committed_token_is_fed_and_no_placeholder(case: dict[str, Any]) -> None:
    given, bench, parts = case["input"], Bench(Flat(4000)), []
    for i, (prompt, output, inflated) in enumerate(
        zip(given["prompts"], given["outputs"], given["inflated_len"], strict=True)
    ):
        table = BlockTable(bench.pool, BLOCK)
        request = Request(str(i), [*prompt, *output], RANDOM, 0, table)
        table.reserve(inflated)
        drafts = inflated - request.num_tokens  # placeholders that the schedule counts on
        bench.runner.drafts.put(str(i), 0, Draft([-1] * drafts))
        part = Scheduled(request, request.num_tokens - 1, 1 + drafts, drafts, True)
        assert part.start + part.num_tokens == inflated
        parts.append(part)
    verdicts = bench.runner.execute(Plan(parts))
    batch = bench.model.batches[-1]
    first = batch.ragged.query_start_loc[:-1].long()
    assert batch.input_ids[first].tolist() == case["expect"]["token"]
    assert batch.input_ids.min() >= 0
    # What comes next goes on from what this verify emitted, and from none of the placeholders.
    assert [len(verdict.run) for verdict in verdicts] == [1, 1, 1]
    for part, verdict in zip(parts, verdicts, strict=True):
        part.request.token_ids += verdict.run
    again = [Scheduled(p.request, p.request.num_tokens - 1, 1, 0, True) for p in parts]
    for part in parts:
        part.request.table.reserve(part.request.num_tokens)
    bench.runner.execute(Plan(again))
    assert bench.model.batches[-1].input_ids.tolist() == [v.run[0] for v in verdicts]


@pytest.mark.parametrize("ids", [[3, -1, -1], [-1, -1, -1], [-1, 2, 1]])
@atlas("B62")
def test_a_placeholder_never_reaches_the_model(atlas_row: str, ids: list[int]) -> None:
    bench = Bench()
    bench.add("A", [0, 1])
    bench.put("A", ids)
    bench.verify("A")
    fed = bench.model.batches[-1].input_ids.tolist()
    assert len(fed) == 4
    assert all(0 <= token < VOCAB for token in fed)
    assert bench.runner.seen.metadata.draft_token_ids.tolist() == ids


@pytest.mark.parametrize("ids", [[3, -1, -1], [-1, -1, -1], [-1, 2, 1]])
@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "sampled"])
@atlas("B62")
def test_nothing_at_or_behind_a_placeholder_is_accepted(
    atlas_row: str, params: SamplingParams, ids: list[int]
) -> None:
    # The model is fed id 0 in place of a placeholder, and says 0 always.
    bench = Bench(TableModel([law_of("1 0 0 0")] * VOCAB))
    for seed in range(5):
        name = str(seed)
        bench.add(name, [0, 1], params, seed)
        bench.put(name, ids)
        assert bench.verify(name) == {name: [0]}


@atlas("B62")
def test_a_placeholder_costs_no_draft_before_it(atlas_row: str) -> None:
    bench = Bench(TableModel([law_of("0 0 0 1")] * VOCAB))
    bench.add("A", [0])
    bench.put("A", [3, 3, -1])
    assert bench.verify("A") == {"A": [3, 3, 3]}


def test_slots_follow_the_block_table() -> None:
    bench = Bench()
    request = bench.add("A", [0, 1, 2])
    request.table.blocks = [7, 2, 9]
    bench.runner.cache[7, :3] = torch.tensor([0, 1, 2])
    bench.put("A", [3, 1, 2])
    bench.verify("A")
    # The token behind the prompt stands at place 3 of block 7, the drafts in block 2.
    assert bench.model.batches[-1].slot_mapping.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 2 * 4 + 2]


# --- coins ----------------------------------------------------------------------------------------


def asked_for(bench: Bench, purpose: Purpose) -> list[tuple[str, int, int]]:
    return [(k.request_id, k.step, k.position) for p, k in bench.coins.keys if p is purpose]


@atlas("B163")
def test_no_accept_coin_is_asked_for_a_request_without_drafts(atlas_row: str) -> None:
    bench = Bench()
    for name in "ABC":
        bench.add(name, [0, 1])
    bench.put("A", [2, 1])
    bench.put("C", [3])
    bench.coins.keys.clear()
    bench.verify("BAC")
    assert asked_for(bench, Purpose.ACCEPT) == [("A", 1, 3), ("A", 1, 4), ("C", 1, 3)]
    assert asked_for(bench, Purpose.FINAL) == [("B", 1, 3), ("A", 1, 3), ("C", 1, 3)]


@pytest.mark.parametrize("order", ["ZA", "AZ", "ZAY"])
@atlas("B163")
def test_a_neighbour_without_drafts_changes_nothing(atlas_row: str, order: str) -> None:
    def run(order: str, seed: int) -> list[int]:
        bench = Bench()
        for name in "AYZ":
            bench.add(name, [1, 0], seed=seed if name == "A" else 99)
        bench.put("A", [2, 1])
        return bench.verify(order)["A"]

    runs = {seed: run("A", seed) for seed in range(5, 25)}
    assert len({len(emitted) for emitted in runs.values()}) > 1
    assert {seed: run(order, seed) for seed in runs} == runs


def test_a_step_uses_one_final_coin_however_many_drafts_are_accepted() -> None:
    bench = Bench(TableModel([law_of("1 0 0 0")] * VOCAB))
    bench.add("A", [0])
    bench.put("A", [0, 0, 0])
    bench.coins.keys.clear()
    assert bench.verify("A") == {"A": [0, 0, 0, 0]}
    assert asked_for(bench, Purpose.FINAL) == [("A", 1, 2)]
    assert asked_for(bench, Purpose.ACCEPT) == [("A", 1, 2), ("A", 1, 3), ("A", 1, 4)]


# --- greedy and sampled requests in one batch -----------------------------------------------------


class ByPlace(TableModel):
    """Logits by the token's place in its text."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        super().__init__([law_of("1/4 1/4 1/4 1/4")] * VOCAB)
        self.rows = torch.tensor(rows, dtype=torch.float64)

    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        return self.rows[batch.positions[batch.logits_indices]]


@atlas("B24")
def test_a_greedy_request_beside_a_sampled_one_emits_its_argmaxes(atlas_row: str) -> None:
    bench = Bench(ByPlace([[0, 0, 0, 0], [1, 3, 2, 0], [0, 0, 5, 1]]))
    bench.add("A", [0], GREEDY)
    bench.add("B", [0], SamplingParams(temperature=0.7))
    bench.put("A", [1])
    bench.put("B", [1])
    runs = bench.verify("AB")
    assert runs["A"] == [1, 2]
    assert all(0 <= token < VOCAB for token in runs["B"])
    assert not bench.runner.seen.p.isnan().any()


# --- the cache ------------------------------------------------------------------------------------


def target_and_draft() -> tuple[ProbingModel, ProbingModel]:
    return ProbingModel(law, VOCAB), ProbingModel(mixed_law(law, VOCAB), VOCAB)


def run_load(method: str, poisoned: bool) -> tuple[list[list[int]], int]:
    target, draft = target_and_draft()
    config: dict[str, Any] = {"num_speculative_tokens": 3, "method": method}
    config |= {"model": draft} if method == "draft_model" else {"prompt_lookup_min": 1}
    llm = LLM(target, config, block_size=BLOCK, audit=True, poison=poisoned)
    dice = random.Random(0)
    prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 9))] for _ in range(6)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=20, seed=1))
    return [o.outputs[0].token_ids for o in outputs], llm.metrics.num_rejected_tokens


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@atlas("B38")
def test_poison_in_rejected_slots_does_not_change_the_output(atlas_row: str, method: str) -> None:
    poisoned, rejected = run_load(method, poisoned=True)
    assert (poisoned, rejected) == run_load(method, poisoned=False)
    assert rejected > 10


@pytest.mark.parametrize("poisoned", [False, True])
@atlas("B38")
def test_poison_lies_where_a_rejected_draft_was(atlas_row: str, poisoned: bool) -> None:
    model = TableModel([law_of("1 0 0 0")] * VOCAB)
    config = {"method": "custom", "proposer": Scripted([3, 3]), "num_speculative_tokens": 2}
    engine = LLM(model, config, poison=poisoned, audit=True).engine
    request = engine.add_request("a", [1, 2], SamplingParams(temperature=0), seed=0)
    engine.step()
    engine.step()
    held = engine.runner.cache.view(-1)[request.table.slots(0, 5)].tolist()
    assert held == [1, 2, 0, *([POISON, POISON] if poisoned else [3, 3])]


@atlas("B70")
def test_the_cache_is_one_buffer_from_the_first_step_to_the_last(atlas_row: str) -> None:
    target, draft = target_and_draft()
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    engine = LLM(target, config, audit=True).engine
    request = engine.add_request("a", [0, 1], SamplingParams(max_tokens=40), seed=2)
    cache, place = engine.runner.cache, engine.runner.cache.data_ptr()
    shape = cache.shape
    for _ in range(6):
        engine.step()
        assert request.num_computed_tokens == request.num_tokens - 1
    assert engine.runner.cache is cache
    assert (cache.data_ptr(), cache.shape) == (place, shape)
    assert engine.stats.num_rejected_tokens + request.stats.num_rejected_tokens > 0


# --- proposing ------------------------------------------------------------------------------------


class Counting(Scripted):
    """Remembers whom it was asked for."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self.asked: list[list[str]] = []

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        self.asked.append([task.request_id for task in tasks])
        return super().propose(tasks, coins)


def test_a_request_that_has_a_draft_is_not_asked_for_again() -> None:
    proposer = Counting([0])
    bench = Bench(proposer=proposer)
    running = [bench.add(name, [0, 1]) for name in "AB"]
    bench.put("A", [2])
    made = bench.runner.propose(running, 64)
    assert proposer.asked == [["B"]]
    assert [request.request_id for request, _ in made] == ["B"]
    assert bench.runner.drafts.pending() == {"A": (1, Draft([2])), "B": (1, Draft([0]))}


def test_a_request_that_is_not_decoding_is_not_asked_for() -> None:
    proposer = Counting([0])
    bench = Bench(proposer=proposer)
    request = bench.add("A", [0, 1])
    request.num_computed_tokens = 1
    assert bench.runner.propose([request], 64) == []
    assert proposer.asked == []


@pytest.mark.parametrize(("room", "limit"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_a_draft_leaves_room_for_the_token_behind_it(room: int, limit: int) -> None:
    bench = Bench(proposer=Scripted([0] * 9))
    request = bench.add("A", [0, 1])
    made = bench.runner.propose([request], request.num_tokens + room)
    assert [len(draft.token_ids) for _, draft in made] == [limit] * (limit > 0)


def test_an_empty_draft_is_not_stored() -> None:
    bench = Bench(proposer=Scripted([]))
    request = bench.add("A", [0, 1])
    assert bench.runner.propose([request], 64) == [(request, Draft([]))]
    assert len(bench.runner.drafts) == 0


def test_a_runner_without_a_proposer_proposes_nothing() -> None:
    bench = Bench()
    assert bench.runner.propose([bench.add("A", [0, 1])], 64) == []


def test_forgetting_a_request_tells_the_proposer_and_counts_its_drafts() -> None:
    forgotten = []

    class Told(Scripted):
        def forget(self, request_id: str) -> None:
            forgotten.append(request_id)

    bench = Bench(proposer=Told([0, 0]))
    request = bench.add("A", [0, 1])
    bench.runner.propose([request], 64)
    assert bench.runner.forget(request) == 2
    assert forgotten == ["A"]
    assert len(bench.runner.drafts) == 0


# --- sample-and-match -----------------------------------------------------------------------------


def test_match_asks_for_the_coins_of_plain_decoding() -> None:
    plain, bench = Bench(), Bench(rule="match")
    for each in (plain, bench):
        for name, prompt in (("A", [0, 1]), ("B", [2])):
            each.add(name, prompt, seed=ord(name))
    while plain.requests["A"].num_output_tokens < 9:
        plain.verify("AB")
    while bench.requests["A"].num_output_tokens < 5:
        bench.put("A", plain.requests["A"].token_ids[bench.requests["A"].num_tokens :][:2])
        bench.put("B", [3, -1, 3])  # the step numbers fall behind the places
        bench.verify("BA")
    assert bench.requests["A"].step < bench.requests["A"].num_output_tokens
    assert {purpose for purpose, _ in bench.coins.keys} == {Purpose.FINAL}
    asked = {key for _, key in bench.coins.keys if key.request_id == "A"}
    assert asked <= {key for _, key in plain.coins.keys}
    for name in "AB":
        ids = bench.requests[name].output_token_ids
        assert ids == plain.requests[name].output_token_ids[: len(ids)]


def test_match_keeps_every_rows_coin_for_the_record() -> None:
    bench = Bench(rule="match")
    for name in "AB":
        bench.add(name, [0, 1], seed=ord(name))
    bench.put("A", [2, 3], q_rows(0, 2))
    bench.verify("AB")
    seen, keys = bench.runner.seen, [key for _, key in bench.coins.keys[-4:]]
    coins = PhiloxCoins().coins(keys, Purpose.FINAL)  # A's three rows, then B's one
    assert torch.equal(seen.accept_coins, coins[:2])
    assert torch.equal(seen.final_coins, coins[2:])
    assert seen.onehot == [False, True]
    assert torch.equal(seen.q, q_rows(0, 2))
