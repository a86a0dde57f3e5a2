"""Stand-ins that remember: a model's batches, and the coins that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specedu.kernels import Purpose
from specedu.models.base import ForwardBatch
from specedu.sampling.coins import CoinKey, PhiloxCoins


class Watched:
    """A model that remembers its batches."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.batches: list[ForwardBatch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        self.batches.append(batch)
        return self.model.forward(batch, cache)

    @property
    def positions(self) -> list[int]:
        """Every position that it was fed, in order."""
        return [place for batch in self.batches for place in batch.positions.tolist()]


class Asked(PhiloxCoins):
    """Philox, and a memory of what was asked."""

    def __init__(self) -> None:
        self.keys: list[tuple[Purpose, CoinKey]] = []

    def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
        self.keys += [(purpose, key) for key in keys]
        return super().coins(keys, purpose)
