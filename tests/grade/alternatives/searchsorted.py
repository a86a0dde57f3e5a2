"""All requests at once; the final token by searchsorted on the running sums."""

import torch


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
    **options,
):
    ends = cu_num_draft_tokens.long()
    batch, n = len(ends), len(draft_token_ids)
    counts = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long))
    owner = torch.repeat_interleave(torch.arange(batch), counts)
    p = target_probs.float().nan_to_num(0).clamp_min(0)
    q = torch.zeros(n, p.shape[1])
    if draft_probs is not None:
        q = draft_probs.float().nan_to_num(0).clamp_min(0)
    hot = torch.zeros(n, p.shape[1])
    ids = draft_token_ids.long()
    there = ids >= 0
    hot[there.nonzero()[:, 0], ids[there]] = torch.inf  # more than any p: nothing is left of it
    certain = torch.full((batch,), draft_probs is None)
    if onehot is not None:
        certain = certain | onehot
    q = torch.where(certain[owner][:, None], hot, q)
    best = torch.zeros(batch, dtype=torch.bool) if greedy is None else greedy

    row = torch.arange(n) + owner
    x = ids.clamp(min=0)
    px, qx = p[row, x].double(), q[torch.arange(n), x].double().clamp(max=1)
    kept = there & (accept_coins * qx < px)
    kept = torch.where(best[owner], ids == p[row].argmax(1), kept)
    token_ids = torch.full((batch, max_spec_len + 1), -1)
    num_accepted = torch.zeros(batch, dtype=torch.int32)
    for r in range(batch):
        flags = kept[ends[r] - counts[r] : ends[r]]
        length = int(flags.int().cumprod(0).sum())
        here = int(ends[r] - counts[r]) + length
        token_ids[r, :length] = ids[here - length : here]
        p_row = p[here + r]
        left = torch.relu(p_row - q[here]) if length < counts[r] else p_row
        left = left if left.sum() > 0 else p_row
        running = left.double().cumsum(0)
        drawn = torch.searchsorted(running, running[-1:] * final_coins[r], right=True)
        token_ids[r, length] = p_row.argmax() if best[r] else drawn
        num_accepted[r] = length
    return token_ids, num_accepted
