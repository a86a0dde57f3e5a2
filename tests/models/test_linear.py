"""Packed products agree with plain ones wherever the probe lets them run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from specedu.models import linear


@pytest.fixture(autouse=True)
def fresh_probe() -> None:
    linear.packing_works.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, 33])
def test_the_chosen_products_agree_with_plain_ones(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(200, 128, generator=generator).to(dtype)
    x = torch.randn(rows, 128, generator=generator).to(dtype)
    prepare, apply = linear.products(dtype)
    tolerance = linear.TOLERANCE[dtype] * 128**0.5
    assert (apply(x, prepare(weight)) - F.linear(x, weight)).abs().max().item() <= tolerance


def test_a_probe_that_differs_turns_packing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "reorder", lambda weight: weight)
    monkeypatch.setattr(linear, "apply_packed", lambda x, weight: F.linear(x, weight) * 1.01)
    assert not linear.packing_works(torch.float32)
    assert linear.products(torch.float32)[1] is F.linear


def test_a_probe_that_raises_turns_packing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(weight: torch.Tensor) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear, "reorder", missing)
    assert not linear.packing_works(torch.float32)
    with pytest.raises(ValueError, match="packed: True, expected False or None"):
        linear.products(torch.float32, packed=True)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_weights_lie_by_columns_where_that_is_faster(ratio: float, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(6, 4, generator=generator) for _ in range(2)]
    monkeypatch.setattr(linear, "time_ratio", lambda *args: ratio)
    found = linear.faster_order(weights)
    assert all(map(torch.equal, found, weights))
    assert {weight.stride() for weight in found} == {(1, 6) if ratio < 1 else (4, 1)}


@pytest.mark.parametrize(
    ("plain", "padded", "expected"),
    [
        ([0.5, 0.9, 1.0], 1.2, linear.Layouts(2, 1)),
        ([0.5, 0.5, 0.5], 0.8, linear.Layouts(3, linear.ROWS)),
        ([1.0, 0.5, 0.5], 0.8, linear.Layouts(0, linear.ROWS)),
        ([], 1.2, linear.Layouts(0, 1)),
    ],
)
def test_the_clock_decides_between_layouts(plain, padded, expected, monkeypatch) -> None:
    """Plain products serve from one row on, as far as they are faster; then padding is tried."""
    packed = [(linear.apply_packed, 4)]
    asked = []

    def time_ratio(a, b, a_rows, b_rows, dtype, repeats) -> float:
        asked.append((a is packed, b is packed, a_rows, b_rows))
        return plain[a_rows - 1] if b is packed and a is not packed else padded

    monkeypatch.setattr(linear, "time_ratio", time_ratio)
    theirs = [(F.linear, 4)] if plain else []
    assert linear.fastest(packed, theirs, torch.float32) == expected
    assert asked[-1] == (True, expected.few == 0, linear.ROWS, 1)


def test_four_bits_keep_a_weight_to_half_a_step() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(32, 64, generator=generator)
    prepare, apply = linear.int4_products()
    seen = apply(torch.eye(64).bfloat16(), prepare(weight)).float().T
    groups = weight.view(32, 2, 32)
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    allowed = step.repeat_interleave(32, 1) / 2 + 0.03  # scale and zero are rounded to bfloat16
    assert ((seen - weight).abs() <= allowed).all()


def test_eight_bits_keep_a_weight_to_half_a_step() -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
    seen = linear.apply_quantized(torch.eye(64).bfloat16(), linear.to_int8(weight)).float().T
    assert ((seen - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 + 0.02).all()


def test_four_bits_that_do_not_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "apply_quantized", lambda x, weight: x * 100)
    with pytest.raises(ValueError, match="quantization: 'int4', expected None"):
        linear.int4_products()
