"""A long random load: nothing leaks, and every request comes to what it does alone.

``make stress`` runs 50 000 steps; a normal run does a tenth. The steps are divided among the
methods, with the audit and the poison on after every one.
"""

from __future__ import annotations

import pytest
from stress import Load, differences, make_llm, run_load

SEED = 20261130
# (toy, method, blocks, budget): blocks for two whole contexts, so that caches are taken away; the
# small budget cuts prompts into chunks and drafts short.
LOADS = [
    ("probing", "plain", 24, 64),
    ("context", "ngram", 24, 64),
    ("probing", "ngram", 24, 12),
    ("probing", "draft_model", 24, 64),
    ("context", "draft_model", 24, 16),
    ("probing", "probabilistic", 24, 64),
    ("context", "probabilistic", 24, 64),
    ("context", "self", 24, 64),
]


@pytest.fixture(scope="module")
def totals() -> dict[str, int]:
    return {"requests": 0, "preemptions": 0, "cancels": 0, "shortened": 0, "steps": 0}


@pytest.mark.parametrize(("kind", "method", "blocks", "budget"), LOADS)
def test_every_request_comes_to_what_it_does_alone(
    kind: str, method: str, blocks: int, budget: int, stress_steps: int, totals: dict[str, int]
) -> None:
    llm = make_llm(kind, method, block_size=4, num_blocks=blocks, max_num_seqs=6,
                   max_num_batched_tokens=budget, audit=True, poison=True)  # fmt: skip
    load: Load = run_load(llm, stress_steps // len(LOADS), SEED)
    assert load.ended.keys() == load.prompts.keys()
    assert llm.engine.pool.num_free == blocks
    assert not llm.engine.runner.drafts.pending()
    llm.metrics.check()
    alone = make_llm(kind, method, block_size=4, num_blocks=blocks, max_num_seqs=6)
    assert differences(load, alone) == []

    totals["requests"] += len(load.prompts)
    totals["cancels"] += len(load.cancelled)
    totals["preemptions"] += sum(r.num_preemptions for r in load.ended.values())
    totals["shortened"] += sum(r.draft_length_varied for r in load.ended.values())
    totals["steps"] += llm.engine.num_steps


def test_the_load_had_everything_in_it(totals: dict[str, int]) -> None:
    """Runs last: a load without preemptions, cancels or shortened drafts would prove less."""
    print(f"\nseed {SEED}: {totals}")
    assert totals["steps"] > 0, "run the whole file"
    assert all(totals.values())
