"""Where a step's coins come from: a source that the runner is given.

By default Philox, keyed by each request's seed. The exact law and the tests hand in their own, and
so decide every draft, acceptance and draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from specedu.kernels import Purpose, exponential, one_uniform, uniform

FEW = 64  # up to here a coin at a time takes less time than a tensor of them


class CoinKey(NamedTuple):
    """What one coin is for: the request and its seed, its step, and the token's place."""

    request_id: str
    seed: int
    step: int
    position: int


class CoinSource(Protocol):
    """Gives coins in [0, 1), a pure function of their keys."""

    def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
        """Return one coin a key, float64 ``[len(keys)]`` on the CPU."""
        ...

    def noise(self, keys: Sequence[CoinKey], vocab: int) -> torch.Tensor:
        """Return one row of Exp(1) noise a key, float32 ``[len(keys), vocab]`` on the CPU."""
        ...


class PhiloxCoins:
    """The engine's coins: counter-based, the same alone and in any batch.

    Example:
        >>> PhiloxCoins().coins([CoinKey("a", 7, 0, 12)], Purpose.ACCEPT).item()
        0.635929672268364
    """

    def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
        """Return one coin a key; the request's id does not count, its seed does."""
        if len(keys) <= FEW:
            coins = [one_uniform(key.seed, key.step, key.position, purpose) for key in keys]
            return torch.tensor(coins, dtype=torch.float64)
        return uniform(*key_columns(keys), purpose)

    def noise(self, keys: Sequence[CoinKey], vocab: int) -> torch.Tensor:
        """Return one row of Exp(1) noise a key."""
        return exponential(*key_columns(keys), vocab)


def key_columns(keys: Sequence[CoinKey]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return seeds (int64), steps and positions (int32) of the keys, as the kernels take them."""
    return (
        torch.tensor([key.seed for key in keys], dtype=torch.int64),
        torch.tensor([key.step for key in keys], dtype=torch.int32),
        torch.tensor([key.position for key in keys], dtype=torch.int32),
    )
