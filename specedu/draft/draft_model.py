"""A smaller model as the draft: κ passes of one token each, on layers of the same block table.

The draft model's cache is indexed by the target's blocks, so that rolling back, freeing and
preempting cover both. How far it is computed is its own affair: after a step it holds the committed
text up to its first wrong guess, and catches up from committed text before it guesses again.

A draft of the target's own layers need not compute what the target has computed: its first layers
hold the very same keys and values, its weights in four bits nearly the same. Such a draft copies
them, the prompt's too, and computes the last token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specedu.kernels import Purpose, verify_chain
from specedu.models.base import ForwardBatch, Model
from specedu.ragged import RaggedBatch
from specedu.sampling.coins import CoinKey, CoinSource
from specedu.sampling.transforms import probabilities

from .base import Draft, DraftTask


class DraftModelProposer:
    """Drafts with a model of the same vocabulary.

    With ``draft_sample_method="greedy"`` it takes its own argmax whatever the temperature, and q is
    one-hot; with ``"probabilistic"`` it draws at the request's settings, with the request's coins,
    and hands over the rows that it drew from. A greedy request's drafts are one-hot either way.

    Attributes:
        draft_slots: 1 unless given: a decode runs through the draft model's queue too.
        num_lookahead_tokens: the last draft but one is written κ - 1 slots behind the text.
        reads_target_cache: whether it is of the target's own layers; the runner then sets the next.
        target_cache: where the target's entries are copied from, ``[layers, num_blocks, block_size,
            ...]`` with as many layers at least; None computes them.
    """

    def __init__(
        self,
        model: Model,
        num_speculative_tokens: int,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        draft_sample_method: str = "greedy",
        draft_slots: int = 1,
        reads_target_cache: bool = False,
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.probabilistic = draft_sample_method == "probabilistic"
        self.draft_slots = draft_slots
        self.reads_target_cache = reads_target_cache
        self.num_lookahead_tokens = num_speculative_tokens
        self.cache = model.make_cache(num_blocks, block_size)
        self.target_cache: torch.Tensor | None = None
        self.copied: dict[str, int] = {}  # request -> how many tokens came from the target's cache
        self.fed: dict[str, list[int]] = {}  # request -> the tokens that its cache holds

    def forget(self, request_id: str) -> None:
        """Drop what the cache holds of a request."""
        self.fed.pop(request_id, None)
        self.copied.pop(request_id, None)

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Catch up to each committed text, then draft one token a pass for all tasks together."""
        if self.target_cache is not None:
            for task in tasks:
                self._copy(task)
        drafted: list[list[int]] = [[] for _ in tasks]
        rows: list[list[torch.Tensor]] = [[] for _ in tasks]
        for i in range(max((task.limit for task in tasks), default=0)):
            active = [r for r, task in enumerate(tasks) if i < task.limit]
            logits = self._forward([tasks[r] for r in active], [drafted[r] for r in active])
            if not self.probabilistic or all(tasks[r].params.greedy for r in active):
                for r, token in zip(active, logits.argmax(dim=1).tolist(), strict=True):
                    drafted[r].append(token)
                continue
            settings = [tasks[r].params for r in active]
            law = probabilities(pad_vocabulary(logits, self.vocab_size), settings)
            keys = [
                CoinKey(task.request_id, task.seed, task.step, len(task.token_ids) + i)
                for task in (tasks[r] for r in active)
            ]
            ids = draw(law, coins.coins(keys, Purpose.DRAFT))
            for r, token, row in zip(active, ids, law, strict=True):
                drafted[r].append(token)
                rows[r].append(row)
        return [
            Draft(ids, torch.stack(law) if self.probabilistic and not task.params.greedy else None)
            for task, ids, law in zip(tasks, drafted, rows, strict=True)
        ]

    def _copy(self, task: DraftTask) -> None:
        """Take over what the target computed since the last time: all but the text's last token."""
        ours, theirs = self.cache.flatten(1, 2), self.target_cache.flatten(1, 2)
        start, end = self.copied.get(task.request_id, 0), len(task.token_ids) - 1
        slots = torch.tensor(self._slots(task, start, end), dtype=torch.int64)
        ours[:, slots] = theirs[: len(ours), slots]
        self.copied[task.request_id] = end
        self.fed[task.request_id] = list(task.token_ids[:end])

    def _slots(self, task: DraftTask, start: int, end: int) -> list[int]:
        size = self.block_size
        return [task.blocks[i // size] * size + i % size for i in range(start, end)]

    def _forward(self, tasks: Sequence[DraftTask], drafted: Sequence[list[int]]) -> torch.Tensor:
        """Feed what each request's cache lacks of text and drafts; return the last rows' logits."""
        feeds, starts, slots = [], [], []
        for task, ids in zip(tasks, drafted, strict=True):
            text = [*task.token_ids, *ids]
            held = self.fed.get(task.request_id, [])
            start = min(common_prefix(held, text), len(text) - 1)
            feeds.append(text[start:])
            starts.append(start)
            slots += self._slots(task, start, len(text))
            self.fed[task.request_id] = text
        counts = [len(feed) for feed in feeds]
        ragged = RaggedBatch.from_counts(starts, counts)
        batch = ForwardBatch(
            # A token that the draft does not know is fed as id 0: its guesses get worse, no more.
            input_ids=torch.tensor(
                [t if t < self.model.vocab_size else 0 for f in feeds for t in f]
            ),
            positions=torch.tensor(
                [start + i for start, n in zip(starts, counts, strict=True) for i in range(n)]
            ),
            slot_mapping=torch.tensor(slots),
            block_tables=[list(task.blocks) for task in tasks],
            ragged=ragged,
            logits_indices=ragged.query_start_loc[1:].long() - 1,
        )
        return self.model.forward(batch, self.cache)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts share from their beginning.

    Example:
        >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
        2
    """
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def draw(law: torch.Tensor, coins: torch.Tensor) -> list[int]:
    """Return one id a row, by inverse CDF with the row's coin.

    Example:
        >>> draw(torch.tensor([[0.25, 0.75]]), torch.tensor([0.5], dtype=torch.float64))
        [1]
    """
    none = torch.empty(0, dtype=torch.int32, device=law.device)
    no_drafts = torch.zeros(len(law), dtype=torch.int32, device=law.device)
    empty = torch.empty(0, dtype=torch.float64, device=law.device)
    drawn = verify_chain(law, None, none, no_drafts, empty, coins.to(law.device), max_spec_len=0)
    return drawn.token_ids[:, 0].tolist()


def pad_vocabulary(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return logits of ``vocab_size`` ids; ids that the draft does not know are never proposed.

    Example:
        >>> pad_vocabulary(torch.zeros(1, 2), 3).tolist()
        [[0.0, 0.0, -inf]]
    """
    missing = vocab_size - logits.shape[1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


def check_vocabularies(target: Model, draft: Model) -> None:
    """Refuse a draft model whose ids mean other tokens; padded sizes may differ.

    Ids are compared as far as both models name their pieces. A draft that knows more ids than the
    target is refused: it would propose what the target cannot emit.

    Raises:
        ValueError: names the first id that differs, or the two sizes.
    """
    if draft.vocab_size > target.vocab_size:
        raise ValueError(
            f"speculative_config model: a vocabulary of {draft.vocab_size} ids, expected at most "
            f"the target's {target.vocab_size}"
        )
    ours, theirs = (getattr(model, "pieces", []) for model in (target, draft))
    for token, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            raise ValueError(
                f"speculative_config model: id {token} means {b!r}, expected {a!r} as in the target"
            )
