"""The token behind the accepted drafts, for every rule that draws it by inverse CDF.

After a refusal it comes from the residual of the refused row (for a one-hot q: the p row with the
draft masked out), after none from the bonus row. Rows behind the first refusal stay unread.
"""

from __future__ import annotations

import torch

from .backend import jit, tl
from .draw import argmax_ids, draw_id, draw_ids, total_mass

# --- the twin -------------------------------------------------------------------------------------


def flags_or_none(
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
    draft_probs: torch.Tensor | None,
    batch: int,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both flags of every request, where a caller may have left them out."""
    nobody = torch.zeros(batch, dtype=torch.bool, device=device)
    onehot = ~nobody if draft_probs is None else nobody if onehot is None else onehot
    return nobody if greedy is None else greedy, onehot


def final_rows(
    draft_token_ids: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    num_accepted: torch.Tensor,
    onehot: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each request's last row, the q row to subtract there, the id to mask; -1 is none."""
    # The row of the first refusal, or the bonus row; no row behind it is read.
    rows = starts + torch.arange(len(starts), device=starts.device) + num_accepted
    refused = num_accepted < counts
    refused_index = torch.where(refused, starts + num_accepted, 0)
    refused_draft = draft_token_ids[refused_index].long() if len(draft_token_ids) else starts
    q_rows = torch.where(refused & ~onehot, refused_index, -1)
    excluded = torch.where(refused & onehot, refused_draft, -1)
    return rows, q_rows, excluded


def final_tokens(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    excluded: torch.Tensor,
    final_coins: torch.Tensor,
    greedy: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return each request's final token, int64 ``[batch]``; greedy ones take their row's argmax."""
    final = torch.empty_like(rows)
    final[greedy] = argmax_ids(target_probs, rows[greedy])
    drawn = ~greedy
    final[drawn] = draw_ids(
        target_probs,
        draft_probs,
        rows[drawn],
        q_rows[drawn],
        excluded[drawn],
        final_coins[drawn],
        None if scales is None else scales[drawn],
    )
    return final


# --- the kernel's function ------------------------------------------------------------------------


@jit
def final_id(p_row, q_row, refused, is_onehot, draft, scale, coin, vocab, TILE: tl.constexpr):
    """Return the token behind the accepted drafts; ``refused`` is 0 where the row is the bonus."""
    q_ids = tl.where((refused == 1) & (is_onehot == 0), vocab, 0)
    excluded = tl.where((refused == 1) & (is_onehot == 1), draft, -1)
    total = total_mass(p_row, q_row, q_ids, excluded, scale, vocab, TILE)
    if total == 0.0:
        q_ids = q_ids * 0
        excluded = excluded * 0 - 1
        total = total_mass(p_row, q_row, q_ids, excluded, scale, vocab, TILE)
    return draw_id(p_row, q_row, q_ids, excluded, scale, coin * total, vocab, TILE)
