"""One request's life: its committed tokens, how many of them are in the cache, and how it ends.

Invariants, asserted by :meth:`Request.check`:
``0 <= num_computed_tokens <= num_tokens <= max_model_len``, and a running request that has emitted
a token lacks nothing but its last token in the cache, unless it was preempted and is catching up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from .cache.block_table import BlockTable
from .config import SamplingParams
from .metrics import SpecDecodeStats


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """What the engine knows of one request.

    Attributes:
        request_id: unique in the engine.
        token_ids: the prompt, then the committed output; a draft never stands here.
        num_prompt_tokens: how many of them are the prompt's.
        params: how its tokens are chosen.
        seed: the key of its coins, int64.
        table: its blocks.
        num_computed_tokens: how many of its tokens are in the cache. While a step is under way this
            counts the scheduled drafts too, as if all were accepted.
        num_draft_tokens: how many drafts the runner holds for it.
        step: how many verifies it had; the one that completes the prompt is number 0.
        text: the output's text, stop strings cut.
        decode: gives the text that new ids add; it may remember half a character.
        finish_reason: ``stop``, ``length`` or ``abort``; None while it runs.
        stop_reason: the stop id or string that ended it; None for the end-of-text id.
        num_preemptions: how often its cache was taken away.
        draft_length_varied: whether a draft was shortened by the load of the batch.
        stats: what speculation did for it.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        seed: int,
        table: BlockTable,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.seed = seed
        self.table = table
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_draft_tokens = 0
        self.step = 0
        self.text = ""
        self.decode: Callable[[Sequence[int]], str] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.num_preemptions = 0
        self.draft_length_varied = False
        self.stats = SpecDecodeStats()

    @property
    def num_tokens(self) -> int:
        """Committed tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Committed tokens of the output."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The committed output."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.status is Status.FINISHED

    @property
    def prefill_end(self) -> int:
        """How many tokens are computed before the request decodes.

        The whole prompt, whose last row gives the first token; after a preemption all but the last
        committed token, which is fed together with the drafts as it would have been.
        """
        return self.num_tokens - 1 if self.num_output_tokens else self.num_tokens

    @property
    def decoding(self) -> bool:
        """Whether the next step feeds the last committed token, and drafts behind it."""
        return self.num_output_tokens > 0 and self.num_computed_tokens >= self.prefill_end

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        """End the request and give its blocks back; calling it again changes nothing."""
        if not self.finished:
            self.status = Status.FINISHED
            self.finish_reason, self.stop_reason = reason, stop_reason
            self.num_draft_tokens = 0
            self.table.release()

    def preempt(self) -> None:
        """Give the blocks back and wait; the tokens and the step number stay."""
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_draft_tokens = 0
        self.num_preemptions += 1
        self.table.release()

    def check(self, max_model_len: int) -> None:
        """Assert the invariants that hold between two steps.

        Raises:
            AssertionError: one does not.
        """
        assert 0 <= self.num_computed_tokens <= self.num_tokens <= max_model_len, (
            self.request_id,
            self.num_computed_tokens,
            self.num_tokens,
        )
        assert self.num_prompt_tokens <= self.num_tokens
        assert self.num_output_tokens <= self.params.max_tokens
        assert (self.finish_reason is not None) == self.finished
        if self.status is not Status.RUNNING:
            assert not self.table.blocks, f"{self.request_id} owns blocks and does not run"
            assert self.num_draft_tokens == 0
        else:
            capacity = len(self.table.blocks) * self.table.block_size
            assert self.num_computed_tokens <= capacity
            assert self.num_draft_tokens == 0 or self.decoding
            assert self.decoding or not self.num_output_tokens or self.num_preemptions
            if self.decoding:
                assert self.num_computed_tokens == self.num_tokens - 1
