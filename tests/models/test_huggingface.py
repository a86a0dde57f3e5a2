"""Other causal LMs on the paged cache: transformers' logits and texts, or a refusal by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from engine_cases import atlas
from transformers import AutoConfig, AutoModelForCausalLM

from specedu import LLM, SamplingParams
from specedu.models import huggingface
from specedu.models.huggingface import HuggingFaceModel, lay_out

BLOCK = 4
SMALL = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
# Each has what no other has; initializer_range is wide so that attention moves the logits.
# fmt: off
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 12},  # norms of queries and keys; 4 heads of 12 are not 32
    "gemma2": {"head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0},
    "mistral": {"sliding_window": 3},  # every layer slides
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 64},  # learned positions
    "gpt_neox": {},  # turns a part of each head; layers side by side
    "qwen2": {"num_key_value_heads": 1},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "deepseek_v3": {  # values of 8 entries, keys of 12, both out of one low-rank latent
        "num_key_value_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "head_dim": 4,
        "v_head_dim": 8, "q_lora_rank": None, "kv_lora_rank": 8, "n_routed_experts": 4,
        "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    },
}
# fmt: on


def make(kind: str, **more: Any) -> Any:
    """Return a small transformers model with random weights, the same each time."""
    known = AutoConfig.for_model(kind)
    settings = {k: v for k, v in SMALL.items() if hasattr(known, k)}
    config = AutoConfig.for_model(kind, **settings | ARCHITECTURES.get(kind, {}) | more)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request: pytest.FixtureRequest) -> tuple[HuggingFaceModel, Any]:
    """The model on the paged cache, and its twin with transformers' eager attention."""
    theirs = make(request.param)
    theirs.set_attn_implementation("eager")
    return HuggingFaceModel(make(request.param)), theirs


def wanted(theirs: Any, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return theirs(torch.tensor([text]), use_cache=False).logits[0]


TEXT = [random.Random(3).randrange(97) for _ in range(30)]
OTHER = TEXT[::-1][:17]
NEAR = {"atol": 2e-4, "rtol": 1e-3}  # float32 sums in another order, logits of some tens
BLOCKS = [9, 0, 7, 2, 11, 4, 5, 1]


# --- logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[30], [1] * 30, [7, 7, 16], [29, 1], [26, 4]])
def test_every_shape_of_pass_gives_the_logits_of_transformers(pair, cuts: list[int]) -> None:
    ours, theirs = pair
    cache, start, rows = ours.make_cache(12, BLOCK), 0, []
    for count in cuts:
        batch = lay_out([(TEXT[start : start + count], start, BLOCKS)], BLOCK)
        rows.append(ours.forward(batch, cache))
        start += count
    torch.testing.assert_close(torch.cat(rows), wanted(theirs, TEXT), **NEAR)


def test_requests_in_one_pass_do_not_see_each_other(pair) -> None:
    ours, theirs = pair
    cache, mine, others = ours.make_cache(20, BLOCK), [0, 2, 4, 6], [1, 3, 5, 7, 9]
    ours.forward(lay_out([(TEXT[:9], 0, mine), (OTHER[:5], 0, others)], BLOCK), cache)
    parts = [(OTHER[5:], 5, others), (TEXT[9:13], 9, mine)]  # a chunk, a verify
    logits = ours.forward(lay_out(parts, BLOCK), cache)
    torch.testing.assert_close(logits[:12], wanted(theirs, OTHER)[5:], **NEAR)
    torch.testing.assert_close(logits[12:], wanted(theirs, TEXT)[9:13], **NEAR)


def test_a_rejected_draft_leaves_no_trace(pair) -> None:
    ours, theirs = pair
    cache = ours.make_cache(12, BLOCK)
    ours.forward(lay_out([(TEXT[:10], 0, BLOCKS)], BLOCK), cache)
    ours.forward(lay_out([([TEXT[10], 5, 6, 7], 10, BLOCKS)], BLOCK), cache)  # 3 rejected drafts
    after = ours.forward(lay_out([(TEXT[11:13], 11, BLOCKS)], BLOCK), cache)
    torch.testing.assert_close(after, wanted(theirs, TEXT)[11:13], **NEAR)


def test_only_the_wanted_rows_come_back(pair) -> None:
    ours, _ = pair
    batch = lay_out([(TEXT, 0, BLOCKS)], BLOCK)
    everything = ours.forward(batch, ours.make_cache(12, BLOCK))
    rows = torch.tensor([2, 29])
    fewer = type(batch)(**{**vars(batch), "logits_indices": rows})
    found = ours.forward(fewer, ours.make_cache(12, BLOCK))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, everything[rows], **NEAR)


def test_a_request_without_tokens_takes_no_row() -> None:
    ours, theirs = HuggingFaceModel(make("qwen3")), make("qwen3")
    batch = lay_out([([], 0, []), (TEXT, 0, BLOCKS)], BLOCK)
    logits = ours.forward(batch, ours.make_cache(12, BLOCK))
    torch.testing.assert_close(logits, wanted(theirs, TEXT), **NEAR)


def test_a_window_hides_what_lies_before_it() -> None:
    """With one layer a row knows the last tokens of its window, and no other."""
    ours = HuggingFaceModel(make("mistral", num_hidden_layers=1))
    texts = [[*beginning, *TEXT[:4]] for beginning in ([1, 2], [3, 4])]
    one, other = (
        ours.forward(lay_out([(text, 0, BLOCKS)], BLOCK), ours.make_cache(12, BLOCK))
        for text in texts
    )
    assert not torch.equal(one[3], other[3])  # the token 1 or 3 tokens back is another
    torch.testing.assert_close(one[4:], other[4:], **NEAR)


def test_a_cache_has_the_shape_of_each_layer() -> None:
    cache = HuggingFaceModel(make("deepseek_v3")).make_cache(5, BLOCK)
    assert [tuple(layer.shape) for layer in cache] == [(5, BLOCK, 4, 12 + 8)] * 3
    assert cache[0].dtype == torch.float32


def test_bfloat16_is_near() -> None:
    ours, theirs = HuggingFaceModel(make("gemma2").bfloat16()), make("gemma2")
    logits = ours.forward(lay_out([(TEXT, 0, BLOCKS)], BLOCK), ours.make_cache(12, BLOCK))
    exact = wanted(theirs, TEXT)
    assert ours.dtype == torch.bfloat16
    assert (logits - exact).abs().max() < 0.05 * exact.abs().max()


def test_every_end_id_is_taken() -> None:
    assert HuggingFaceModel(make("qwen3", eos_token_id=[5, 7])).eos_token_id == (5, 7)
    assert HuggingFaceModel(make("qwen3")).eos_token_id is None


# --- through the engine ---------------------------------------------------------------------------

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
         "prompt_lookup_max": 3}  # fmt: skip
PROMPTS = [[7, 8, 9, 7, 8, 9, 7], TEXT[:11], [3]]


def texts_of(llm: LLM) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]


def test_greedy_text_is_that_of_transformers_with_drafts_and_without(pair) -> None:
    ours, theirs = pair
    plain = texts_of(LLM(ours, block_size=BLOCK, audit=True))
    drafted = LLM(
        ours, NGRAM, block_size=BLOCK, max_num_seqs=3, max_num_batched_tokens=9, audit=True
    )
    assert texts_of(drafted) == plain
    assert drafted.metrics.num_draft_tokens > 0
    for prompt, text in zip(PROMPTS, plain, strict=True):
        whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
        assert whole[0, len(prompt) :].tolist() == text


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_is_the_target_is_always_accepted(pair, temperature: float) -> None:
    ours, _ = pair
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3,
              "draft_sample_method": "probabilistic"}  # fmt: skip
    llm = LLM(ours, config, block_size=BLOCK, audit=True)
    params = SamplingParams(temperature=temperature, max_tokens=21, seed=1, ignore_eos=True)
    llm.generate(PROMPTS, params)
    assert llm.metrics.num_rejected_tokens == 0
    assert llm.metrics.num_accepted_tokens > 0


def test_early_exit_and_four_bits_are_refused() -> None:
    ours = HuggingFaceModel(make("gpt2"))
    for config, name in [
        ({"method": "early_exit", "early_exit_layers": 1}, "early_exit"),
        ({"method": "draft_model", "model": "self", "quantization": "int4"}, "quantization"),
    ]:
        with pytest.raises(ValueError, match=name):
            LLM(ours, {**config, "num_speculative_tokens": 2})


# --- refused --------------------------------------------------------------------------------------

RECURRENT = {
    "mamba": ({"state_size": 4}, "layers of type linear_attention"),
    "rwkv": ({}, "recurrent state"),
    "recurrent_gemma": ({"num_hidden_layers": 3}, "recurrent state"),
    "jamba": ({}, "layers of type linear_attention"),
    "falcon_h1": ({}, "layers of type hybrid"),
    "qwen3_next": ({"num_hidden_layers": 4}, "layers of type linear_attention"),
    "lfm2": ({"layer_types": ["conv", "full_attention", "conv"]}, "layers of type conv"),
}


@atlas("B71")
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_that_cannot_be_trimmed_is_refused_at_once(atlas_row: str, kind: str) -> None:
    more, why = RECURRENT[kind]
    module = make(kind, **more)
    with pytest.raises(ValueError, match=f"model: {type(module).__name__}, expected .*{why}"):
        HuggingFaceModel(module)


@atlas("B71")
def test_a_state_beside_attention_is_refused_whatever_the_model_calls_it(atlas_row: str) -> None:
    module = make("qwen3")
    module.model.layers[1].mix = torch.nn.Conv1d(32, 32, 3)
    with pytest.raises(ValueError, match=r"model.layers.1.mix is a Conv1d, which keeps a state"):
        HuggingFaceModel(module)


OTHERS = {
    "bloom": "does not leave attention to transformers' interface",  # alibi
    "mpt": "does not leave attention to transformers' interface",
    "gptj": "does not leave attention to transformers' interface",
    "gpt_oss": "its attention needs s_aux",
    "bert": r"on the paged cache its logits .* off its own",  # looks ahead
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_does_not_fit_our_attention_is_refused_by_name(kind: str) -> None:
    module = make(kind)
    with pytest.raises(ValueError, match=f"model: {type(module).__name__}, .*{OTHERS[kind]}"):
        HuggingFaceModel(module)


@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_an_encoder_decoder_is_refused(kind: str) -> None:
    config = getattr(transformers, f"{kind}Config")(
        d_model=16, num_layers=1, num_decoder_layers=1, encoder_layers=1, decoder_layers=1,
        num_heads=2, encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=32,
    )  # fmt: skip
    name = f"{kind}ForConditionalGeneration"
    with pytest.raises(ValueError, match=f"model: {name}, .*: it is an encoder-decoder"):
        HuggingFaceModel(getattr(transformers, name)(config))


def test_weights_of_a_type_without_a_bound_are_refused() -> None:
    with pytest.raises(ValueError, match="Qwen3ForCausalLM, .*: its weights are torch.float64"):
        HuggingFaceModel(make("qwen3").double())


def test_positions_that_depend_on_the_longest_text_are_refused() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
            "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}  # fmt: skip
    with pytest.raises(ValueError, match="rope_type 'longrope' turns by the longest text"):
        HuggingFaceModel(make("qwen3", rope_parameters=rope))


def test_positions_that_change_behind_the_context_alone_are_served() -> None:
    """The engine takes no text that is longer than the context."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ours, theirs = (make("qwen3", rope_parameters=rope) for _ in range(2))
    text = TEXT + TEXT + TEXT[:4]
    model, blocks = HuggingFaceModel(ours), list(range(16))
    cache = model.make_cache(16, BLOCK)
    logits = model.forward(lay_out([(text, 0, blocks)], BLOCK), cache)
    assert len(text) == model.max_model_len
    torch.testing.assert_close(logits, wanted(theirs, text), **NEAR)


# --- what the trial finds -------------------------------------------------------------------------


def spoilt(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Let a model's attention ask for something else than its own would compute."""
    attend = getattr(huggingface, name).attend
    monkeypatch.setattr(
        getattr(huggingface, name), "attend", lambda self, a: attend(self, a._replace(**changes))
    )


@pytest.mark.parametrize("changes", [{"window": None}, {"softcap": None}, {"scaling": 0.1}])
def test_a_trial_notices_what_attention_does_not_respect(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    spoilt(monkeypatch, "PagedAttention", **changes)
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM, .* off its own, where .* allowed"):
        HuggingFaceModel(make("gemma2"))


def test_a_trial_notices_a_layer_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt(monkeypatch, "Survey", layer=0)
    with pytest.raises(ValueError, match=r"layers \[0, 0, 0\] asked .*, expected each of 3 once"):
        HuggingFaceModel(make("qwen3"))


def test_a_trial_notices_a_model_without_numbers() -> None:
    module = make("qwen3")
    module.lm_head.weight.data[5] = torch.nan
    with pytest.raises(ValueError, match="nan off its own"):
        HuggingFaceModel(module)


def test_a_trial_notices_positions_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that counts its positions by itself is right for one text alone only."""
    module = make("gpt2")
    forward = module.transformer.forward
    monkeypatch.setattr(
        module.transformer, "forward", lambda *a, **k: forward(*a, **{**k, "position_ids": None})
    )
    with pytest.raises(ValueError, match="off its own"):
        HuggingFaceModel(module)


def test_arguments_must_reach_attention() -> None:
    module = make("qwen3")
    forward = module.model.layers[0].self_attn.forward
    module.model.layers[0].self_attn.forward = lambda *a, specedu_attention=None, **k: forward(
        *a, **k
    )
    with pytest.raises(ValueError, match="arguments of its forward do not reach its attention"):
        HuggingFaceModel(module)


def test_a_context_too_short_for_a_trial_is_refused() -> None:
    with pytest.raises(ValueError, match="max_position_embeddings: 8, expected at least 12"):
        HuggingFaceModel(make("qwen3", max_position_embeddings=8))
