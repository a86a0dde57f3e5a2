"""Bytes, FLOPs and seconds of a step: the published models' numbers, and what holds for any."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from specedu.models.loading import DEFAULT, LoadingError, read_config, resolve, tensor_shapes
from specedu.theory import cost
from specedu.theory.cost import LLAMA_3_2_1B, LLAMA_3_8B, SHAPES, SMOLLM2_135M, TransformerShape
from specedu.theory.hardware import Hardware, hardware

H100 = hardware("H100 SXM")
EVERY = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


# --- the published models -------------------------------------------------------------------------


def test_the_8b_streams_7_50_billion_of_its_8_03() -> None:
    assert cost.streamed_params(LLAMA_3_8B) == 7_504_658_432
    assert cost.stored_params(LLAMA_3_8B) == 8_030_261_248  # as published
    assert round(cost.streamed_params(LLAMA_3_8B, norms=True) / 1e9, 2) == 7.50


def test_the_1b_streams_all_its_matrices_though_its_embedding_is_gathered() -> None:
    assert cost.layer_params(LLAMA_3_2_1B) == 60_817_408
    assert cost.streamed_params(LLAMA_3_2_1B) == 1_235_746_816
    assert cost.stored_params(LLAMA_3_2_1B) == 1_235_814_400  # as published
    assert cost.streamed_params(LLAMA_3_2_1B, norms=True) == cost.stored_params(LLAMA_3_2_1B)


def test_norms_are_little() -> None:
    assert cost.norm_params(LLAMA_3_8B) / cost.streamed_params(LLAMA_3_8B) < 4e-5
    assert cost.norm_params(LLAMA_3_2_1B) / cost.streamed_params(LLAMA_3_2_1B) < 6e-5


def test_the_8b_moves_15_01_gb_in_4_48_ms() -> None:
    moved = cost.weight_bytes(LLAMA_3_8B)
    seconds = cost.floor_seconds(moved, H100)
    assert round(moved / 1e9, 2) == 15.01
    assert round(seconds * 1e3, 2) == 4.48
    assert round(1 / seconds) == 223


def test_the_1b_moves_2_47_gb_in_0_738_ms() -> None:
    moved = cost.weight_bytes(LLAMA_3_2_1B)
    assert round(moved / 1e9, 2) == 2.47
    assert round(cost.floor_seconds(moved, H100) * 1e3, 3) == 0.738


def test_the_1b_costs_a_sixth_of_the_8b() -> None:
    c = cost.draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B)
    assert c == float(Fraction(1_235_746_816, 7_504_658_432))
    assert round(c, 5) == 0.16466 and round(c, 3) == 0.165


def test_three_drafts_of_the_1b_make_a_step_of_6_70_ms() -> None:
    assert round(cost.speculative_step_seconds(4.48, 3, 0.165), 2) == 6.70
    target = cost.floor_seconds(cost.weight_bytes(LLAMA_3_8B), H100) * 1e3
    assert round(cost.speculative_step_seconds(target, 3, 0.165), 2) == 6.70
    unrounded = cost.draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B)
    assert round(cost.speculative_step_seconds(target, 3, unrounded), 2) == 6.69


def test_a_token_of_the_8b_is_128_kib_of_cache() -> None:
    assert cost.kv_bytes_per_token(LLAMA_3_8B) == 128 * 1024


def test_weights_are_98_percent_at_2337_tokens_and_not_at_8192() -> None:
    assert round(cost.context_of_share(LLAMA_3_8B, 0.98)) == 2337
    assert cost.weight_share(LLAMA_3_8B, 2337) == pytest.approx(0.98, abs=1e-6)
    assert round(cost.weight_share(LLAMA_3_8B, 8192), 3) == 0.933
    assert cost.weight_share(LLAMA_3_8B, 0) == 1


def test_a_token_takes_about_15_gflop() -> None:
    assert round(cost.flops_per_token(LLAMA_3_8B) / 1e9) == 15
    assert cost.flops_per_token(LLAMA_3_8B) / H100.peak_flops == pytest.approx(15.17e-6, rel=1e-3)


def test_the_ridge_lies_near_295_positions() -> None:
    assert round(cost.T_star(H100)) == 295
    assert cost.T_star(H100, bytes_per_param=0.5) == pytest.approx(cost.T_star(H100) / 4)


# --- the shipped model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder():
    try:
        return resolve(DEFAULT)
    except LoadingError as error:
        pytest.skip(str(error))


def test_the_shipped_models_shape_is_the_one_stated(folder) -> None:
    assert TransformerShape.of(read_config(folder), "SmolLM2-135M") == SMOLLM2_135M


def test_the_shipped_models_tensors_are_as_many_weights_as_counted(folder) -> None:
    stored = sum(math.prod(tensor) for tensor in tensor_shapes(folder).values())
    assert stored == cost.stored_params(SMOLLM2_135M)


# --- what holds for any shape ---------------------------------------------------------------------


@EVERY
def test_tying_the_head_changes_what_is_stored_and_not_what_is_streamed(shape) -> None:
    tied, untied = (dataclasses.replace(shape, tied=tied) for tied in (True, False))
    assert cost.streamed_params(tied) == cost.streamed_params(untied)
    table = shape.vocab * shape.width
    assert cost.stored_params(untied) - cost.stored_params(tied) == table


@EVERY
def test_context_and_share_are_inverse(shape) -> None:
    for requests in (1, 64):
        for share in (0.5, 0.98, 1.0):
            context = cost.context_of_share(shape, share, requests)
            assert cost.weight_share(shape, context, requests) == pytest.approx(share)


@EVERY
def test_a_verify_reads_the_weights_once_and_all_else_by_its_positions(shape) -> None:
    one, four = (cost.decode_bytes(shape, 500, positions) for positions in (1, 4))
    assert four.weights == one.weights and four.kv_read == one.kv_read
    for part in ("kv_written", "activations", "logits"):
        assert getattr(four, part) == 4 * getattr(one, part) > 0
    assert four.total > one.total


@EVERY
def test_requests_of_a_batch_do_not_share_their_caches(shape) -> None:
    assert (
        cost.decode_bytes(shape, 500, requests=4).kv_read
        == 4 * cost.decode_bytes(shape, 500).kv_read
    )


def test_a_cache_read_by_every_position_is_read_as_often() -> None:
    shared = cost.decode_bytes(LLAMA_3_8B, 8192, 4)
    again = cost.decode_bytes(LLAMA_3_8B, 8192, 4, kv_reads=4)
    assert again.kv_read == 4 * shared.kv_read
    assert again.total - shared.total == 3 * shared.kv_read


def test_the_parts_add_up() -> None:
    step = cost.decode_bytes(LLAMA_3_8B, 100, 4)
    parts = [getattr(step, field.name) for field in dataclasses.fields(step)]
    assert step.total == sum(parts)


@EVERY
def test_attention_is_counted_pair_by_pair(shape) -> None:
    pairs = sum(50 + i for i in range(1, 5))  # the i-th position sees 50 tokens and i new ones
    expected = 4 * cost.flops_per_token(shape) + pairs * cost.attention_flops(shape)
    assert cost.decode_flops(shape, 50, 4) == expected


@pytest.mark.parametrize("bytes_per_param", [0.5, 1, 2, 4])
def test_the_ridge_in_positions_is_where_the_intensity_is_the_ridge(bytes_per_param) -> None:
    positions = cost.T_star(H100, bytes_per_param)
    assert cost.intensity(positions, bytes_per_param) == pytest.approx(H100.ridge)


@EVERY
def test_below_the_ridge_a_step_of_weights_takes_the_floor_and_above_it_is_linear(shape) -> None:
    floor = cost.floor_seconds(cost.weight_bytes(shape), H100)
    below, above = (cost.step_seconds(shape, H100, t, weights_only=True) for t in (295, 600))
    assert below == floor
    assert above == pytest.approx(floor * 600 / cost.T_star(H100))


def test_arrays_give_the_entries_of_scalars() -> None:
    positions = np.array([1, 4, 295, 1024])
    for weights_only in (False, True):
        together = cost.step_seconds(LLAMA_3_8B, H100, positions, 2048, weights_only=weights_only)
        alone = [
            cost.step_seconds(LLAMA_3_8B, H100, int(t), 2048, weights_only=weights_only)
            for t in positions
        ]
        np.testing.assert_array_equal(together, alone)
    contexts = np.array([0, 2337, 8192])
    np.testing.assert_array_equal(
        cost.weight_share(LLAMA_3_8B, contexts),
        [cost.weight_share(LLAMA_3_8B, int(n)) for n in contexts],
    )


def test_a_scalar_step_is_a_float() -> None:
    assert type(cost.step_seconds(LLAMA_3_8B, H100)) is float


def test_a_step_is_never_faster_than_either_peak_allows() -> None:
    toy = Hardware("toy", 3e9, 1e9, "none", "2026")
    for t in (1, 3, 100):
        seconds = cost.step_seconds(SMOLLM2_135M, toy, t, 64)
        assert seconds >= cost.decode_bytes(SMOLLM2_135M, 64, t).total / toy.bandwidth
        assert seconds >= cost.decode_flops(SMOLLM2_135M, 64, t) / toy.peak_flops


# --- what is refused ------------------------------------------------------------------------------


def test_a_shape_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="layers: 0, expected at least 1"):
        dataclasses.replace(LLAMA_3_8B, layers=0)


def test_heads_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_heads: 5, expected a divisor of 32 heads"):
        dataclasses.replace(LLAMA_3_8B, kv_heads=5)


@pytest.mark.parametrize("share", [0, 1.01, np.array([0.5, -1])])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(ValueError, match="share: .*, expected above 0 and at most 1"):
        cost.context_of_share(LLAMA_3_8B, share)


def test_a_speculative_step_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="kappa: -1, expected at least 0"):
        cost.speculative_step_seconds(1.0, -1, 0.1)
    with pytest.raises(ValueError, match="c: -0.1, expected at least 0"):
        cost.speculative_step_seconds(1.0, 1, -0.1)
