from __future__ import annotations

import pytest
from engine_cases import atlas
from hypothesis import given
from hypothesis import strategies as st

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams, SchedulerConfig
from specedu.request import Request
from specedu.scheduler import Scheduler


def table_of(num_tokens: int, block_size: int, num_blocks: int = 64) -> BlockTable:
    table = BlockTable(BlockPool(num_blocks), block_size)
    table.reserve(num_tokens)
    return table


# --- room -----------------------------------------------------------------------------------------


@atlas("B90")
@pytest.mark.parametrize(("length", "new", "needed"), [(7, 6, 2), (8, 9, 3), (5, 3, 0)])
def test_room_is_counted_for_every_new_token(
    length: int, new: int, needed: int, atlas_row: str
) -> None:
    table = table_of(length, block_size=4)
    assert table.blocks_needed(length + new) == needed


@atlas("B90")
@pytest.mark.parametrize(("length", "new", "needed"), [(7, 6, 2), (8, 9, 3), (5, 3, 0)])
def test_reserve_takes_what_is_needed(length: int, new: int, needed: int, atlas_row: str) -> None:
    table = table_of(length, block_size=4)
    before = list(table.blocks)
    table.reserve(length + new)
    assert table.blocks[: len(before)] == before
    assert len(table.blocks) == len(before) + needed


@given(st.integers(1, 5), st.integers(0, 20), st.integers(0, 20))
def test_blocks_needed_agrees_with_counting_slots(block_size: int, held: int, tokens: int) -> None:
    table = table_of(held, block_size)
    slots = len(table.blocks) * block_size
    by_loop = 0
    while slots < tokens:
        slots, by_loop = slots + block_size, by_loop + 1
    assert table.blocks_needed(tokens) == by_loop


def test_a_table_never_shrinks_by_reserving_less() -> None:
    table = table_of(7, block_size=2)
    before = list(table.blocks)
    table.reserve(1)
    assert (table.blocks_needed(1), table.blocks) == (0, before)


def test_a_reservation_that_the_pool_cannot_serve_is_refused_and_changes_nothing() -> None:
    table = table_of(2, block_size=2, num_blocks=2)
    with pytest.raises(ValueError, match="^count: 2 blocks, expected at most the 1 free"):
        table.reserve(5)
    assert (table.blocks, table.pool.num_free) == ([0], 1)


@atlas("B87")
def test_a_reservation_is_recorded_in_whole_blocks_and_all_of_them_return(atlas_row: str) -> None:
    table = table_of(29, block_size=16, num_blocks=4)
    table.reserve(29 + 8)
    assert len(table.blocks) * table.block_size == 48
    assert table.pool.num_free == 1
    table.release()
    assert table.pool.num_free == 4


@atlas("B89")
def test_a_table_may_be_released_twice(atlas_row: str) -> None:
    table = table_of(4, block_size=2)
    table.release()
    table.release()
    assert (table.blocks, table.pool.num_free) == ([], 64)


def test_a_released_table_leaves_the_list_that_others_hold() -> None:
    table = table_of(4, block_size=2)
    held = table.blocks
    table.release()
    assert held == [0, 1]


def scheduled(prompt: int, block_size: int, lookahead: int, max_model_len: int = 64) -> Request:
    """Return a request whose whole prompt has just been scheduled."""
    config = SchedulerConfig(num_lookahead_tokens=lookahead, max_model_len=max_model_len)
    table = BlockTable(BlockPool(64), block_size)
    request = Request("a", [0] * prompt, SamplingParams(), 0, table)
    scheduler = Scheduler(config)
    scheduler.add(request)
    scheduler.schedule()
    return request


@atlas("B91")
def test_the_slots_that_the_drafter_writes_are_reserved_before_it_drafts(atlas_row: str) -> None:
    request = scheduled(14, block_size=16, lookahead=4)
    assert len(request.table.blocks) == 2
    assert request.table.slots(14, 18)[2:] == [request.table.blocks[1] * 16 + i for i in range(2)]


@atlas("B91")
def test_without_look_ahead_the_fed_tokens_alone_are_reserved(atlas_row: str) -> None:
    assert len(scheduled(14, block_size=16, lookahead=0).table.blocks) == 1


def test_nothing_is_reserved_behind_the_end_of_the_context() -> None:
    request = scheduled(14, block_size=16, lookahead=4, max_model_len=16)
    assert len(request.table.blocks) == 1


# --- slots ----------------------------------------------------------------------------------------


@atlas("B78")
def test_the_slots_of_drafts_follow_the_table_across_a_block_edge(atlas_row: str) -> None:
    table = BlockTable(BlockPool(10), block_size=2)
    table.blocks = [7, 2, 9]
    assert table.slots(3, 6) == [5, 18, 19]


@given(st.integers(1, 4), st.permutations(range(6)), st.integers(0, 5), st.integers(0, 12))
def test_slots_agree_with_a_list_of_all_slots(
    block_size: int, blocks: list[int], start: int, length: int
) -> None:
    table = BlockTable(BlockPool(6), block_size)
    table.blocks = blocks
    all_slots = [block * block_size + i for block in blocks for i in range(block_size)]
    end = min(start + length, len(all_slots))
    assert table.slots(start, end) == all_slots[start:end]


def test_no_positions_have_no_slots() -> None:
    assert table_of(4, block_size=2).slots(2, 2) == []


@pytest.mark.parametrize(("start", "end"), [(3, 5), (4, 5)], ids=["crosses-the-end", "behind"])
def test_a_position_behind_the_table_is_refused(start: int, end: int) -> None:
    with pytest.raises(IndexError):
        table_of(4, block_size=2).slots(start, end)


# --- balance --------------------------------------------------------------------------------------


# An operation is a table and the length that it wants; a length of 0 releases it.
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40),
)
def test_the_pool_balances_after_any_sequence_of_reservations(
    block_size: int, operations: list[tuple[int, int]]
) -> None:
    pool = BlockPool(12)
    tables = [BlockTable(pool, block_size) for _ in range(4)]
    for which, length in operations:
        table, before = tables[which], list(tables[which].blocks)
        if length == 0:
            table.release()
            assert table.blocks == []
        elif table.blocks_needed(length) > pool.num_free:
            with pytest.raises(ValueError, match="^count"):
                table.reserve(length)
            assert table.blocks == before
        else:
            table.reserve(length)
            assert table.blocks[: len(before)] == before
            assert table.blocks_needed(length) == 0
        owned = [block for table in tables for block in table.blocks]
        assert len(owned) == len(set(owned)) == pool.num_used
        pool.check()
    for table in tables:
        table.release()
    assert pool.num_free == 12
