"""Tiles of 64 ids: first the mass of every tile, then the one that holds the final token."""

import torch

TILE = 64


def verify_chain(
    target_probs,
    draft_probs,
    draft_token_ids,
    cu_num_draft_tokens,
    accept_coins,
    final_coins,
    *,
    max_spec_len,
    greedy=None,
    onehot=None,
    check=None,
):
    out = torch.full((len(cu_num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int64)
    counts = torch.empty(len(cu_num_draft_tokens), dtype=torch.int32)
    begin = 0
    for r in range(len(out)):
        end = int(cu_num_draft_tokens[r])
        certain = draft_probs is None or (onehot is not None and bool(onehot[r]))
        best = greedy is not None and bool(greedy[r])
        place, refused = begin, False
        while place < end and not refused:
            x, p_row = int(draft_token_ids[place]), target_probs[place + r]
            if best:
                refused = x != argmax(p_row)
            elif x < 0:
                refused = True
            else:
                q_x = 1.0 if certain else positive(draft_probs[place, x]).double()
                refused = not accept_coins[place] * q_x < positive(p_row[x]).double()
            if not refused:
                out[r, place - begin] = x
                place += 1
        row, banned, q_row = target_probs[place + r], -1, None
        if refused and certain:
            banned = int(draft_token_ids[place])
        elif refused:
            q_row = draft_probs[place]
        out[r, place - begin] = argmax(row) if best else draw(row, q_row, banned, final_coins[r])
        counts[r] = place - begin
        begin = end
    return out, counts


def positive(x):
    return x.float().nan_to_num(0.0).clamp(min=0.0)


def argmax(row):
    return int(positive(row).argmax())


def tile(row, q_row, banned, first):
    mass = positive(row[first : first + TILE])
    if q_row is not None:
        mass = (mass - positive(q_row[first : first + TILE])).clamp(min=0.0)
    mass = mass.double()
    if first <= banned < first + TILE:
        mass[banned - first] = 0.0
    return mass


def draw(row, q_row, banned, coin):
    firsts = range(0, len(row), TILE)
    sums = [float(tile(row, q_row, banned, first).sum()) for first in firsts]
    if sum(sums) == 0 and (q_row is not None or banned >= 0):
        return draw(row, None, -1, coin)
    goal, before = float(coin) * sum(sums), 0.0
    for first, mass in zip(firsts, sums, strict=True):
        if before + mass > goal:
            return first + int(
                (before + tile(row, q_row, banned, first).cumsum(0) > goal).int().argmax()
            )
        before += mass
    return 0
