"""Plain Python over lists; torch only at both ends."""

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
    backend=None,
):
    ps = clean(target_probs)
    qs = None if draft_probs is None else clean(draft_probs)
    drafts, ends = draft_token_ids.tolist(), cu_num_draft_tokens.tolist()
    u, w = accept_coins.tolist(), final_coins.tolist()
    runs = []
    for r, end in enumerate(ends):
        first = ends[r - 1] if r else 0
        n = end - first
        rows = ps[first + r : end + r + 1]
        certain = qs is None or (onehot is not None and onehot[r].item())
        law = None if certain else qs[first:end]
        best = greedy is not None and greedy[r].item()
        runs.append(one(rows, law, drafts[first:end], u[first:end], w[r], best, n))
    ids = [run + [-1] * (max_spec_len + 1 - len(run)) for run in runs]
    counts = [len(run) - 1 for run in runs]
    return torch.tensor(ids), torch.tensor(counts, dtype=torch.int32)


def one(rows, law, drafts, u, w, best, n):
    run = []
    for i in range(n):
        p, x = rows[i], drafts[i]
        if best:
            if x != p.index(max(p)):
                return run + [p.index(max(p))]
        elif x < 0 or not u[i] * (1 if law is None else law[i][x]) < p[x]:
            if law is None:
                left = [0 if t == x else mass for t, mass in enumerate(p)]
            else:
                left = [max(0, a - b) for a, b in zip(p, law[i], strict=True)]
            return run + [draw(left if any(left) else p, w)]
        run.append(x)
    last = rows[n]
    return run + [last.index(max(last)) if best else draw(last, w)]


def draw(weights, coin):
    goal, running = coin * sum(weights), 0
    for token, weight in enumerate(weights):
        running += weight
        if running > goal:
            return token
    return max((t for t, weight in enumerate(weights) if weight), default=0)


def clean(rows):
    return [[x if x > 0 else 0.0 for x in row] for row in rows.float().tolist()]
