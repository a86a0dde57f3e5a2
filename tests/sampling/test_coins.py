from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specedu.kernels import Purpose, uniform
from specedu.sampling.coins import CoinKey, PhiloxCoins

exact = settings(max_examples=100, deadline=None, derandomize=True)

keys = st.builds(
    CoinKey,
    request_id=st.text(max_size=3),
    seed=st.integers(-(2**63), 2**63 - 1),
    step=st.integers(0, 2**31 - 1),
    position=st.integers(0, 2**31 - 1),
)
purposes = st.sampled_from(list(Purpose))


def coin(purpose: Purpose = Purpose.ACCEPT, **changes: int | str) -> float:
    key = CoinKey(**{"request_id": "a", "seed": 7, "step": 3, "position": 12} | changes)
    return PhiloxCoins().coins([key], purpose).item()


@exact
@given(keys, purposes)
def test_a_coin_is_the_kernels_of_seed_step_and_position(key: CoinKey, purpose: Purpose) -> None:
    step, position = (torch.tensor([n], dtype=torch.int32) for n in (key.step, key.position))
    wanted = uniform(torch.tensor([key.seed]), step, position, purpose)
    assert torch.equal(PhiloxCoins().coins([key], purpose), wanted)


@exact
@given(st.lists(keys, max_size=8), purposes)
def test_a_coin_is_the_same_alone_and_in_any_batch(batch: list[CoinKey], purpose: Purpose) -> None:
    together = PhiloxCoins().coins(batch, purpose).tolist()
    assert together == [PhiloxCoins().coins([key], purpose).item() for key in batch]


@exact
@given(st.lists(keys, min_size=1, max_size=8), purposes, st.randoms(use_true_random=False))
def test_coins_follow_their_keys_when_the_batch_is_reordered(
    batch: list[CoinKey], purpose: Purpose, dice: random.Random
) -> None:
    before = PhiloxCoins().coins(batch, purpose).tolist()
    order = dice.sample(range(len(batch)), len(batch))
    after = PhiloxCoins().coins([batch[i] for i in order], purpose).tolist()
    assert after == [before[i] for i in order]


def test_the_name_of_a_request_is_not_in_its_coins() -> None:
    assert coin(request_id="a") == coin(request_id="another")


@pytest.mark.parametrize("part", ["seed", "step", "position"])
def test_every_other_part_of_the_key_is(part: str) -> None:
    assert len({coin(**{part: value}) for value in range(100)}) == 100


def test_purposes_share_no_coin() -> None:
    assert len({coin(purpose) for purpose in Purpose}) == len(Purpose)


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = [0, *(1 << bit for bit in range(63)), -(2**63)]
    assert len({coin(seed=seed) for seed in seeds}) == 65


def test_asking_twice_gives_the_same_coin() -> None:
    source, key = PhiloxCoins(), CoinKey("a", 1, 0, 5)
    first = source.coins([key], Purpose.DRAFT)
    source.coins([CoinKey("b", 2, 0, 6)], Purpose.DRAFT)
    assert torch.equal(source.coins([key], Purpose.DRAFT), first)


@exact
@given(st.lists(keys, max_size=8), purposes)
def test_coins_are_float64_in_zero_to_one(batch: list[CoinKey], purpose: Purpose) -> None:
    coins = PhiloxCoins().coins(batch, purpose)
    assert coins.dtype == torch.float64
    assert coins.shape == (len(batch),)
    assert ((coins >= 0) & (coins < 1)).all()
