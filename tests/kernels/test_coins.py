"""Coins: Philox 4x32-10 keyed by request, step, position and purpose, bit for bit everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from engine_cases import atlas
from hypothesis import given
from hypothesis import strategies as st

from specedu.kernels import Purpose, coins, exponential, uniform

SEEDS = [0, 1, 7, -1, 2**31, 2**32, 2**53 + 1, 0x0123456789ABCDEF, 2**63 - 1, -(2**63)]


# --- the plain Python that all versions are held against ------------------------------------------


def plain_philox(seed: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 in Python integers, written from the paper's definition."""
    word = 2**32 - 1
    key = [seed & word, (seed >> 32) & word]
    c = list(counter)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ key[0],
            second & word,
            (first >> 32) ^ c[3] ^ key[1],
            first & word,
        ]
        key = [(key[0] + 0x9E3779B9) & word, (key[1] + 0xBB67AE85) & word]
    return tuple(c)


def plain_coin(seed: int, step: int, position: int, purpose: int) -> float:
    a, b, _, _ = plain_philox(seed, (step, position, purpose, 0))
    return ((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53


def plain_exponential(seed: int, step: int, position: int, purpose: int, token: int) -> float:
    k = plain_philox(seed, (step, position, purpose, token))[0]
    value = -math.log(1 - (k + 0.5) * 2.0**-32)
    return torch.tensor(value, dtype=torch.float64).float().item()


def keys(*rows: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seeds, steps, positions = zip(*rows, strict=True)
    return (
        torch.tensor(seeds),
        torch.tensor(steps, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
    )


# Random123's kat_vectors, philox 4x32 with 10 rounds: (counter, key) -> words.
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "seed", "words"), KNOWN)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], seed: int, words: tuple[int, ...]
) -> None:
    assert plain_philox(seed, counter) == words
    assert tuple(int(w) for w in coins.philox(torch.tensor(seed), counter)) == words


# --- every version, bit for bit -------------------------------------------------------------------


@pytest.mark.parametrize("purpose", list(Purpose))
def test_uniform_is_the_plain_python_coin(backend: str, purpose: Purpose) -> None:
    rows = [(seed, step, position) for seed in SEEDS for step, position in
            [(0, 0), (1, 0), (0, 1), (5, 1234), (2**31 - 1, 2**31 - 1)]]  # fmt: skip
    drawn = uniform(*keys(*rows), purpose, backend=backend)
    assert drawn.dtype == torch.float64
    assert drawn.tolist() == [plain_coin(*row, purpose) for row in rows]


@pytest.mark.parametrize("vocab", [1, 5, 1500])
def test_exponential_is_the_plain_python_noise(backend: str, vocab: int) -> None:
    rows = [(seed, i, 3 * i) for i, seed in enumerate(SEEDS)]
    noise = exponential(*keys(*rows), vocab, backend=backend)
    assert (noise.dtype, noise.shape) == (torch.float32, (len(rows), vocab))
    expected = [[plain_exponential(*row, Purpose.NOISE, t) for t in range(vocab)] for row in rows]
    assert torch.equal(noise, torch.tensor(expected))


def test_interpreter_and_twin_agree_on_a_large_row() -> None:
    """A vocabulary of 128256; each float32 value rounds a float64 logarithm."""
    key = keys((SEEDS[7], 3, 99))
    twin, kernel = (exponential(*key, 128256, backend=b) for b in ("torch", "triton"))
    assert torch.equal(twin, kernel)


# --- range ----------------------------------------------------------------------------------------


def test_no_coin_is_one() -> None:
    largest = torch.tensor(2**32 - 1)
    assert coins._coin(largest, largest).item() == 1 - 2**-53
    assert coins._coin(torch.tensor(0), torch.tensor(0)).item() == 0


def test_no_noise_is_zero_or_infinite() -> None:
    ends = coins._exponential(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert torch.isfinite(ends).all()
    assert ends[0].item() == pytest.approx(2.0**-33, rel=1e-6)
    assert ends[-1].item() == pytest.approx(33 * math.log(2), rel=1e-6)
    assert torch.equal(ends, ends.sort().values)


def test_small_noise_is_fine_grained() -> None:
    # With 24 random bits the smallest values would be multiples of 2**-24.
    smallest = coins._exponential(torch.arange(256))
    assert len(smallest.unique()) == 256
    assert smallest.max().item() < 2.0**-23


# --- what a coin depends on -----------------------------------------------------------------------


def test_every_coordinate_of_the_key_matters(backend: str) -> None:
    here = (7, 3, 12)
    others = [(8, 3, 12), (7 + 2**32, 3, 12), (7, 4, 12), (7, 3, 13), (7, 12, 3)]
    first, *rest = uniform(*keys(here, *others), Purpose.ACCEPT, backend=backend).tolist()
    assert first not in rest
    of_purposes = [uniform(*keys(here), p, backend=backend).item() for p in Purpose]
    assert len(set(of_purposes)) == len(Purpose)


@atlas("B32")
def test_seeds_that_float32_would_merge_give_different_coins(backend: str, atlas_row: str) -> None:
    a, b = uniform(*keys((16_777_216, 0, 0), (16_777_217, 0, 0)), Purpose.ACCEPT, backend=backend)
    assert a != b


@atlas("B31")
def test_draft_and_final_noise_share_no_value(backend: str, atlas_row: str) -> None:
    draft, final = (
        exponential(*keys((7, 0, 5)), 64, purpose=purpose, backend=backend)
        for purpose in (Purpose.DRAFT, Purpose.NOISE)
    )
    assert not (draft == final).any()


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1),
                          st.integers(0, 2**31 - 1)), min_size=1, max_size=8))  # fmt: skip
def test_a_coin_is_the_same_alone_in_any_row_and_in_any_order(
    rows: list[tuple[int, int, int]],
) -> None:
    together = uniform(*keys(*rows), Purpose.FINAL).tolist()
    backwards = uniform(*keys(*rows[::-1]), Purpose.FINAL).tolist()
    alone = [uniform(*keys(row), Purpose.FINAL).item() for row in rows]
    assert together == alone == backwards[::-1]


def test_noise_is_the_same_alone_and_in_any_row(backend: str) -> None:
    rows = [(7, 0, 5), (-9, 2, 5), (2**40, 1, 0)]
    together = exponential(*keys(*rows), 33, backend=backend)
    for i, row in enumerate(rows):
        assert torch.equal(together[i : i + 1], exponential(*keys(row), 33, backend=backend))
    assert torch.equal(together[:, :9], exponential(*keys(*rows), 9, backend=backend))


def test_no_request_draws_nothing(backend: str) -> None:
    none = torch.empty(0, dtype=torch.int64), *[torch.empty(0, dtype=torch.int32)] * 2
    assert uniform(*none, Purpose.ACCEPT, backend=backend).shape == (0,)
    assert exponential(*none, 5, backend=backend).shape == (0, 5)


def test_coins_and_noise_have_the_right_mean() -> None:
    """20 000 draws; six standard errors: a false alarm has a chance below 4e-9 for the two."""
    rows = [(7, i // 100, i % 100) for i in range(20_000)]
    drawn = uniform(*keys(*rows), Purpose.ACCEPT)
    assert abs(drawn.mean().item() - 0.5) < 6 * math.sqrt(1 / 12 / 20_000)
    noise = exponential(*keys((7, 0, 0)), 20_000)
    assert abs(noise.double().mean().item() - 1) < 6 * math.sqrt(1 / 20_000)


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": torch.tensor([7], dtype=torch.int32)}, "seeds: dtype torch.int32, expected"),
        ({"seeds": torch.tensor(7)}, "seeds: expected a 1-D torch.Tensor"),
        ({"steps": torch.tensor([0])}, "steps: dtype torch.int64, expected int32"),
        ({"steps": torch.tensor([-1], dtype=torch.int32)}, r"steps\[0\]: -1, expected at least 0"),
        (
            {"positions": torch.tensor([-4], dtype=torch.int32)},
            r"positions\[0\]: -4, expected at least 0",
        ),
        (
            {"positions": torch.tensor([0, 0], dtype=torch.int32)},
            r"positions: shape \(2,\), expected \(n,\) = \(1,\)",
        ),
        ({"purpose": 9}, "purpose: 9, expected one of Purpose.DRAFT, Purpose.ACCEPT"),
    ],
)
def test_a_refusal_names_the_argument_the_value_and_the_range(changes: dict, message: str) -> None:
    seeds, steps, positions = keys((7, 0, 0))
    arguments = {"seeds": seeds, "steps": steps, "positions": positions, "purpose": Purpose.FINAL}
    uniform(**arguments)
    with pytest.raises(ValueError, match=message):
        uniform(**{**arguments, **changes})


@pytest.mark.parametrize("vocab", [0, -1, True, 2.0])
def test_an_illegal_vocabulary_is_refused(vocab: object) -> None:
    with pytest.raises(ValueError, match=f"vocab: {vocab}, expected an int of at least 1"):
        exponential(*keys((7, 0, 0)), vocab)
