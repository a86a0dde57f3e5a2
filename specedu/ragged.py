"""The flat layout: the tokens of all requests in one row, found again by prefix sums.

A batch has no padding. Its tokens lie behind each other, request by request, in the order of the
batch, and so do its logits rows and its drafts. Whatever belongs to request r lies between two
neighbouring entries of a prefix sum, so a request without drafts costs nothing and needs no special
case.

Counts come as lists of ints, which the host has anyway. Everything a device needs is computed on it
from those counts: no device value is read, and no loop runs over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .kernels import checks


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """The geometry of one forward pass: which query rows see how many cached tokens.

    Attributes:
        num_computed_tokens: per request, the tokens in its cache before the pass.
        num_scheduled_tokens: per request, the tokens it feeds, drafts included; 0 in a padding row.
        query_start_loc: int32 ``[batch + 1]``; request r's query rows begin at entry r and end
            before entry r + 1. ``query_start_loc[1:]`` is the inclusive prefix sum ``cu_rows``.
        seq_lens: int32 ``[batch]``; the tokens in each cache after the pass, what its last query
            row attends to.
        seq_start_loc: int32 ``[batch + 1]``; the same as query_start_loc, for the keys.

    Example:
        >>> batch = RaggedBatch.from_counts([10, 20, 30], [8, 1, 3])
        >>> batch.seq_lens.tolist(), batch.query_start_loc.tolist(), batch.seq_start_loc.tolist()
        ([18, 21, 33], [0, 8, 9, 12], [0, 18, 39, 72])

    Source: case M13; query_start_loc and seq_lens are named as in vLLM's
    ``CommonAttentionMetadata`` (vllm/v1/attention/backend.py).
    """

    num_computed_tokens: list[int]
    num_scheduled_tokens: list[int]
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    seq_start_loc: torch.Tensor

    @classmethod
    def from_counts(
        cls,
        num_computed_tokens: Sequence[int],
        num_scheduled_tokens: Sequence[int],
        device: torch.device | str | None = None,
    ) -> RaggedBatch:
        """Lay out a batch from its counts, on ``device``.

        Raises:
            ValueError: a count is no int or below 0, or the lengths differ.
        """
        check_counts("num_scheduled_tokens", num_scheduled_tokens)
        check_counts("num_computed_tokens", num_computed_tokens, len(num_scheduled_tokens))
        computed = torch.tensor(num_computed_tokens, dtype=torch.int32, device=device)
        scheduled = torch.tensor(num_scheduled_tokens, dtype=torch.int32, device=device)
        seq_lens = computed + scheduled
        return cls(
            num_computed_tokens=list(num_computed_tokens),
            num_scheduled_tokens=list(num_scheduled_tokens),
            query_start_loc=start_locations(scheduled),
            seq_lens=seq_lens,
            seq_start_loc=start_locations(seq_lens),
        )


@dataclass(frozen=True, eq=False)
class SpecDecodeMetadata:
    """Which logits rows a step reads, and which of them test a draft.

    A request with n drafts owns n + 1 consecutive logits rows. Its first n rows each test the draft
    that stands one token later in the input; its last is the bonus row. This is the layout that
    every rule of ``specedu.kernels`` takes: target rows in the order of ``logits_indices``, drafts
    in the order of ``draft_token_ids``, request r at rows ``cu[r-1] + r .. cu[r] + r``.

    Attributes:
        draft_token_ids: int32 ``[num_tokens]``; -1 where the input held a placeholder.
        num_draft_tokens: the drafts of each request, ``batch`` ints; 0 is ordinary.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum of the drafts.
        cu_num_sampled_tokens: int32 ``[batch]``, inclusive prefix sum of the logits rows.
        target_logits_indices: int64 ``[num_tokens]``; the logits row that tests each draft.
        bonus_logits_indices: int64 ``[batch]``; each request's last logits row.
        logits_indices: int64 ``[num_tokens + batch]``; each logits row's place in the flat input.

    Source: vLLM's ``SpecDecodeMetadata`` (vllm/v1/spec_decode/metadata.py) and the example in
    vllm/v1/worker/gpu_model_runner.py, L2923-2986 at 2f41c894e320.
    """

    draft_token_ids: torch.Tensor
    num_draft_tokens: list[int]
    cu_num_draft_tokens: torch.Tensor
    cu_num_sampled_tokens: torch.Tensor
    target_logits_indices: torch.Tensor
    bonus_logits_indices: torch.Tensor
    logits_indices: torch.Tensor

    @property
    def max_spec_len(self) -> int:
        """The most drafts of any request; 0 in a batch without drafts or without requests."""
        return max(self.num_draft_tokens, default=0)

    @classmethod
    def from_counts(
        cls,
        num_scheduled_tokens: Sequence[int],
        num_draft_tokens: Sequence[int],
        input_ids: torch.Tensor,
    ) -> SpecDecodeMetadata:
        """Lay out a batch from its counts and its flat input, on the device of the input.

        Args:
            num_scheduled_tokens: the input tokens of each request, its drafts last.
            num_draft_tokens: how many of them are drafts; at least one token is none.
            input_ids: int32 or int64 ``[sum(num_scheduled_tokens)]``, the ids before
                ``model_input_ids`` replaced any -1; not written.

        Raises:
            ValueError: a count is no int, is below its least value or leaves no real token, the
                lengths differ, or ``input_ids`` is not as long as the scheduled tokens.

        Example:
            Five requests; the second is in the middle of its prompt and owns a bonus row only.

            >>> metadata = SpecDecodeMetadata.from_counts(
            ...     [4, 100, 3, 100, 2], [3, 0, 2, 0, 1], torch.arange(1000, 1209))
            >>> metadata.cu_num_draft_tokens.tolist(), metadata.cu_num_sampled_tokens.tolist()
            ([3, 3, 5, 5, 6], [4, 5, 8, 9, 11])
            >>> metadata.logits_indices.tolist()
            [0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208]
            >>> metadata.target_logits_indices.tolist(), metadata.bonus_logits_indices.tolist()
            ([0, 1, 2, 5, 6, 9], [3, 4, 7, 8, 10])
            >>> metadata.draft_token_ids.tolist()
            [1001, 1002, 1003, 1105, 1106, 1208]
            >>> metadata.num_draft_tokens, metadata.max_spec_len
            ([3, 0, 2, 0, 1], 3)
        """
        check_counts("num_scheduled_tokens", num_scheduled_tokens, least=1)
        check_counts("num_draft_tokens", num_draft_tokens, len(num_scheduled_tokens))
        for request, (scheduled, drafts) in enumerate(
            zip(num_scheduled_tokens, num_draft_tokens, strict=True)
        ):
            if drafts >= scheduled:
                raise ValueError(
                    f"num_draft_tokens[{request}]: {drafts}, expected 0 to {scheduled - 1}, "
                    f"one real token less than num_scheduled_tokens[{request}] = {scheduled}"
                )
        if input_ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"input_ids: dtype {input_ids.dtype}, expected int32 or int64")
        if tuple(input_ids.shape) != (sum(num_scheduled_tokens),):
            raise ValueError(
                f"input_ids: shape {tuple(input_ids.shape)}, expected "
                f"({sum(num_scheduled_tokens)},), the sum of num_scheduled_tokens"
            )

        batch, num_tokens, device = len(num_draft_tokens), sum(num_draft_tokens), input_ids.device
        drafts = torch.tensor(num_draft_tokens, dtype=torch.int64, device=device)
        scheduled = torch.tensor(num_scheduled_tokens, dtype=torch.int64, device=device)
        cu_drafts, cu_sampled = drafts.cumsum(0), (drafts + 1).cumsum(0)
        requests = torch.arange(batch, device=device)

        # A request's last logits row is its last token; the others lie right before that one.
        distance = scheduled.cumsum(0) - cu_sampled
        rows = torch.arange(num_tokens + batch, device=device)
        logits_indices = rows + expand_batch_to_tokens(distance, cu_sampled, num_tokens + batch)
        # Before the drafts of request r lie the bonus rows of the r requests ahead of it.
        draft_request = expand_batch_to_tokens(requests, cu_drafts, num_tokens)
        target_logits_indices = torch.arange(num_tokens, device=device) + draft_request
        return cls(
            # Row i tests what the model was asked to predict there: the id one row later.
            draft_token_ids=input_ids[logits_indices[target_logits_indices + 1]].int(),
            num_draft_tokens=list(num_draft_tokens),
            cu_num_draft_tokens=cu_drafts.int(),
            cu_num_sampled_tokens=cu_sampled.int(),
            target_logits_indices=target_logits_indices,
            bonus_logits_indices=cu_sampled - 1,
            logits_indices=logits_indices,
        )


def expand_batch_to_tokens(
    values: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """Return for every token the value of its request, ``[num_tokens, ...]``.

    Args:
        values: ``[batch, ...]``, one entry a request; not written.
        cu_num_tokens: int32 or int64 ``[batch]``, inclusive prefix sum of the tokens; nothing is
            read before it begins.
        num_tokens: where the prefix sum ends; the caller's, no device value is read for it.

    Raises:
        ValueError: the lengths differ or, on a CPU, ``cu_num_tokens`` is no prefix sum that ends at
            ``num_tokens``.

    Example:
        >>> expand_batch_to_tokens(torch.tensor([10, 20, 30]), torch.tensor([2, 2, 5]), 5)
        tensor([10, 10, 30, 30, 30])

    Source: case M15; ``expand_batch_to_tokens`` in vllm/v1/sample/rejection_sampler.py.
    """
    if len(values) != len(cu_num_tokens):
        raise ValueError(
            f"values: {len(values)} requests, expected {len(cu_num_tokens)} as in cu_num_tokens"
        )
    if checks.checks_values(None, cu_num_tokens.device):
        steps = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        legal = "a prefix sum that never decreases, from 0"
        checks.refuse("cu_num_tokens", cu_num_tokens, steps < 0, legal)
        end = int(cu_num_tokens[-1]) if len(cu_num_tokens) else 0
        if num_tokens != end:
            raise ValueError(f"num_tokens: {num_tokens}, expected {end}, the end of cu_num_tokens")
    # Token i belongs to the first request that ends behind it; one without tokens ends nowhere new.
    tokens = torch.arange(num_tokens, dtype=cu_num_tokens.dtype, device=cu_num_tokens.device)
    return values[torch.searchsorted(cu_num_tokens, tokens, right=True)]


def start_locations(counts: torch.Tensor) -> torch.Tensor:
    """Return the prefix sum of ``counts`` with a leading 0, int32 ``[batch + 1]``.

    Example:
        >>> start_locations(torch.tensor([3, 0, 2])).tolist()
        [0, 3, 3, 5]
    """
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()


def check_counts(
    name: str, counts: Sequence[int], batch: int | None = None, least: int = 0
) -> None:
    """Refuse counts that are not ``batch`` ints of at least ``least``.

    Raises:
        ValueError: names the list, the request, the value and the legal range.
    """
    if batch is not None and len(counts) != batch:
        raise ValueError(f"{name}: {len(counts)} requests, expected {batch}")
    for request, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise ValueError(f"{name}[{request}]: {count!r}, expected an int of at least {least}")
