"""The ratio test: which drafts are kept, for every rule that tests one draft after the other.

A drafted id x with coin u is kept iff ``u·q(x) < p(x)``, strictly, in float64.
"""

from __future__ import annotations

import torch

from .backend import jit, tl
from .draw import argmax_ids, mass, positive

# --- the twin -------------------------------------------------------------------------------------


def drafted_masses(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    drafts: torch.Tensor,
    onehot: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return of each draft whether it is an id, and its p(x) and q(x) in float64.

    Where it is none, both are those of id 0: nobody may use them.
    """
    legal = (drafts >= 0) & (drafts < target_probs.shape[1])
    column = drafts.where(legal, 0)
    p = mass(target_probs[rows, column])
    q = torch.ones_like(p)
    if draft_probs is not None:
        q = torch.where(onehot, q, mass(draft_probs[q_rows, column]))
    return legal, p, q


def ratio_accepts(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    drafts: torch.Tensor,
    coins: torch.Tensor,
    greedy: torch.Tensor,
    onehot: torch.Tensor,
) -> torch.Tensor:
    """Return which drafts pass their test, whatever happened before them; one entry a draft."""
    legal, p, q = drafted_masses(target_probs, draft_probs, rows, q_rows, drafts, onehot)
    accepted = legal & (coins * q < p)
    if bool(greedy.any()):
        accepted[greedy] = drafts[greedy] == argmax_ids(target_probs, rows[greedy])
    return accepted


# --- the kernel's functions -----------------------------------------------------------------------


@jit
def load_masses(p_rows, q_rows, p_stride, q_stride, place, draft, legal, is_onehot):
    """Return the p(x) and q(x) of the draft at ``place`` in float64; no id has 0, one-hot q is 1.

    The device twin of ``drafted_masses``.
    """
    row = place.to(tl.int64)
    p = positive(tl.load(p_rows + row * p_stride + draft, mask=legal, other=0.0))
    q = tl.full((), 1.0, tl.float64)
    if is_onehot == 0:
        q_entry = tl.load(q_rows + row * q_stride + draft, mask=legal, other=0.0)
        q = positive(q_entry).to(tl.float64)
    return p.to(tl.float64), q


@jit
def ratio_run(out, p_rows, q_rows, p_stride, q_stride, drafts, coins, count, is_onehot, vocab):
    """Store the drafts before the first refusal; return their number, 1 if refused, the last id."""
    accepted = 0
    refused = 0
    draft = -1
    while (refused == 0) & (accepted < count):
        draft = tl.load(drafts + accepted)
        legal = (draft >= 0) & (draft < vocab)
        p, q = load_masses(p_rows, q_rows, p_stride, q_stride, accepted, draft, legal, is_onehot)
        coin = tl.load(coins + accepted)
        if coin * q < p:  # an illegal id has p = 0
            tl.store(out + accepted, draft.to(tl.int64))
            accepted += 1
        else:
            refused = 1
    return accepted, refused, draft
