"""On the toys a seeded request emits the same tokens, bit for bit, wherever and however it runs."""

from __future__ import annotations

import random

import pytest
from engine_cases import atlas
from stress import CONTEXT, VOCAB, differences, make_llm, make_models, run_load

from specedu.config import SamplingParams
from specedu.llm import LLM

METHODS = ["plain", "ngram", "draft_model", "probabilistic", "self"]
KINDS = ["probing", "context"]
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=7),
    SamplingParams(temperature=0.7, top_k=4, top_p=0.9, max_tokens=24, ignore_eos=True, seed=-8),
]
STRICT = {"audit": True, "poison": True}


def outputs(llm, prompts, params) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_a_batch_of_32_and_in_every_row(kind: str, method: str) -> None:
    dice = random.Random(5)
    options = {"block_size": 4, "num_blocks": 512, "max_num_batched_tokens": 4096, **STRICT}
    alone = [outputs(make_llm(kind, method, **options), [PROMPT], p)[0] for p in PARAMS]
    others = [[dice.randrange(VOCAB - 1) for _ in range(dice.randint(1, 20))] for _ in range(29)]
    fill = [SamplingParams(max_tokens=dice.randint(1, 30), seed=i) for i in range(29)]
    for shift in (0, 13, 29):
        prompts = others[:shift] + [PROMPT] * 3 + others[shift:]
        params = fill[:shift] + PARAMS + fill[shift:]
        together = outputs(make_llm(kind, method, **options), prompts, params)
        assert together[shift : shift + 3] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_every_chunk_size(kind: str, method: str) -> None:
    whole = outputs(make_llm(kind, method, **STRICT), [PROMPT] * 3, PARAMS)
    for budget in (6, 7, 11):
        # One seat: a smaller budget would shorten drafts, and with them change the sample.
        llm = make_llm(kind, method, max_num_seqs=1, max_num_batched_tokens=budget, **STRICT)
        assert outputs(llm, [PROMPT] * 3, PARAMS) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_after_preemption(kind: str, method: str) -> None:
    whole = outputs(make_llm(kind, method, **STRICT), [PROMPT] * 3, PARAMS)
    llm = make_llm(kind, method, block_size=4, num_blocks=CONTEXT // 4, record=True, **STRICT)
    requests = [llm.engine.add_request(str(i), PROMPT, p, p.seed or 0)
                for i, p in enumerate(PARAMS)]  # fmt: skip
    while llm.engine.has_unfinished():
        llm.engine.step()
    assert sum(request.num_preemptions for request in requests) > 0
    assert [request.output_token_ids for request in requests] == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_limit_gives_a_prefix(kind: str, method: str) -> None:
    llm = make_llm(kind, method, **STRICT)
    for params in PARAMS[1:]:
        whole = outputs(llm, [PROMPT], params)[0]
        for limit in (1, 5, 12):
            short = SamplingParams(**{**vars(params), "max_tokens": limit})
            assert outputs(llm, [PROMPT], short)[0] == whole[:limit]


@atlas("B36")
@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_is_plain_greedy_output(
    kind: str, method: str, kappa: int, atlas_row: str
) -> None:
    prompts = [PROMPT, [3], [1, 1, 1, 1], list(range(VOCAB - 1))]
    params = SamplingParams(temperature=0, max_tokens=30)
    plain = outputs(make_llm(kind, "plain"), prompts, params)
    drafted = make_llm(kind, method, kappa=kappa, block_size=4, num_blocks=48, **STRICT)
    assert outputs(drafted, prompts, params) == plain


# An argmax draft of a sampled request is accepted with p(x) only: that pair is no alarm.
@pytest.mark.parametrize(
    ("temperature", "draft_sample_method"),
    [(0.0, "greedy"), (0.0, "probabilistic"), (1.0, "probabilistic")],
)
@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_the_target_is_always_accepted(
    kind: str, kappa: int, temperature: float, draft_sample_method: str
) -> None:
    target, _ = make_models(kind)
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": kappa,
              "draft_sample_method": draft_sample_method}  # fmt: skip
    llm = LLM(target, config, **STRICT)
    llm.generate([PROMPT, [3]], SamplingParams(temperature=temperature, max_tokens=30, seed=1))
    stats = llm.metrics
    assert stats.num_drafts > 0
    assert stats.num_rejected_tokens == stats.num_never_tested_tokens == 0


@pytest.mark.parametrize("drafting", METHODS[1:])
def test_a_budget_that_cuts_drafts_keeps_greedy_output_and_says_so(drafting: str) -> None:
    tight = {"max_num_seqs": 3, "max_num_batched_tokens": 7, "block_size": 4}
    plain = outputs(make_llm("context", "plain"), [PROMPT] * 3, PARAMS[0])
    llm = make_llm("context", drafting, **tight, **STRICT)
    results = llm.generate([PROMPT] * 3, PARAMS[0])
    assert [result.outputs[0].token_ids for result in results] == plain
    assert any(result.outputs[0].draft_length_varied for result in results)


# --- sample-and-match: the text of plain decoding -------------------------------------------------

DRAFTING = [*METHODS[1:], "custom"]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    """What plain decoding says to PROMPT under each of PARAMS, by kind of toy."""
    return {kind: outputs(make_llm(kind, "plain"), [PROMPT] * 3, PARAMS) for kind in KINDS}


def matching(kind: str, drafting: str, **options: object) -> LLM:
    return make_llm(kind, drafting, rule="match", **STRICT, **options)


@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("kind", KINDS)
def test_match_gives_the_plain_text_at_every_draft_length(
    kind: str, drafting: str, kappa: int, plain: dict
) -> None:
    llm = matching(kind, drafting, kappa=kappa, block_size=4, num_blocks=48)
    assert outputs(llm, [PROMPT] * 3, PARAMS) == plain[kind]
    assert llm.metrics.num_proposed_tokens > 0


@pytest.mark.parametrize("drafting", DRAFTING)
def test_match_gives_the_plain_text_in_every_row_of_a_batch(drafting: str, plain: dict) -> None:
    dice = random.Random(5)
    others = [[dice.randrange(VOCAB - 1) for _ in range(dice.randint(1, 20))] for _ in range(29)]
    fill = [SamplingParams(max_tokens=dice.randint(1, 30), seed=i) for i in range(29)]
    for shift in (0, 13, 29):
        llm = matching("context", drafting, num_blocks=512, block_size=4)
        prompts = others[:shift] + [PROMPT] * 3 + others[shift:]
        together = outputs(llm, prompts, fill[:shift] + PARAMS + fill[shift:])
        assert together[shift : shift + 3] == plain["context"]


@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("kind", KINDS)
def test_match_gives_the_plain_text_under_every_cut(kind: str, drafting: str, plain: dict) -> None:
    """Budgets that cut the prompt into chunks and the drafts short: the other rules' samples vary.

    Three decodes with three drafts each want 12 tokens, besides the slots of a draft model.
    """
    for budget in (7, 9):
        llm = matching(kind, drafting, max_num_seqs=3, max_num_batched_tokens=budget, block_size=4)
        results = [out.outputs[0] for out in llm.generate([PROMPT] * 3, PARAMS)]
        assert any(out.draft_length_varied for out in results)
        assert [out.token_ids for out in results] == plain[kind]


@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("kind", KINDS)
def test_match_gives_the_plain_text_after_preemption(kind: str, drafting: str, plain: dict) -> None:
    llm = matching(kind, drafting, block_size=4, num_blocks=CONTEXT // 4)
    requests = [llm.engine.add_request(str(i), PROMPT, p, p.seed or 0)
                for i, p in enumerate(PARAMS)]  # fmt: skip
    while llm.engine.has_unfinished():
        llm.engine.step()
    assert sum(request.num_preemptions for request in requests) > 0
    assert [request.output_token_ids for request in requests] == plain[kind]


def test_match_gives_the_plain_text_of_each_of_n_outputs() -> None:
    params = SamplingParams(max_tokens=20, n=3, seed=5)
    texts = [
        [out.token_ids for out in make_llm("context", *how).generate([PROMPT], params)[0].outputs]
        for how in [("plain",), ("probabilistic", 3, "match")]
    ]
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts[0]))) == 3


@pytest.mark.parametrize("drafting", ["ngram", "probabilistic", "custom"])
def test_match_comes_to_what_plain_decoding_does_under_a_random_load(drafting: str) -> None:
    """Stops, cancels, preemptions and cut drafts; every request is decoded plainly, alone."""
    llm = matching("context", drafting, block_size=4, num_blocks=24, max_num_seqs=6,
                   max_num_batched_tokens=15)  # fmt: skip
    load = run_load(llm, 150, seed=17, arrivals=0.9)
    assert any(request.draft_length_varied for request in load.ended.values())
    assert any(request.num_preemptions for request in load.ended.values())
    assert differences(load, make_llm("context", "plain"), whatever_was_cut=True) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_ratio_test_gives_another_sample_than_plain_decoding(kind: str, plain: dict) -> None:
    """So that the tests above can fail: only the rule makes the text the same."""
    drafted = outputs(make_llm(kind, "probabilistic"), [PROMPT] * 3, PARAMS)
    assert drafted[0] == plain[kind][0]  # greedy
    assert drafted[1] != plain[kind][1]
