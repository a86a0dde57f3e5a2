from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_cases import atlas

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams
from specedu.request import Request, Status

PROMPT = [4, 5, 6]
BLOCK_SIZE = 2
MAX_MODEL_LEN = 8


def waiting(pool: BlockPool | None = None) -> Request:
    table = BlockTable(pool or BlockPool(8), BLOCK_SIZE)
    return Request("a", PROMPT, SamplingParams(max_tokens=4), 0, table)


def running(computed: int, output: tuple[int, ...] = (), pool: BlockPool | None = None) -> Request:
    """Return a request in the cache with ``computed`` of its tokens."""
    request = waiting(pool)
    request.status = Status.RUNNING
    request.token_ids += output
    request.num_computed_tokens = computed
    request.table.reserve(max(computed, 1))
    return request


def ended(pool: BlockPool | None = None) -> Request:
    request = running(4, (7, 8), pool)
    request.num_draft_tokens = 2
    request.finish("stop", 8)
    return request


# --- what a request says of itself ----------------------------------------------------------------


def test_a_new_request_waits_with_nothing_computed() -> None:
    request = waiting()
    assert (request.status, request.num_computed_tokens) == (Status.WAITING, 0)
    assert (request.table.blocks, request.step, request.finish_reason) == ([], 0, None)


def test_the_output_is_what_stands_behind_the_prompt() -> None:
    request = running(4, (7, 8))
    assert (request.num_tokens, request.num_output_tokens) == (5, 2)
    assert request.output_token_ids == [7, 8]


def test_a_request_copies_its_prompt() -> None:
    prompt = [1, 2]
    request = Request("a", prompt, SamplingParams(), 0, BlockTable(BlockPool(1), 1))
    request.token_ids.append(3)
    assert prompt == [1, 2]


def preempted(output: tuple[int, ...] = ()) -> Request:
    request = running(3 + len(output) - bool(output), output)
    request.preempt()
    return request


def resumed(computed: int, output: tuple[int, ...]) -> Request:
    request = preempted(output)
    request.status = Status.RUNNING
    request.num_computed_tokens = computed
    request.table.reserve(computed)
    return request


@pytest.mark.parametrize(
    ("request_in_phase", "prefill_end", "decoding"),
    [
        pytest.param(waiting, 3, False, id="waiting"),
        pytest.param(lambda: running(2), 3, False, id="prompt-in-part"),
        pytest.param(lambda: running(3), 3, False, id="prompt-whole-and-nothing-sampled"),
        pytest.param(lambda: running(3, (7,)), 3, True, id="first-token"),
        pytest.param(lambda: running(4, (7, 8)), 4, True, id="decoding"),
        pytest.param(lambda: running(7, (7, 8)), 4, True, id="verify-under-way"),
        pytest.param(preempted, 3, False, id="preempted-in-the-prompt"),
        pytest.param(lambda: preempted((7, 8)), 4, False, id="preempted-with-an-output"),
        pytest.param(lambda: resumed(3, (7, 8)), 4, False, id="resumed-in-part"),
        pytest.param(lambda: resumed(4, (7, 8)), 4, True, id="resumed"),
    ],
)
def test_a_request_decodes_once_all_but_its_last_emitted_token_is_computed(
    request_in_phase: Callable[[], Request], prefill_end: int, decoding: bool
) -> None:
    request = request_in_phase()
    assert (request.prefill_end, request.decoding) == (prefill_end, decoding)


# --- its ends -------------------------------------------------------------------------------------


def test_an_ended_request_says_why_and_owns_nothing() -> None:
    request = ended()
    assert (request.status, request.finished) == (Status.FINISHED, True)
    assert (request.finish_reason, request.stop_reason) == ("stop", 8)
    assert (request.table.blocks, request.num_draft_tokens) == ([], 0)
    assert request.output_token_ids == [7, 8]


def test_only_an_ended_request_is_finished() -> None:
    assert [request.finished for request in (waiting(), running(3), preempted())] == [False] * 3


def test_a_second_end_changes_nothing() -> None:
    request = ended()
    request.finish("abort", None)
    assert (request.finish_reason, request.stop_reason) == ("stop", 8)


def test_a_preempted_request_keeps_tokens_and_step_and_loses_cache_and_drafts() -> None:
    request = running(4, (7, 8))
    request.step, request.num_draft_tokens = 2, 3
    request.preempt()
    assert (request.token_ids, request.step) == ([4, 5, 6, 7, 8], 2)
    assert (request.status, request.num_computed_tokens) == (Status.WAITING, 0)
    assert (request.table.blocks, request.num_draft_tokens) == ([], 0)
    assert request.num_preemptions == 1


RETURNS = {
    "finish-twice": ["finish", "finish"],
    "preempt-twice": ["preempt", "preempt"],
    "preempt-then-finish": ["preempt", "finish"],
    "finish-then-release": ["finish", "release"],
}


@atlas("B89")
@pytest.mark.parametrize("calls", RETURNS.values(), ids=RETURNS)
def test_each_block_is_returned_once(calls: list[str], atlas_row: str) -> None:
    # A neighbour takes the blocks between the two calls; the second must not take them from it.
    pool = BlockPool(2)
    request, neighbour = running(4, (7, 8), pool), BlockTable(pool, BLOCK_SIZE)
    blocks = list(request.table.blocks)
    returns = {
        "finish": lambda: request.finish("stop"),
        "preempt": request.preempt,
        "release": request.table.release,
    }
    returns[calls[0]]()
    neighbour.reserve(4)
    returns[calls[1]]()
    assert neighbour.blocks == blocks
    assert (pool.num_free, pool.ref_counts) == (0, [1, 1])


# --- the invariants -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_in_phase",
    [
        pytest.param(waiting, id="waiting"),
        pytest.param(lambda: running(0), id="admitted"),
        pytest.param(lambda: running(2), id="prompt-in-part"),
        pytest.param(lambda: running(3, (7,)), id="first-token"),
        pytest.param(lambda: running(4, (7, 8)), id="decoding"),
        pytest.param(lambda: preempted((7, 8)), id="preempted"),
        pytest.param(lambda: resumed(2, (7, 8)), id="resumed-in-part"),
        pytest.param(ended, id="ended"),
    ],
)
def test_the_invariants_hold_in_every_phase(request_in_phase: Callable[[], Request]) -> None:
    request_in_phase().check(MAX_MODEL_LEN)


def drafting() -> Request:
    request = running(4, (7, 8))
    request.num_draft_tokens = 2
    return request


def test_a_decoding_request_may_have_drafts() -> None:
    drafting().check(MAX_MODEL_LEN)


def roomy() -> Request:
    """Return a decoding request with more slots than it has tokens."""
    request = running(4, (7, 8))
    request.table.reserve(MAX_MODEL_LEN)
    return request


def full() -> Request:
    request = running(7, (7, 8, 9, 1, 2))
    request.params = SamplingParams(max_tokens=6)
    return request


def test_a_request_may_fill_the_context() -> None:
    full().check(MAX_MODEL_LEN)


# Each line of ``check`` is broken by one change to a request that passes it.
@pytest.mark.parametrize(
    ("request_in_phase", "change"),
    [
        pytest.param(lambda: running(0), {"num_computed_tokens": -1}, id="computed-negative"),
        pytest.param(roomy, {"num_computed_tokens": 6}, id="computed-past-the-text"),
        pytest.param(full, {"token_ids": [0] * 9, "num_computed_tokens": 8}, id="past-the-context"),
        pytest.param(waiting, {"token_ids": [4, 5]}, id="prompt-lost"),
        pytest.param(
            lambda: running(4, (7, 8)), {"params": SamplingParams(max_tokens=1)}, id="past-max"
        ),
        pytest.param(lambda: running(3), {"finish_reason": "stop"}, id="reason-and-no-end"),
        pytest.param(ended, {"finish_reason": None}, id="end-and-no-reason"),
        pytest.param(lambda: running(3), {"status": Status.WAITING}, id="waiting-owns-blocks"),
        pytest.param(
            lambda: running(3),
            {"status": Status.FINISHED, "finish_reason": "stop"},
            id="ended-owns-blocks",
        ),
        pytest.param(waiting, {"num_draft_tokens": 1}, id="waiting-has-drafts"),
        pytest.param(ended, {"num_draft_tokens": 1}, id="ended-has-drafts"),
        pytest.param(
            lambda: running(3),
            {"table": BlockTable(BlockPool(8), BLOCK_SIZE)},
            id="computed-without-blocks",
        ),
        pytest.param(lambda: running(2), {"num_draft_tokens": 1}, id="prompt-in-part-has-drafts"),
        pytest.param(lambda: running(3), {"num_draft_tokens": 1}, id="prompt-alone-has-drafts"),
        pytest.param(
            lambda: resumed(3, (7, 8)), {"num_draft_tokens": 1}, id="resumed-in-part-has-drafts"
        ),
        pytest.param(roomy, {"num_computed_tokens": 5}, id="last-token-computed-too"),
        pytest.param(roomy, {"num_computed_tokens": 3}, id="rolled-back-too-far"),
    ],
)
def test_check_trips(request_in_phase: Callable[[], Request], change: dict[str, object]) -> None:
    request = request_in_phase()
    request.check(MAX_MODEL_LEN)
    for name, value in change.items():
        setattr(request, name, value)
    with pytest.raises(AssertionError):
        request.check(MAX_MODEL_LEN)
