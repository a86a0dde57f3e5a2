"""The embedded model through the engine: SmolLM2-135M, fetched once into the cache folder."""

from __future__ import annotations

import pytest
import torch

from specedu import cli
from specedu.config import SamplingParams
from specedu.llm import DTYPES, LLM
from specedu.models.linear import packing_works
from specedu.models.loading import resolve
from specedu.prompts import first_of_each

GREEDY = SamplingParams(temperature=0, max_tokens=24)
MIXED = [first_of_each()[kind] for kind in ("chat", "list", "json", "story")]
QUESTIONS = ["What is the capital of France?", "Count from one to nine, then do it again."]


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM(resolve("smollm2-135m"), audit=True)


def with_drafts(plain: LLM, **config: object) -> LLM:
    return LLM(plain.model, config, tokenizer=plain.tokenizer, audit=True)


def ask(llm: LLM, question: str, params: SamplingParams = GREEDY):
    return llm.chat([{"role": "user", "content": question}], params)


def test_it_knows_the_capital_of_france(plain: LLM) -> None:
    assert "Paris" in ask(plain, QUESTIONS[0]).outputs[0].text


def test_its_logits_are_those_of_transformers(plain: LLM) -> None:
    """On real text, float32: within 5e-4 at logits of about 30."""
    from transformers import AutoModelForCausalLM

    ids = plain.tokenizer.encode(
        "Speculative decoding drafts several tokens and verifies them " * 4
    )
    theirs = AutoModelForCausalLM.from_pretrained(resolve("smollm2-135m"), dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0, -1]
    seen = []
    forward = plain.model.forward
    plain.model.forward = lambda batch, cache: seen.append(forward(batch, cache)) or seen[-1]
    try:
        plain.generate(ids, SamplingParams(temperature=0, max_tokens=1))
    finally:
        del plain.model.forward
    assert (seen[0][-1] - wanted).abs().max().item() < 5e-4


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1,
         "prompt_lookup_max": 4},
        {"method": "draft_model", "model": "self", "num_speculative_tokens": 3},
        {"method": "draft_model", "model": "self", "quantization": "int4",
         "num_speculative_tokens": 4},
        {"method": "early_exit", "early_exit_layers": 24, "num_speculative_tokens": 2},
    ],
    ids=["ngram", "self", "int4", "early-exit"],
)  # fmt: skip
def test_greedy_text_with_drafts_is_plain_greedy_text(
    plain: LLM, config: dict, question: str
) -> None:
    drafted = ask(with_drafts(plain, **config), question)
    assert drafted.outputs[0].text == ask(plain, question).outputs[0].text
    assert drafted.metrics.num_drafts > 0


def test_the_four_bit_draft_is_almost_always_right(plain: LLM) -> None:
    """The weights come out of a four-bit file: this says nothing of other models."""
    llm = with_drafts(plain, method="draft_model", model="self", quantization="int4",
                      num_speculative_tokens=4)  # fmt: skip
    ask(llm, QUESTIONS[1], SamplingParams(temperature=0, max_tokens=40))
    assert llm.metrics.acceptance_rate > 0.8


def test_a_stream_gives_the_text_of_generate(plain: LLM) -> None:
    ids = plain.tokenizer.encode("Grüße aus 日本: ")
    params = SamplingParams(max_tokens=16, seed=4)
    [result] = plain.generate(ids, params)
    assert "".join(part.text for part in plain.stream(ids, params)) == result.outputs[0].text


def test_generate_prints_marked_text_and_the_table(capsys: pytest.CaptureFixture) -> None:
    words = ["generate", "Say ha ha ha ha.", "--output-len", "12", "--model", "smollm2-135m"]
    assert cli.main(words) == cli.RIGHT
    out = capsys.readouterr().out
    assert "accepted  ~replaced  +drawn" in out
    assert "mean acceptance length" in out
    assert "plain decoding of the same prompt" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temp", "-1"], "temperature: -1.0, expected a number in [0, 100]"),
        (["--num-spec-tokens", "0"], "num_speculative_tokens: 0, expected an int of at least 1"),
        (["--model", "gpt"], "model: 'gpt', expected one of smollm2-135m, a folder, a GGUF file"),
    ],
)
def test_a_mistake_in_generate_is_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["generate", "x", *words]) == cli.USAGE
    assert message in capsys.readouterr().err


def test_the_doctor_finds_the_kernels_healthy(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["doctor"]) == cli.RIGHT
    out = capsys.readouterr().out
    assert out.count("gives the known answers") == 2
    assert "smollm2-135m  Apache-2.0" in out
    assert "the real model             yes, cached" in out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_seed_gives_one_text_whatever_is_drafted_and_whoever_runs_along(dtype: str) -> None:
    """``benchmarks/sameness.py`` asks the same of more prompts, at every draft length to 8."""
    if not packing_works(DTYPES[dtype]):
        pytest.skip(f"{dtype} products are not packed here, and plain ones round by their rows")
    base = LLM(resolve("smollm2-135m"), dtype=dtype)
    try:
        base.model.invariant()
    except ValueError as refusal:  # bfloat16 on the Xeons seen: the probe finds it, and says so
        pytest.skip(f"{dtype} products on this machine: {refusal}")
    prompts = [base.tokenizer.chat([{"role": "user", "content": text}]) for text in MIXED]
    params = [SamplingParams(temperature=0.8, max_tokens=16, seed=i) for i in range(len(prompts))]

    def texts(config: dict | None, batch: int) -> list[list[int]]:
        llm = LLM(base.model, config, tokenizer=base.tokenizer, batch_invariant=True)
        groups = [slice(i, i + batch) for i in range(0, len(prompts), batch)]
        outputs = [o for g in groups for o in llm.generate(prompts[g], params[g])]
        return [output.outputs[0].token_ids for output in outputs]

    alone = texts(None, 1)
    match = {"rejection_sample_method": "match"}
    ngram = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, **match}
    int4 = {"method": "draft_model", "model": "self", "quantization": "int4", **match}
    assert texts(None, 4) == alone
    assert texts({**ngram, "num_speculative_tokens": 8}, 1) == alone
    assert texts({**ngram, "num_speculative_tokens": 3}, 4) == alone
    assert texts({**int4, "num_speculative_tokens": 4}, 2) == alone
