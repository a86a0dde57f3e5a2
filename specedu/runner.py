"""The runner: fill, forward, verify, and propose for the next step.

It owns everything with ids and numbers in it: the model, the caches and the drafts. The scheduler
tells it how many tokens of which request; it tells the scheduler how many drafts there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .draft.base import NO_DRAFT, Draft, DraftTask, Proposer
from .draft_rows import model_input_ids
from .kernels import (
    Purpose,
    Verified,
    verify_greedy,
    verify_logspace,
    verify_match,
    verify_race,
)
from .models.base import ForwardBatch, Model
from .outputs import banned_ids
from .ragged import RaggedBatch, SpecDecodeMetadata
from .request import Request
from .rule import Rule
from .sampling.coins import CoinKey, CoinSource, PhiloxCoins, key_columns
from .sampling.transforms import allowed, probabilities
from .scheduler import Plan, Scheduled


class DraftStore:
    """Pending drafts by request id, each for one step of its request; never by batch slot.

    Example:
        >>> store = DraftStore()
        >>> store.put("a", 3, Draft([5, 6]))
        >>> store.take("a", 3, 1)
        (Draft(token_ids=[5], probs=None), 1)
    """

    def __init__(self) -> None:
        self._drafts: dict[str, tuple[int, Draft]] = {}

    def __len__(self) -> int:
        """Return how many requests have a draft."""
        return len(self._drafts)

    def __contains__(self, request_id: str) -> bool:
        """Return whether the request has a draft."""
        return request_id in self._drafts

    def put(self, request_id: str, step: int, draft: Draft) -> None:
        """Keep the draft that the request's verify number ``step`` will test.

        Raises:
            ValueError: there is one already.
        """
        if request_id in self._drafts:
            raise ValueError(f"request_id: {request_id!r} has a draft, expected none")
        self._drafts[request_id] = step, draft

    def take(self, request_id: str, step: int, count: int) -> tuple[Draft, int]:
        """Return the first ``count`` drafted tokens and how many are cut off; forget the draft.

        Raises:
            ValueError: the draft was made for another step, or is shorter.
        """
        made_for, draft = self._drafts.pop(request_id, (step, NO_DRAFT))
        if made_for != step or count > len(draft.token_ids):
            raise ValueError(
                f"{request_id}: a draft of {len(draft.token_ids)} for step {made_for}, expected at "
                f"least {count} for step {step}"
            )
        probs = None if draft.probs is None else draft.probs[:count]
        kept = Draft(draft.token_ids[:count], probs)
        return kept, num_real(draft.token_ids) - num_real(kept.token_ids)

    def drop(self, request_id: str) -> int:
        """Forget a draft that no verify will see, and return how many tokens it had."""
        return num_real(self._drafts.pop(request_id, (0, NO_DRAFT))[1].token_ids)

    def pending(self) -> dict[str, tuple[int, Draft]]:
        """Return every pending draft with the step that it is for."""
        return dict(self._drafts)


class Verdict(NamedTuple):
    """What a verify made of one request.

    Attributes:
        drafts: the drafts that it saw.
        num_cut: proposed drafts that it did not see, for want of budget.
        num_accepted: how many drafts the rule accepted.
        run: the ids that it emitted.
    """

    drafts: list[int]
    num_cut: int
    num_accepted: int
    run: list[int]


@dataclass(frozen=True)
class Seen:
    """The tensors of a step's verify, kept for the record.

    Under ``match`` every row has a coin of its own: those of the draft rows stand in
    ``accept_coins``, those of the bonus rows in ``final_coins``. In a race the last token has a row
    of noise instead of a coin, and ``final_coins`` are NaN.
    """

    p: torch.Tensor
    q: torch.Tensor | None
    onehot: list[bool]
    metadata: SpecDecodeMetadata
    accept_coins: torch.Tensor
    final_coins: torch.Tensor


class Runner:
    """Executes plans on one model.

    Attributes:
        model: the target.
        cache: the target's cache.
        proposer: makes the drafts, or None.
        drafts: the pending drafts.
        coins: where every coin comes from.
        recorded: whether a verify of greedy requests alone makes laws and coins too, to be seen.
        seen: the tensors of the last verify; None where it made no laws.
        draft_length: drafts of each request, at most, by the number of requests that decode.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int,
        coins: CoinSource,
        proposer: Proposer | None = None,
        num_speculative_tokens: int = 0,
        backend: str | None = None,
        rule: Rule | None = None,
        draft_length: Callable[[int], int] | None = None,
    ) -> None:
        self.model = model
        self.cache: Any = model.make_cache(num_blocks, block_size)
        self.coins = coins
        self.proposer = proposer
        if getattr(proposer, "reads_target_cache", False):
            proposer.target_cache = self.cache
        self.kappa = num_speculative_tokens
        self.draft_length = draft_length or (lambda decodes: num_speculative_tokens)
        self.backend = backend
        self.rule = rule or Rule()
        self.recorded = True
        self.drafts = DraftStore()
        self.seen: Seen | None = None

    # --- one step ---------------------------------------------------------------------------------

    def execute(self, plan: Plan) -> list[Verdict]:
        """Run one pass over the plan and verify its sampled parts, in the plan's order."""
        taken = [
            self.drafts.take(part.request.request_id, part.request.step, part.num_drafts)
            for part in plan.scheduled
        ]
        drafts = [draft for draft, _ in taken]
        metadata, batch = self._fill(plan, drafts)
        logits = self.model.forward(batch, self.cache)
        verified = self._verify(plan.sampled, drafts, metadata, logits)
        return [
            Verdict(draft.token_ids, cut, accepted, run)
            for (draft, cut), (accepted, run) in zip(taken, verified, strict=False)
        ]

    def _fill(self, plan: Plan, drafts: Sequence[Draft]) -> tuple[SpecDecodeMetadata, ForwardBatch]:
        """Lay the plan out flat: committed tokens, then drafts; sampled parts come first."""
        ids, positions, slots = [], [], []
        for part, draft in zip(plan.scheduled, drafts, strict=True):
            end = part.start + part.num_tokens
            ids += part.request.token_ids[part.start : end - part.num_drafts] + draft.token_ids
            positions += range(part.start, end)
            slots += part.request.table.slots(part.start, end)
        flat = torch.tensor(ids, dtype=torch.int64)
        counts = [part.num_tokens for part in plan.scheduled]
        metadata = SpecDecodeMetadata.from_counts(
            counts, [part.num_drafts for part in plan.scheduled], flat
        )
        rows = sum(part.num_drafts + 1 for part in plan.sampled)
        batch = ForwardBatch(
            input_ids=model_input_ids(flat, self.model.vocab_size),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            block_tables=[part.request.table.blocks for part in plan.scheduled],
            ragged=RaggedBatch.from_counts([part.start for part in plan.scheduled], counts),
            logits_indices=metadata.logits_indices[:rows],  # a chunk's row is not looked at
        )
        return metadata, batch

    def _verify(
        self,
        parts: Sequence[Scheduled],
        drafts: Sequence[Draft],
        metadata: SpecDecodeMetadata,
        logits: torch.Tensor,
    ) -> list[tuple[int, list[int]]]:
        """Turn logits into laws, take the coins, and let the rule decide: (accepted, run)."""
        self.seen = None
        if not parts:
            return []
        rows = [(part.request, i) for part in parts for i in range(part.num_drafts + 1)]
        banned = [
            banned_ids(request, request.num_output_tokens + i, self.model.eos_token_id)
            for request, i in rows
        ]
        argmax = self.rule.method != "synthetic" and all(r.params.greedy for r, _ in rows)
        if argmax and not self.recorded:
            result = self._compare(parts, metadata, allowed(logits, banned))
        else:
            p = probabilities(logits, [request.params for request, _ in rows], banned)
            verify = self._match if self.rule.method == "match" else self._test
            result = verify(parts, drafts[: len(parts)], metadata, p)
        return [
            (accepted, ids[: accepted + 1])
            for accepted, ids in zip(
                result.num_accepted.tolist(), result.token_ids.tolist(), strict=True
            )
        ]

    def _compare(
        self, parts: Sequence[Scheduled], metadata: SpecDecodeMetadata, scores: torch.Tensor
    ) -> Verified:
        """Verify greedy requests alone: no law is made, and no coin."""
        return verify_greedy(
            scores.argmax(dim=1),
            metadata.draft_token_ids,
            metadata.cu_num_draft_tokens[: len(parts)],
            max_spec_len=metadata.max_spec_len,
            backend=self.backend,
        )

    def _test(
        self,
        parts: Sequence[Scheduled],
        drafts: Sequence[Draft],
        metadata: SpecDecodeMetadata,
        p: torch.Tensor,
    ) -> Verified:
        """Verify with a coin a draft, and one for the last token, or a row of noise in a race."""
        accept_keys = [coin_key(part.request, i) for part in parts for i in range(part.num_drafts)]
        accept_coins = self.coins.coins(accept_keys, Purpose.ACCEPT)
        final_keys = [coin_key(part.request, 0) for part in parts]
        onehot = [draft.probs is None for draft in drafts]
        q = self._stack(drafts, p)
        final_coins = torch.full((len(parts),), math.nan, dtype=torch.float64)  # none in a race
        if self.rule.sampler == "chain":
            final_coins = self.coins.coins(final_keys, Purpose.FINAL)
        self.seen = Seen(p, q, onehot, metadata, accept_coins, final_coins)
        if self.rule.sampler == "logspace":
            return self._test_logarithms(parts, self.seen, final_keys)
        if self.rule.sampler == "race":
            verify, last = verify_race, self.coins.noise(final_keys, p.shape[1])
        else:
            verify, last = self.rule.function(metadata.max_spec_len, p.device), final_coins
        return verify(
            p,
            q,
            metadata.draft_token_ids,
            metadata.cu_num_draft_tokens[: len(parts)],
            accept_coins.to(p.device),
            last.to(p.device),
            max_spec_len=metadata.max_spec_len,
            greedy=greedy_flags(parts, p),
            onehot=None if q is None else torch.tensor(onehot, device=p.device),
            backend=self.backend,
        )

    def _test_logarithms(
        self, parts: Sequence[Scheduled], seen: Seen, keys: Sequence[CoinKey]
    ) -> Verified:
        """Verify in logarithms: ``log p`` and ``log q`` are logits of those very laws.

        Temperature, filters and bans are in p already, so the rule is told temperature 1, or 0 of a
        greedy request. The model's own logits are never handed in, not even where temperature is
        all there is: a request's numbers must not depend on its company, and a draft keeps its law
        as probabilities. The kernel makes the noise that the engine's own coins would give.
        """
        p, q, metadata = seen.p, seen.q, seen.metadata
        noise = None
        if not isinstance(self.coins, PhiloxCoins):
            noise = self.coins.noise(keys, p.shape[1]).to(p.device)
        return verify_logspace(
            p.log(),
            None if q is None else q.log(),
            metadata.draft_token_ids,
            metadata.cu_num_draft_tokens[: len(parts)],
            (~greedy_flags(parts, p)).float(),
            *(column.to(p.device) for column in key_columns(keys)),
            max_spec_len=metadata.max_spec_len,
            accept_coins=seen.accept_coins.to(p.device),
            noise=noise,
            onehot=None if q is None else torch.tensor(seen.onehot, device=p.device),
            backend=self.backend,
        )

    def _match(
        self,
        parts: Sequence[Scheduled],
        drafts: Sequence[Draft],
        metadata: SpecDecodeMetadata,
        p: torch.Tensor,
    ) -> Verified:
        """Verify by sample-and-match: a coin a row, the one that plain decoding draws with."""
        keys = [row_key(part.request, i) for part in parts for i in range(part.num_drafts + 1)]
        row_coins = self.coins.coins(keys, Purpose.FINAL)
        self.seen = Seen(
            p,
            self._stack(drafts, p),
            [draft.probs is None for draft in drafts],
            metadata,
            row_coins[metadata.target_logits_indices.cpu()],
            row_coins[metadata.bonus_logits_indices[: len(parts)].cpu()],
        )
        return verify_match(
            p,
            metadata.draft_token_ids,
            metadata.cu_num_draft_tokens[: len(parts)],
            row_coins.to(p.device),
            max_spec_len=metadata.max_spec_len,
            greedy=greedy_flags(parts, p),
            backend=self.backend,
        )

    def _stack(self, drafts: Sequence[Draft], p: torch.Tensor) -> torch.Tensor | None:
        """Return the q rows in the order of the drafts; None where every draft is one-hot."""
        if all(draft.probs is None for draft in drafts):
            return None
        unread = p.new_zeros(1, p.shape[1])
        return torch.cat(
            [
                unread.expand(len(draft.token_ids), -1) if draft.probs is None else draft.probs
                for draft in drafts
            ]
        )

    # --- drafts for the next one ------------------------------------------------------------------

    def propose(
        self, running: Sequence[Request], max_model_len: int
    ) -> list[tuple[Request, Draft]]:
        """Ask the proposer for every decoding request that has no draft, and return the new ones.

        A draft never reaches past the context: the request's last token may be the last place. It
        is not shortened for ``max_tokens``, so that a shorter limit gives a prefix of the output.
        Where lengths go by the batch, requests that decode are counted, and no prompts.

        Raises:
            ValueError: the proposer returned something illegal.
        """
        if self.proposer is None:
            return []
        tasks, requests = [], []
        decoding = [request for request in running if request.decoding]
        kappa = self.draft_length(len(decoding))
        for request in decoding:
            request.draft_length_varied |= kappa < self.kappa
            limit = min(kappa, max_model_len - request.num_tokens - 1)
            if limit > 0 and request.request_id not in self.drafts:
                requests.append(request)
                tasks.append(draft_task(request, limit))
        made = self.proposer.propose(tasks, self.coins) if tasks else []
        if len(made) != len(tasks):
            raise ValueError(f"proposer: {len(made)} drafts, expected one for each of {len(tasks)}")
        for task, draft in zip(tasks, made, strict=True):
            check_draft(task, draft, self.model.vocab_size)
        for task, draft in zip(tasks, made, strict=True):  # all of them, or none
            if draft.token_ids:
                self.drafts.put(task.request_id, task.step, draft)
        return list(zip(requests, made, strict=True))

    def forget(self, request: Request) -> int:
        """Drop what is kept of a request, and return how many drafts were never scheduled."""
        if self.proposer is not None:
            self.proposer.forget(request.request_id)
        return self.drafts.drop(request.request_id)


def coin_key(request: Request, i: int) -> CoinKey:
    """Return the key of a coin for the i-th undecided token of the request's next verify."""
    return CoinKey(request.request_id, request.seed, request.step, request.num_tokens + i)


def row_key(request: Request, i: int) -> CoinKey:
    """Return the key of the coin that plain decoding draws the i-th undecided token with.

    Plain decoding emits one token a verify, so its step is the token's place in the output: for a
    request the key is a function of the position alone, whatever was drafted, cut or accepted.
    """
    step, position = request.num_output_tokens + i, request.num_tokens + i
    return CoinKey(request.request_id, request.seed, step, position)


def greedy_flags(parts: Sequence[Scheduled], p: torch.Tensor) -> torch.Tensor:
    """Return which of the parts take the argmax, bool on the device of ``p``."""
    return torch.tensor([part.request.params.greedy for part in parts], device=p.device)


def draft_task(request: Request, limit: int) -> DraftTask:
    """Return what a proposer is told of a request."""
    return DraftTask(
        request.request_id,
        request.token_ids,
        limit,
        request.params,
        request.seed,
        request.step,
        request.table.blocks,
    )


def num_real(token_ids: Sequence[int]) -> int:
    """Count the drafts before the first -1: what lies behind it can never be accepted.

    Example:
        >>> num_real([4, -1, 5]), num_real([4, 5])
        (1, 2)
    """
    return token_ids.index(-1) if -1 in token_ids else len(token_ids)


def check_draft(task: DraftTask, draft: Draft, vocab_size: int) -> None:
    """Refuse a draft that is too long, has an illegal id, or rows of another shape.

    Raises:
        ValueError: it is.
    """
    name, ids = f"proposer, request {task.request_id}", draft.token_ids
    if len(ids) > task.limit:
        raise ValueError(f"{name}: {len(ids)} drafts, expected at most {task.limit}")
    for i, token in enumerate(ids):
        if not isinstance(token, int) or not -1 <= token < vocab_size:
            raise ValueError(
                f"{name}: draft {i} is {token!r}, expected an id in [-1, {vocab_size})"
            )
    if draft.probs is not None and tuple(draft.probs.shape) != (len(ids), vocab_size):
        shape = tuple(draft.probs.shape)
        raise ValueError(f"{name}: probs {shape}, expected ({len(ids)}, {vocab_size})")
