from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from engine_cases import atlas
from hypothesis import given
from hypothesis import strategies as st

from specedu.cache import kv
from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.llm import LLM
from specedu.models.toy import POISON, ProbingModel, hashed_law, mixed_law
from specedu.record import StepRecord
from specedu.sampling.coins import CoinSource

# --- writing and reading --------------------------------------------------------------------------


def numbered(num_blocks: int, block_size: int, *entry: int) -> torch.Tensor:
    """Return a cache whose entries are numbered in the order of the slots."""
    size = num_blocks * block_size
    slots = torch.arange(size).view(num_blocks, block_size, *[1] * len(entry))
    return slots.expand(num_blocks, block_size, *entry).clone()


def test_write_changes_the_named_slots_alone() -> None:
    cache = numbered(2, 3)
    kv.write(cache, [4, 0], torch.tensor([-1, -2]))
    assert cache.tolist() == [[-2, 1, 2], [3, -1, 5]]


def test_write_takes_slots_as_a_tensor() -> None:
    cache = numbered(2, 2)
    kv.write(cache, torch.tensor([3, 1], dtype=torch.int32), torch.tensor([-1, -2]))
    assert cache.tolist() == [[0, -2], [2, -1]]


def test_write_of_nothing_changes_nothing() -> None:
    cache = numbered(2, 2)
    kv.write(cache, [], torch.empty(0))
    assert cache.tolist() == [[0, 1], [2, 3]]


def test_an_entry_may_have_any_shape() -> None:
    cache = torch.zeros(2, 2, 2, 3)
    kv.write(cache, [2], torch.ones(1, 2, 3))
    assert cache.sum(dim=(2, 3)).tolist() == [[0, 0], [6, 0]]


def test_write_rounds_to_the_type_of_the_cache() -> None:
    cache = torch.zeros(1, 1, dtype=torch.bfloat16)
    kv.write(cache, [0], torch.tensor([1.001], dtype=torch.float64))
    assert (cache.dtype, cache.item()) == (torch.bfloat16, 1.0)


@pytest.mark.parametrize(
    ("blocks", "length", "entries"),
    [
        pytest.param([2, 0], 4, [4, 5, 0, 1], id="whole-blocks"),
        pytest.param([2, 0], 3, [4, 5, 0], id="in-part"),
        pytest.param([2, 0], 1, [4], id="one-entry"),
        pytest.param([1], 0, [], id="nothing"),
        pytest.param([], 0, [], id="no-blocks"),
    ],
)
def test_read_follows_the_blocks_up_to_the_length(
    blocks: list[int], length: int, entries: list[int]
) -> None:
    assert kv.read(numbered(3, 2), blocks, length).tolist() == entries


def test_read_returns_entries_of_their_shape() -> None:
    assert kv.read(numbered(3, 2, 4, 5), [2, 0], 3).shape == (3, 4, 5)


def test_poison_fills_the_named_slots_alone() -> None:
    cache = numbered(2, 2)
    kv.poison(cache, [1, 2], -9)
    kv.poison(cache, [], -8)
    assert cache.tolist() == [[0, -9], [-9, 3]]


def fragmented(block_size: int, order: Sequence[int], num_tokens: int) -> BlockTable:
    """Return a table whose blocks come in the given order."""
    pool = BlockPool(len(order))
    blocks = pool.allocate(len(order))
    pool.free([blocks[i] for i in order])
    table = BlockTable(pool, block_size)
    table.reserve(num_tokens)
    return table


@atlas("B78")
@given(st.integers(1, 4), st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=6))
def test_a_text_is_read_back_as_it_was_written_piece_by_piece(
    atlas_row: str, block_size: int, order: list[int], pieces: list[int]
) -> None:
    length = min(sum(pieces), 6 * block_size)
    table = fragmented(block_size, order, length)
    cache = torch.full((6, block_size), POISON)
    start = 0
    for piece in pieces:
        end = min(start + piece, length)
        kv.write(cache, table.slots(start, end), torch.arange(start, end))
        start = end
    assert kv.read(cache, table.blocks, length).tolist() == [*range(length)]


# --- rolling back ---------------------------------------------------------------------------------


@atlas("B70")
def test_rolling_back_by_length_leaves_buffer_and_table(atlas_row: str) -> None:
    table = BlockTable(BlockPool(5), block_size=2)
    table.reserve(10)
    cache = torch.full((5, 2), POISON)
    place, blocks, length = cache.data_ptr(), list(table.blocks), 2
    kv.write(cache, table.slots(0, 2), torch.tensor([10, 11]))
    for step in range(5):
        drafts = [100 * step + i for i in range(3)]
        kv.write(cache, table.slots(length, length + 3), torch.tensor(drafts))
        length += 1  # the last two are rejected
        assert kv.read(cache, table.blocks, length)[-1] == drafts[0]
    assert kv.read(cache, table.blocks, length).tolist() == [10, 11, 0, 100, 200, 300, 400]
    assert (cache.data_ptr(), tuple(cache.shape), table.blocks) == (place, (5, 2), blocks)


class Misled(StatelessProposer):
    """Proposes what the target says at first, and behind it what it hardly ever says."""

    def __init__(self, target: ProbingModel, right: int) -> None:
        self.target, self.right = target, right

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> Draft:
        text = list(task.token_ids)
        for i in range(task.limit):
            law = self.target.law(tuple(text))
            text.append(law.index(max(law) if i < self.right else min(law)))
        return Draft(text[len(task.token_ids) :])


VOCAB = 6
TARGET = ProbingModel(lambda text: hashed_law(text, VOCAB), VOCAB, max_model_len=48)


def misled_llm(right: int, **options: object) -> LLM:
    proposer = {"method": "custom", "proposer": Misled(TARGET, right), "num_speculative_tokens": 3}
    return LLM(TARGET, proposer, audit=True, poison=True, **options)


GREEDY = SamplingParams(temperature=0, max_tokens=20)


@atlas("B69")
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_behind_a_verify_the_cache_holds_all_but_the_last_token(right: int, atlas_row: str) -> None:
    engine = misled_llm(right).engine
    request = engine.add_request("a", [0, 1, 2, 3, 4, 5], GREEDY, seed=0)
    engine.step()
    assert (request.num_computed_tokens, request.num_draft_tokens) == (6, 3)
    engine.step()
    assert request.stats.num_accepted_tokens == right
    assert (request.num_computed_tokens, request.num_tokens) == (7 + right, 8 + right)


@atlas("B70")
def test_five_steps_use_one_buffer_and_add_blocks_behind_the_table_only(atlas_row: str) -> None:
    engine = misled_llm(right=1, block_size=2).engine
    request = engine.add_request("a", [0, 1, 2, 3, 4, 5], GREEDY, seed=0)
    cache = engine.runner.cache
    place, shape, tables = cache.data_ptr(), cache.shape, []
    for _ in range(5):
        engine.step()
        tables.append(list(request.table.blocks))
        held = kv.read(cache, request.table.blocks, request.num_computed_tokens)
        assert held.tolist() == request.token_ids[: request.num_computed_tokens]
    assert engine.runner.cache is cache
    assert (cache.data_ptr(), cache.shape) == (place, shape)
    assert all(b[: len(a)] == a for a, b in zip(tables, tables[1:], strict=False))
    assert request.stats.num_rejected_tokens > 0


def crosses_an_edge_between_distant_blocks(step: StepRecord, block_size: int) -> bool:
    return any(
        blocks[i // block_size] + 1 != blocks[(i + 1) // block_size]
        for verify in step.verifies
        for blocks in [verify.blocks_after]
        for i in range(verify.position - 1, verify.position + len(verify.draft_token_ids) - 1)
        if (i + 1) % block_size == 0
    )


@atlas("B78")
@pytest.mark.parametrize("right", [0, 1, 3])
def test_drafts_across_the_edge_of_distant_blocks_leave_the_text(
    right: int, atlas_row: str
) -> None:
    llm = misled_llm(right, block_size=2, record=True)
    prompts = [[0, 1, 2], [3, 4, 5, 3, 4], [1, 1]]
    together = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    alone = [LLM(TARGET).generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
    assert any(crosses_an_edge_between_distant_blocks(step, 2) for step in llm.engine.records)
    assert together == alone


@atlas("B92")
@pytest.mark.parametrize("right", [0, 3])
def test_no_draft_is_written_at_or_behind_the_end_of_the_context(
    right: int, atlas_row: str
) -> None:
    prompt, params = [0, 1, 2, 3, 4], SamplingParams(temperature=0, max_tokens=20)
    settings = {"max_model_len": 8, "block_size": 4, "num_blocks": 2}
    [plain] = LLM(TARGET, **settings).generate([prompt], params)
    llm = misled_llm(right, record=True, **settings)
    [output] = llm.generate([prompt], params)
    ends = [
        verify.position + len(verify.draft_token_ids)
        for step in llm.engine.records
        for verify in step.verifies
    ]
    assert max(ends) <= 7
    assert output.outputs == plain.outputs
    assert len(output.outputs[0].token_ids) == 3


# --- poison ---------------------------------------------------------------------------------------


def draft_model_llm(**options: object) -> LLM:
    draft = ProbingModel(mixed_law(TARGET.law, VOCAB), VOCAB, max_model_len=48)
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    return LLM(TARGET, config, block_size=2, num_blocks=30, audit=True, **options)


def test_what_no_committed_token_owns_is_never_read() -> None:
    dice = random.Random(0)
    prompts = [[dice.randrange(VOCAB) for _ in range(dice.randint(1, 20))] for _ in range(8)]
    params = [SamplingParams(max_tokens=16, seed=i) for i in range(8)]
    clean, poisoned = (draft_model_llm(poison=poison) for poison in (False, True))
    outputs = [[o.outputs for o in llm.generate(prompts, params)] for llm in (clean, poisoned)]
    assert outputs[0] == outputs[1]
    assert poisoned.metrics.num_rejected_tokens > 0


def test_a_slot_that_only_a_rejected_draft_wrote_holds_poison() -> None:
    engine = misled_llm(right=0).engine
    request = engine.add_request("a", [0, 1, 2], GREEDY, seed=0)
    engine.step()
    engine.step()
    behind = request.table.slots(request.num_computed_tokens, request.num_computed_tokens + 3)
    assert engine.runner.cache.view(-1)[behind].tolist() == [POISON] * 3


def test_a_missed_roll_back_is_noticed() -> None:
    engine = misled_llm(right=0).engine
    engine.audited = False
    request = engine.add_request("a", [0, 1, 2], GREEDY, seed=0)
    engine.step()
    engine.step()
    request.num_computed_tokens += 1  # as if the rejected draft were in the cache
    request.token_ids.append(0)
    with pytest.raises(RuntimeError, match="a slot holds no token"):
        engine.step()


# --- no leak --------------------------------------------------------------------------------------


@atlas("B86")
@pytest.mark.parametrize("num_blocks", [64, 13], ids=["roomy", "preempting"])
def test_ten_requests_give_every_block_back(num_blocks: int, atlas_row: str) -> None:
    draft = ProbingModel(mixed_law(TARGET.law, VOCAB), VOCAB, max_model_len=48)
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    llm = LLM(TARGET, config, block_size=4, num_blocks=num_blocks, audit=True, record=True)
    params = [SamplingParams(max_tokens=4 + 2 * i, seed=i) for i in range(10)]
    assert llm.engine.pool.num_free == num_blocks
    outputs = llm.generate([[i % VOCAB] * (i + 1) for i in range(10)], params)
    assert all(output.finished for output in outputs)
    assert any(step.preempted for step in llm.engine.records) is (num_blocks == 13)
    assert 0 < llm.metrics.num_accepted_tokens < llm.metrics.num_draft_tokens
    assert (llm.engine.pool.num_free, llm.engine.pool.num_used) == (num_blocks, 0)


@atlas("B95")
def test_a_drafter_of_twelve_slots_serves_one_request_of_eight_tokens_after_the_other(
    atlas_row: str,
) -> None:
    config = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3}
    llm = LLM(TARGET, config, block_size=4, num_blocks=3, max_model_len=12, audit=True)
    for seed in range(5):
        [output] = llm.generate([[0, 1, 2]], SamplingParams(max_tokens=5, seed=seed))
        assert output.metrics.num_draft_tokens > 0
        assert len(output.outputs[0].token_ids) == 5
    assert llm.engine.runner.proposer.fed == {}
