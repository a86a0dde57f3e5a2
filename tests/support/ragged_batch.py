"""Requests written as plain lists, laid out as the contract wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specedu.kernels import Verified, verify_chain

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Request:
    """One request: p rows (one more than drafts), its drafts, q rows (None: one-hot), its coins."""

    p: Rows
    drafts: Sequence[int] = ()
    q: Rows | None = None
    u: Sequence[float] = ()
    w: float = 0.0
    greedy: bool = False


def chain(
    *requests: Request,
    backend: str,
    dtype: torch.dtype = torch.float32,
    place: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor,
    **options: Any,
) -> Verified:
    """Verify the requests in one launch; ``place`` may lay a tensor elsewhere in memory."""
    arguments = lay_out(requests, dtype)
    options = {"backend": backend, "max_spec_len": arguments.pop("max_spec_len"), **options}
    placed = {
        name: tensor if tensor is None else place(name, tensor)
        for name, tensor in arguments.items()
    }
    flags = {name: placed.pop(name) for name in ("greedy", "onehot")}
    return verify_chain(*placed.values(), **flags, **options)


def lay_out(requests: Sequence[Request], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return ``verify_chain``'s arguments by name, the positional ones in their order."""
    vocab = len(requests[0].p[0])
    nan_row = [float("nan")] * vocab
    full = [request for request in requests if request.q is not None]
    q_rows = [
        row for r in requests for row in (r.q if r.q is not None else [nan_row] * len(r.drafts))
    ]
    counts = torch.tensor([len(request.drafts) for request in requests])
    return {
        "target_probs": torch.tensor([row for r in requests for row in r.p], dtype=dtype),
        "draft_probs": torch.tensor(q_rows, dtype=dtype).view(-1, vocab) if full else None,
        "draft_token_ids": torch.tensor([x for r in requests for x in r.drafts], dtype=torch.int32),
        "cu_num_draft_tokens": counts.cumsum(0).int(),
        "accept_coins": torch.tensor([u for r in requests for u in r.u], dtype=torch.float64),
        "final_coins": torch.tensor([r.w for r in requests], dtype=torch.float64),
        "greedy": torch.tensor([r.greedy for r in requests])
        if any(r.greedy for r in requests)
        else None,
        "onehot": torch.tensor([r.q is None for r in requests])
        if full and len(full) < len(requests)
        else None,
        "max_spec_len": int(counts.max()),
    }


def runs(result: Verified) -> list[list[int]]:
    """Return each request's emitted ids; the rest of its row must be -1 and its count agree."""
    emitted = []
    for row, accepted in zip(result.token_ids.tolist(), result.num_accepted.tolist(), strict=True):
        assert all(token == -1 for token in row[accepted + 1 :])
        assert -1 not in row[: accepted + 1]
        emitted.append(row[: accepted + 1])
    return emitted


def one_hot(token: int, vocab: int) -> list[float]:
    """Return the row that gives one id all the mass."""
    return [float(t == token) for t in range(vocab)]
