from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specedu.models.base import ForwardBatch
from specedu.models.toy import (
    POISON,
    ContextModel,
    ProbingModel,
    TableModel,
    ToyModel,
    hashed_law,
    mixed_law,
    rows_of,
)
from specedu.ragged import RaggedBatch
from specedu.theory.reference import Law
from specedu.theory.settings import law_of

exact = settings(max_examples=100, deadline=None, derandomize=True)

VOCAB, BLOCK = 4, 2
TEXT = [0, 3, 1, 1, 2, 0, 3]


def table_model() -> TableModel:
    return TableModel([hashed_law((token,), VOCAB) for token in range(VOCAB)])


def probing_model() -> ProbingModel:
    return ProbingModel(lambda text: hashed_law(text, VOCAB), VOCAB)


def context_model() -> ContextModel:
    return ContextModel(VOCAB)


every_toy = pytest.mark.parametrize(
    "make", [table_model, probing_model, context_model], ids=["table", "probing", "context"]
)
reads_its_cache = pytest.mark.parametrize(
    "make", [probing_model, context_model], ids=["probing", "context"]
)
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


def make_batch(*requests: tuple[Sequence[int], int, Sequence[int]]) -> ForwardBatch:
    """Lay out (fed ids, start, blocks) of each request; every row's logits are wanted."""
    ids = [token for fed, _, _ in requests for token in fed]
    positions = [start + i for fed, start, _ in requests for i in range(len(fed))]
    tables = [list(blocks) for fed, _, blocks in requests for _ in fed]
    slots = [
        blocks[i // BLOCK] * BLOCK + i % BLOCK
        for i, blocks in zip(positions, tables, strict=True)
    ]  # fmt: skip
    return ForwardBatch(
        input_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=[list(blocks) for _, _, blocks in requests],
        ragged=RaggedBatch.from_counts(
            [start for _, start, _ in requests], [len(fed) for fed, _, _ in requests]
        ),
        logits_indices=torch.arange(len(ids)),
    )


def laws_of(model: ToyModel, text: Sequence[int]) -> torch.Tensor:
    """Return the laws behind every beginning of a text, as a model without a cache has them."""
    laws = [model.law(tuple(text[: i + 1])) for i in range(len(text))]
    return torch.tensor([[float(mass) for mass in law] for law in laws])


def as_fractions(logits: torch.Tensor) -> list[Law]:
    rows = logits.softmax(dim=1).float().tolist()
    return [tuple(Fraction(mass) for mass in row) for row in rows]


# --- laws -----------------------------------------------------------------------------------------


@every_toy
@exact
@given(text=texts)
def test_a_law_sums_to_one(make: Callable[[], ToyModel], text: list[int]) -> None:
    law = make().law(tuple(text))
    assert len(law) == VOCAB
    assert sum(law) == 1


@every_toy
@exact
@given(text=texts)
def test_a_law_is_made_of_sixteenths(make: Callable[[], ToyModel], text: list[int]) -> None:
    assert all(16 % mass.denominator == 0 and mass >= 0 for mass in make().law(tuple(text)))


@every_toy
@exact
@given(text=texts)
def test_a_softmax_of_the_logits_returns_the_laws_as_fractions(
    make: Callable[[], ToyModel], text: list[int]
) -> None:
    model = make()
    logits = model.forward(make_batch((text, 0, range(6))), model.make_cache(6, BLOCK))
    wanted = [model.law(tuple(text[: i + 1])) for i in range(len(text))]
    assert as_fractions(logits) == wanted


@exact
@given(texts)
def test_the_laws_of_a_mix_are_dyadic_and_between_the_two(text: list[int]) -> None:
    def target(text: tuple[int, ...]) -> Law:
        return hashed_law(text, VOCAB)

    law = mixed_law(target, VOCAB)(tuple(text))
    assert sum(law) == 1
    assert all(mass >= half / 2 for mass, half in zip(law, target(tuple(text)), strict=True))
    assert all(32 % mass.denominator == 0 for mass in law)


def test_a_mix_of_weight_zero_is_another_law() -> None:
    def target(text: tuple[int, ...]) -> Law:
        return hashed_law(text, VOCAB)

    mixed = mixed_law(target, VOCAB, Fraction(0))
    assert any(mixed((token,)) != target((token,)) for token in range(VOCAB))


def test_a_table_model_sees_the_last_token_alone() -> None:
    model = TableModel([law_of("1/4 3/4"), law_of("1 0")])
    logits = model.forward(make_batch(([0, 1, 0], 0, [0, 1])), model.make_cache(2, BLOCK))
    assert as_fractions(logits) == [law_of("1/4 3/4"), law_of("1 0"), law_of("1/4 3/4")]


@reads_its_cache
def test_a_law_depends_on_the_order_of_the_text(make: Callable[[], ToyModel]) -> None:
    model = make()
    assert model.law((0, 1, 2)) != model.law((1, 0, 2))


@reads_its_cache
def test_a_law_depends_on_the_first_token_of_a_long_text(make: Callable[[], ToyModel]) -> None:
    model, rest = make(), (1, 2, 3) * 10
    assert len({model.law((token, *rest)) for token in range(VOCAB)}) == VOCAB


# --- the cache ------------------------------------------------------------------------------------


@every_toy
def test_an_empty_cache_holds_no_legal_entry(make: Callable[[], ToyModel]) -> None:
    cache = make().make_cache(3, BLOCK)
    assert cache.shape == (3, BLOCK)
    assert (cache == POISON).all()


@every_toy
@exact
@given(text=texts, cuts=st.sets(st.integers(1, 11)))
def test_chunks_give_the_logits_of_one_pass(
    make: Callable[[], ToyModel], text: list[int], cuts: set[int]
) -> None:
    model, blocks = make(), [3, 0, 5, 1, 4, 2]
    whole = model.forward(make_batch((text, 0, blocks)), model.make_cache(6, BLOCK))
    cache = model.make_cache(6, BLOCK)
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    chunks = [
        model.forward(make_batch((text[a:b], a, blocks)), cache)
        for a, b in zip(borders, borders[1:], strict=False)
    ]
    assert torch.equal(torch.cat(chunks), whole)


@every_toy
def test_requests_of_one_batch_do_not_see_each_other(make: Callable[[], ToyModel]) -> None:
    model, other = make(), [2, 2, 0]
    cache = model.make_cache(8, BLOCK)
    logits = model.forward(make_batch((TEXT, 0, [6, 1, 4, 3]), (other, 0, [0, 5])), cache)
    wanted = torch.cat((laws_of(model, TEXT), laws_of(model, other)))
    assert torch.equal(logits.softmax(dim=1).float(), wanted)


@every_toy
def test_only_the_wanted_rows_come_back(make: Callable[[], ToyModel]) -> None:
    model = make()
    full = make_batch((TEXT, 0, range(4)), ([1, 2], 0, [4]))
    rows = torch.tensor([2, 6, 8])
    fewer = ForwardBatch(**{**vars(full), "logits_indices": rows})
    everything = model.forward(full, model.make_cache(5, BLOCK))
    assert torch.equal(model.forward(fewer, model.make_cache(5, BLOCK)), everything[rows])


def continued(make: Callable[[], ToyModel], spoil: Callable[[torch.Tensor], None]) -> torch.Tensor:
    """Return the law behind the text, its last token fed alone onto a cache that was spoiled."""
    model = make()
    cache = model.make_cache(8, BLOCK)
    model.forward(make_batch((TEXT[:-1], 0, [5, 2, 7, 0])), cache)
    spoil(cache.view(-1))
    logits = model.forward(make_batch((TEXT[-1:], 6, [5, 2, 7, 0])), cache)
    return logits.softmax(dim=1).float()


@reads_its_cache
def test_a_cache_left_alone_gives_the_law_of_the_text(make: Callable[[], ToyModel]) -> None:
    assert torch.equal(continued(make, lambda slots: None), laws_of(make(), TEXT)[-1:])


@reads_its_cache
def test_a_poisoned_slot_of_the_text_is_an_error(make: Callable[[], ToyModel]) -> None:
    with pytest.raises(RuntimeError, match="request 0"):
        continued(make, lambda slots: slots[7 * BLOCK + 1].fill_(POISON))


@pytest.mark.parametrize("slot", [10, 11, 4, 5, 14, 15])
def test_a_probing_model_reads_every_slot_of_its_text(slot: int) -> None:
    def another_token(slots: torch.Tensor) -> None:
        slots[slot] = (slots[slot] + 1) % VOCAB

    assert not torch.equal(
        continued(probing_model, another_token), laws_of(probing_model(), TEXT)[-1:]
    )


def test_a_probing_model_refuses_an_id_behind_its_vocabulary() -> None:
    with pytest.raises(RuntimeError, match="a slot holds no token"):
        continued(probing_model, lambda slots: slots[10].fill_(VOCAB))


def test_a_context_model_goes_on_from_the_state_before() -> None:
    # The slot before holds another text's state: a law of that text comes out.
    model = context_model()
    other = model.state(model.state(0, 1), 2)
    law = continued(context_model, lambda slots: slots[7 * BLOCK + 1].fill_(other))
    assert [Fraction(mass) for mass in law[0].tolist()] == list(model.law((1, 2, TEXT[-1])))


@reads_its_cache
@pytest.mark.parametrize("slot", [4, 5, 10, 15, 6])
def test_an_entry_in_the_wrong_slot_is_noticed(make: Callable[[], ToyModel], slot: int) -> None:
    # The text goes into blocks 5, 2, 7, 0; one entry, the last of its pass, lands elsewhere.
    model = make()
    cache = model.make_cache(8, BLOCK)
    batch = make_batch((TEXT[:3], 0, [5, 2, 7, 0]))
    right = batch.slot_mapping[-1].item()
    batch.slot_mapping[-1] = slot
    model.forward(ForwardBatch(**{**vars(batch), "logits_indices": torch.tensor([0])}), cache)

    def go_on() -> torch.Tensor:
        return model.forward(make_batch((TEXT[3:4], 3, [5, 2, 7, 0])), cache).softmax(dim=1).float()

    if slot == right:
        assert torch.equal(go_on(), laws_of(model, TEXT[:4])[-1:])
    else:
        with pytest.raises(RuntimeError, match="request 0"):
            go_on()


@reads_its_cache
def test_an_entry_that_a_rollback_left_behind_is_noticed(make: Callable[[], ToyModel]) -> None:
    # Three drafts are fed and rejected; going on one place too late builds on one of them.
    model, blocks = make(), [5, 2, 7, 0]
    cache = model.make_cache(8, BLOCK)
    model.forward(make_batch((TEXT[:3], 0, blocks)), cache)
    model.forward(make_batch(([2, 2, 2], 3, blocks)), cache)
    late = model.forward(make_batch((TEXT[3:4], 4, blocks)), cache).softmax(dim=1).float()
    assert not torch.equal(late, laws_of(model, TEXT[:4])[-1:])
    right = model.forward(make_batch((TEXT[3:4], 3, blocks)), cache).softmax(dim=1).float()
    assert torch.equal(right, laws_of(model, TEXT[:4])[-1:])


@reads_its_cache
def test_a_stale_block_of_another_request_is_noticed(make: Callable[[], ToyModel]) -> None:
    model = make()
    cache = model.make_cache(8, BLOCK)
    model.forward(make_batch(([2, 2, 2, 2], 0, [5, 2])), cache)
    model.forward(make_batch((TEXT[:2], 0, [5])), cache)  # block 2 still holds the other text
    stale = model.forward(make_batch((TEXT[4:5], 4, [5, 2, 7])), cache).softmax(dim=1).float()
    assert not torch.equal(stale, laws_of(model, TEXT[:5])[-1:])


@every_toy
def test_every_entry_is_written_before_any_is_read(make: Callable[[], ToyModel]) -> None:
    # One pass over a whole text: a row sees the tokens of its own pass in front of it.
    model = make()
    logits = model.forward(make_batch((TEXT, 0, [3, 2, 1, 0])), model.make_cache(4, BLOCK))
    assert torch.equal(logits.softmax(dim=1).float(), laws_of(model, TEXT))


def test_rows_are_told_by_the_request_that_feeds_them() -> None:
    batch = make_batch(([0, 1], 0, [0]), ([], 0, []), ([2, 3, 1], 0, [1, 2]))
    assert rows_of(batch) == [(0, 0), (0, 1), (2, 2), (2, 3), (2, 4)]


# --- pieces ---------------------------------------------------------------------------------------


@exact
@given(st.lists(st.integers(0, VOCAB - 1), max_size=12))
def test_decoding_and_encoding_letters_returns_the_ids(ids: list[int]) -> None:
    model = context_model()
    assert model.encode(model.decode(ids)) == ids


def test_ids_are_letters_unless_pieces_are_given() -> None:
    assert context_model().decode([0, 3, 1]) == "adb"
    assert ContextModel(3, pieces=["x", "yy", ""]).decode([1, 2, 0]) == "yyx"


def test_encoding_takes_the_longest_piece() -> None:
    model = ContextModel(4, pieces=["a", "b", "ab", "abc"])
    assert model.encode("ababcb") == [2, 3, 1]


def test_a_text_without_a_piece_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="no piece begins 'z'"):
        context_model().encode("abz")


# --- the hash -------------------------------------------------------------------------------------


def test_hashed_laws_are_seldom_the_same() -> None:
    dice = random.Random(0)
    texts = {tuple(dice.randrange(6) for _ in range(dice.randint(1, 9))) for _ in range(200)}
    assert len({hashed_law(text, 6) for text in texts}) > 0.9 * len(texts)


def test_hashed_laws_give_every_id_mass_somewhere() -> None:
    likely = {max(range(6), key=hashed_law((i,), 6).__getitem__) for i in range(60)}
    assert likely == set(range(6))
