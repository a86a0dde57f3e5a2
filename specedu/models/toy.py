"""Exact toy models: small enough that every token can be checked, and honest about their cache.

Each gives the law of the next token as fractions; its logits are their logarithms in float64, so
that a softmax returns the fractions to the last bit. They differ in what they read:

* :class:`TableModel`: the last token alone. No cache fault can show.
* :class:`ContextModel`: an integer state of the whole text, carried from slot to slot.
* :class:`ProbingModel`: every token of the text, read back from the cache. A wrong slot, a stale
  entry or a missed rollback changes the law at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import torch

from specedu.cache import kv
from specedu.theory.reference import Conditional, Law, Text

from .base import ForwardBatch

POISON = -(2**31)  # what tests put into slots that must never be read


class ToyModel:
    """What the toys share: laws to logits, and a cache of one integer a slot.

    Attributes:
        vocab_size: how many ids there are.
        max_model_len: tokens of one text at most.
        eos_token_id: the id that ends a text, a tuple of several, or None.
        pieces: the text of each id, for stop strings; letters unless given.
    """

    def __init__(
        self,
        vocab_size: int,
        max_model_len: int = 256,
        eos_token_id: int | tuple[int, ...] | None = None,
        pieces: Sequence[str] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.eos_token_id = eos_token_id
        self.pieces = list(pieces or (chr(ord("a") + i) for i in range(vocab_size)))

    def make_cache(self, num_blocks: int, block_size: int) -> torch.Tensor:
        """Return int64 ``[num_blocks, block_size]``, poisoned: nothing is there yet."""
        return torch.full((num_blocks, block_size), POISON, dtype=torch.int64)

    def invariant(self) -> ToyModel:
        """Return the model itself: each of its rows is computed alone."""
        return self

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the ids."""
        return "".join(self.pieces[token] for token in token_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, the longest piece first.

        Raises:
            ValueError: no piece stands at some place.
        """
        ids: list[int] = []
        while text:
            fitting = [i for i, piece in enumerate(self.pieces) if piece and text.startswith(piece)]
            if not fitting:
                raise ValueError(
                    f"prompt: no piece begins {text!r}, expected some of {self.pieces}"
                )
            ids.append(max(fitting, key=lambda i: len(self.pieces[i])))
            text = text[len(self.pieces[ids[-1]]) :]
        return ids

    def _logits(self, laws: Sequence[Law]) -> torch.Tensor:
        rows = [[float(mass) for mass in law] for law in laws]
        return torch.tensor(rows, dtype=torch.float64).view(-1, self.vocab_size).log()


class TableModel(ToyModel):
    """The law of the next token is a table of the last one.

    Example:
        >>> from specedu.theory.settings import law_of
        >>> TableModel([law_of("1/4 3/4"), law_of("1/2 1/2")]).law((0, 1))
        (Fraction(1, 2), Fraction(1, 2))
    """

    def __init__(self, table: Sequence[Law], **settings: object) -> None:
        super().__init__(len(table), **settings)
        self.table = list(table)

    def law(self, text: Text) -> Law:
        """Return the law behind a text of at least one token."""
        return self.table[text[-1]]

    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Return float64 logits; the ids are written, and never read."""
        kv.write(cache, batch.slot_mapping, batch.input_ids)
        return self._logits([self.table[t] for t in batch.input_ids[batch.logits_indices].tolist()])


class ProbingModel(ToyModel):
    """The law of the next token is any function of the whole text, read back from the cache.

    Example:
        >>> model = ProbingModel(lambda text: hashed_law(text, 4), 4)
        >>> sum(model.law((1, 2, 3)))
        Fraction(1, 1)
    """

    def __init__(self, conditional: Conditional, vocab_size: int, **settings: object) -> None:
        super().__init__(vocab_size, **settings)
        self.conditional = conditional

    def law(self, text: Text) -> Law:
        """Return the law behind a text."""
        return self.conditional(text)

    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Return float64 logits of what the cache holds, row by row.

        Raises:
            RuntimeError: a slot within a row's text holds no id of the vocabulary.
        """
        kv.write(cache, batch.slot_mapping, batch.input_ids)
        laws = []
        for request, row in rows_of(batch):
            length = int(batch.positions[row]) + 1
            text = tuple(kv.read(cache, batch.block_tables[request], length).tolist())
            if min(text) < 0 or max(text) >= self.vocab_size:
                raise RuntimeError(f"request {request} reads {text}: a slot holds no token")
            laws.append(self.conditional(text))
        return self._logits(laws)


class ContextModel(ToyModel):
    """The law of the next token is a function of an integer state of the whole text.

    A slot holds the state behind its token, made from the state in the slot before: like a KV
    cache's, its contents are more than the tokens, and the arithmetic is exact.

    Example:
        >>> model = ContextModel(4)
        >>> model.law((1, 2)) == model.law((2, 1))
        False
    """

    MODULUS = 2**31 - 1

    def __init__(self, vocab_size: int, **settings: object) -> None:
        super().__init__(vocab_size, **settings)

    def state(self, before: int, token: int) -> int:
        """Return the state behind ``token``; the state before a text is 0."""
        return (before * 48271 + token + 1) % self.MODULUS  # the multiplier of minstd

    def law(self, text: Text) -> Law:
        """Return the law behind a text."""
        state = 0
        for token in text:
            state = self.state(state, token)
        return hashed_law((state,), self.vocab_size)

    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Return float64 logits; each row's state comes from the slot before its own.

        Raises:
            RuntimeError: a slot that a row builds on holds no state.
        """
        starts = batch.ragged.query_start_loc.tolist()
        ids, slots = batch.input_ids.tolist(), batch.slot_mapping.tolist()
        flat = cache.view(-1)
        for request, (first, last) in enumerate(zip(starts, starts[1:], strict=False)):
            if first == last:
                continue
            position = int(batch.positions[first])
            held = kv.read(cache, batch.block_tables[request], position)
            state = int(held[-1]) if position else 0
            if state < 0:
                raise RuntimeError(f"request {request} builds on an empty slot at {position - 1}")
            for row in range(first, last):
                state = self.state(state, ids[row])
                flat[slots[row]] = state
        states = flat[batch.slot_mapping[batch.logits_indices]].tolist()
        return self._logits([hashed_law((state,), self.vocab_size) for state in states])


def rows_of(batch: ForwardBatch) -> list[tuple[int, int]]:
    """Return (request, row) for each row whose logits are wanted."""
    starts = batch.ragged.query_start_loc
    rows = batch.logits_indices
    requests = torch.searchsorted(starts.to(rows.dtype), rows, right=True) - 1
    return list(zip(requests.tolist(), rows.tolist(), strict=True))


@lru_cache(maxsize=2**16)
def hashed_law(text: Text, vocab_size: int, sixteenths: int = 16) -> Law:
    """Return a dyadic law that looks random and is a pure function of the text.

    Example:
        >>> hashed_law((3, 1), 2) == hashed_law((3, 1), 2)
        True
    """
    state = 1
    for token in text:
        state = (state * 6364136223846793005 + 2 * token + 1442695040888963407) % 2**64
    units = [0] * vocab_size
    for _ in range(sixteenths):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        units[(state >> 33) % vocab_size] += 1
    return tuple(Fraction(unit, sixteenths) for unit in units)


def mixed_law(
    conditional: Conditional, vocab_size: int, weight: Fraction = Fraction(1, 2)
) -> Callable[[Text], Law]:
    """Return a draft's law near a target's: ``weight`` of the target, the rest a law of its own.

    Example:
        >>> target = lambda text: hashed_law(text, 2)
        >>> mixed_law(target, 2, Fraction(1))((0,)) == target((0,))
        True
    """

    def draft(text: Text) -> Law:
        own = hashed_law((7, *text), vocab_size)
        near = conditional(text)
        return tuple(weight * a + (1 - weight) * b for a, b in zip(near, own, strict=True))

    return draft
