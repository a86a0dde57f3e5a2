"""The contents of the cache: writing slots, and reading a text back through its block table."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def write(cache: torch.Tensor, slots: Sequence[int] | torch.Tensor, values: torch.Tensor) -> None:
    """Write one entry a slot; ``cache`` is ``[num_blocks, block_size, ...]``.

    Example:
        >>> cache = torch.zeros(2, 2)
        >>> write(cache, [3, 0], torch.tensor([7.0, 8.0]))
        >>> cache.tolist()
        [[8.0, 0.0], [0.0, 7.0]]
    """
    flat = cache.view(-1, *cache.shape[2:])
    flat[torch.as_tensor(slots, dtype=torch.int64, device=cache.device)] = values.to(cache.dtype)


def read(cache: torch.Tensor, blocks: Sequence[int] | torch.Tensor, length: int) -> torch.Tensor:
    """Return the first ``length`` entries of the text whose blocks are given, ``[length, ...]``.

    Example:
        >>> read(torch.tensor([[1, 2], [3, 4], [5, 6]]), [2, 0], 3).tolist()
        [5, 6, 1]
    """
    blocks = torch.as_tensor(blocks, dtype=torch.int64, device=cache.device)
    return cache[blocks].flatten(0, 1)[:length]


def poison(cache: torch.Tensor, slots: Sequence[int], value: float) -> None:
    """Fill slots that must never be read again; tests put what would be noticed there."""
    if len(slots):
        cache.view(-1, *cache.shape[2:])[torch.as_tensor(slots)] = value
