from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from engine_cases import atlas, cases

from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask
from specedu.draft.ngram import NgramProposer, lookup
from specedu.llm import LLM
from specedu.models.toy import ContextModel, ProbingModel, hashed_law
from specedu.sampling.coins import PhiloxCoins
from specedu.theory.reference import Law, Text

GREEDY = SamplingParams(temperature=0, max_tokens=64)


def brute_force(
    text: Sequence[int], shortest: int, longest: int, count: int, latest: bool
) -> list[int]:
    """Compare every suffix with every place of the text, the longest suffix first."""
    for length in range(longest, shortest - 1, -1):
        suffix = text[len(text) - length :]
        places = [
            start
            for start in range(len(text) - length)
            if len(suffix) == length and text[start : start + length] == suffix
        ]
        if places:
            following = places[-1 if latest else 0] + length
            return list(text[following : following + count])
    return []


def certain(token: int, vocab: int) -> Law:
    return tuple(Fraction(int(t == token)) for t in range(vocab))


class Watched:
    """A proposer that remembers what it was asked, call by call, and what it made of it."""

    def __init__(self, *arguments: Any) -> None:
        self.proposer = NgramProposer(*arguments)
        self.draft_slots = self.proposer.draft_slots
        self.num_lookahead_tokens = self.proposer.num_lookahead_tokens
        self.asked: list[list[tuple[str, list[int]]]] = []
        self.made: list[list[Draft]] = []

    def propose(self, tasks: Sequence[DraftTask], coins: PhiloxCoins) -> list[Draft]:
        self.asked.append([(task.request_id, list(task.token_ids)) for task in tasks])
        self.made.append(self.proposer.propose(tasks, coins))
        return self.made[-1]

    def forget(self, request_id: str) -> None:
        self.proposer.forget(request_id)


def watched_llm(model: Any, *arguments: int, kappa: int = 3, **options: Any) -> tuple[LLM, Watched]:
    proposer = Watched(*arguments)
    config = {"method": "custom", "proposer": proposer, "num_speculative_tokens": kappa}
    return LLM(model, config, audit=True, poison=True, **options), proposer


# --- lookup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", cases("N01", "N05", "N06", "N07", "N08", "N10", "N11", "N12", "N13", "N15", "N16")
)
def test_the_longest_suffix_then_the_earliest_occurrence_decides(case: dict[str, Any]) -> None:
    given = case["input"]
    draft = lookup(given["tokens"], given["min_n"], given["max_n"], given["k"])
    assert draft == case["expect"]["draft"]


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("vocab", [2, 3, 5])
def test_lookup_agrees_with_comparing_every_place(vocab: int, latest: bool) -> None:
    dice, found = random.Random(f"{vocab} {latest}"), 0
    for _ in range(3000):
        text = [dice.randrange(vocab) for _ in range(dice.randint(0, 24))]
        shortest = dice.randint(1, 6)
        longest, count = dice.randint(shortest, 12), dice.randint(1, 6)
        wanted = brute_force(text, shortest, longest, count, latest)
        assert lookup(text, shortest, longest, count, latest) == wanted, (text, shortest, longest)
        found += bool(wanted)
    assert found > 500


@pytest.mark.parametrize("latest", [False, True])
def test_lookup_agrees_with_comparing_every_place_of_periodic_texts(latest: bool) -> None:
    # Texts of one short period, now and then broken: many occurrences overlap.
    dice = random.Random(1)
    for _ in range(3000):
        period = [dice.randrange(3) for _ in range(dice.randint(1, 4))]
        text = (period * 12)[: dice.randint(1, 30)]
        if dice.random() < 0.5:
            text[dice.randrange(len(text))] = 3
        shortest = dice.randint(1, 6)
        longest, count = dice.randint(shortest, 12), dice.randint(1, 6)
        wanted = brute_force(text, shortest, longest, count, latest)
        assert lookup(text, shortest, longest, count, latest) == wanted, (text, shortest, longest)


@atlas("B133")
def test_a_text_without_an_end_of_text_id_is_looked_up(atlas_row: str) -> None:
    assert lookup([2, 4, 6, 8, 3, 6, 8], 2, 2, 3) == [3, 6, 8]
    [output] = LLM(
        ProbingModel(lambda text: certain(8, 9), 9, eos_token_id=None),
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2},
        audit=True,
    ).generate([[2, 4, 6, 8, 3, 6]], GREEDY)
    assert output.metrics.num_proposed_tokens > 0


@atlas("B135")
def test_no_match_proposes_nothing(atlas_row: str) -> None:
    assert lookup([1, 2, 3], 1, 3, 3) == []


@atlas("B135")
def test_no_match_counts_no_draft(atlas_row: str) -> None:
    counting = ProbingModel(lambda text: certain(len(text), 64), 64, max_model_len=64)
    llm, proposer = watched_llm(counting, 1, 3)
    [output] = llm.generate([[0, 1, 2]], SamplingParams(temperature=0, max_tokens=10))
    assert output.outputs[0].token_ids == list(range(3, 13))
    assert {len(draft.token_ids) for made in proposer.made for draft in made} == {0}
    assert (output.metrics.num_proposed_tokens, output.metrics.num_drafts) == (0, 0)


@pytest.mark.parametrize(
    ("text", "count", "draft"),
    [
        pytest.param(text, count, draft, id=f"atlas-B136-{text}")
        for text, count, draft in [
            ([9], 3, []),
            ([], 3, []),
            ([7, 7], 3, []),
            ([5, 5, 5], 3, [5]),
            ([1, 2, 3, 1, 2, 4, 1, 2], 2, [3, 1]),
        ]
    ],
)
def test_corner_cases_of_a_suffix_of_two(text: list[int], count: int, draft: list[int]) -> None:
    assert lookup(text, 2, 2, count) == draft


@atlas("B136")
def test_the_latest_occurrence_is_an_option(atlas_row: str) -> None:
    assert lookup([1, 2, 3, 1, 2, 4, 1, 2], 2, 2, 2, latest=True) == [4, 1]


def test_a_draft_may_run_into_the_suffix_but_never_past_the_text() -> None:
    assert lookup([1, 2, 1, 2], 2, 2, 9) == [1, 2]


def test_the_text_is_not_written() -> None:
    text = [1, 2, 3, 1, 2]
    lookup(text, 1, 3, 3)
    assert text == [1, 2, 3, 1, 2]


class Token(int):
    """An id that counts how often one of its kind is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Token.compared += 1
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        Token.compared += 1
        return int.__ne__(self, other)


@pytest.mark.parametrize(("shortest", "longest"), [(5, 5), (1, 10), (10, 500), (1, 500)])
@pytest.mark.parametrize(
    "text",
    [
        [0] * 2000,
        [0] * 1999 + [1],
        [0, 1] * 1000,
        ([0] * 499 + [1]) * 4,
        random.Random(0).choices(range(2), k=2000),
    ],
    ids=["constant", "broken", "alternating", "blocks", "random"],
)
@atlas("B139")
def test_the_work_is_linear_in_the_text_whatever_the_range(
    atlas_row: str, text: list[int], shortest: int, longest: int
) -> None:
    tokens = [Token(token) for token in text]
    Token.compared = 0
    lookup(tokens, shortest, longest, 3)
    assert 0 < Token.compared < 3 * len(text)


# --- through an engine ----------------------------------------------------------------------------


@atlas("B139")
def test_every_decoding_request_is_asked_for_once_a_step(atlas_row: str) -> None:
    llm, proposer = watched_llm(ContextModel(2, max_model_len=96), 1, 3)
    engine = llm.engine
    for name in "abcd":
        engine.add_request(name, [0, 1, 0], GREEDY, seed=0)
    while engine.has_unfinished():
        calls = len(proposer.asked)
        engine.step()
        asked = [name for call in proposer.asked[calls:] for name, _ in call]
        assert len(proposer.asked) - calls <= 1
        assert sorted(asked) == sorted(request.request_id for request in engine.scheduler.running)


@pytest.mark.parametrize("case", cases("N17"))
def test_a_request_that_sampled_nothing_gets_no_draft(case: dict[str, Any]) -> None:
    given = case["input"]
    prompts = [
        text[: len(text) - len(ids)]
        for text, ids in zip(given["batch_tokens"], given["sampled"], strict=True)
    ]
    following = {tuple(p): s[0] for p, s in zip(prompts, given["sampled"], strict=True) if s}
    # The budget holds the whole prompts of the two that sample, and all but one of the third.
    llm, proposer = watched_llm(
        ProbingModel(lambda text: certain(following[text], 10), 10),
        given["min_n"],
        given["max_n"],
        kappa=given["k"],
        max_num_seqs=3,
        max_num_batched_tokens=sum(len(prompt) for prompt in prompts) - 1,
    )
    for i in sorted(range(3), key=lambda i: not given["sampled"][i]):
        llm.engine.add_request(str(i), prompts[i], GREEDY, seed=0)
    llm.engine.step()
    pending = llm.engine.runner.drafts.pending()
    drafts = [pending[str(i)][1].token_ids if str(i) in pending else [] for i in range(3)]
    assert drafts == case["expect"]["drafts"]
    assert [name for call in proposer.asked for name, _ in call] == ["0", "2"]


def test_a_repetitive_prompt_is_not_looked_up_before_its_first_token() -> None:
    model = ProbingModel(lambda text: certain(len(text) % 2, 2), 2)
    llm, proposer = watched_llm(model, 1, 3, max_num_seqs=1, max_num_batched_tokens=4)
    llm.generate([[0, 1] * 5], SamplingParams(temperature=0, max_tokens=1))
    assert proposer.asked == []
    llm.generate([[0, 1] * 5], SamplingParams(temperature=0, max_tokens=2))
    assert proposer.asked[0] == [("1-0", [0, 1] * 5 + [0])]


@atlas("B120")
def test_an_earlier_request_of_the_same_slot_is_not_looked_up(atlas_row: str) -> None:
    # The first text says 1, 2, 3 again and again; the second ends with 1, 2 for the first time.
    script: dict[int, int] = {1: 2, 2: 3, 3: 1, 4: 1, 0: 0}
    model = ProbingModel(lambda text: certain(script[text[-1]], 5), 5)
    llm, proposer = watched_llm(model, 2, 3, max_num_seqs=1)
    long, short = [1, 2, 3] * 5, [0, 0, 4, 1]
    [first] = llm.generate([long], SamplingParams(temperature=0, max_tokens=5))
    assert first.metrics.num_proposed_tokens > 0
    before = len(proposer.made)
    llm.generate([short], SamplingParams(temperature=0, max_tokens=2))
    assert [text for _, text in proposer.asked[before]] == [[0, 0, 4, 1, 2]]
    assert proposer.made[before] == [Draft([])]


@atlas("B120")
def test_a_draft_is_a_piece_of_the_requests_own_text(atlas_row: str) -> None:
    llm, proposer = watched_llm(ContextModel(3, max_model_len=64), 2, 3, num_blocks=20)
    dice = random.Random(0)
    prompts = [[dice.randrange(3) for _ in range(dice.randint(1, 20))] for _ in range(12)]
    llm.generate(prompts, SamplingParams(max_tokens=24, seed=1))
    drafted = 0
    for asked, made in zip(proposer.asked, proposer.made, strict=True):
        for (_, text), draft in zip(asked, made, strict=True):
            size = len(draft.token_ids)
            pieces = [text[i : i + size] for i in range(len(text) - size + 1)]
            assert draft.token_ids in pieces
            drafted += size
    assert drafted > 100


def recent_model() -> ProbingModel:
    # The law looks three tokens back, so that greedy text soon repeats itself.
    return ProbingModel(lambda text: hashed_law(text[-3:], 3), 3, max_model_len=96)


def context_model() -> ContextModel:
    return ContextModel(2, max_model_len=96)


@pytest.mark.parametrize(
    ("shortest", "longest"), [(a, b) for a in (1, 2, 3, 8) for b in (3, 5, 12) if a <= b]
)
@pytest.mark.parametrize("make", [context_model, recent_model], ids=["context", "probing"])
@atlas("B138")
def test_greedy_text_does_not_depend_on_the_range(
    atlas_row: str, make: Callable[[], Any], shortest: int, longest: int
) -> None:
    prompts = [[0], [1, 0, 1, 1], [0, 1] * 6]
    plain = LLM(make(), audit=True).generate(prompts, GREEDY)
    ours = ngram_llm(make(), shortest, longest).generate(prompts, GREEDY)
    assert [o.outputs[0].token_ids for o in ours] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.num_draft_tokens for o in ours) > 0


def ngram_llm(model: Any, shortest: int, longest: int) -> LLM:
    config = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": shortest,
        "prompt_lookup_max": longest,
    }
    return LLM(model, config, audit=True, poison=True)


def test_the_option_latest_reaches_the_lookup() -> None:
    following: dict[Text, int] = {(1, 2, 3, 1, 2, 4, 1): 2}
    drafts = []
    for latest in (False, True):
        config = {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_min": 2,
            "prompt_lookup_latest": latest,
        }
        llm = LLM(ProbingModel(lambda text: certain(following[text], 5), 5), config)
        llm.engine.add_request("a", [1, 2, 3, 1, 2, 4, 1], GREEDY, seed=0)
        llm.engine.step()
        drafts.append(llm.engine.runner.drafts.pending()["a"][1].token_ids)
    assert drafts == [[3, 1], [4, 1]]


def test_a_draft_is_one_hot() -> None:
    task = DraftTask("a", [1, 2, 1, 2], 3, GREEDY, 0, 1, [])
    assert NgramProposer(1, 2).propose([task], PhiloxCoins()) == [Draft([1, 2], None)]


def test_a_draft_is_not_longer_than_the_task_allows() -> None:
    task = DraftTask("a", [1, 2, 3, 4, 1], 2, GREEDY, 0, 1, [])
    assert NgramProposer(1, 1).propose([task], PhiloxCoins())[0].token_ids == [2, 3]
