from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from engine_cases import atlas
from watching import Asked

from specedu.cache import kv
from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask
from specedu.draft.draft_model import (
    DraftModelProposer,
    check_vocabularies,
    common_prefix,
    draw,
    pad_vocabulary,
)
from specedu.kernels import Purpose
from specedu.llm import LLM
from specedu.models.base import ForwardBatch
from specedu.models.toy import POISON, ContextModel, ProbingModel, TableModel, hashed_law, mixed_law
from specedu.runner import coin_key
from specedu.sampling.coins import CoinKey, CoinSource, PhiloxCoins
from specedu.theory.reference import Law, Text, sample
from specedu.theory.settings import law_of

VOCAB, CONTEXT = 5, 64
GREEDY = SamplingParams(temperature=0, max_tokens=24)
RANDOM = SamplingParams(max_tokens=24, seed=3)


def certain(token: int, vocab: int = VOCAB) -> Law:
    return tuple(Fraction(int(t == token)) for t in range(vocab))


def target_law(text: Text) -> Law:
    return hashed_law(text, VOCAB)


def target_model(**settings: Any) -> ProbingModel:
    return ProbingModel(target_law, VOCAB, **{"max_model_len": CONTEXT, **settings})


def near_model() -> ProbingModel:
    """Return a draft that agrees with the target half of the time."""
    return ProbingModel(mixed_law(target_law, VOCAB), VOCAB, max_model_len=CONTEXT)


class Watched:
    """A model that remembers what each pass fed: per request (start, ids)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.passes: list[list[tuple[int, list[int]]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        borders = batch.ragged.query_start_loc.tolist()
        self.passes.append(
            [
                (int(batch.positions[a]), batch.input_ids[a:b].tolist())
                for a, b in zip(borders, borders[1:], strict=False)
            ]
        )
        return self.model.forward(batch, cache)


class HalfPrecision(ProbingModel):
    """A draft whose logits are bf16, as a small model's often are."""

    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        return super().forward(batch, cache).to(torch.bfloat16)


def make_llm(draft: Any, kappa: int = 3, method: str = "greedy", **options: Any) -> LLM:
    config = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": kappa,
        "draft_sample_method": method,
    }
    target = options.pop("target", None) or target_model()
    return LLM(target, config, **{"audit": True, "poison": True, "block_size": 4, **options})


def make_proposer(model: Any, method: str = "greedy", kappa: int = 4) -> DraftModelProposer:
    return DraftModelProposer(model, kappa, VOCAB, 32, 4, method)


def make_task(
    text: Sequence[int],
    limit: int = 3,
    params: SamplingParams = GREEDY,
    *,
    name: str = "a",
    step: int = 1,
    seed: int = 3,
    blocks: Sequence[int] = range(16),
) -> DraftTask:
    return DraftTask(name, list(text), limit, params, seed, step, list(blocks))


def greedy_path(text: Sequence[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        law = target_law(tuple(text))
        text.append(law.index(max(law)))
    return text[-count:]


# --- draft = target -------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("greedy", GREEDY),
        ("probabilistic", GREEDY),
        ("probabilistic", RANDOM),
        ("probabilistic", SamplingParams(temperature=0.7, top_k=3, max_tokens=24, seed=4)),
        ("probabilistic", SamplingParams(temperature=1.5, top_p=0.8, max_tokens=24, seed=5)),
    ],
    ids=["greedy", "greedy-rows", "sampled", "top-k", "top-p"],
)
@atlas("B116")
def test_a_draft_that_is_the_target_is_always_accepted(
    atlas_row: str, kappa: int, method: str, params: SamplingParams
) -> None:
    llm = make_llm("self", kappa, method)
    llm.generate([[0], [1, 2, 3], [4, 4] * 5], params)
    stats = llm.metrics
    assert stats.num_drafts > 0
    assert (stats.num_rejected_tokens, stats.num_never_tested_tokens) == (0, 0)
    assert stats.acceptance_rate is not None
    assert stats.num_accepted_tokens + stats.num_discarded_draft_tokens == stats.num_draft_tokens


@atlas("B116")
def test_after_full_acceptance_the_drafter_holds_the_drafts_and_the_bonus_in_order(
    atlas_row: str,
) -> None:
    llm = make_llm("self", kappa=2)
    engine = llm.engine
    request = engine.add_request("a", [0, 1, 2], GREEDY, seed=0)
    engine.step()
    for _ in range(4):
        drafts = engine.runner.drafts.pending()["a"][1].token_ids
        before = request.num_tokens
        engine.step()
        assert request.token_ids[before : before + 2] == drafts
        assert request.num_tokens == before + 3
        cache = engine.runner.proposer.cache
        held = kv.read(cache, request.table.blocks, request.num_tokens).tolist()
        assert held == request.token_ids


# --- the drafter's cache: what it is fed, and what it rolls back ----------------------------------


def after_accepting(accepted: int, kappa: int = 4) -> tuple[Watched, Watched, list[int]]:
    """Run one request whose first drafts are accepted that far; return both models and the text.

    The target counts up; the draft does too for ``accepted`` tokens behind the first emitted one,
    and is wrong behind them.
    """
    prompt = [0, 1, 2]
    target = Watched(ProbingModel(lambda text: certain(len(text) % VOCAB), VOCAB))
    good = len(prompt) + 1 + accepted
    draft = Watched(
        ProbingModel(lambda text: certain((len(text) + (len(text) >= good)) % VOCAB), VOCAB)
    )
    llm = make_llm(draft, kappa, target=target)
    request = llm.engine.add_request("a", prompt, GREEDY, seed=0)
    for _ in range(3):
        llm.engine.step()
    return target, draft, request.token_ids


TRIMS = [
    pytest.param(2, 2, 1, 1, id="atlas-B73-2"),
    pytest.param(0, 4, 3, 1, id="atlas-B73-0"),
    pytest.param(4, 0, 0, 2, id="atlas-B73-4"),
]


@pytest.mark.parametrize(("accepted", "target_trim", "draft_trim", "fed"), TRIMS)
def test_the_drafter_rolls_back_what_it_was_fed_and_not_what_the_target_was(
    accepted: int, target_trim: int, draft_trim: int, fed: int
) -> None:
    target, draft, _ = after_accepting(accepted)
    [[start, ids]], [[restart, _]] = target.passes[1:3]
    assert len(ids) == 5
    assert start + len(ids) - restart == target_trim
    # Four passes draft 4 tokens; the last of these is not fed. The fifth is the next draft's first.
    end = draft.passes[3][0][0] + 1
    assert end - draft.passes[4][0][0] == draft_trim


@pytest.mark.parametrize(("accepted", "target_trim", "draft_trim", "fed"), TRIMS)
def test_the_drafter_is_fed_what_it_lacks_of_the_committed_text(
    accepted: int, target_trim: int, draft_trim: int, fed: int
) -> None:
    _, draft, text = after_accepting(accepted)
    committed = 3 + 1 + accepted + 1  # prompt, first token, drafts, replacement or bonus
    start, ids = draft.passes[4][0]
    assert len(ids) == fed
    assert (start, ids) == (committed - fed, text[committed - fed : committed])


@atlas("B69")
def test_a_rejection_rolls_back_to_the_text_and_never_to_nothing(atlas_row: str) -> None:
    prompt = [0, 1, 2, 3, 4, 0]
    wrong = ProbingModel(lambda text: certain((len(text) + 1) % VOCAB), VOCAB)
    right = ProbingModel(lambda text: certain(len(text) % VOCAB), VOCAB)
    llm = make_llm(wrong, 3, target=right)
    request = llm.engine.add_request("a", prompt, GREEDY, seed=0)
    llm.engine.step()
    assert request.num_computed_tokens == 6
    llm.engine.step()
    assert request.num_computed_tokens == 7


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_what_the_drafter_holds_behind_the_text_is_never_read(method: str) -> None:
    def run(spoiled: bool) -> tuple[list[list[int]], int]:
        engine = make_llm(near_model(), 3, method).engine
        proposer, propose = engine.runner.proposer, engine.runner.proposer.propose

        def spoil_and_propose(tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
            live = [
                task.blocks[i // 4] * 4 + i % 4
                for task in tasks
                for i in range(common_prefix(proposer.fed.get(task.request_id, []), task.token_ids))
            ]
            slots = proposer.cache.view(-1)
            kept = slots[live].clone()
            slots.fill_(POISON)
            slots[live] = kept
            return propose(tasks, coins)

        if spoiled:
            proposer.propose = spoil_and_propose
        requests = [engine.add_request(str(i), [i, 2, i], RANDOM, seed=i) for i in range(4)]
        while engine.has_unfinished():
            engine.step()
        return [r.output_token_ids for r in requests], engine.stats.num_accepted_tokens

    assert run(spoiled=True) == run(spoiled=False)


@atlas("B118")
def test_a_phase_without_drafts_costs_the_drafter_nothing(atlas_row: str) -> None:
    # The text grows by two tokens that nobody drafts for; then the drafter catches up.
    watched = Watched(target_model())
    proposer, text = make_proposer(watched), [0, 1, 2, 3]
    [first] = proposer.propose([make_task(text, 3)], PhiloxCoins())
    assert first.token_ids == greedy_path(text, 3)
    text += greedy_path(text, 6)  # all three, the bonus, and two steps without drafts
    watched.passes.clear()
    [last] = proposer.propose([make_task(text, 3, step=4)], PhiloxCoins())
    assert last.token_ids == greedy_path(text, 3)
    assert watched.passes[0] == [(6, text[6:])]


@atlas("B118")
def test_drafts_that_were_never_verified_are_not_taken_for_text(atlas_row: str) -> None:
    watched = Watched(target_model())
    proposer, text = make_proposer(watched), [0, 1, 2, 3]
    [first] = proposer.propose([make_task(text, 3)], PhiloxCoins())
    more = [(token + 1) % VOCAB for token in first.token_ids] + [0, 0]
    watched.passes.clear()
    [second] = proposer.propose([make_task([*text, *more], 3, step=6)], PhiloxCoins())
    assert watched.passes[0] == [(4, more)]
    assert second.token_ids == greedy_path([*text, *more], 3)


@atlas("B118")
def test_drafts_that_shrink_at_the_end_of_the_context_are_all_accepted(atlas_row: str) -> None:
    llm = make_llm("self", 3, record=True, target=target_model(max_model_len=17))
    llm.generate([[0, 1]], SamplingParams(temperature=0, max_tokens=99))
    counts = [len(v.draft_token_ids) for r in llm.engine.records for v in r.verifies]
    assert counts == [0, 3, 3, 3, 1]
    assert llm.metrics.num_rejected_tokens == 0


@atlas("B118")
def test_drafts_that_a_budget_cuts_to_none_now_and_then_are_all_accepted(atlas_row: str) -> None:
    # Two decodes share 7 tokens less two draft slots: the first takes 4 of the 5, so that no draft
    # of the second is seen until the first has ended.
    llm = make_llm("self", 3, record=True, max_num_seqs=2, max_num_batched_tokens=7)
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (12, 30)]
    outputs = llm.generate([[0], [1]], params)
    counts = [
        len(v.draft_token_ids) for r in llm.engine.records for v in r.verifies
        if v.request_id == "1-0"
    ]  # fmt: skip
    assert {0, 3} <= set(counts[1:])
    assert llm.metrics.num_rejected_tokens == 0
    assert [o.outputs[0].token_ids for o in outputs] == [greedy_path([0], 12), greedy_path([1], 30)]


@atlas("B125")
def test_the_first_token_of_a_text_is_fed_once(atlas_row: str) -> None:
    # Id 4 begins the prompt, and neither model ever says it.
    def without_4(text: Text) -> Law:
        return (*hashed_law(text, 4), Fraction(0))

    draft = Watched(ProbingModel(mixed_law(without_4, 4), VOCAB))
    draft.model.conditional = lambda text: (*hashed_law((1, *text), 4), Fraction(0))
    llm = make_llm(draft, 3, target=ProbingModel(without_4, VOCAB))
    [output] = llm.generate([[4, 1, 2]], GREEDY)
    fed = [token for requests in draft.passes for _, ids in requests for token in ids]
    assert output.metrics.num_drafts >= 3
    assert output.metrics.num_rejected_tokens > 0
    assert fed.count(4) == 1


@atlas("B125")
def test_nothing_is_fed_that_the_cache_holds_already(atlas_row: str) -> None:
    draft = Watched(near_model())
    [output] = make_llm(draft, 3).generate([[0, 1, 2]], GREEDY)
    held: list[int] = []
    for [[start, ids]] in draft.passes:
        assert start <= len(held)
        assert held[start : start + 1] != ids[:1]
        held = held[:start] + ids
    assert output.metrics.num_rejected_tokens > 0


# --- vocabularies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [["b", "a"], ["a", "x"]])
@atlas("B126")
def test_ids_that_mean_other_tokens_are_refused_with_the_first_of_them(
    atlas_row: str, pieces: list[str]
) -> None:
    token, theirs, ours = (0, "b", "a") if pieces[0] == "b" else (1, "x", "b")
    target, draft = ContextModel(2, pieces=["a", "b"]), ContextModel(2, pieces=pieces)
    with pytest.raises(ValueError, match=f"id {token} means '{theirs}', expected '{ours}'"):
        make_llm(draft, target=target)


@atlas("B126")
def test_the_same_tokens_are_welcome(atlas_row: str) -> None:
    check_vocabularies(ContextModel(3, pieces=["a", "b", "c"]), ContextModel(2, pieces=["a", "b"]))


def test_a_model_without_pieces_is_compared_by_size_alone() -> None:
    class Nameless:
        vocab_size = 2

    check_vocabularies(ContextModel(2), Nameless())
    with pytest.raises(ValueError, match="a vocabulary of 2 ids, expected at most the target's 1"):
        check_vocabularies(ContextModel(1), Nameless())


def test_a_larger_vocabulary_than_the_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="a vocabulary of 8 ids, expected at most the target's 6"):
        make_llm(ContextModel(8), target=ContextModel(6))


def test_a_shorter_context_than_the_targets_is_refused() -> None:
    draft = ContextModel(VOCAB, max_model_len=CONTEXT - 1)
    with pytest.raises(ValueError, match=rf"{CONTEXT - 1}.*at least the target's {CONTEXT}"):
        make_llm(draft)


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
@atlas("B127")
def test_a_padded_vocabulary_is_padded_with_ids_that_are_never_proposed(
    atlas_row: str, method: str
) -> None:
    proposer = DraftModelProposer(target_model(), 4, 8, 32, 4, method)
    dice = random.Random(0)
    for seed in range(50):
        text = [dice.randrange(VOCAB) for _ in range(4)]
        task = make_task(text, 4, RANDOM, name=str(seed), seed=seed)
        [draft] = proposer.propose([task], PhiloxCoins())
        assert max(draft.token_ids) < VOCAB
        if method == "probabilistic":
            assert draft.probs.shape == (4, 8)
            assert (draft.probs[:, VOCAB:] == 0).all()


def test_an_id_of_the_padding_has_a_logit_of_minus_infinity() -> None:
    padded = pad_vocabulary(torch.tensor([[1.0, 2.0]]), 4)
    assert padded.tolist() == [[1.0, 2.0, -torch.inf, -torch.inf]]


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
@atlas("B127")
def test_the_target_may_emit_ids_that_the_draft_does_not_know(
    atlas_row: str, method: str, params: SamplingParams
) -> None:
    target = ProbingModel(lambda text: hashed_law(text, 8), 8, max_model_len=CONTEXT)
    draft = ProbingModel(lambda text: hashed_law(text, 6), 6, max_model_len=CONTEXT)
    [output] = make_llm(draft, 3, method, target=target).generate([[0, 1]], params)
    assert set(output.outputs[0].token_ids) & {6, 7}
    if params.greedy:
        [plain] = LLM(target).generate([[0, 1]], params)
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids


@atlas("B127")
def test_a_prompt_may_hold_ids_that_the_draft_does_not_know(atlas_row: str) -> None:
    target = TableModel([law_of("1/2 1/4 1/4 0")] * 4)
    draft = ProbingModel(lambda text: hashed_law(text, 3), 3)
    [output] = make_llm(draft, target=target).generate([[3, 0]], RANDOM)
    assert len(output.outputs[0].token_ids) == 24


# --- the rows that the drafts were drawn from -----------------------------------------------------


def inverse_cdf(row: Sequence[float], coin: float) -> int:
    return sample(tuple(Fraction(mass) for mass in row), Fraction(coin))


class OneCoin:
    """Gives the same coin to everything."""

    def __init__(self, coin: float) -> None:
        self.coin = coin

    def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
        return torch.full((len(keys),), self.coin, dtype=torch.float64)


def between_borders(row: torch.Tensor) -> float:
    """Return a coin in the widest gap between a border of the row and of its bf16 rounding."""
    exact, rounded = (r.double().cumsum(0) / r.double().sum() for r in (row, row.bfloat16()))
    i = int((exact - rounded).abs().argmax())
    return float(exact[i] + rounded[i]) / 2


@atlas("B28")
def test_a_draft_is_the_inverse_cdf_of_its_row_and_its_coin(atlas_row: str) -> None:
    proposer, coins = make_proposer(near_model(), "probabilistic"), PhiloxCoins()
    params = SamplingParams(temperature=0.8, top_p=0.9)
    for seed in range(100):
        task = make_task([seed % VOCAB, 1], 4, params, name=str(seed), seed=seed, step=5)
        [draft] = proposer.propose([task], coins)
        keys = [CoinKey(str(seed), seed, 5, 2 + i) for i in range(4)]
        u = coins.coins(keys, Purpose.DRAFT).tolist()
        drawn = [inverse_cdf(row, c) for row, c in zip(draft.probs.tolist(), u, strict=True)]
        assert draft.token_ids == drawn


@atlas("B28")
def test_the_row_of_a_bf16_draft_is_the_one_that_was_drawn_from(atlas_row: str) -> None:
    # The coin lies between the borders of the row and those of the row rounded to bf16.
    vocab = 64
    model = HalfPrecision(lambda text: hashed_law(text, vocab, 512), vocab)

    def propose(first: int, coin: float) -> tuple[list[int], torch.Tensor]:
        proposer = DraftModelProposer(model, 1, vocab, 1, 4, "probabilistic")
        [draft] = proposer.propose([make_task([first, 3], 1, RANDOM, blocks=[0])], OneCoin(coin))
        return draft.token_ids, draft.probs[0]

    for first in range(20):
        coin = between_borders(propose(first, 0.5)[1])
        drafted, row = propose(first, coin)
        assert drafted == [inverse_cdf(row.tolist(), coin)]
        assert drafted != [inverse_cdf(row.bfloat16().tolist(), coin)]


@atlas("B28")
def test_the_rule_is_handed_the_very_rows_of_the_drafts(atlas_row: str) -> None:
    llm = make_llm(near_model(), 3, "probabilistic")
    engine = llm.engine
    for i in range(3):
        engine.add_request(str(i), [i, 1], RANDOM, seed=i)
    engine.step()
    for _ in range(4):
        pending = engine.runner.drafts.pending()
        rows = [pending[r.request_id][1].probs for r in engine.scheduler.running]
        engine.step()
        assert torch.equal(engine.runner.seen.q, torch.cat(rows))


def test_a_drafts_coin_is_keyed_by_the_verify_that_tests_it() -> None:
    coins = Asked()
    llm = make_llm("self", 3, "probabilistic", coins=coins)
    request = llm.engine.add_request("a", [0, 1], RANDOM, seed=9)
    llm.engine.step()
    drawn = [key for purpose, key in coins.keys if purpose is Purpose.DRAFT]
    assert drawn == [coin_key(request, i) for i in range(3)]
    coins.keys.clear()
    llm.engine.step()
    assert [key for purpose, key in coins.keys if purpose is Purpose.ACCEPT] == drawn


def rows_of(method: str, params: SamplingParams) -> Draft:
    model = TableModel([law_of("1/2 1/4 1/8 1/8 0")] * VOCAB)
    [draft] = make_proposer(model, method).propose([make_task([0], 2, params)], PhiloxCoins())
    return draft


def test_the_temperature_applies_to_sampled_drafts() -> None:
    draft = rows_of("probabilistic", SamplingParams(temperature=0.5))
    wanted = [16 / 22, 4 / 22, 1 / 22, 1 / 22, 0]
    for row in draft.probs.tolist():
        assert row == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(top_k=2), [2 / 3, 1 / 3, 0, 0, 0]),
        (SamplingParams(top_p=0.4), [1, 0, 0, 0, 0]),
        (SamplingParams(min_p=0.3), [2 / 3, 1 / 3, 0, 0, 0]),
    ],
)
def test_the_filters_apply_to_sampled_drafts(params: SamplingParams, wanted: list[float]) -> None:
    for row in rows_of("probabilistic", params).probs.tolist():
        assert row == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 50.0])
def test_a_greedy_draft_is_the_argmax_whatever_the_temperature(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    assert rows_of("greedy", params) == Draft([0, 0], None)


def test_a_greedy_draft_is_the_argmax_of_logits_that_differ_by_little() -> None:
    # In float32 the two are equally likely, and the lowest id would be taken.
    tiny = Fraction(1, 2**40)
    law = (Fraction(1, 2) - tiny, Fraction(1, 2) + tiny, *[Fraction(0)] * 3)
    proposer = make_proposer(TableModel([law] * VOCAB))
    assert proposer.propose([make_task([0], 2, RANDOM)], PhiloxCoins())[0].token_ids == [1, 1]


def test_a_greedy_request_gets_one_hot_drafts_from_a_sampling_drafter() -> None:
    assert rows_of("probabilistic", GREEDY) == Draft([0, 0], None)


def test_a_greedy_drafter_uses_no_coin() -> None:
    class NoCoins:
        def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
            raise AssertionError("a coin was asked for")

    [draft] = make_proposer(target_model()).propose([make_task([0], 2, RANDOM)], NoCoins())
    assert draft.token_ids == greedy_path([0], 2)


# --- batches, forgetting --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_a_draft_is_the_same_alone_and_in_a_batch(method: str) -> None:
    tasks = [
        make_task([4, 3], 1, RANDOM, name="a", seed=1, blocks=[7, 2]),
        make_task([0, 1, 2, 3, 4, 0], 4, RANDOM, name="b", seed=2, step=6, blocks=[3, 11, 5]),
        make_task([2], 2, GREEDY, name="c", seed=3, step=2, blocks=[0]),
    ]
    together = make_proposer(near_model(), method).propose(tasks, PhiloxCoins())
    assert [len(draft.token_ids) for draft in together] == [1, 4, 2]
    for task, draft in zip(tasks, together, strict=True):
        [alone] = make_proposer(near_model(), method).propose([task], PhiloxCoins())
        assert alone.token_ids == draft.token_ids
        assert (alone.probs is None) == (draft.probs is None)
        assert alone.probs is None or torch.equal(alone.probs, draft.probs)


def test_a_forgotten_request_is_fed_from_its_first_token() -> None:
    watched = Watched(target_model())
    proposer, text = make_proposer(watched), [0, 1, 2]
    proposer.propose([make_task(text, 1), make_task(text, 1, name="b", blocks=[20])], PhiloxCoins())
    proposer.forget("a")
    watched.passes.clear()
    # Its blocks are other ones now, which still hold nothing.
    tasks = [
        make_task([*text, 3], 1, blocks=[25, 26]),
        make_task([*text, 3], 1, name="b", blocks=[20]),
    ]
    drafts = proposer.propose(tasks, PhiloxCoins())
    assert watched.passes == [[(0, [0, 1, 2, 3]), (3, [3])]]
    assert [draft.token_ids for draft in drafts] == [greedy_path([*text, 3], 1)] * 2


def test_forgetting_an_unknown_request_changes_nothing() -> None:
    proposer = make_proposer(target_model())
    proposer.propose([make_task([0, 1], 2)], PhiloxCoins())
    proposer.forget("another")
    assert proposer.fed == {"a": [0, 1, *greedy_path([0, 1], 2)[:1]]}


def test_a_preempted_request_is_forgotten_and_an_ended_one_too() -> None:
    # Two requests of up to 20 tokens in 7 blocks of 4: the second loses its cache on the way.
    llm = make_llm(near_model(), 2, num_blocks=7, max_model_len=20)
    engine, proposer = llm.engine, llm.engine.runner.proposer
    for name in "ab":
        engine.add_request(name, [0, 1, 2], SamplingParams(temperature=0, max_tokens=17), seed=0)
    preempted = 0
    while engine.has_unfinished():
        engine.step()
        preempted += sum(r.num_preemptions > 0 for r in engine.scheduler.waiting)
        assert set(proposer.fed) <= {r.request_id for r in engine.scheduler.running}
    assert preempted > 0
    assert proposer.fed == {}


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([2, 1], [1, 1], 0)],
)
def test_a_common_prefix_ends_at_the_first_difference(
    a: list[int], b: list[int], shared: int
) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == shared


def test_drawing_follows_the_half_open_buckets() -> None:
    law = torch.tensor([[0.25, 0.0, 0.75]] * 3)
    coins = torch.tensor([0.0, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert draw(law, coins) == [0, 2, 2]
