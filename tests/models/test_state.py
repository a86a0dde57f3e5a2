"""A recurrent state on the paged cache: each slot keeps the state behind its token.

Attention's cache is rolled back by its length. A state is not, unless it is kept for every token;
models that keep only the last one are refused (``test_huggingface.py``). The toy recurrence
s <- 2s + x shows what is right: the state that the next token is built on is that of the last
accepted one, and nobody else's is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_cases import atlas

from specedu import LLM, SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.models.toy import ContextModel
from specedu.sampling.coins import CoinSource

BLOCK, VOCAB = 4, 5
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)


class Doubling(ContextModel):
    """s <- 2s + x."""

    def state(self, before: int, token: int) -> int:
        return 2 * before + token

    def after(self, text: Sequence[int]) -> int:
        state = 0
        for token in text:
            state = self.state(state, token)
        return state

    def next(self, text: Sequence[int]) -> int:
        law = self.law(tuple(text))
        return law.index(max(law))


class Partly(StatelessProposer):
    """Drafts three tokens for each prompt's first verify, of which so many are the target's own."""

    def __init__(self, model: Doubling, right: dict[tuple[int, ...], int]) -> None:
        self.model, self.right = model, right

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [self._draft(list(task.token_ids)) for task in tasks]

    def _draft(self, text: list[int]) -> Draft:
        right = self.right.get(tuple(text[:-1]))  # None behind the first verify
        if right is None:
            return Draft([])
        draft: list[int] = []
        for i in range(3):
            token = self.model.next(text + draft)
            draft.append(token if i < right else (token + 1) % VOCAB)
        return Draft(draft)


def run(prompts: list[list[int]], right: list[int]) -> tuple[LLM, list[list[int]]]:
    """Take the steps up to the first verify; return the texts so far and the engine."""
    model = Doubling(VOCAB)
    drafter = Partly(model, {tuple(p): n for p, n in zip(prompts, right, strict=True)})
    config = {"method": "custom", "proposer": drafter, "num_speculative_tokens": 3}
    llm = LLM(model, config, block_size=BLOCK, audit=True)
    for i, prompt in enumerate(prompts):
        llm.engine.add_request(str(i), prompt, GREEDY, seed=i)
    llm.engine.step()  # the prompts
    llm.engine.step()  # the verify
    requests = [llm.engine.requests[str(i)] for i in range(len(prompts))]
    return llm, [list(request.token_ids) for request in requests]


def held(llm: LLM, request: str, count: int) -> list[int]:
    """Return the states in the cache behind a request's first tokens."""
    blocks = llm.engine.requests[request].table.blocks
    return llm.engine.runner.cache[blocks].flatten()[:count].tolist()


@atlas("B76")
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_the_next_step_goes_on_from_the_state_of_the_last_accepted_token(
    atlas_row: str, accepted: int
) -> None:
    prompt = [1, 3]
    llm, [text] = run([prompt], [accepted])
    assert len(text) == len(prompt) + 1 + accepted + 1
    model, known = llm.model, len(text) - 1
    assert held(llm, "0", known) == [model.after(text[: i + 1]) for i in range(known)]
    assert model.after([1, 3, 2]) == 12  # by hand: 1, then 2 + 3, then 10 + 2
    llm.engine.step()
    after = list(llm.engine.requests["0"].token_ids)
    assert after == [*text, model.next(text)]
    assert held(llm, "0", known + 1)[-1] == model.after(text)


@atlas("B77")
def test_a_neighbour_that_accepts_nothing_changes_no_state_of_another(atlas_row: str) -> None:
    prompts = [[1, 3], [2, 2]]
    llm, texts = run(prompts, [0, 3])
    assert [len(text) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)] == [2, 5]
    for name, text in zip(("0", "1"), texts, strict=True):
        states = [llm.model.after(text[: i + 1]) for i in range(len(text) - 1)]
        assert held(llm, name, len(states)) == states
    requests = [llm.engine.requests[name] for name in ("0", "1")]
    while not all(request.finished for request in requests):
        llm.engine.step()
    for request, prompt in zip(requests, prompts, strict=True):
        [alone] = LLM(Doubling(VOCAB), block_size=BLOCK).generate([prompt], GREEDY)
        assert request.output_token_ids == alone.outputs[0].token_ids
