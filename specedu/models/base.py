"""What the engine asks of a model: a cache, and logits for some rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specedu.ragged import RaggedBatch


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """The flat input of one forward pass.

    Attributes:
        input_ids: int64 ``[num_tokens]``, legal ids only.
        positions: int64 ``[num_tokens]``, each token's place in its own text.
        slot_mapping: int64 ``[num_tokens]``, where its cache entry goes.
        block_tables: per request its blocks, in the order of its text.
        ragged: the requests' rows and cache lengths.
        logits_indices: int64 ``[rows]``, the rows whose logits are wanted.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: list[list[int]]
    ragged: RaggedBatch
    logits_indices: torch.Tensor


class Model(Protocol):
    """A causal language model on a paged cache.

    Attributes:
        vocab_size: ids lie below it.
        max_model_len: tokens of one text at most.
        eos_token_id: the id that ends a text, a tuple of several, or None.
    """

    vocab_size: int
    max_model_len: int
    eos_token_id: int | tuple[int, ...] | None

    def make_cache(self, num_blocks: int, block_size: int) -> Any:
        """Return an empty cache of that many slots."""
        ...

    def forward(self, batch: ForwardBatch, cache: Any) -> torch.Tensor:
        """Write the batch's entries into the cache and return logits ``[rows, vocab_size]``.

        Every entry is written before any is read: a row sees the tokens of its own request up to
        and including itself, and nothing else.
        """
        ...
