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
