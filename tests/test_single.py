"""The single-request loop: the same tokens as the engine, whatever is drafted."""

from __future__ import annotations

import pytest

from specedu.config import SamplingParams
from specedu.draft.base import Draft
from specedu.draft.ngram import lookup
from specedu.llm import LLM
from specedu.models.toy import ContextModel, ProbingModel, hashed_law
from specedu.single import generate_single

MODELS = {
    "probing": lambda: ProbingModel(lambda text: hashed_law(text, 4), 4, max_model_len=40),
    "context": lambda: ContextModel(4, max_model_len=40),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kappa", [1, 3, 6])
@pytest.mark.parametrize("kind", MODELS)
def test_the_loop_and_the_engine_emit_the_same(kind: str, kappa: int, temperature: float) -> None:
    config = {"method": "ngram", "num_speculative_tokens": kappa, "prompt_lookup_min": 1,
              "prompt_lookup_max": 3}  # fmt: skip
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=11)
    llm = LLM(MODELS[kind](), config, block_size=4, audit=True, poison=True)
    prompt = [0, 1, 2]
    wanted = llm.generate(prompt, params)[0].outputs[0].token_ids
    assert len(wanted) == 30
    got = generate_single(
        MODELS[kind](), prompt, params, lambda text, step: Draft(lookup(text, 1, 3, kappa)),
        seed=11, block_size=4,
    )  # fmt: skip
    assert got == wanted


def test_the_loop_ends_with_the_context() -> None:
    params = SamplingParams(max_tokens=99, seed=0)
    repeat = Draft([1, 1, 1])
    output = generate_single(MODELS["context"](), [0, 1], params, lambda text, step: repeat)
    assert len(output) == 40 - 2


@pytest.mark.parametrize("ends", [2, (7, 2)])
def test_the_loop_ends_at_the_end_of_the_text(ends: int | tuple[int, ...]) -> None:
    model = ContextModel(3, max_model_len=64, eos_token_id=ends)
    params = SamplingParams(max_tokens=50, seed=3)
    output = generate_single(model, [0], params, lambda text, step: Draft([2, 2]))
    assert output.index(2) == len(output) - 1 < 49
    going_on = SamplingParams(max_tokens=50, seed=3, ignore_eos=True)
    longer = generate_single(model, [0], going_on, lambda text, step: Draft([2, 2]))
    assert len(longer) == 50
    assert longer[: len(output)] == output
