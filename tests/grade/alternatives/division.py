"""The ratio p/q is compared with the coin, guarded where q is 0."""

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
):
    batch, vocab = len(cu_num_draft_tokens), target_probs.shape[1]
    token_ids = torch.full((batch, max_spec_len + 1), -1)
    num_accepted = torch.zeros(batch, dtype=torch.int32)
    start = 0
    for r, end in enumerate(cu_num_draft_tokens.tolist()):
        certain = draft_probs is None or (onehot is not None and bool(onehot[r]))
        best = greedy is not None and bool(greedy[r])
        i, weights = 0, None
        for i in range(end - start + 1):
            p = clean(target_probs[start + r + i])
            if i == end - start:
                weights = p
                break
            x = int(draft_token_ids[start + i])
            if best:
                keep = x == int(p.argmax())
            elif not 0 <= x < vocab:
                keep = False
            else:
                q = 1.0 if certain else clean(draft_probs[start + i])[x].double()
                ratio = p[x].double() / q if q > 0 else torch.inf if p[x] > 0 else 0.0
                keep = bool(ratio > accept_coins[start + i])
            if not keep:
                weights = p.clone()
                if not certain:
                    weights = (p - clean(draft_probs[start + i])).clamp_min(0)
                elif x >= 0:
                    weights[x] = 0
                if weights.sum() == 0:
                    weights = p
                break
            token_ids[r, i] = x
        running = weights.double().cumsum(0)
        above = running > final_coins[r] * running[-1]
        token_ids[r, i] = p.argmax() if best else above.int().argmax()
        num_accepted[r] = i
        start = end
    return token_ids, num_accepted


def clean(row):
    return row.float().nan_to_num(0).clamp_min(0)
