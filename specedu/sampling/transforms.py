"""Temperature, min-p, top-k and top-p, on every row with that row's own settings.

The order is fixed: masks, temperature, min-p, top-k, top-p; the law is renormalised once, at the
end. A draft's row goes through the same function as the target's: that helps acceptance. Exactness
does not need it, since the rule divides by whatever q the draft was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specedu.config import SamplingParams


def probabilities(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    banned: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """Return the law of each row, float32 ``[rows, vocab]``.

    Args:
        logits: ``[rows, vocab]``, any floating dtype; not written. The work is done in its
            precision, in float32 at least.
        params: the settings of each row. A greedy row is one-hot at its largest logit, the lowest
            id among equals: a softmax could round two different logits to one probability.
        banned: per row, ids that may not be emitted (none: nothing is banned).

    Raises:
        ValueError: the numbers of rows differ.

    Example:
        >>> logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
        >>> probabilities(logits, [SamplingParams(top_p=0.8)]).tolist()[0][2:]
        [0.0, 0.0]

    Book: eq-transforms.
    """
    if len(params) != len(logits) or (banned is not None and len(banned) != len(logits)):
        raise ValueError(f"params: {len(params)} rows, expected {len(logits)} as in logits")
    scores = allowed(logits, banned)

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=scores.dtype)[:, None].to(
            scores.device
        )

    temperature = column("temperature")
    law = torch.softmax(scores / torch.where(temperature == 0, 1.0, temperature), dim=1)
    sampled = [not p.greedy for p in params]
    if any(s and p.min_p > 0 for s, p in zip(sampled, params, strict=True)):
        law = keep_min_p(law, column("min_p"))
    if any(s and 0 < p.top_k < logits.shape[1] for s, p in zip(sampled, params, strict=True)):
        law = keep_top_k(law, [p.top_k for p in params])
    if any(s and p.top_p < 1 for s, p in zip(sampled, params, strict=True)):
        law = keep_top_p(law, column("top_p"))
    law = (law / row_sums(law)).float()
    if not all(sampled):
        best = torch.nn.functional.one_hot(scores.argmax(dim=1), logits.shape[1])
        law = torch.where(temperature == 0, best.float(), law)
    return law


def allowed(logits: torch.Tensor, banned: Sequence[Sequence[int]] | None = None) -> torch.Tensor:
    """Return the logits with -inf at each row's banned ids, in float32 at least; not written.

    Example:
        >>> allowed(torch.tensor([[1.0, 2.0]]), [[1]]).tolist()
        [[1.0, -inf]]
    """
    scores = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if any(banned or ()):
        scores = scores.clone()
    for row, ids in enumerate(banned or ()):
        if ids:
            scores[row, list(ids)] = -torch.inf
    return scores


def keep_min_p(law: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Drop ids below ``min_p`` times the row's largest probability; not renormalised."""
    # A mass of 3/16 that rounding left a few bits short has half of 3/8 all the same.
    border = min_p * law.amax(dim=1, keepdim=True) * (1 - 8 * torch.finfo(law.dtype).eps)
    return law.where(law >= border, 0.0)


def keep_top_k(law: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """Keep the k largest and whatever ties with the k-th; k < 1 keeps all; not renormalised."""
    vocab = law.shape[1]
    kept = torch.tensor([k if 0 < k < vocab else vocab for k in top_k], device=law.device)
    border = law.sort(dim=1, descending=True).values.gather(1, kept[:, None] - 1)
    return law.where(law >= border, 0.0)


def keep_top_p(law: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the likeliest ids until their mass reaches top-p of the row's; not renormalised.

    The id that crosses stays, so that no row is ever empty. Ids of one probability go in order.
    """
    largest, order = law.sort(dim=1, descending=True, stable=True)
    before = torch.nn.functional.pad(largest.cumsum(dim=1)[:, :-1], (1, 0))
    # A mass of .5 + .3 that rounding left a few bits short of .8 has reached a top-p of .8.
    reached = top_p * row_sums(largest) * (1 - 8 * torch.finfo(law.dtype).eps)
    kept = (before < reached) | (top_p >= 1)
    return torch.zeros_like(law).scatter(1, order, largest.where(kept, 0.0))


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return each row's sum, ``[rows, 1]``, the same to the last bit alone and in any batch.

    One call over all rows would cut a row among the threads if it is alone, and not if it has
    company: it would round differently.
    """
    return torch.stack([row.sum() for row in rows])[:, None] if len(rows) else rows[:, :1]
