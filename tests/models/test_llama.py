"""The paged Llama: transformers' logits, whatever the shape of the pass and the blocks' order."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specedu.models.base import ForwardBatch
from specedu.models.llama import LlamaModel, check_config
from specedu.ragged import RaggedBatch

BLOCK = 4
CONFIG = LlamaConfig(
    vocab_size=97, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    tie_word_embeddings=True, rope_theta=10_000.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture(scope="module", params=[False, None], ids=["plain", "packed-if-it-works"])
def ours(request: pytest.FixtureRequest, theirs: LlamaForCausalLM) -> LlamaModel:
    return LlamaModel(CONFIG, theirs.state_dict(), packed=request.param)


def wanted(theirs: LlamaForCausalLM, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return theirs(torch.tensor([text])).logits[0]


def run(model: LlamaModel, cache: torch.Tensor, parts: list[tuple[list[int], int, list[int]]]):
    """Run one pass over (ids, tokens before them, blocks) of each request; all logits."""
    slots = [
        blocks[i // BLOCK] * BLOCK + i % BLOCK
        for ids, start, blocks in parts
        for i in range(start, start + len(ids))
    ]
    counts = [len(ids) for ids, _, _ in parts]
    batch = ForwardBatch(
        input_ids=torch.tensor([token for ids, _, _ in parts for token in ids]),
        positions=torch.tensor(
            [i for ids, start, _ in parts for i in range(start, start + len(ids))]
        ),
        slot_mapping=torch.tensor(slots),
        block_tables=[blocks for _, _, blocks in parts],
        ragged=RaggedBatch.from_counts([start for _, start, _ in parts], counts),
        logits_indices=torch.arange(sum(counts)),
    )
    return model.forward(batch, cache)


TEXT = [random.Random(3).randrange(97) for _ in range(30)]
NEAR = {"atol": 2e-5, "rtol": 1e-4}  # float32 sums in another order, three layers deep


@pytest.mark.parametrize("blocks", [list(range(3, 11)), [9, 0, 7, 2, 11, 4, 5, 1]])
def test_one_pass_gives_the_logits_of_transformers(ours, theirs, blocks: list[int]) -> None:
    logits = run(ours, ours.make_cache(12, BLOCK), [(TEXT, 0, blocks)])
    torch.testing.assert_close(logits, wanted(theirs, TEXT), **NEAR)


@pytest.mark.parametrize("cuts", [[1] * 30, [7, 7, 16], [29, 1], [26, 4]])
def test_chunks_decodes_and_verifies_give_the_same(ours, theirs, cuts: list[int]) -> None:
    cache, blocks, start, rows = ours.make_cache(12, BLOCK), [9, 0, 7, 2, 11, 4, 5, 1], 0, []
    for count in cuts:
        rows.append(run(ours, cache, [(TEXT[start : start + count], start, blocks)]))
        start += count
    torch.testing.assert_close(torch.cat(rows), wanted(theirs, TEXT), **NEAR)


def test_requests_in_one_pass_do_not_see_each_other(ours, theirs) -> None:
    other = TEXT[::-1][:17]
    cache = ours.make_cache(20, BLOCK)
    run(ours, cache, [(TEXT[:9], 0, [0, 2, 4, 6, 8, 10, 12, 14])])
    logits = run(
        ours, cache,
        [(TEXT[9:13], 9, [0, 2, 4, 6, 8, 10, 12, 14]), (other, 0, [1, 3, 5, 7, 9])],
    )  # fmt: skip
    torch.testing.assert_close(logits[:4], wanted(theirs, TEXT)[9:13], **NEAR)
    torch.testing.assert_close(logits[4:], wanted(theirs, other), **NEAR)


def test_a_rejected_draft_leaves_no_trace(ours, theirs) -> None:
    cache, blocks = ours.make_cache(12, BLOCK), list(range(8))
    run(ours, cache, [(TEXT[:10], 0, blocks)])
    run(ours, cache, [([TEXT[10], 5, 6, 7], 10, blocks)])  # three drafts that will be rejected
    after = run(ours, cache, [(TEXT[11:13], 11, blocks)])
    torch.testing.assert_close(after, wanted(theirs, TEXT)[11:13], **NEAR)


def test_only_the_asked_rows_get_logits(ours) -> None:
    cache, blocks = ours.make_cache(12, BLOCK), list(range(8))
    everything = run(ours, cache, [(TEXT, 0, blocks)])
    assert everything.shape == (30, 97)
    assert everything.dtype == torch.float32


def test_bfloat16_is_near(theirs) -> None:
    model = LlamaModel(CONFIG, theirs.state_dict(), torch.bfloat16)
    logits = run(model, model.make_cache(12, BLOCK), [(TEXT, 0, list(range(8)))])
    assert (logits - wanted(theirs, TEXT)).abs().max() < 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias: True, expected False"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu', expected 'silu'"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type: 'linear', expected 'default'",
        ),
    ],
)
def test_a_checkpoint_with_other_parts_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_config(LlamaConfig(**changes))


# --- drafts made of the model itself --------------------------------------------------------------


def test_the_first_layers_are_a_model_of_that_many_layers(ours, theirs) -> None:
    shallow = LlamaConfig(**{**CONFIG.to_dict(), "num_hidden_layers": 2})
    cut = LlamaForCausalLM(shallow).eval()
    cut.load_state_dict(theirs.state_dict(), strict=False)
    model = ours.first_layers(2)
    cache = model.make_cache(12, BLOCK)
    assert len(cache) == 2
    logits = run(model, cache, [(TEXT, 0, list(range(8)))])
    torch.testing.assert_close(logits, wanted(cut, TEXT), **NEAR)
    assert len(ours.layers) == 3  # the target is as it was


@pytest.mark.parametrize("layers", [0, 3, 4])
def test_leaving_early_leaves_out_at_least_one_layer(ours, layers: int) -> None:
    with pytest.raises(ValueError, match=f"early_exit_layers: {layers}, expected 1 to 2"):
        ours.first_layers(layers)


def test_four_bits_are_near_where_the_weights_come_from_four_bits() -> None:
    """Weights on fifteen even steps a group, as a Q4_1 file has them: little is lost."""
    config = LlamaConfig(**{**CONFIG.to_dict(), "intermediate_size": 128})
    torch.manual_seed(1)
    weights = LlamaForCausalLM(config).state_dict()
    for name, weight in weights.items():
        if "proj" in name:
            groups = weight.view(-1, 32)
            low = groups.amin(1, keepdim=True)
            step = (groups.amax(1, keepdim=True) - low) / 15
            weights[name] = (torch.round((groups - low) / step) * step + low).view_as(weight)
    model = LlamaModel(config, weights)
    logits = run(model, model.make_cache(12, BLOCK), [(TEXT, 0, list(range(8)))])
    four = model.quantized()
    near = run(four, four.make_cache(12, BLOCK), [(TEXT, 0, list(range(8)))])
    assert (near - logits).abs().max() < 0.03
    assert (near - logits).abs().max() > 0  # it is another computation
