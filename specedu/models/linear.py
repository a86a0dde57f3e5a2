"""Matrix products with weights laid out for oneDNN, where a probe says that this works and agrees.

On a CPU one token's products are bound by memory, and MKL's float32 product is far from that bound
on some processors. oneDNN's is near it, but wants its weights in blocks of its own: they are
reordered once. The calls are torch's own and not documented, so each start tries them on a small
product first; where they fail or differ, plain ``F.linear`` serves. On other processors MKL is the
faster one for few rows: a large model's products are timed both ways, and both are kept if so. MKL
in turn streams some weights faster by columns than by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F

BATCH_HINT = 8  # the number of rows for which oneDNN picks its blocking; 1 to 64 run well with it
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}

ROWS = 6  # to which passes of fewer rows are padded where that is faster, or rounds alike
MARGIN = 0.93  # of the other's time: what is less is clearly faster

Apply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Product = tuple[Callable[[torch.Tensor], torch.Tensor], int]  # and the length of its rows


def reorder(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight ``[out, in]`` in oneDNN's layout; only ``apply_packed`` takes it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), BATCH_HINT)


def apply_packed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight.T`` for a reordered weight."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")


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


class Either(NamedTuple):
    """A weight in both layouts: ``plain`` serves up to ``few`` rows, ``packed`` more.

    ``plain`` may lie by rows or by columns.
    """

    plain: torch.Tensor
    packed: torch.Tensor
    few: int


def apply_either(x: torch.Tensor, weight: Either) -> torch.Tensor:
    """Return ``x @ weight.T`` in the layout that is faster for so many rows."""
    if len(x) <= weight.few:
        return F.linear(x, weight.plain)
    return apply_packed(x, weight.packed)


class Layouts(NamedTuple):
    """What was found fastest: up to ``few`` rows go plainly, and passes are padded to ``rows``."""

    few: int
    rows: int


def fastest(
    packed: Sequence[Product], plain: Sequence[Product], dtype: torch.dtype, repeats: int = 5
) -> Layouts:
    """Time all products of a model in both layouts, for few rows.

    oneDNN 3.12 streams float32 weights faster to six rows than to one on some processors
    (``benchmarks/recorded/rows-cpu.json``), so that padding pays; on others MKL is faster for one
    to three. The margin is there so that the same machine always comes to the same answer: another
    number of rows, or layout, rounds otherwise.

    Args:
        packed: every product in oneDNN's layout.
        plain: the same ones through ``F.linear``; none where they must not be chosen.
        dtype: of their rows.
        repeats: of the timing, whose median counts.
    """
    few = 0
    if plain:
        while few < 3 and time_ratio(plain, packed, few + 1, few + 1, dtype, repeats) < MARGIN:
            few += 1
    best = plain if few else packed
    padded = time_ratio(packed, best, ROWS, 1, dtype, repeats) < MARGIN
    return Layouts(few, ROWS if padded else 1)


def faster_order(weights: Sequence[torch.Tensor], repeats: int = 5) -> list[torch.Tensor]:
    """Return the weights of one kind by rows, or by columns where one row's products are faster so.

    Args:
        weights: each ``[out, in]``, contiguous.
        repeats: of the timing, whose median counts.
    """
    by_columns = [weight.t().contiguous().t() for weight in weights]
    length, dtype = weights[0].shape[1], weights[0].dtype
    products = [
        [(partial(F.linear, weight=weight), length) for weight in order]
        for order in (by_columns, weights)
    ]
    faster = time_ratio(*products, 1, 1, dtype, repeats) < MARGIN
    return by_columns if faster else list(weights)


def time_ratio(
    a: Sequence[Product],
    b: Sequence[Product],
    a_rows: int,
    b_rows: int,
    dtype: torch.dtype,
    repeats: int,
) -> float:
    """Return the median time of ``a`` with ``a_rows`` rows over that of ``b`` with ``b_rows``."""

    def seconds(products: Sequence[Product], rows: int) -> float:
        inputs = {length: torch.zeros(rows, length, dtype=dtype) for _, length in products}
        start = perf_counter()
        for apply, length in products:
            apply(inputs[length])
        return perf_counter() - start

    ratios = [seconds(a, a_rows) / seconds(b, b_rows) for _ in range(repeats + 1)]
    return median(ratios[1:])  # the first warms up


def rows_agree(product: Product, dtype: torch.dtype, most: int = 256) -> bool:
    """Return whether a row's product has the same bits at every number of rows from ``ROWS`` on.

    Tried up to ``most`` rows, at the numbers where kernels change how they cut their work.
    """
    apply, length = product
    rows = torch.randn(most, length, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = apply(rows)
    ends = [*range(ROWS, 25), *(n + i for n in (32, 64, 128, 256, 512, 1024) for i in (-1, 0, 1))]
    return all(torch.equal(apply(rows[:n]), whole[:n]) for n in ends if n < most)


# --- weights in four and eight bits ---------------------------------------------------------------

GROUP = 32  # entries that share a scale and a zero, as in the Q4_1 blocks of a GGUF file


class Int4(NamedTuple):
    """A weight in four bits, packed for torch's product, with (scale, zero) of each group."""

    packed: torch.Tensor
    scales_and_zeros: torch.Tensor


class Int8(NamedTuple):
    """A weight in eight bits with one scale a row."""

    rows: torch.Tensor
    scales: torch.Tensor


def to_int4(weight: torch.Tensor) -> Int4:
    """Put each group of 32 on fifteen even steps from its smallest to its largest entry."""
    out, size = weight.shape
    groups = weight.float().view(out, size // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-8) / 15
    steps = torch.round((groups - low) / scale).clamp(0, 15).to(torch.int32).view(out, size)
    zero = low + 8 * scale  # torch counts the steps from -8
    pairs = torch.cat([scale, zero], dim=-1).transpose(0, 1).contiguous().bfloat16()
    return Int4(torch._convert_weight_to_int4pack_for_cpu(steps, 1), pairs)


def to_int8(weight: torch.Tensor) -> Int8:
    """Put each row on 255 even steps around 0."""
    scale = weight.float().abs().amax(1) / 127
    return Int8(torch.round(weight.float() / scale[:, None]).to(torch.int8), scale.bfloat16())


def apply_quantized(x: torch.Tensor, weight: Int4 | Int8) -> torch.Tensor:
    """Return ``x @ weight.T`` for bfloat16 x."""
    if isinstance(weight, Int8):
        return torch._weight_int8pack_mm(x, weight.rows, weight.scales)
    return torch._weight_int4pack_mm_for_cpu(x, weight.packed, GROUP, weight.scales_and_zeros)


def int4_products() -> tuple[Callable[[torch.Tensor], Int4], Callable[..., torch.Tensor]]:
    """Return (prepare, apply) of four-bit products, tried once on a small one.

    Raises:
        ValueError: they do not run here, or are far from plain ones.
    """
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 64, generator=generator), torch.randn(3, 64, generator=generator)
    try:
        found = apply_quantized(x.bfloat16(), to_int4(weight)).float()
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"quantization: 'int4', expected None: {error}") from error
    if not (found - F.linear(x, weight)).abs().max() < 2.5:  # half a step is 0.15 an entry
        raise ValueError("quantization: 'int4', expected None: torch's product is wrong here")
    return to_int4, apply_quantized
