"""The draft's rows: what a drafter stored, what a verify left of it, and what a model is fed.

A verify emits between 1 and n + 1 tokens of a request. The drafter goes on from the last of them:
it needs that token, and the rows of its input without the ones that hold rejected drafts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from .kernels import checks
from .ragged import check_counts, expand_batch_to_tokens, start_locations


class NextTokens(NamedTuple):
    """The token each request goes on from (int64 ``[batch]``) and how many it got (int32)."""

    token_ids: torch.Tensor
    num_valid: torch.Tensor


class KeptRows(NamedTuple):
    """A batch without its rejected rows: int32 ``[batch + 1]`` starts, int64 ``[kept]`` places."""

    query_start_loc: torch.Tensor
    indices: torch.Tensor


class LastKeptRows(NamedTuple):
    """Each request's last kept row (int64 ``[batch]``) and its rejected drafts (int32)."""

    indices: torch.Tensor
    num_rejected: torch.Tensor


def stored_draft_rows(
    request_ids: Sequence[Hashable],
    num_draft_tokens: Sequence[int],
    stored_request_ids: Sequence[Hashable],
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Return where each draft of the batch lies in the store, found by request id.

    The order of the store and the order of the batch have nothing to do with each other: requests
    finish, and batches are re-ordered. A request without drafts need not be stored.

    Args:
        request_ids: the requests in the order of the batch.
        num_draft_tokens: their drafts.
        stored_request_ids: the request of each slot of the store.
        device: where the result goes.

    Returns:
        int64 ``[num_tokens, 2]``: (slot, place within the request) of each draft.

    Raises:
        ValueError: a request with drafts is not stored, an id appears twice, or a count is illegal.

    Example:
        >>> stored_draft_rows(["a", "b", "c"], [2, 0, 1], ["c", "a"]).tolist()
        [[1, 0], [1, 1], [0, 0]]

    Source: case M03; atlas B58, B64.
    """
    check_counts("num_draft_tokens", num_draft_tokens, len(request_ids))
    _places("request_ids", request_ids)
    slot_of = _places("stored_request_ids", stored_request_ids)
    for request, (request_id, drafts) in enumerate(zip(request_ids, num_draft_tokens, strict=True)):
        if drafts and request_id not in slot_of:
            raise ValueError(
                f"request_ids[{request}]: {request_id!r} has {drafts} drafts and is not stored, "
                f"expected one of {list(stored_request_ids)}"
            )
    slots = torch.tensor([slot_of.get(i, -1) for i in request_ids], dtype=torch.int64)
    counts = torch.tensor(num_draft_tokens, dtype=torch.int64)
    cu, num_tokens = counts.cumsum(0), sum(num_draft_tokens)
    places = torch.arange(num_tokens) - expand_batch_to_tokens(cu - counts, cu, num_tokens)
    return torch.stack((expand_batch_to_tokens(slots, cu, num_tokens), places), dim=1).to(device)


def next_tokens(
    sampled_token_ids: torch.Tensor, backup_token_ids: torch.Tensor, discarded: torch.Tensor
) -> NextTokens:
    """Return the last token each request emitted, or its backup where it emitted none.

    Args:
        sampled_token_ids: int64 ``[batch, max_spec_len + 1]``, -1 behind the last emitted id, as in
            ``Verified``.
        backup_token_ids: int32 or int64 ``[batch]``, the token that a request without a result goes
            on from: the next of its prompt, or its last committed one.
        discarded: bool ``[batch]``; the result of such a request does not count.

    Raises:
        ValueError: shapes differ or, on a CPU, an id stands behind a -1.

    Example:
        >>> sampled = torch.tensor([[5, 6, -1], [-1, -1, -1], [7, 8, 9]])
        >>> next_tokens(sampled, torch.tensor([10, 20, 30]), torch.tensor([False, False, True]))
        NextTokens(token_ids=tensor([ 6, 20, 30]), num_valid=tensor([2, 0, 0], dtype=torch.int32))

    Source: case M04.
    """
    if sampled_token_ids.dim() != 2 or not sampled_token_ids.shape[1]:
        raise ValueError(
            f"sampled_token_ids: shape {tuple(sampled_token_ids.shape)}, expected "
            "(batch, max_spec_len + 1)"
        )
    for name, tensor in (("backup_token_ids", backup_token_ids), ("discarded", discarded)):
        _expect_batch(name, tensor, len(sampled_token_ids))
    emitted = sampled_token_ids >= 0
    if checks.checks_values(None, emitted.device):
        for request in (emitted[:, 1:] & ~emitted[:, :-1]).any(dim=1).nonzero().flatten().tolist():
            row = sampled_token_ids[request].tolist()
            raise ValueError(f"sampled_token_ids[{request}]: {row}, expected no id behind a -1")
    num_valid = emitted.sum(dim=1) * ~discarded
    last = sampled_token_ids.gather(1, (num_valid - 1).clamp(min=0)[:, None])[:, 0]
    return NextTokens(torch.where(num_valid > 0, last, backup_token_ids.long()), num_valid.int())


def drop_rejected_rows(
    query_lens: Sequence[int],
    num_rejected: Sequence[int],
    device: torch.device | str | None = None,
) -> KeptRows:
    """Return the input rows that remain when each request loses its last, rejected ones.

    How many remain must be known on the host; ``last_kept_rows`` is the variant that keeps every
    row and asks no device.

    Args:
        query_lens: the input rows of each request, at least 1.
        num_rejected: how many of them hold rejected drafts; at least one row is none.
        device: where the result goes.

    Raises:
        ValueError: a count is no int, is out of its range, or the lengths differ.

    Example:
        >>> kept = drop_rejected_rows([4, 2], [1, 0])
        >>> kept.query_start_loc.tolist(), kept.indices.tolist()
        ([0, 3, 5], [0, 1, 2, 4, 5])

    Source: case M05.
    """
    check_counts("query_lens", query_lens, least=1)
    check_counts("num_rejected", num_rejected, len(query_lens))
    for request, (rows, rejected) in enumerate(zip(query_lens, num_rejected, strict=True)):
        if rejected >= rows:
            raise ValueError(
                f"num_rejected[{request}]: {rejected}, expected 0 to {rows - 1}, one row less than "
                f"query_lens[{request}] = {rows}"
            )
    lens = torch.tensor(query_lens, dtype=torch.int64, device=device)
    kept = lens - torch.tensor(num_rejected, dtype=torch.int64, device=device)
    query_start_loc = start_locations(kept)
    num_kept = sum(query_lens) - sum(num_rejected)
    dropped_ahead = start_locations(lens)[:-1] - query_start_loc[:-1]
    rows = torch.arange(num_kept, device=device)
    return KeptRows(
        query_start_loc,
        rows + expand_batch_to_tokens(dropped_ahead, query_start_loc[1:], num_kept),
    )


def last_kept_rows(
    query_start_loc: torch.Tensor, cu_num_draft_tokens: torch.Tensor, num_valid: torch.Tensor
) -> LastKeptRows:
    """Return each request's last row that holds no rejected draft, where every row is kept.

    The rejected rows stay in the input as padding. A request without a result (``num_valid`` 0)
    loses all its drafts and keeps its real tokens, so that its row never lies in its neighbour.

    Args:
        query_start_loc: int32 ``[batch + 1]``, the starts of the requests' rows, with a leading 0.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum of the drafts among the rows.
        num_valid: int32 ``[batch]``, the tokens each request got, as ``next_tokens`` counts them.

    Raises:
        ValueError: shapes differ or, on a CPU, a request got more tokens than drafts + 1.

    Example:
        >>> int32 = lambda *values: torch.tensor(values, dtype=torch.int32)
        >>> last_kept_rows(int32(0, 3, 6, 10), int32(2, 4, 4), int32(2, 3, 0))
        LastKeptRows(indices=tensor([1, 5, 9]), num_rejected=tensor([1, 0, 0], dtype=torch.int32))

    Source: case M06.
    """
    batch = len(num_valid)
    _expect_batch("cu_num_draft_tokens", cu_num_draft_tokens, batch)
    _expect_batch("query_start_loc", query_start_loc, batch + 1)
    drafts = torch.diff(cu_num_draft_tokens, prepend=cu_num_draft_tokens.new_zeros(1))
    if checks.checks_values(None, num_valid.device):
        wrong = (num_valid < 0) | (num_valid > drafts + 1)
        checks.refuse("num_valid", num_valid, wrong, "0 to the drafts of the request + 1")
    num_rejected = drafts + 1 - num_valid.clamp(min=1)
    return LastKeptRows((query_start_loc[1:] - 1 - num_rejected).long(), num_rejected.int())


def model_input_ids(input_ids: torch.Tensor, vocab_size: int, fill_id: int = 0) -> torch.Tensor:
    """Return the ids a model may look up: ``input_ids`` with every -1 replaced by ``fill_id``.

    A new tensor: the metadata and the sampler go on reading the -1, so that the draft in that row
    can never be accepted, whatever the model says about ``fill_id``.

    Args:
        input_ids: int32 or int64, any shape; -1 where there is nothing to accept.
        vocab_size: ids lie below it.
        fill_id: any legal id; a row that holds it is rejected unread.

    Raises:
        ValueError: ``fill_id`` or, on a CPU, an id is out of range.

    Example:
        >>> model_input_ids(torch.tensor([5, -1, -1]), vocab_size=8)
        tensor([5, 0, 0])

    Source: atlas B62.
    """
    if not 0 <= fill_id < vocab_size:
        raise ValueError(f"fill_id: {fill_id}, expected an id in [0, {vocab_size})")
    if checks.checks_values(None, input_ids.device):
        flat = input_ids.reshape(-1)
        legal = f"-1 or an id in [0, {vocab_size})"
        checks.refuse("input_ids", flat, (flat < -1) | (flat >= vocab_size), legal)
    return input_ids.masked_fill(input_ids == -1, fill_id)


def _places(name: str, request_ids: Sequence[Hashable]) -> dict[Hashable, int]:
    place_of: dict[Hashable, int] = {}
    for place, request_id in enumerate(request_ids):
        if place_of.setdefault(request_id, place) != place:
            raise ValueError(f"{name}[{place}]: {request_id!r}, expected each request once")
    return place_of


def _expect_batch(name: str, tensor: torch.Tensor, entries: int) -> None:
    if tuple(tensor.shape) != (entries,):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected ({entries},)")
