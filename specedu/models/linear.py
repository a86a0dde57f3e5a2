"""Matrix products with weights laid out for oneDNN, where a probe says that this works and agrees.

On a CPU one token's products are bound by memory, and MKL's float32 product is far from that bound
on some processors. oneDNN's is near it, but wants its weights in blocks of its own: they are
reordered once. The calls are torch's own and not documented, so each start tries them on a small
product first; where they fail or differ, plain ``F.linear`` serves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

BATCH_HINT = 8  # the number of rows for which oneDNN picks its blocking; 1 to 64 run well with it
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}

Apply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def reorder(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight ``[out, in]`` in oneDNN's layout; only ``apply_packed`` takes it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), BATCH_HINT)


def apply_packed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight.T`` for a reordered weight."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Return whether reordered products run here and agree with plain ones; tried once a dtype.

    Example:
        >>> packing_works(torch.float64)
        False
    """
    if dtype not in TOLERANCE:
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    try:
        packed = reorder(weight)
        for rows in (1, 3, 17):
            x = torch.randn(rows, 64, generator=generator).to(dtype)
            difference = (apply_packed(x, packed) - F.linear(x, weight)).abs().max().item()
            if not difference <= TOLERANCE[dtype] * 64**0.5:
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def products(dtype: torch.dtype, packed: bool | None = None) -> tuple[Apply, Apply]:
    """Return (prepare a weight, apply it): packed where that works, plain otherwise.

    Args:
        dtype: of the weights.
        packed: True or False asks for one of them; None lets the probe decide.

    Raises:
        ValueError: packed products are asked for and do not work here.
    """
    if packed and not packing_works(dtype):
        raise ValueError(f"packed: True, expected False or None: {dtype} does not pack here")
    if packed is None:
        packed = packing_works(dtype)
    return (reorder, apply_packed) if packed else (lambda weight: weight, F.linear)
