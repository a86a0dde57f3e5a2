"""One id from one row, for every rule: by inverse CDF, or the argmax.

A row's mass is ``max(0, p - q)`` after a refusal, with the subtraction in float32 and sums in
float64; NaN and negative entries of p and q count as 0. Where p is scaled (block verification) the
product and the subtraction are in float64 and the mass is rounded to float32. The drawn id is the
smallest t with ``cum(t) > w·Z``; an id without mass is never drawn, and a row without any yields
id 0.

Both versions sum in two levels: the tile whose running sum passes ``w·Z`` holds the id.
"""

from __future__ import annotations

import torch

from .backend import jit, tl

# --- the twin -------------------------------------------------------------------------------------

BLOCK = 512  # ids summed before the blocks are: one block's float64 entries fit in the L1 cache


def mass(entries: torch.Tensor) -> torch.Tensor:
    """Widen to float64; NaN and negative entries become 0."""
    return entries.double().nan_to_num_(0.0).clamp_min_(0.0)


def argmax_ids(target_probs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the lowest id of the largest entry of each row; id 0 where none is positive."""
    ids = [target_probs[row].nan_to_num(0.0).clamp_min_(0.0).argmax() for row in rows.tolist()]
    return torch.stack(ids) if ids else rows


def draw_ids(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    excluded: torch.Tensor,
    coins: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw one id a request: the smallest t with ``cum(t) > w·Z``.

    ``q_rows`` names the q row that is subtracted (-1: none), ``excluded`` an id that is masked out
    (-1: none), ``scales`` what each p row is multiplied by first, float64 (None: nothing). Two
    levels: the blocks' sums pick a block, the block's running sum picks the id. If rounding leaves
    no id, the last one with positive mass is taken.
    """
    sums = block_sums(target_probs, draft_probs, rows, q_rows, excluded, scales)
    running = sums.cumsum(1)
    total = running[:, -1]
    goal = (coins * total)[:, None]
    block = _pick(running, goal, sums)

    first, weights = _weights(target_probs, draft_probs, rows, q_rows, excluded, block, scales)
    before = torch.nn.functional.pad(running, (1, 0)).gather(1, block[:, None])
    final = first + _pick(before + weights.cumsum(1), goal, weights)

    fall_back = (total == 0) & ((q_rows >= 0) | (excluded >= 0))
    if bool(fall_back.any()):
        none = torch.full_like(rows[fall_back], -1)
        final[fall_back] = draw_ids(
            target_probs, None, rows[fall_back], none, none, coins[fall_back]
        )
    return final


def _weights(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    excluded: torch.Tensor,
    block: torch.Tensor,
    scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (first id, mass of the ids from there on, float64 ``[len(rows), width]``) of a block.

    The last block may be shorter than the others: its window begins early enough to fill the width,
    and the ids before the block count as 0. So a window is always one run of memory to copy.
    """
    vocab = target_probs.shape[1]
    width = min(BLOCK, vocab)
    first = (block * BLOCK).clamp(max=vocab - width)
    weights = target_probs.unfold(1, width, 1)[rows, first].float().nan_to_num_(0.0)
    if scales is not None:
        weights = weights.clamp_min_(0.0).double() * scales[:, None]
    if draft_probs is not None and len(draft_probs):
        q = draft_probs.unfold(1, width, 1)[q_rows.clamp(min=0), first]
        q = q.float().nan_to_num_(0.0).clamp_min_(0.0)
        weights -= q.where(q_rows[:, None] >= 0, 0.0)
    place = torch.arange(width, device=rows.device)
    before_block, excluded_place = block * BLOCK - first, excluded - first
    masked = (place < before_block[:, None]) | (place == excluded_place[:, None])
    return first, weights.float().clamp_min_(0.0).masked_fill_(masked, 0.0).double()


def block_sums(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    rows: torch.Tensor,
    q_rows: torch.Tensor,
    excluded: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mass of every block of ``BLOCK`` ids, float64 ``[len(rows), blocks]``.

    A vocabulary of more than one block is summed row by row over views: gathering the rows first
    would copy half a megabyte a request, and copying is most of the cost.
    """
    vocab = target_probs.shape[1]
    if vocab <= BLOCK:
        _, weights = _weights(
            target_probs, draft_probs, rows, q_rows, excluded, torch.zeros_like(rows), scales
        )
        return weights.sum(1, keepdim=True)

    blocks = -(-vocab // BLOCK)
    sums = torch.empty(len(rows), blocks, dtype=torch.float64, device=rows.device)
    narrow = torch.empty(vocab, dtype=torch.float32, device=rows.device)
    wide = torch.zeros(blocks, BLOCK, dtype=torch.float64, device=rows.device)
    entries = wide.view(-1)[:vocab]
    zero = torch.zeros((), device=rows.device)

    factors = None if scales is None else scales.tolist()

    def add_up(i: int, p: torch.Tensor, q: torch.Tensor | None, masked: int) -> None:
        if factors is not None:
            torch.mul(p.float().clamp_min(0.0).double(), factors[i], out=entries)
            if q is not None:
                entries.sub_(q.float().clamp_min(0.0))
            narrow.copy_(entries.clamp_min_(0.0))
        elif q is None:
            torch.clamp_min(p.float(), 0.0, out=narrow)
        else:
            # p - clamp(q, 0, p) is max(0, p - max(0, q)), a pass over the row cheaper.
            torch.clamp(q.float(), zero, p.float(), out=narrow)
            torch.sub(p.float(), narrow, out=narrow)
        entries.copy_(narrow)
        if 0 <= masked < vocab:
            entries[masked] = 0.0
        torch.sum(wide, 1, out=sums[i])

    requests = list(zip(rows.tolist(), q_rows.tolist(), excluded.tolist(), strict=True))
    for i, (row, q_row, masked) in enumerate(requests):
        add_up(i, target_probs[row], None if q_row < 0 else draft_probs[q_row], masked)
    for i in sums.sum(1).isnan().nonzero()[:, 0].tolist():  # a NaN entry: clean the rows first
        row, q_row, masked = requests[i]
        q = None if q_row < 0 else draft_probs[q_row].nan_to_num(0.0)
        add_up(i, target_probs[row].nan_to_num(0.0), q, masked)
    return sums


def _pick(running: torch.Tensor, goal: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
    """Return each row's first place with mass where ``running > goal``, else its last with mass."""
    has_mass = masses > 0
    hit = has_mass & (running > goal)
    place = hit.int().argmax(1)
    missed = ~hit.gather(1, place[:, None])[:, 0]
    if bool(missed.any()):  # rounding left none, or the row has no mass at all
        last = masses.shape[1] - 1 - has_mass.flip(1).int().argmax(1)
        place = torch.where(missed, last.where(has_mass.any(1), 0), place)
    return place


# --- the kernel's functions -----------------------------------------------------------------------


@jit
def positive(entries):
    """Widen to float32; NaN and negative entries become 0."""
    wide = entries.to(tl.float32)
    return tl.where(wide > 0.0, wide, 0.0)


@jit
def _weight_tile(p_row, q_row, q_ids, excluded, scale, ids, vocab):
    """Return the mass that is drawn from, float64, at ``ids``; q is subtracted below ``q_ids``.

    ``scale`` multiplies p: 1.0 leaves float32 as it is, a float64 widens the subtraction.
    """
    p = positive(tl.load(p_row + ids, mask=ids < vocab, other=0.0))
    q = positive(tl.load(q_row + ids, mask=ids < q_ids, other=0.0))
    return tl.where(ids == excluded, 0.0, positive(p * scale - q)).to(tl.float64)


@jit
def total_mass(p_row, q_row, q_ids, excluded, scale, vocab, TILE: tl.constexpr):
    """Return Z, the mass that is drawn from, summed tile by tile in float64."""
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        total += tl.sum(_weight_tile(p_row, q_row, q_ids, excluded, scale, ids, vocab), 0)
    return total


@jit
def draw_id(p_row, q_row, q_ids, excluded, scale, goal, vocab, TILE: tl.constexpr):
    """Return the smallest id whose running sum exceeds ``goal``, else the last with any mass."""
    before = tl.full((), 0.0, tl.float64)
    after = tl.full((), 0.0, tl.float64)
    first = 0
    found = 0
    chosen = 0
    while (found == 0) & (first < vocab):
        ids = first + tl.arange(0, TILE)
        weights = _weight_tile(p_row, q_row, q_ids, excluded, scale, ids, vocab)
        before = after
        after += tl.sum(weights, 0)
        last = tl.max(tl.where(weights > 0.0, ids, -1), 0)
        chosen = tl.where(last >= 0, last, chosen)
        if after > goal:
            hit = (before + tl.cumsum(weights, 0) > goal) & (weights > 0.0)
            chosen = tl.minimum(chosen, tl.min(tl.where(hit, ids, vocab), 0))
            found = 1
        first += TILE
    return chosen


@jit
def argmax_id(p_row, vocab, TILE: tl.constexpr):
    """Return the lowest id of the largest entry; id 0 where none is positive."""
    best = tl.full((), 0.0, tl.float32)
    best_id = 0
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        p = positive(tl.load(p_row + ids, mask=ids < vocab, other=0.0))
        highest = tl.max(p, 0)
        if highest > best:
            best = highest
            best_id = tl.min(tl.where(p == highest, ids, vocab), 0)
    return best_id


@jit
def argmax_run(out, p_rows, p_stride, drafts, count, vocab, TILE: tl.constexpr):
    """Store the leading drafts that equal their row's argmax; return how many, and the next argmax.

    The walk of a greedy request, whatever the rule.
    """
    accepted = 0
    matching = 1
    token = argmax_id(p_rows, vocab, TILE)
    while (matching == 1) & (accepted < count):
        draft = tl.load(drafts + accepted)
        matching = 0
        if draft == token:
            tl.store(out + accepted, draft.to(tl.int64))
            accepted += 1
            matching = 1
            token = argmax_id(p_rows + accepted.to(tl.int64) * p_stride, vocab, TILE)
    return accepted, token
