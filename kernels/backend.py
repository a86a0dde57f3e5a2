"""Which implementation runs: the Triton kernel or its torch twin.

Triton decides when it is imported whether ``@triton.jit`` compiles for a GPU or interprets on the
CPU. This module is imported before any kernel and sets ``TRITON_INTERPRET=1`` where there is no
GPU; a value that is set already stays. Where Triton has no wheel (macOS, Windows) the kernels'
names still exist and the twins serve.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

BACKENDS = ("torch", "triton")

if "TRITON_INTERPRET" not in os.environ and "triton" not in sys.modules:
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"

try:
    import triton
    import triton.language as tl
    from triton import jit
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    triton = None
    tl = SimpleNamespace(constexpr=object)

    def jit(fn: Any) -> Any:
        """Stand in for ``triton.jit`` where Triton is not installed: never launched."""
        return fn


# One 4096-wide float64 tile is 32 KiB; wider ones spilled registers on sm_90.
MAX_FLOAT64_TILE = 4096


def interpreting() -> bool:
    """Whether Triton was imported with its interpreter switched on.

    ``tl.sum`` is itself a jitted function, made when Triton was imported, so its type tells how
    every later kernel must run.

    Example:
        >>> isinstance(interpreting(), bool)
        True
    """
    return triton is not None and not isinstance(tl.sum, triton.JITFunction)


def pick(backend: str | None, device: torch.device) -> str:
    """Return ``"torch"`` or ``"triton"`` for tensors on ``device``.

    Raises:
        ValueError: ``backend`` is not None, ``"torch"`` or ``"triton"``.
        RuntimeError: Triton was asked for and cannot run here.

    Example:
        >>> pick(None, torch.device("cpu"))
        'torch'
    """
    if backend is None:
        return "triton" if device.type == "cuda" and triton is not None else "torch"
    if backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r}, expected None or one of {', '.join(BACKENDS)}")
    if backend == "triton" and triton is None:
        raise RuntimeError(
            "backend='triton': the package triton is not installed here (it has wheels for Linux "
            "only); backend='torch' runs the same rule"
        )
    if backend == "triton" and device.type == "cpu" and not interpreting():
        raise RuntimeError(
            "backend='triton' on CPU tensors needs Triton's interpreter, and triton was imported "
            "without it; set TRITON_INTERPRET=1 or import specedu before transformers and before "
            "triton, in a fresh Python; backend='torch' runs the same rule"
        )
    return backend


def tile_width(vocab: int, widest: int = MAX_FLOAT64_TILE) -> int:
    """Return the width of a vocabulary tile: a power of two that depends on the vocabulary alone.

    Tiles never depend on the batch: the order of every sum, and so every bit, is the same alone
    and in any batch.

    Example:
        >>> tile_width(3), tile_width(1000), tile_width(128256)
        (4, 1024, 4096)
    """
    return min(widest, 1 << max(0, vocab - 1).bit_length())
