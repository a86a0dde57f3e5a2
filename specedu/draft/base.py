"""The Proposer protocol: who makes drafts, and what a draft may depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from specedu.config import SamplingParams
from specedu.sampling.coins import CoinSource


@dataclass(frozen=True)
class DraftTask:
    """What a proposer is told of one request.

    Attributes:
        request_id: whose draft it is; state is kept under this name, never by batch slot.
        token_ids: the committed text. A view: it must not be changed.
        limit: how many tokens may be drafted at most, at least 1.
        params: the request's settings.
        seed: the key of its coins.
        step: the number of the verify that will test the draft.
        blocks: its block table, for proposers with a cache of their own.
    """

    request_id: str
    token_ids: Sequence[int]
    limit: int
    params: SamplingParams
    seed: int
    step: int
    blocks: Sequence[int]


class Draft(NamedTuple):
    """Drafted ids, at most the task's limit; and the law each was drawn from.

    ``probs`` is float32 ``[len(token_ids), vocab]``, the very rows that the ids were drawn from, or
    None where the ids are a function of the text alone: q is one-hot then.
    """

    token_ids: list[int]
    probs: torch.Tensor | None = None


NO_DRAFT = Draft([])


class Proposer(Protocol):
    """Makes drafts for the requests that decode.

    How many drafts a step has, and which, may depend on committed text, on earlier drafts and on
    the distribution a draft is about to be drawn from; never on the drawn id that it removes.
    Dropping a sampled draft because its own q is small gives the law (11/50, 9/20, 33/100) where
    (1/5, 1/2, 3/10) is right, for the source text's first pair.

    Attributes:
        draft_slots: tokens that each running decode is charged besides its own, drafting or not.
        num_lookahead_tokens: cache slots behind the committed text that it writes to.
    """

    draft_slots: int
    num_lookahead_tokens: int

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Return one draft a task, empty where nothing is proposed; called once a step."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request: it finished, or its cache was taken away."""
        ...


class StatelessProposer:
    """What a proposer without a cache of its own inherits.

    Example:
        >>> class Repeat(StatelessProposer):
        ...     def propose(self, tasks, coins):
        ...         return [Draft([task.token_ids[-1]] * task.limit) for task in tasks]
        >>> Repeat().draft_slots
        0
    """

    draft_slots = 0
    num_lookahead_tokens = 0

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Return one draft a task."""
        raise NotImplementedError

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""
