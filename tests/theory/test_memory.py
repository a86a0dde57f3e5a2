"""Slots reserved for drafts, and the requests that fit beside the weights."""

from __future__ import annotations

import pytest

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams, SchedulerConfig
from specedu.outputs import deliver
from specedu.request import Request
from specedu.scheduler import Scheduler
from specedu.theory.cost import LLAMA_3_8B, SMOLLM2_135M, kv_bytes_per_token, stored_params
from specedu.theory.memory import POLICIES, max_concurrency, reserved_bytes, reserved_slots


def test_three_drafts_take_eight_slots_where_steps_are_prepared_ahead() -> None:
    assert [reserved_slots(3, policy) for policy in POLICIES] == [1, 4, 7, 8]


def test_64_requests_reserve_64_mib_instead_of_8() -> None:
    assert reserved_bytes(LLAMA_3_8B, 64, 3, "double buffer") == 64 * 2**20
    assert reserved_bytes(LLAMA_3_8B, 64, 3, "plain") == 8 * 2**20


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_the_engine_reserves_window_and_lookahead(method: str) -> None:
    kappa = 3
    behind = kappa if method == "draft_model" else 0
    config = SchedulerConfig(1, 64, num_lookahead_tokens=behind)
    scheduler, pool = Scheduler(config), BlockPool(64)
    request = Request("a", [0] * 9, SamplingParams(), 0, BlockTable(pool, 1))
    scheduler.add(request)
    plan = scheduler.schedule()
    delivered = deliver(request, [0], eos_token_id=None, max_model_len=config.max_model_len)
    scheduler.update(plan, [0], [delivered])
    request.num_draft_tokens = kappa
    held = request.num_computed_tokens
    scheduler.schedule()
    policy = "lookahead" if behind else "window"
    assert len(request.table.blocks) - held == reserved_slots(kappa, policy)


@pytest.mark.parametrize("block_size", [1, 16])
def test_what_fits_fits_and_one_more_does_not(block_size: int) -> None:
    memory, length = 2e9, 300
    fit = max_concurrency(SMOLLM2_135M, memory, length, 5, "window", block_size=block_size)
    slots = -(-(length + 5) // block_size) * block_size
    each = slots * kv_bytes_per_token(SMOLLM2_135M)
    left = memory - 2 * stored_params(SMOLLM2_135M)
    assert fit * each <= left < (fit + 1) * each


def test_more_drafts_never_make_room() -> None:
    fits = [max_concurrency(LLAMA_3_8B, 72e9, 512, k, "double buffer") for k in range(9)]
    assert fits == sorted(fits, reverse=True) and fits[0] > fits[-1]


def test_a_draft_models_weights_and_cache_count() -> None:
    alone = max_concurrency(LLAMA_3_8B, 72e9, 512, 3, "window")
    weights = max_concurrency(LLAMA_3_8B, 72e9, 512, 3, "window", other_weights=2.5e9)
    both = max_concurrency(
        LLAMA_3_8B, 72e9, 512, 3, "lookahead", other_weights=2.5e9, other_bytes_per_token=32768
    )
    assert both < weights < alone


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reserved_slots(-1), "kappa: -1, expected at least 0"),
        (lambda: reserved_slots(3, "all"), "policy: 'all', expected one of plain, window"),
        (lambda: reserved_bytes(LLAMA_3_8B, -1, 3), "requests: -1, expected at least 0"),
        (lambda: max_concurrency(LLAMA_3_8B, 72e9, 0), "length: 0, expected at least 1"),
        (
            lambda: max_concurrency(LLAMA_3_8B, 72e9, 5, block_size=0),
            "block_size: 0, expected at least 1",
        ),
        (lambda: max_concurrency(LLAMA_3_8B, 1e9, 5), "memory: 1000000000.0, expected at least"),
    ],
)
def test_what_is_out_of_range_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
