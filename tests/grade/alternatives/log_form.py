"""The test in logarithms, with care where a number is 0."""

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
    batch = len(cu_num_draft_tokens)
    token_ids = torch.full((batch, max_spec_len + 1), -1)
    num_accepted = torch.zeros(batch, dtype=torch.int32)
    start = 0
    for r, end in enumerate(cu_num_draft_tokens.tolist()):
        certain = draft_probs is None or (onehot is not None and bool(onehot[r]))
        best = greedy is not None and bool(greedy[r])
        accepted = 0
        while accepted < end - start and passes(
            target_probs[start + r + accepted],
            None if certain else draft_probs[start + accepted],
            int(draft_token_ids[start + accepted]),
            accept_coins[start + accepted],
            best,
        ):
            token_ids[r, accepted] = draft_token_ids[start + accepted]
            accepted += 1
        row = clean(target_probs[start + r + accepted])
        if best:
            token = row.argmax()
        else:
            weights = row
            if accepted < end - start:
                x = int(draft_token_ids[start + accepted])
                if certain:
                    weights = row.index_fill(0, torch.tensor([x] if x >= 0 else []).long(), 0.0)
                else:
                    weights = torch.relu(row - clean(draft_probs[start + accepted]))
                weights = weights if weights.any() else row
            total = weights.double().cumsum(0)
            token = int((total <= final_coins[r] * total[-1]).sum())
        token_ids[r, accepted] = token
        num_accepted[r] = accepted
        start = end
    return token_ids, num_accepted


def passes(p_row, q_row, x, coin, best):
    p_row = clean(p_row)
    if best:
        return x == int(p_row.argmax())
    if x < 0 or p_row[x] == 0:
        return False  # log 0 on the right: nothing is less than minus infinity
    log_q = 0.0 if q_row is None else clean(q_row)[x].double().log()
    return bool(coin.log() + log_q < p_row[x].double().log())


def clean(row):
    return torch.where(row > 0, row.float(), 0.0)
