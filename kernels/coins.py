"""Coins: every random number is a pure function of a request's seed and of what it is drawn for.

Philox 4x32-10 turns a key and a counter into four words of 32 bits. The key is the request's 64-bit
seed; the counter is (step, position, purpose, index). There is no state: a coin is the same alone,
in any batch, row or chunk, whatever was drawn before, and a request that drafts nothing uses none.

``step`` counts the request's own verify steps. It is in the counter because block verification
looks at coins behind the accepted length: keyed by position alone, the next step would see them
again.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
doi:10.1145/2063384.2063405; constants and known answers from Random123's kat_vectors.
"""

from __future__ import annotations

from enum import IntEnum

import torch

from . import checks
from .backend import jit, pick, tile_width, tl


class Purpose(IntEnum):
    """What a coin is for; coins of different purposes share no counter."""

    DRAFT = 0
    ACCEPT = 1
    FINAL = 2
    NOISE = 3


def uniform(
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    purpose: Purpose,
    *,
    backend: str | None = None,
    check: bool | None = None,
) -> torch.Tensor:
    """Return one coin in [0, 1) for each (seed, step, position), 53 bits of it random.

    The first two words a, b of the counter (step, position, purpose, 0) give
    ``((a >> 5)·2**26 + (b >> 6))·2**-53``: every multiple of 2**-53 in [0, 1), never 1.0.

    Args:
        seeds: int64 ``[n]``; all 64 bits count.
        steps: int32 ``[n]``, at least 0; how many verifies the request had before.
        positions: int32 ``[n]``, at least 0; the token's absolute index in its request.
        purpose: what the coins are for.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        float64 ``[n]``.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> int32 = lambda i: torch.tensor([i], dtype=torch.int32)
        >>> uniform(torch.tensor([7]), int32(0), int32(12), Purpose.ACCEPT).item()
        0.635929672268364

    Book: eq-coin.
    """
    _check(seeds, steps, positions, purpose, check)
    n, device = len(seeds), seeds.device
    if pick(backend, device) == "torch":
        words = philox(seeds, (steps.long(), positions.long(), int(purpose), 0))
        return _coin(words[0], words[1])
    coins = torch.empty(n, dtype=torch.float64, device=device)
    if n:
        tile = tile_width(n, 1024)
        grid = (-(-n // tile),)
        _uniform_kernel[grid](
            coins, seeds, steps, positions, int(purpose), n, TILE=tile, enable_fp_fusion=False
        )
    return coins


def one_uniform(seed: int, step: int, position: int, purpose: Purpose) -> float:
    """Return one request's coin, the same as from ``uniform``, in plain ints: faster for a few.

    Example:
        >>> one_uniform(7, 0, 12, Purpose.ACCEPT)
        0.635929672268364
    """
    a, b, _, _ = philox(seed, (step, position, int(purpose), 0))
    return ((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53


def exponential(
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    vocab: int,
    *,
    purpose: Purpose = Purpose.NOISE,
    backend: str | None = None,
    check: bool | None = None,
) -> torch.Tensor:
    """Return a row of Exp(1) noise for each (seed, step, position): one entry a vocabulary id.

    The first word k of the counter (step, position, purpose, id) gives
    ``-log(1 - (k + 1/2)·2**-32)`` in float64, rounded to float32. The smallest entry is
    2**-33 and the largest 33·log 2 = 22.9: never 0 and never infinite. Thirty-two random bits
    matter because in a race the *small* values win, and 24 bits would make those coarse.

    Args:
        seeds: int64 ``[batch]``; all 64 bits count.
        steps: int32 ``[batch]``, at least 0.
        positions: int32 ``[batch]``, at least 0.
        vocab: how many ids a row has, at least 1.
        purpose: what the noise is for.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        float32 ``[batch, vocab]``.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> int32 = lambda i: torch.tensor([i], dtype=torch.int32)
        >>> noise = exponential(torch.tensor([7]), int32(0), int32(12), vocab=4)
        >>> noise.shape, bool((noise > 0).all())
        (torch.Size([1, 4]), True)

    Book: eq-exponential.
    """
    _check(seeds, steps, positions, purpose, check)
    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
        raise ValueError(f"vocab: {vocab!r}, expected an int of at least 1")
    batch, device = len(seeds), seeds.device
    noise = torch.empty(batch, vocab, dtype=torch.float32, device=device)
    if pick(backend, device) == "torch":
        ids = torch.arange(vocab, device=device)
        for r in range(batch):  # a row at a time: the rounds keep several int64 copies of it
            counter = (steps[r].long(), positions[r].long(), int(purpose), ids)
            noise[r] = _exponential(philox(seeds[r], counter)[0])
    elif batch:
        tile = tile_width(vocab, 1024)
        grid = (batch, -(-vocab // tile))
        _exponential_kernel[grid](
            noise, seeds, steps, positions, int(purpose), vocab, TILE=tile, enable_fp_fusion=False
        )
    return noise


def _check(
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    purpose: Purpose,
    check: bool | None,
) -> None:
    if not isinstance(seeds, torch.Tensor) or seeds.dim() != 1:
        raise ValueError("seeds: expected a 1-D torch.Tensor")
    n, device = len(seeds), seeds.device
    checks.expect("seeds", seeds, torch.int64, (n,), device, "(n,)")
    for name, words in (("steps", steps), ("positions", positions)):
        checks.expect(name, words, torch.int32, (n,), device, "(n,)")
        if checks.checks_values(check, device):
            checks.refuse(name, words, words < 0, "at least 0")
    if purpose not in list(Purpose):
        legal = ", ".join(f"Purpose.{known.name}" for known in Purpose)
        raise ValueError(f"purpose: {purpose!r}, expected one of {legal}")


# --- the twin: 32-bit words in int64 tensors, whose products wrap at 64 bits as Philox wants ------

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, as 32-bit fractions


def philox(
    seeds: torch.Tensor | int, counter: tuple[torch.Tensor | int, ...], rounds: int = 10
) -> tuple[torch.Tensor | int, ...]:
    """Return Philox 4x32's four words in [0, 2**32), for keys and counters that broadcast.

    Words of ints are ints, those of int64 tensors are int64 tensors.

    Example:
        >>> [f"{word:08x}" for word in philox(0, (0, 0, 0, 0))]
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    key0, key1 = seeds & _WORD, (seeds >> 32) & _WORD
    c0, c1, c2, c3 = (word & _WORD for word in counter)
    for _ in range(rounds):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) & _WORD) ^ c1 ^ key0
        c2 = ((product0 >> 32) & _WORD) ^ c3 ^ key1
        c1, c3 = product1 & _WORD, product0 & _WORD
        key0, key1 = (key0 + _KEY_STEPS[0]) & _WORD, (key1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _coin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a >> 5) * 2**26 + (b >> 6)).double() * 2.0**-53


def _exponential(k: torch.Tensor) -> torch.Tensor:
    return (-torch.log(1.0 - (k.double() + 0.5) * 2.0**-32)).float()


# --- the kernels ----------------------------------------------------------------------------------


@jit
def philox_coin(seed, step, position, purpose):
    """Return the coin in [0, 1) of a key and a counter, float64."""
    zero = step * 0
    a, b, _, _ = tl.philox(seed, step, position, zero + purpose, zero)
    high = (a >> 5).to(tl.float64) * 67108864.0  # 2**26
    return (high + (b >> 6).to(tl.float64)) * 1.1102230246251565e-16  # 2**-53


@jit
def philox_noise(seed, step, position, purpose, ids):
    """Return the Exp(1) noise of a tile of ids, float32."""
    zero = ids * 0
    k, _, _, _ = tl.philox(seed, zero + step, zero + position, zero + purpose, ids)
    half_open = 1.0 - (k.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2**-32
    return (-tl.log(half_open)).to(tl.float32)


@jit
def _uniform_kernel(coins, seeds, steps, positions, purpose, n, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    seed = tl.load(seeds + i, mask=inside, other=0)
    step = tl.load(steps + i, mask=inside, other=0)
    position = tl.load(positions + i, mask=inside, other=0)
    tl.store(coins + i, philox_coin(seed, step, position, purpose), mask=inside)


@jit
def _exponential_kernel(noise, seeds, steps, positions, purpose, vocab, TILE: tl.constexpr):
    row = tl.program_id(0)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = ids < vocab
    seed, step, position = tl.load(seeds + row), tl.load(steps + row), tl.load(positions + row)
    value = philox_noise(seed, step, position, purpose, ids)
    tl.store(noise + row.to(tl.int64) * vocab + ids, value, mask=inside)
