"""A draft of the target's own layers reads the target's cache, and computes the last token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specedu.config import SamplingParams, SpeculativeConfig
from specedu.llm import LLM, own_layers
from specedu.models.llama import LlamaModel
from specedu.models.toy import ContextModel

CONFIG = LlamaConfig(
    vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96,
    tie_word_embeddings=True, eos_token_id=None,
)  # fmt: skip
EARLY = {"method": "early_exit", "early_exit_layers": 2, "num_speculative_tokens": 3}
SELF = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3}
INT4 = {**SELF, "quantization": "int4"}
PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7], [11] * 12]
PARAMS = SamplingParams(temperature=0, max_tokens=20)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    torch.manual_seed(0)
    return LlamaModel(CONFIG, LlamaForCausalLM(CONFIG).state_dict(), packed=False)


def generated(model: LlamaModel, config: dict[str, Any], copies: bool, **options: Any):
    """Return texts, rows and requests of each draft pass, mean length, and what was forgotten."""
    llm = LLM(model, config, block_size=4, max_model_len=64, **options)
    proposer = llm.engine.runner.proposer
    if not copies:
        proposer.target_cache = None
    passes, forward = [], proposer.model.forward
    forgotten, forget = [], proposer.forget
    proposer.forget = lambda name: (forgotten.append(name), forget(name))

    class Watched:
        vocab_size = proposer.model.vocab_size

        def forward(self, batch, cache):
            passes.append((len(batch.input_ids), len(batch.block_tables)))
            return forward(batch, cache)

    proposer.model = Watched()
    texts = [one.outputs[0].token_ids for one in llm.generate(PROMPTS, PARAMS)]
    return texts, passes, llm.metrics.mean_acceptance_length, len(forgotten)


@pytest.mark.parametrize("config", [EARLY, SELF], ids=["early-exit", "self"])
@pytest.mark.parametrize("num_blocks", [64, 20], ids=["room", "preempted"])
def test_the_same_drafts_come_of_one_row_a_request(model, config: dict, num_blocks: int) -> None:
    """The entries copied are those that would be computed, so that nothing else changes."""
    copied = generated(model, config, copies=True, num_blocks=num_blocks)
    computed = generated(model, config, copies=False, num_blocks=num_blocks)
    assert copied[0] == computed[0] and copied[2] == computed[2]
    assert all(rows == requests for rows, requests in copied[1])
    assert any(rows > requests for rows, requests in computed[1])
    assert (copied[3] > len(PROMPTS)) == (num_blocks == 20)  # once when it ends, and if preempted


def test_a_draft_in_four_bits_reads_the_targets_cache(model) -> None:
    """It is another draft then, so the text is compared with plain decoding's."""
    texts, passes, *_ = generated(model, INT4, copies=True, num_blocks=64)
    plain = LLM(model, block_size=4, max_model_len=64, num_blocks=64).generate(PROMPTS, PARAMS)
    assert texts == [one.outputs[0].token_ids for one in plain]
    assert all(rows == requests for rows, requests in passes)


def test_another_model_computes_its_own_entries(model) -> None:
    assert own_layers(SpeculativeConfig.of(EARLY), model)
    assert own_layers(SpeculativeConfig.of(INT4), model)
    assert not own_layers(SpeculativeConfig.of({**SELF, "model": model}), model)
    assert not own_layers(SpeculativeConfig.of(SELF), ContextModel(8))  # no cache by layers
