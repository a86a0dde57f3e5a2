"""Every invariant of the engine, checked between two steps.

Tests switch it on for every step; a user may too. It reads everything and changes nothing, but for
``poison``, which overwrites cache slots that nothing may ever read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from .cache import kv
from .models.toy import POISON
from .request import Status

if TYPE_CHECKING:
    from .engine import Engine


def check(engine: Engine) -> None:
    """Assert that blocks, requests, drafts and counters of an engine fit together.

    Raises:
        AssertionError: they do not.
    """
    scheduler, pool = engine.scheduler, engine.pool
    pool.check()
    owners = Counter(block for r in scheduler.running for block in r.table.blocks)
    assert dict(owners) == {b: n for b, n in enumerate(pool.ref_counts) if n}, "a block leaked"
    assert max(owners.values(), default=1) == 1, "two requests own one block"

    waiting, running = list(scheduler.waiting), scheduler.running
    assert len(running) <= scheduler.config.max_num_seqs
    assert {id(r) for r in (*waiting, *running)} == {id(r) for r in engine.requests.values()}
    assert len(waiting) + len(running) == len(engine.requests), "a request stands in two places"
    for request in waiting:
        assert request.status is Status.WAITING
    for request in running:
        assert request.status is Status.RUNNING
    for request in engine.requests.values():
        request.check(engine.scheduler.config.max_model_len)

    pending = engine.runner.drafts.pending()
    for request_id, (step, draft) in pending.items():
        assert request_id in engine.requests, f"{request_id} has a draft and does not exist"
        request = engine.requests[request_id]
        assert request.decoding and step == request.step, f"{request_id} has a stale draft"
        assert len(draft.token_ids) == request.num_draft_tokens
    for request in running:
        assert request.num_draft_tokens == 0 or request.request_id in pending
    engine.check_stats()


def poison(engine: Engine) -> None:
    """Overwrite every slot of a toy's cache that no committed token owns.

    Rejected drafts lie there, and what freed blocks held. A model that reads one is noticed.
    """
    cache = engine.runner.cache
    if not (isinstance(cache, torch.Tensor) and cache.dtype == torch.int64):
        return
    live = [
        slot
        for request in engine.scheduler.running
        for slot in request.table.slots(0, request.num_computed_tokens)
    ]
    dead = torch.ones(cache.numel(), dtype=torch.bool)
    dead[torch.tensor(live, dtype=torch.int64)] = False
    kv.poison(cache, dead.nonzero().flatten().tolist(), POISON)
