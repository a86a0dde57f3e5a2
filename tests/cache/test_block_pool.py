from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedu.cache.block_pool import BlockPool


def state(pool: BlockPool) -> tuple[int, int, list[int]]:
    return pool.num_free, pool.num_used, list(pool.ref_counts)


def test_a_new_pool_is_free() -> None:
    assert state(BlockPool(3)) == (3, 0, [0, 0, 0])


def test_an_allocated_block_has_one_owner() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    assert state(pool) == (1, 2, [1, 1, 0])


def test_all_blocks_can_be_allocated() -> None:
    pool = BlockPool(3)
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    assert state(pool) == (0, 3, [1, 1, 1])


def test_allocating_nothing_changes_nothing() -> None:
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert state(pool) == (2, 0, [0, 0])


def test_more_blocks_than_are_free_are_refused_and_none_is_handed_out() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(ValueError, match="^count: 3 blocks, expected at most the 2 free"):
        pool.allocate(3)
    assert state(pool) == (2, 1, [1, 0, 0])


def test_a_freed_block_is_handed_out_last() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    pool.free([2, 0])
    assert pool.allocate(3) == [3, 2, 0]


@pytest.mark.parametrize("num_blocks", [0, -1, 1.5])
def test_a_pool_without_blocks_is_refused(num_blocks: object) -> None:
    with pytest.raises(ValueError, match=f"^num_blocks: {num_blocks}, expected an int of at least"):
        BlockPool(num_blocks)


# --- owners ---------------------------------------------------------------------------------------


def test_a_block_of_two_owners_is_free_once_both_have_given_it_back() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.ref_counts[block] += 1
    assert state(pool) == (1, 1, [2, 0])
    pool.free([block])
    assert state(pool) == (1, 1, [1, 0])
    pool.free([block])
    assert state(pool) == (2, 0, [0, 0])


@pytest.mark.parametrize(
    "freed",
    [
        pytest.param([0, 0], id="twice-at-once"),
        pytest.param([0, 1, 0], id="twice-among-others"),
        pytest.param([2], id="never-allocated"),
        pytest.param([3], id="behind-the-pool"),
        pytest.param([-1], id="padding"),
        pytest.param([-3], id="padding-that-wraps-to-an-owned-block"),
    ],
)
def test_freeing_a_block_without_owner_is_refused(freed: list[int]) -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(ValueError, match=f"^blocks: {freed[-1]} has no owner, expected an alloc"):
        pool.free(freed)
    pool.check()


def test_freeing_a_block_a_second_time_does_not_take_it_from_its_new_owner_unnoticed() -> None:
    pool = BlockPool(1)
    pool.free(pool.allocate(1))
    with pytest.raises(ValueError, match="^blocks: 0 has no owner"):
        pool.free([0])
    assert state(pool) == (1, 0, [0])


def test_the_blocks_before_a_refused_one_are_freed() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(ValueError, match="^blocks: 2 has no owner"):
        pool.free([1, 2, 0])
    assert state(pool) == (2, 1, [1, 0, 0])


# --- balance --------------------------------------------------------------------------------------


# An operation is a number: allocate that many, or, where it is negative, give an allocation back.
@given(st.integers(1, 12), st.lists(st.integers(-4, 4), max_size=40))
def test_the_pool_balances_after_any_sequence_of_steps(
    num_blocks: int, operations: list[int]
) -> None:
    pool, held = BlockPool(num_blocks), []
    for operation in operations:
        if operation < 0 and held:
            pool.free(held.pop(operation % len(held)))
        elif operation > pool.num_free:
            with pytest.raises(ValueError, match="^count"):
                pool.allocate(operation)
        elif operation >= 0:
            held.append(pool.allocate(operation))
        owners = Counter(block for blocks in held for block in blocks)
        assert max(owners.values(), default=1) == 1
        assert state(pool) == (
            num_blocks - len(owners),
            len(owners),
            [owners[block] for block in range(num_blocks)],
        )
        pool.check()


@given(st.integers(1, 8), st.lists(st.integers(0, 3), max_size=12))
def test_a_pool_is_whole_again_once_everything_is_given_back(
    num_blocks: int, counts: list[int]
) -> None:
    pool = BlockPool(num_blocks)
    held = [pool.allocate(min(count, pool.num_free)) for count in counts]
    for blocks in held:
        pool.free(blocks)
    assert sorted(pool.allocate(num_blocks)) == [*range(num_blocks)]


def tampered(num_blocks: int = 3) -> BlockPool:
    pool = BlockPool(num_blocks)
    pool.allocate(2)
    pool.check()
    return pool


def test_check_trips_on_a_negative_count() -> None:
    pool = tampered()
    pool.ref_counts[0] = -1
    with pytest.raises(AssertionError, match=r"\[-1, 1, 0\]"):
        pool.check()


def test_check_trips_on_a_free_block_with_an_owner() -> None:
    pool = tampered()
    pool.ref_counts[2] = 1
    pool.ref_counts[0] = 0  # so that free and used still add up
    with pytest.raises(AssertionError, match="a free block has an owner"):
        pool.check()


def test_check_trips_on_a_lost_block() -> None:
    pool = tampered()
    pool.ref_counts[0] = 0
    with pytest.raises(AssertionError, match=r"\(1, 1\)"):
        pool.check()
