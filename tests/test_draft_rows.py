from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from specedu.draft_rows import (
    drop_rejected_rows,
    last_kept_rows,
    model_input_ids,
    next_tokens,
    stored_draft_rows,
)
from specedu.ragged import SpecDecodeMetadata, start_locations

# Every property here is exact, so a failure is never an alarm by chance; the examples are fixed.
exact = settings(max_examples=100, deadline=None, derandomize=True)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def atlas(row: str, *values: Any) -> Any:
    return pytest.param(*values, id=f"atlas-{row}")


def prefix_sum(counts: list[int]) -> torch.Tensor:
    return start_locations(torch.tensor(counts, dtype=torch.int64))[1:]


# --- stored_draft_rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("M03"))
def test_stored_rows_are_found_by_request_id(case: dict[str, Any]) -> None:
    given = case["input"]
    rows = stored_draft_rows(given["batch"], given["num_draft"], given["stored_order"])
    assert rows.tolist() == case["expect"]["rows"]


@pytest.mark.parametrize(
    ("batch", "drafts", "stored"), [atlas("B58", "AB", [2, 0], {"B": [], "A": [1, 2]})]
)
def test_stored_rows_follow_the_batch_and_not_the_dictionary(
    batch: str, drafts: list[int], stored: dict[str, list[int]]
) -> None:
    rows = stored_draft_rows(batch, drafts, list(stored)).tolist()
    assert [list(stored.values())[slot][place] for slot, place in rows] == stored["A"]


@pytest.mark.parametrize(("stored", "batch"), [atlas("B64", "ABC", "CA")])
def test_stored_q_rows_stay_with_their_request_after_reordering(stored: str, batch: str) -> None:
    q = torch.tensor([[[0.1, 0.9]], [[0.2, 0.8]], [[0.3, 0.7]]])  # [slot, place, vocab]
    slot, place = stored_draft_rows(batch, [1, 1], stored).unbind(1)
    assert torch.equal(q[slot, place], q[[2, 0], 0])


@exact
@given(st.data())
def test_stored_rows_agree_with_the_obvious_loop(data: st.DataObject) -> None:
    stored = data.draw(st.lists(st.integers(), unique=True, max_size=6))
    batch = data.draw(st.permutations(stored))[: data.draw(st.integers(0, len(stored)))]
    drafts = [data.draw(st.integers(0, 3)) for _ in batch]
    by_loop = [
        [stored.index(request), place]
        for request, n in zip(batch, drafts, strict=True)
        for place in range(n)
    ]
    assert stored_draft_rows(batch, drafts, stored).tolist() == by_loop


def test_a_request_without_drafts_need_not_be_stored() -> None:
    assert stored_draft_rows(["b", "a"], [0, 1], ["a"]).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("batch", "drafts", "stored", "words"),
    [
        pytest.param(
            ["a", "b"],
            [1, 2],
            ["a"],
            r"request_ids\[1\]: 'b' has 2 drafts and is not stored",
            id="missing",
        ),
        pytest.param(
            ["a", "a"], [1, 1], ["a"], r"request_ids\[1\]: 'a', .* once", id="batch-twice"
        ),
        pytest.param(
            ["a"], [1], ["b", "a", "a"], r"stored_request_ids\[2\]: 'a', .* once", id="stored-twice"
        ),
        pytest.param(
            ["a"], [-1], ["a"], r"num_draft_tokens\[0\]: -1, .* at least 0", id="negative"
        ),
        pytest.param(
            ["a"], [1, 1], ["a"], r"num_draft_tokens: 2 requests, expected 1", id="lengths"
        ),
    ],
)
def test_stored_rows_refuse(
    batch: list[str], drafts: list[int], stored: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        stored_draft_rows(batch, drafts, stored)


# --- next_tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("M04"))
def test_next_tokens_and_counts(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    sampled, backup = torch.tensor(given["sampled"]), torch.tensor(given["backup"])
    discarded = torch.zeros(len(backup), dtype=torch.bool)
    discarded[given["discarded"]] = True
    result = next_tokens(sampled, backup, discarded)
    assert (result.token_ids.tolist(), result.num_valid.tolist()) == (
        expect["next"],
        expect["counts"],
    )


def test_a_discarded_result_does_not_count_whatever_it_holds() -> None:
    result = next_tokens(torch.tensor([[5, 6]]), int32(9), torch.tensor([True]))
    assert (result.token_ids.tolist(), result.num_valid.tolist()) == ([9], [0])


def test_id_0_is_a_token() -> None:
    result = next_tokens(torch.tensor([[0, -1]]), int32(9), torch.tensor([False]))
    assert (result.token_ids.tolist(), result.num_valid.tolist()) == ([0], [1])


@pytest.mark.parametrize(
    ("sampled", "backup", "discarded", "words"),
    [
        pytest.param(
            [[1, -1], [-1, 2]],
            [8, 9],
            [False, False],
            r"sampled_token_ids\[1\]: \[-1, 2\], expected no id behind a -1",
            id="hole",
        ),
        pytest.param([1, 2], [8, 9], [False, False], r"sampled_token_ids: shape \(2,\)", id="1-d"),
        pytest.param(
            [[], []], [8, 9], [False, False], r"sampled_token_ids: shape \(2, 0\)", id="no-column"
        ),
        pytest.param(
            [[1], [2]],
            [8],
            [False, False],
            r"backup_token_ids: shape \(1,\), .* \(2,\)",
            id="backup",
        ),
        pytest.param(
            [[1], [2]], [8, 9], [False], r"discarded: shape \(1,\), .* \(2,\)", id="discarded"
        ),
    ],
)
def test_next_tokens_refuses(
    sampled: list[Any], backup: list[int], discarded: list[bool], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        next_tokens(torch.tensor(sampled), torch.tensor(backup), torch.tensor(discarded))


# --- drop_rejected_rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("M05"))
def test_rejected_rows_are_dropped(case: dict[str, Any]) -> None:
    kept = drop_rejected_rows(case["input"]["query_lens"], case["input"]["rejected"])
    assert {"cu": kept.query_start_loc.tolist(), "idx": kept.indices.tolist()} == case["expect"]


# One request: the rows it keeps and the rows it loses.
kept_and_rejected = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=6)


@exact
@given(kept_and_rejected)
def test_dropping_agrees_with_the_obvious_loop(batch: list[tuple[int, int]]) -> None:
    starts, indices, first = [0], [], 0
    for keep, rejected in batch:
        indices += range(first, first + keep)
        first += keep + rejected
        starts.append(len(indices))
    kept = drop_rejected_rows([k + r for k, r in batch], [r for _, r in batch])
    assert (kept.query_start_loc.tolist(), kept.indices.tolist()) == (starts, indices)


@pytest.mark.parametrize(
    ("lens", "rejected", "words"),
    [
        pytest.param([3, 2], [0, 2], r"num_rejected\[1\]: 2, expected 0 to 1, .* = 2", id="all"),
        pytest.param([3, 2], [-1, 0], r"num_rejected\[0\]: -1, .* at least 0", id="negative"),
        pytest.param([3, 0], [0, 0], r"query_lens\[1\]: 0, .* at least 1", id="no-row"),
        pytest.param([3, 2], [0], r"num_rejected: 1 requests, expected 2", id="lengths"),
    ],
)
def test_dropping_refuses(lens: list[int], rejected: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        drop_rejected_rows(lens, rejected)


# --- last_kept_rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("M06"))
def test_last_kept_rows_and_rejected_counts(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    starts = start_locations(torch.tensor(given["query_lens"]))
    drafts = prefix_sum([given["k"]] * len(given["valid"]))
    result = last_kept_rows(starts, drafts, int32(*given["valid"]))
    assert (result.indices.tolist(), result.num_rejected.tolist()) == (
        expect["sample_idx"],
        expect["rejected"],
    )


@exact
@given(st.data())
def test_the_last_kept_row_is_the_last_one_that_dropping_keeps(data: st.DataObject) -> None:
    # (tokens ahead of the first verify row, drafts, tokens got)
    batch = [
        (data.draw(st.integers(0, 3)), n, data.draw(st.integers(1, n + 1)))
        for n in data.draw(st.lists(st.integers(0, 3), max_size=6))
    ]
    lens, drafts = [ahead + 1 + n for ahead, n, _ in batch], [n for _, n, _ in batch]
    starts = start_locations(torch.tensor(lens, dtype=torch.int64))
    padded = last_kept_rows(starts, prefix_sum(drafts), int32(*(valid for _, _, valid in batch)))
    kept = drop_rejected_rows(lens, padded.num_rejected.tolist())
    assert torch.equal(padded.indices, kept.indices[kept.query_start_loc[1:].long() - 1])


def test_a_request_without_a_result_keeps_its_real_token_and_its_row() -> None:
    result = last_kept_rows(int32(0, 3, 6), int32(2, 4), int32(1, 0))
    assert (result.indices.tolist(), result.num_rejected.tolist()) == ([0, 3], [2, 2])


@pytest.mark.parametrize(
    ("starts", "cu", "valid", "words"),
    [
        pytest.param([0, 3, 6], [2, 4], [3, 4], r"num_valid\[1\]: 4, expected 0 to", id="too-many"),
        pytest.param(
            [0, 3, 6], [2, 4], [-1, 0], r"num_valid\[0\]: -1, expected 0 to", id="negative"
        ),
        pytest.param(
            [0, 3], [2, 4], [1, 1], r"query_start_loc: shape \(2,\), .* \(3,\)", id="starts"
        ),
        pytest.param(
            [0, 3, 6], [2], [1, 1], r"cu_num_draft_tokens: shape \(1,\), .* \(2,\)", id="cu"
        ),
    ],
)
def test_last_kept_rows_refuses(
    starts: list[int], cu: list[int], valid: list[int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        last_kept_rows(int32(*starts), int32(*cu), int32(*valid))


def test_last_kept_rows_are_found_without_reading_a_device_value() -> None:
    # A tensor on "meta" has no values: whatever reads one raises.
    starts, cu, valid = (torch.empty(n, dtype=torch.int32, device="meta") for n in (3, 2, 2))
    assert last_kept_rows(starts, cu, valid).indices.device.type == "meta"


# --- model_input_ids ------------------------------------------------------------------------------


@pytest.mark.parametrize("input_ids", [atlas("B62", [5, -1, -1])])
def test_the_model_is_fed_legal_ids_only(input_ids: list[int]) -> None:
    fed = model_input_ids(torch.tensor(input_ids), vocab_size=8, fill_id=2)
    assert fed.tolist() == [5, 2, 2]


@pytest.mark.parametrize("input_ids", [atlas("B62", [5, -1, -1])])
def test_the_sampler_still_sees_the_placeholder_after_the_model_was_fed(
    input_ids: list[int],
) -> None:
    ids = torch.tensor(input_ids)
    model_input_ids(ids, vocab_size=8)
    assert SpecDecodeMetadata.from_counts([3], [2], ids).draft_token_ids.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("ids", "fill", "words"),
    [
        pytest.param(
            [1, -2], 0, r"input_ids\[1\]: -2, expected -1 or an id in \[0, 8\)", id="minus-2"
        ),
        pytest.param([8, 1], 0, r"input_ids\[0\]: 8, expected -1 or an id", id="vocab"),
        pytest.param([1], 8, r"fill_id: 8, expected an id in \[0, 8\)", id="fill-high"),
        pytest.param([1], -1, r"fill_id: -1, expected an id in \[0, 8\)", id="fill-negative"),
    ],
)
def test_model_input_ids_refuses(ids: list[int], fill: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model_input_ids(torch.tensor(ids), 8, fill)
