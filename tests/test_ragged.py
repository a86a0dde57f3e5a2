from __future__ import annotations

from dataclasses import fields
from itertools import accumulate
from typing import Any

import pytest
import torch
from engine_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from specedu.kernels import Verified, backend, verify_chain, verify_greedy
from specedu.ragged import (
    RaggedBatch,
    SpecDecodeMetadata,
    expand_batch_to_tokens,
    start_locations,
)

# Every property here is exact, so a failure is never an alarm by chance; the examples are fixed.
exact = settings(max_examples=100, deadline=None, derandomize=True)

VOCAB = 3  # small, so that random drafts are accepted often
FIVE = ([4, 100, 3, 100, 2], [3, 0, 2, 0, 1])  # scheduled and drafted: vLLM's worked example


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def atlas(row: str, *values: Any) -> Any:
    return pytest.param(*values, id=f"atlas-{row}")


def lay_out(scheduled: list[int], drafts: list[int]) -> SpecDecodeMetadata:
    """Lay out a batch whose input ids are their own places."""
    return SpecDecodeMetadata.from_counts(scheduled, drafts, torch.arange(sum(scheduled)))


def as_lists(metadata: SpecDecodeMetadata) -> dict[str, list[int]]:
    values = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def emitted(result: Verified) -> list[list[int]]:
    return [
        row[: accepted + 1]
        for row, accepted in zip(
            result.token_ids.tolist(), result.num_accepted.tolist(), strict=True
        )
    ]


@pytest.fixture(params=["torch", "triton"])
def place(request: pytest.FixtureRequest) -> dict[str, str]:
    """Name a backend and the device that it runs on here."""
    if request.param == "triton":
        pytest.importorskip("triton")
        if not backend.interpreting():
            return {"backend": "triton", "device": "cuda"}
    return {"backend": request.param, "device": "cpu"}


# --- counts, and the layout by the obvious loop ---------------------------------------------------

# One request: its real tokens and its drafts.
request_counts = st.tuples(st.integers(1, 5), st.integers(0, 4))
batches = st.lists(request_counts, max_size=6)


def counts_of(batch: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [real + drafts for real, drafts in batch], [drafts for _, drafts in batch]


def layout_by_loop(
    scheduled: list[int], drafts: list[int], input_ids: list[int]
) -> dict[str, list[int]]:
    layout: dict[str, list[int]] = {field.name: [] for field in fields(SpecDecodeMetadata)}
    end = 0
    for tokens, n in zip(scheduled, drafts, strict=True):
        end += tokens
        for place in range(end - n - 1, end):
            layout["logits_indices"].append(place)
            if place < end - 1:
                layout["target_logits_indices"].append(len(layout["logits_indices"]) - 1)
                layout["draft_token_ids"].append(input_ids[place + 1])
        layout["bonus_logits_indices"].append(len(layout["logits_indices"]) - 1)
        layout["num_draft_tokens"].append(n)
        layout["cu_num_draft_tokens"].append(len(layout["draft_token_ids"]))
        layout["cu_num_sampled_tokens"].append(len(layout["logits_indices"]))
    return layout


@exact
@given(batches, st.integers(0, 100))
def test_every_field_agrees_with_the_obvious_loop(batch: list[tuple[int, int]], seed: int) -> None:
    scheduled, drafts = counts_of(batch)
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(-1, 1000, (sum(scheduled),), generator=generator)
    metadata = SpecDecodeMetadata.from_counts(scheduled, drafts, input_ids)
    assert as_lists(metadata) == layout_by_loop(scheduled, drafts, input_ids.tolist())


@exact
@given(batches, batches)
def test_joining_batches_joins_their_metadata_with_offsets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    first, second = lay_out(*counts_of(left)), lay_out(*counts_of(right))
    tokens, rows = sum(counts_of(left)[0]), len(first.logits_indices)
    offset = {
        "draft_token_ids": tokens,  # the ids are places here
        "num_draft_tokens": 0,
        "cu_num_draft_tokens": len(first.draft_token_ids),
        "cu_num_sampled_tokens": rows,
        "target_logits_indices": rows,
        "bonus_logits_indices": rows,
        "logits_indices": tokens,
    }
    one, two = as_lists(first), as_lists(second)
    joined = {name: one[name] + [value + offset[name] for value in two[name]] for name in offset}
    assert as_lists(lay_out(*counts_of(left + right))) == joined


@exact
@given(batches)
def test_target_and_bonus_rows_together_are_the_logits_rows(batch: list[tuple[int, int]]) -> None:
    metadata = as_lists(lay_out(*counts_of(batch)))
    rows = sorted(metadata["target_logits_indices"] + metadata["bonus_logits_indices"])
    assert rows == list(range(len(metadata["logits_indices"])))


@exact
@given(batches)
def test_every_request_owns_the_rows_of_its_last_tokens(batch: list[tuple[int, int]]) -> None:
    scheduled, drafts = counts_of(batch)
    metadata = lay_out(scheduled, drafts)
    cu = [0, *metadata.cu_num_draft_tokens.tolist()]
    for request, end in enumerate(accumulate(scheduled)):
        owned = metadata.logits_indices[cu[request] + request : cu[request + 1] + request + 1]
        assert owned.tolist() == list(range(end - drafts[request] - 1, end))


@exact
@given(batches, st.integers(1, 5), st.data())
def test_a_request_without_drafts_adds_one_bonus_row_anywhere(
    batch: list[tuple[int, int]], real: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(batch)))
    without = layout_of_requests(batch)
    assert layout_of_requests([*batch[:at], (real, 0), *batch[at:]]) == [
        *without[:at],
        ([], [real - 1]),
        *without[at:],
    ]


def layout_of_requests(batch: list[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Return each request's draft ids and logits rows, as places within the request."""
    scheduled, drafts = counts_of(batch)
    metadata = lay_out(scheduled, drafts)
    ids, rows = metadata.draft_token_ids.tolist(), metadata.logits_indices.tolist()
    found = []
    for request, n in enumerate(drafts):
        first = sum(scheduled[:request])
        own_ids, ids = ids[:n], ids[n:]
        own_rows, rows = rows[: n + 1], rows[n + 1 :]
        found.append(([i - first for i in own_ids], [row - first for row in own_rows]))
    return found


# --- one field, one fact --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafts", "most"), [([], 0), ([0, 0], 0), ([0, 3, 0], 3)], ids=["empty", "no-drafts", "mixed"]
)
def test_max_spec_len_is_the_most_drafts(drafts: list[int], most: int) -> None:
    assert lay_out([n + 1 for n in drafts], drafts).max_spec_len == most


def test_dtypes_are_those_the_kernels_and_indexing_take() -> None:
    metadata = lay_out(*FIVE)
    assert {
        field.name: getattr(getattr(metadata, field.name), "dtype", None)
        for field in fields(metadata)
    } == {
        "draft_token_ids": torch.int32,
        "num_draft_tokens": None,
        "cu_num_draft_tokens": torch.int32,
        "cu_num_sampled_tokens": torch.int32,
        "target_logits_indices": torch.int64,
        "bonus_logits_indices": torch.int64,
        "logits_indices": torch.int64,
    }


def test_metadata_is_laid_out_without_reading_a_device_value() -> None:
    # A tensor on "meta" has no values: whatever reads one raises.
    metadata = SpecDecodeMetadata.from_counts(*FIVE, torch.empty(209, device="meta").long())
    tensors = [value for value in vars(metadata).values() if isinstance(value, torch.Tensor)]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 6


def test_metadata_keeps_its_counts_when_the_callers_list_changes() -> None:
    drafts = [1, 2]
    metadata = lay_out([2, 3], drafts)
    drafts[0] = 9
    assert metadata.num_draft_tokens == [1, 2]


# --- the layout is the one the rules take ---------------------------------------------------------


@st.composite
def verifiable_batches(draw: st.DrawFn) -> list[tuple[int, list[int], list[int]]]:
    """Requests of (real tokens, drafts with -1 among them, the argmax at each of its tokens)."""
    requests = []
    for real, n in draw(batches):
        drafts = draw(st.lists(st.integers(-1, VOCAB - 1), min_size=n, max_size=n))
        size = real + n
        wanted = draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
        requests.append((real, drafts, wanted))
    return requests


def lay_out_requests(requests: list[tuple[int, list[int], list[int]]]) -> SpecDecodeMetadata:
    ids = [token for real, drafts, _ in requests for token in [0] * real + drafts]
    return SpecDecodeMetadata.from_counts(
        [real + len(drafts) for real, drafts, _ in requests],
        [len(drafts) for _, drafts, _ in requests],
        torch.tensor(ids, dtype=torch.int64),
    )


def greedy_by_loop(drafts: list[int], wanted: list[int]) -> list[int]:
    for place, draft in enumerate(drafts):
        if draft != wanted[place]:
            return wanted[: place + 1]
    return wanted


@exact
@given(verifiable_batches())
def test_verify_greedy_on_the_layout_agrees_with_a_loop_over_requests(
    requests: list[tuple[int, list[int], list[int]]],
) -> None:
    metadata = lay_out_requests(requests)
    wanted = torch.tensor([i for request in requests for i in request[2]], dtype=torch.int64)
    result = verify_greedy(
        wanted[metadata.logits_indices],
        metadata.draft_token_ids,
        metadata.cu_num_draft_tokens,
        max_spec_len=metadata.max_spec_len,
    )
    assert emitted(result) == [
        greedy_by_loop(drafts, wanted[real - 1 :]) for real, drafts, wanted in requests
    ]


def chain(
    metadata: SpecDecodeMetadata,
    p: torch.Tensor,
    q: torch.Tensor,
    coins: torch.Tensor,
    **where: Any,
) -> list[list[int]]:
    """Verify with p and coins that lie like the flat input, q like the drafts."""
    device = where.pop("device", "cpu")
    rows = metadata.logits_indices
    arguments = (
        p[rows],
        q,
        metadata.draft_token_ids,
        metadata.cu_num_draft_tokens,
        coins[rows[metadata.target_logits_indices]],
        coins[rows[metadata.bonus_logits_indices]],
    )
    arguments = tuple(argument.to(device) for argument in arguments)
    return emitted(verify_chain(*arguments, max_spec_len=metadata.max_spec_len, **where))


def laws(rows: int, generator: torch.Generator) -> torch.Tensor:
    mass = torch.rand(rows, VOCAB, generator=generator)
    return mass / mass.sum(1, keepdim=True)


@exact
@given(verifiable_batches(), st.integers(0, 1000))
def test_verify_chain_on_the_layout_emits_what_each_request_emits_alone(
    requests: list[tuple[int, list[int], list[int]]], seed: int
) -> None:
    metadata, generator = lay_out_requests(requests), torch.Generator().manual_seed(seed)
    sizes = [len(wanted) for _, _, wanted in requests]
    p, q = laws(sum(sizes), generator), laws(len(metadata.draft_token_ids), generator)
    coins = torch.rand(sum(sizes), dtype=torch.float64, generator=generator)
    alone = [
        chain(lay_out_requests([request]), own_p, own_q, own_coins)[0]
        for request, own_p, own_q, own_coins in zip(
            requests,
            p.split(sizes),
            q.split(metadata.num_draft_tokens),
            coins.split(sizes),
            strict=True,
        )
    ]
    assert chain(metadata, p, q, coins) == alone


def test_verify_chain_keeps_all_of_the_five_requests_where_draft_is_target(
    place: dict[str, str],
) -> None:
    generator = torch.Generator().manual_seed(0)
    scheduled, drafts = FIVE
    input_ids = torch.randint(0, VOCAB, (sum(scheduled),), generator=generator)
    metadata = SpecDecodeMetadata.from_counts(scheduled, drafts, input_ids)
    p = laws(sum(scheduled), generator)
    q = p[metadata.logits_indices[metadata.target_logits_indices]]
    coins = torch.rand(sum(scheduled), dtype=torch.float64, generator=generator)
    run_lengths = [len(run) for run in chain(metadata, p, q, coins, **place)]
    assert run_lengths == [n + 1 for n in drafts]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduled", "drafts", "ids", "words"),
    [
        pytest.param(
            [2, 0], [0, 0], 2, r"num_scheduled_tokens\[1\]: 0, .* at least 1", id="none-scheduled"
        ),
        pytest.param(
            [-2], [0], 0, r"num_scheduled_tokens\[0\]: -2, .* at least 1", id="negative-scheduled"
        ),
        pytest.param(
            [2, 2], [1, -1], 4, r"num_draft_tokens\[1\]: -1, .* at least 0", id="negative-drafts"
        ),
        pytest.param(
            [3, 2],
            [2, 2],
            5,
            r"num_draft_tokens\[1\]: 2, expected 0 to 1, .* = 2",
            id="no-real-token",
        ),
        pytest.param(
            [3, 2], [1], 5, r"num_draft_tokens: 1 requests, expected 2", id="lengths-differ"
        ),
        pytest.param([3], [True], 3, r"num_draft_tokens\[0\]: True, .* an int", id="bool"),
        pytest.param([2.5], [0], 2, r"num_scheduled_tokens\[0\]: 2.5, .* an int", id="float"),
        pytest.param([3, 2], [1, 1], 4, r"input_ids: shape \(4,\), expected \(5,\)", id="few-ids"),
        pytest.param([3, 2], [1, 1], 6, r"input_ids: shape \(6,\), expected \(5,\)", id="many-ids"),
    ],
)
def test_metadata_refuses(scheduled: list[int], drafts: list[int], ids: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpecDecodeMetadata.from_counts(scheduled, drafts, torch.arange(ids))


def test_metadata_refuses_ids_that_are_no_integers() -> None:
    with pytest.raises(ValueError, match=r"input_ids: dtype torch.float32, expected int32 or"):
        SpecDecodeMetadata.from_counts([2], [1], torch.zeros(2))


@pytest.mark.parametrize(
    ("computed", "scheduled", "words"),
    [
        pytest.param(
            [1, -1], [1, 1], r"num_computed_tokens\[1\]: -1, .* at least 0", id="computed"
        ),
        pytest.param([1, 1], [-1, 1], r"num_scheduled_tokens\[0\]: -1, .*", id="scheduled"),
        pytest.param([1], [1, 1], r"num_computed_tokens: 1 requests, expected 2", id="lengths"),
    ],
)
def test_ragged_batch_refuses(computed: list[int], scheduled: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RaggedBatch.from_counts(computed, scheduled)


@pytest.mark.parametrize(
    ("cu", "num_tokens", "words"),
    [
        pytest.param([2], 2, r"values: 2 requests, expected 1", id="lengths"),
        pytest.param([3, 2], 2, r"cu_num_tokens\[1\]: 2, .* never decreases", id="decreases"),
        pytest.param([-1, 2], 2, r"cu_num_tokens\[0\]: -1, .* from 0", id="negative"),
        pytest.param([1, 2], 3, r"num_tokens: 3, expected 2", id="too-many-tokens"),
        pytest.param([1, 2], 1, r"num_tokens: 1, expected 2", id="too-few-tokens"),
    ],
)
def test_expand_refuses(cu: list[int], num_tokens: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expand_batch_to_tokens(torch.tensor([10, 20]), torch.tensor(cu), num_tokens)


# --- engine cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("M13"))
def test_cache_lengths_and_prefix_sums_after_a_ragged_verify(case: dict[str, Any]) -> None:
    given = case["input"]
    batch = RaggedBatch.from_counts(given["seq_lens"], given["verify_lens"])
    assert {
        "cache": batch.seq_lens.tolist(),
        "cu_q": batch.query_start_loc.tolist(),
        "cu_k": batch.seq_start_loc.tolist(),
    } == case["expect"]


@exact
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=6))
def test_ragged_batch_agrees_with_the_obvious_loop(batch: list[tuple[int, int]]) -> None:
    computed, scheduled = [c for c, _ in batch], [s for _, s in batch]
    ragged = RaggedBatch.from_counts(computed, scheduled)
    lens = [c + s for c, s in batch]
    assert (
        ragged.seq_lens.tolist(),
        ragged.query_start_loc.tolist(),
        ragged.seq_start_loc.tolist(),
    ) == (lens, [0, *accumulate(scheduled)], [0, *accumulate(lens)])


@pytest.mark.parametrize("case", cases("M15"))
def test_expand_gives_every_token_the_value_of_its_request(case: dict[str, Any]) -> None:
    x, cu = torch.tensor(case["input"]["x"]), int32(*case["input"]["cu"])
    assert (
        expand_batch_to_tokens(x, cu, len(case["expect"]["out"])).tolist() == case["expect"]["out"]
    )


@exact
@given(st.lists(st.integers(0, 4), max_size=6))
def test_expand_agrees_with_the_obvious_loop(counts: list[int]) -> None:
    requests, cu = torch.arange(len(counts)), torch.tensor([*accumulate(counts)], dtype=torch.int64)
    by_loop = [request for request, count in enumerate(counts) for _ in range(count)]
    assert expand_batch_to_tokens(requests, cu, sum(counts)).tolist() == by_loop


def test_expand_gives_whole_rows_of_a_table() -> None:
    table = torch.tensor([[1, 2], [3, 4]])
    assert expand_batch_to_tokens(table, int32(0, 2), 2).tolist() == [[3, 4], [3, 4]]


# --- bug atlas ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "drafts"), [atlas("B58", "AB", {"B": [], "A": [1, 2]})])
def test_rows_are_owned_in_the_order_of_the_batch(order: str, drafts: dict[str, list[int]]) -> None:
    counts = [len(drafts[request]) for request in order]
    metadata = lay_out([n + 1 for n in counts], counts)
    owners = expand_batch_to_tokens(torch.arange(len(order)), metadata.cu_num_sampled_tokens, 4)
    assert [order[owner] for owner in owners.tolist()] == ["A", "A", "A", "B"]


@pytest.mark.parametrize("counts", [atlas("B59", [3, 0, 2])])
def test_starts_are_the_ends_of_the_request_before_and_0_at_first(counts: list[int]) -> None:
    ends = start_locations(torch.tensor(counts))
    assert (ends[:-1].tolist(), ends[1:].tolist()) == ([0, 3, 3], [3, 3, 5])


# The value before the prefix sum is a legal one: whatever reads it gets a wrong start, no error.
@pytest.mark.parametrize(("poison", "counts"), [atlas("B59", 2, [3, 0, 2])])
def test_verify_reads_nothing_before_the_prefix_sum(
    poison: int, counts: list[int], place: dict[str, str]
) -> None:
    metadata = lay_out([n + 1 for n in counts], counts)
    buffer = torch.cat([int32(poison), metadata.cu_num_draft_tokens]).to(place["device"])
    wanted = metadata.logits_indices + 1  # the next input id, so that every draft is accepted
    result = verify_greedy(
        wanted.to(place["device"]),
        metadata.draft_token_ids.to(place["device"]),
        buffer[1:],
        max_spec_len=metadata.max_spec_len,
        backend=place["backend"],
    )
    assert emitted(result) == [[1, 2, 3, 4], [5], [6, 7, 8]]


@pytest.mark.parametrize(("poison", "counts"), [atlas("B59", 2, [3, 0, 2])])
def test_expand_reads_nothing_before_the_prefix_sum(poison: int, counts: list[int]) -> None:
    buffer = int32(poison, *accumulate(counts))
    assert expand_batch_to_tokens(torch.arange(3), buffer[1:], 5).tolist() == [0, 0, 0, 2, 2]


@pytest.mark.parametrize(("scheduled", "drafts"), [atlas("B60", [1, 1], [0, 0])])
def test_a_batch_without_drafts_has_bonus_rows_only(
    scheduled: list[int], drafts: list[int]
) -> None:
    assert as_lists(lay_out(scheduled, drafts)) == {
        "draft_token_ids": [],
        "num_draft_tokens": [0, 0],
        "cu_num_draft_tokens": [0, 0],
        "cu_num_sampled_tokens": [1, 2],
        "target_logits_indices": [],
        "bonus_logits_indices": [0, 1],
        "logits_indices": [0, 1],
    }


@pytest.mark.parametrize(("scheduled", "drafts"), [atlas("B60", [1, 1], [0, 0])])
def test_a_batch_without_drafts_emits_one_token_a_request(
    scheduled: list[int], drafts: list[int], place: dict[str, str]
) -> None:
    metadata = lay_out(scheduled, drafts)
    result = verify_greedy(
        torch.tensor([7, 8], device=place["device"]),
        metadata.draft_token_ids.to(place["device"]),
        metadata.cu_num_draft_tokens.to(place["device"]),
        max_spec_len=metadata.max_spec_len,
        backend=place["backend"],
    )
    assert emitted(result) == [[7], [8]]


@pytest.mark.parametrize("drafts", [atlas("B61", {"A": [1], "B": [], "C": [2]})])
def test_a_request_without_drafts_has_a_row_of_its_own_history(
    drafts: dict[str, list[int]],
) -> None:
    counts = [len(ids) for ids in drafts.values()]
    metadata = lay_out([n + 1 for n in counts], counts)
    owners = expand_batch_to_tokens(torch.arange(3), metadata.cu_num_sampled_tokens, 5)
    assert ["ABC"[owner] for owner in owners.tolist()] == ["A", "A", "B", "C", "C"]


@pytest.mark.parametrize("input_ids", [atlas("B62", [5, -1, -1])])
def test_a_placeholder_is_never_accepted_not_even_as_its_fill_id(
    input_ids: list[int], place: dict[str, str]
) -> None:
    metadata = SpecDecodeMetadata.from_counts([3], [2], torch.tensor(input_ids))
    # Every id has mass, the fill id too, and so has the row before; coins of 0 accept any of them.
    arguments = (
        torch.full((4, 2), 0.5, device=place["device"])[1:],
        torch.zeros(2, 2),
        metadata.draft_token_ids,
        metadata.cu_num_draft_tokens,
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    )
    result = verify_chain(
        *(argument.to(place["device"]) for argument in arguments),
        max_spec_len=metadata.max_spec_len,
        backend=place["backend"],
    )
    assert (result.token_ids.tolist(), result.num_accepted.tolist()) == ([[0, -1, -1]], [0])


@pytest.mark.parametrize("kappa", [atlas("B68", 8)])
def test_a_request_with_kappa_drafts_asks_for_kappa_plus_one_rows(kappa: int) -> None:
    assert len(lay_out([kappa + 1], [kappa]).logits_indices) == kappa + 1
