from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch

from specedu.config import SamplingParams
from specedu.draft.base import NO_DRAFT, Draft, DraftTask, StatelessProposer
from specedu.law import EngineAsker, HandedIn
from specedu.llm import LLM
from specedu.models.toy import ContextModel
from specedu.sampling.coins import CoinSource
from specedu.theory.exact import laws_of
from specedu.theory.settings import fixed, law_of

VOCAB = 4
GREEDY = SamplingParams(temperature=0, max_tokens=12)


class Custom(StatelessProposer):
    """Makes of each task what a function says."""

    def __init__(self, make: Callable[[DraftTask], Draft]) -> None:
        self.make = make

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [self.make(task) for task in tasks]


def make_llm(proposer: Any, kappa: int = 3, **options: Any) -> LLM:
    config = {"method": "custom", "proposer": proposer, "num_speculative_tokens": kappa}
    return LLM(ContextModel(VOCAB, max_model_len=32), config, audit=True, poison=True, **options)


def even(rows: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.full((rows, vocab), 1 / vocab)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft([0] * 4), "proposer, request 0-0: 4 drafts, expected at most 3"),
        (Draft([0, VOCAB]), r"proposer, request 0-0: draft 1 is 4, expected an id in \[-1, 4\)"),
        (Draft([-2]), r"proposer, request 0-0: draft 0 is -2, expected an id in \[-1, 4\)"),
        (Draft([0, 1.0]), r"proposer, request 0-0: draft 1 is 1.0, expected an id"),
        (Draft([0, 1], even(1)), r"proposer, request 0-0: probs \(1, 4\), expected \(2, 4\)"),
        (Draft([0], even(2)), r"proposer, request 0-0: probs \(2, 4\), expected \(1, 4\)"),
        (Draft([0], even(1, 3)), r"proposer, request 0-0: probs \(1, 3\), expected \(1, 4\)"),
        (Draft([0], even(1)[0]), r"proposer, request 0-0: probs \(4,\), expected \(1, 4\)"),
    ],
    ids=["long", "large", "small", "float", "few", "many", "narrow", "flat"],
)
def test_an_illegal_draft_is_refused_by_name(draft: Draft, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_llm(Custom(lambda task: draft)).generate([[0, 1]], GREEDY)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_drafts_than_tasks_is_refused(count: int) -> None:
    class Miscounting(Custom):
        def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
            return [NO_DRAFT] * count

    with pytest.raises(ValueError, match=f"proposer: {count} drafts, expected one for each of 2"):
        make_llm(Miscounting(NO_DRAFT)).generate([[0], [1]], GREEDY)


def test_a_draft_that_is_too_long_for_the_end_of_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="3 drafts, expected at most 2"):
        make_llm(Custom(lambda task: Draft([0] * 3))).generate([[0] * 28], GREEDY)


# --- what is allowed ------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[], [-1], [-1, -1, -1], [0, -1], [0, -1, 2]])
def test_placeholders_and_short_drafts_do_not_change_greedy_text(ids: list[int]) -> None:
    prompts = [[0, 1], [2]]
    plain = LLM(ContextModel(VOCAB, max_model_len=32)).generate(prompts, GREEDY)
    ours = make_llm(Custom(lambda task: Draft(ids[: task.limit]))).generate(prompts, GREEDY)
    assert [o.outputs[0].token_ids for o in ours] == [o.outputs[0].token_ids for o in plain]


def test_a_placeholder_is_no_proposed_token() -> None:
    llm = make_llm(Custom(lambda task: Draft([-1, 0, 1][: task.limit])))
    llm.generate([[0, 1]], GREEDY)
    assert (llm.metrics.num_proposed_tokens, llm.metrics.num_drafts) == (0, 0)


def test_only_what_stands_before_the_first_placeholder_counts_as_proposed() -> None:
    llm = make_llm(Custom(lambda task: Draft([0, -1, 1][: task.limit])))
    llm.generate([[0, 1]], SamplingParams(temperature=0, max_tokens=8))
    stats = llm.metrics
    assert stats.num_proposed_tokens == stats.num_draft_tokens == stats.num_drafts > 0


@pytest.mark.parametrize("kappa", [1, 3, 6])
def test_a_task_asks_for_kappa_drafts_and_for_fewer_at_the_end_of_the_context(kappa: int) -> None:
    asked = []

    def count(task: DraftTask) -> Draft:
        asked.append((len(task.token_ids), task.limit))
        return NO_DRAFT

    make_llm(Custom(count), kappa).generate([[0] * 20], SamplingParams(max_tokens=99, seed=0))
    assert asked == [(n, min(kappa, 32 - n - 1)) for n in range(21, 31)]


def test_a_task_tells_the_request_and_the_step_that_tests_its_draft() -> None:
    told = []

    def note(task: DraftTask) -> Draft:
        told.append((task.request_id, task.step, list(task.token_ids), task.seed, task.params))
        return NO_DRAFT

    llm, params = make_llm(Custom(note)), SamplingParams(temperature=0, max_tokens=4, seed=5)
    [output] = llm.generate([[0, 1]], params)
    text = [0, 1, *output.outputs[0].token_ids]
    assert told == [("0-0", step, text[: 2 + step], 5, params) for step in (1, 2, 3)]


def test_a_proposer_without_a_cache_asks_for_no_slots() -> None:
    proposer = StatelessProposer()
    assert (proposer.draft_slots, proposer.num_lookahead_tokens) == (0, 0)
    assert proposer.forget("a") is None


def test_proposing_is_left_to_the_subclass() -> None:
    with pytest.raises(NotImplementedError):
        StatelessProposer().propose([], None)


# --- what a draft may depend on -------------------------------------------------------------------


class Choosy(HandedIn):
    """Drops what it drew where its own q is small: exactly what a proposer must not do."""

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [
            NO_DRAFT if -1 in draft.token_ids else draft for draft in super().propose(tasks, coins)
        ]


def law_with(proposer: type[HandedIn], drops: bool) -> tuple[Fraction, ...]:
    """Return the law of the first token, of the source text's first pair, through an engine."""
    setting = fixed(
        law_of("1/5 1/2 3/10"),
        law_of("3/5 1/10 3/10"),
        1,
        withdraw=lambda text, x: drops and x == 1,
    )
    asker = EngineAsker([setting])
    asker.llm.engine.runner.proposer = proposer(asker)
    return laws_of(asker, [setting])[0].first()


def near(law: tuple[Fraction, ...], expected: str) -> bool:
    # Rows are float32: the cuts move by less than this.
    return all(abs(a - b) < 1e-6 for a, b in zip(law, law_of(expected), strict=True))


def test_dropping_a_drawn_draft_because_its_own_q_is_small_is_biased() -> None:
    assert near(law_with(Choosy, drops=True), "11/50 9/20 33/100")


def test_keeping_every_drawn_draft_is_exact() -> None:
    assert near(law_with(Choosy, drops=False), "1/5 1/2 3/10")
