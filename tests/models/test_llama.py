"""The paged Llama: transformers' logits, whatever the shape of the pass and the blocks' order."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from engine_cases import atlas
from transformers import LlamaConfig, LlamaForCausalLM

from specedu.models import llama
from specedu.models.base import ForwardBatch
from specedu.models.linear import Either, Layouts, packing_works, products
from specedu.models.llama import LlamaModel, Residual, check_config
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


@pytest.mark.parametrize("min_rows", [1, 6])
def test_padding_a_pass_changes_nothing_but_its_speed(theirs, min_rows: int) -> None:
    model = LlamaModel(CONFIG, theirs.state_dict())
    model.min_rows = min_rows
    cache, blocks = model.make_cache(12, BLOCK), list(range(8))
    run(model, cache, [(TEXT[:7], 0, blocks)])
    logits = run(model, cache, [(TEXT[7:9], 7, blocks)])
    torch.testing.assert_close(logits, wanted(theirs, TEXT)[7:9], **NEAR)


@atlas("B65")
def test_padding_rows_have_no_length_and_no_slot(atlas_row: str, theirs) -> None:
    """A request without tokens and the rows that fill a pass up write nothing, and read nothing."""
    model = LlamaModel(CONFIG, theirs.state_dict())
    model.min_rows = 6
    cache = model.make_cache(12, BLOCK)
    cache[:] = 7.0
    logits = run(model, cache, [(TEXT[:5], 0, [3, 1]), ([], 0, [])])
    written = {(3, 0), (3, 1), (3, 2), (3, 3), (1, 0)}
    changed = (cache != 7.0).flatten(3).all(dim=3)
    assert {(b, s) for _, b, s in changed.nonzero().tolist()} == written
    torch.testing.assert_close(logits, wanted(theirs, TEXT[:5]), **NEAR)


def cut(model: LlamaModel, cuts: list[int], blocks: list[int], beside: int = 0) -> torch.Tensor:
    """Return all logits of TEXT, fed in pieces; ``beside`` tokens of another request run along."""
    cache, start, rows = model.make_cache(24, BLOCK), 0, []
    for count in cuts:
        parts = [(TEXT[start : start + count], start, blocks)]
        if beside:
            parts = [(TEXT[::-1][:beside], 0, list(range(12, 20))), *parts]
        rows.append(run(model, cache, parts)[beside:])
        start += count
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_invariant_row_has_the_same_bits_in_whatever_company(theirs, dtype) -> None:
    if not packing_works(dtype):
        pytest.skip("products are not packed here, and plain ones round by their number of rows")
    model = LlamaModel(CONFIG, theirs.state_dict(), dtype).invariant()
    alone = cut(model, [1] * 30, list(range(8)))
    scattered = [9, 0, 7, 2, 11, 4, 5, 1]
    for cuts in ([30], [7, 7, 16], [26, 4], [12, 1, 9, 8]):
        for beside in (0, 1, 23):
            assert torch.equal(cut(model, cuts, scattered, beside), alone)


def test_without_it_the_bits_depend_on_the_company(theirs) -> None:
    model = LlamaModel(CONFIG, theirs.state_dict())
    assert not torch.equal(cut(model, [30], list(range(8))), cut(model, [1] * 30, list(range(8))))


def test_invariance_is_refused_where_a_product_has_none(theirs, monkeypatch) -> None:
    model = LlamaModel(CONFIG, theirs.state_dict(), packed=False)

    def by_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight) * (1 + (len(x) % 2) * 2**-20)

    monkeypatch.setattr(model, "_linear", by_rows)
    with pytest.raises(ValueError, match="batch_invariant: True, expected False: the bits of a"):
        model.invariant()


@pytest.mark.parametrize(("ends", "kept"), [(2, 2), ([5, 7], (5, 7)), (None, None)])
def test_every_end_id_of_a_checkpoint_counts(theirs, ends: object, kept: object) -> None:
    config = LlamaConfig(**{**CONFIG.to_dict(), "eos_token_id": ends})
    assert LlamaModel(config, theirs.state_dict()).eos_token_id == kept


def test_rows_are_timed_where_padding_may_pay_alone(theirs, monkeypatch) -> None:
    timed = []
    monkeypatch.setattr(llama, "CACHED", 0)

    def fastest(packed, plain, dtype) -> Layouts:
        timed.append((len(packed), len(plain)))
        return Layouts(few=0, rows=6)

    monkeypatch.setattr(llama, "fastest", fastest)
    assert LlamaModel(CONFIG, theirs.state_dict()).min_rows == 6
    assert LlamaModel(CONFIG, theirs.state_dict(), packed=False).min_rows == 1
    monkeypatch.setattr(llama, "int4_products", lambda: products(torch.float32, False))
    monkeypatch.setattr(llama, "to_int8", lambda head: head)
    assert LlamaModel(CONFIG, theirs.state_dict(), quantized=True).min_rows == 1
    products_of_a_pass = 4 * CONFIG.num_hidden_layers + 1
    assert timed == [(products_of_a_pass, products_of_a_pass)]


def test_where_plain_products_are_faster_for_few_rows_both_layouts_are_kept(
    theirs, ours, monkeypatch
) -> None:
    monkeypatch.setattr(llama, "CACHED", 0)
    monkeypatch.setattr(
        llama, "fastest", lambda packed, plain, dtype: Layouts(few=2 if plain else 0, rows=1)
    )
    monkeypatch.setattr(
        llama, "faster_order", lambda weights: [w.t().contiguous().t() for w in weights]
    )
    both = LlamaModel(CONFIG, theirs.state_dict())
    assert all(isinstance(weight, Either) for weight in both.layers[0].matrices())
    assert both.head.plain.stride() == (1, CONFIG.vocab_size)
    for end in (1, 2, 3, len(TEXT)):  # the first two go plainly
        found, expected = (
            run(model, model.make_cache(12, BLOCK), [(TEXT[:end], 0, list(range(8)))])
            for model in (both, ours)
        )
        assert (found - expected).abs().max() < 1e-4
    alone = both.invariant()
    assert not any(isinstance(weight, Either) for weight in alone.layers[0].matrices())
    asked = LlamaModel(CONFIG, theirs.state_dict(), packed=True)
    assert not any(isinstance(weight, Either) for weight in asked.layers[0].matrices())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_of_three_calls_is_torchs(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(5, 96, generator=generator).to(dtype) * torch.tensor(
        [[1e-3], [1], [9], [0], [2]]
    )
    weight = torch.randn(96, generator=generator).to(dtype)
    found = Residual(x, 1e-5).normed(Residual.weight(weight))
    expected = F.rms_norm(x.float(), (96,), weight.float(), 1e-5)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


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
