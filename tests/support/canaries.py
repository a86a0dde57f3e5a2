"""Buffers with guard bytes: what lies outside a tensor must not matter, and must stay."""

from __future__ import annotations

import pytest
import torch

from specedu.kernels import Verified, contract

MARGIN = 256  # bytes on each side


class Canaries:
    """Copies tensors into guarded buffers and tells whether every guard byte is still there."""

    def __init__(self, fill: int) -> None:
        self.fill = fill
        self.buffers: list[torch.Tensor] = []

    def around(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the tensor inside a buffer of its own."""
        size = tensor.numel() * tensor.element_size()
        buffer = torch.full((2 * MARGIN + size,), self.fill, dtype=torch.uint8)
        self.buffers.append(buffer)
        inside = buffer[MARGIN : MARGIN + size].view(tensor.dtype).view(tensor.shape)
        return inside.copy_(tensor)

    def alive(self) -> bool:
        """Return whether no guard byte has changed."""
        guards = [part for b in self.buffers for part in (b[:MARGIN], b[-MARGIN:])]
        return all(bool((guard == self.fill).all()) for guard in guards)


def guard_results(canaries: Canaries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rules write their results into guarded buffers."""
    blank = contract.blank
    monkeypatch.setattr(
        contract,
        "blank",
        lambda *arguments: Verified(*(canaries.around(tensor) for tensor in blank(*arguments))),
    )
