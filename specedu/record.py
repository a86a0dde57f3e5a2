"""The step record: what a step saw and decided, for the trace viewer, the labs and the debugger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifyRecord:
    """One verify of one request.

    Attributes:
        request_id: whose.
        step: the number of the verify within the request.
        position: the place of the first undecided token.
        draft_token_ids: what was proposed.
        top_p: per row the eight likeliest ids of p with their probability, the bonus row last.
        top_q: the same of q; None per row where q is one-hot.
        accept_coins: u of each draft; under ``match`` the coin of each draft's row.
        final_coin: w; under ``match`` the bonus row's; NaN in a race, which has noise instead.
        num_accepted: the rule's verdict.
        emitted: the run it emitted.
        kept: how many of those tokens were delivered.
        blocks_before: the block table before the step's tokens were reserved.
        blocks_after: and after it.
    """

    request_id: str
    step: int
    position: int
    draft_token_ids: list[int]
    top_p: list[list[tuple[int, float]]]
    top_q: list[list[tuple[int, float]] | None]
    accept_coins: list[float]
    final_coin: float
    num_accepted: int
    emitted: list[int]
    kept: int
    blocks_before: list[int]
    blocks_after: list[int]


@dataclass(frozen=True)
class StepRecord:
    """One engine step.

    Attributes:
        fed: request id -> (start, fed tokens, drafts among them).
        verifies: the verifies of the step.
        preempted: requests that lost their cache.
    """

    fed: dict[str, tuple[int, int, int]]
    verifies: list[VerifyRecord]
    preempted: list[str]
