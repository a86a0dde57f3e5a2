from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import pytest
import torch
from engine_cases import atlas
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_batch import one_hot

from specedu.config import SamplingParams
from specedu.kernels import verify_chain
from specedu.llm import LLM
from specedu.models.toy import TableModel
from specedu.sampling.transforms import probabilities
from specedu.theory.reference import Law
from specedu.theory.settings import law_of

# Every property here is exact, so a failure is never an alarm by chance; the examples are fixed.
exact = settings(max_examples=200, deadline=None, derandomize=True)


def logits_of(*laws: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    rows = [[float(mass) for mass in law_of(law)] for law in laws]
    return torch.tensor(rows, dtype=torch.float64).log().to(dtype)


def law(words: str, **params: float) -> list[float]:
    """Return what the settings make of one law; its logits are float64, as the toys' are."""
    return probabilities(logits_of(words), [SamplingParams(**params)])[0].tolist()


def filtered(
    law: Law, top_k: int = 0, top_p: Fraction = Fraction(1), min_p: Fraction = Fraction(0)
) -> Law:
    """Filter by the definitions, in fractions."""
    kept = [mass if mass >= min_p * max(law) else Fraction(0) for mass in law]
    if 0 < top_k < len(kept):
        kth = sorted(kept, reverse=True)[top_k - 1]
        kept = [mass if mass >= kth else Fraction(0) for mass in kept]
    if top_p < 1:
        goal, reached, nucleus = top_p * sum(kept), Fraction(0), set()
        for token in sorted(range(len(kept)), key=lambda token: (-kept[token], token)):
            if reached >= goal:
                break
            nucleus.add(token)
            reached += kept[token]
        kept = [mass if token in nucleus else Fraction(0) for token, mass in enumerate(kept)]
    return tuple(mass / sum(kept) for mass in kept)


def support(law: Sequence[float | Fraction]) -> list[int]:
    return [token for token, mass in enumerate(law) if mass > 0]


@st.composite
def dyadic_laws(draw: st.DrawFn, least: int = 1) -> Law:
    """Draw a law of 32nds, as the toys' laws are of 16ths."""
    cuts = draw(st.lists(st.integers(0, 32), min_size=least, max_size=8))
    borders = [0, *sorted(cuts), 32]
    return tuple(Fraction(b - a, 32) for a, b in zip(borders, borders[1:], strict=False))


def as_logits(*laws: Law) -> torch.Tensor:
    return torch.tensor([[float(m) for m in law] for law in laws], dtype=torch.float64).log()


sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.5]),
    top_k=st.integers(-1, 9),
    top_p=st.sampled_from([0.1, 0.5, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
logits_rows = st.lists(
    st.lists(st.floats(-30, 30, width=32), min_size=7, max_size=7), min_size=1, max_size=6
)


# --- a law without settings, and greedy rows ------------------------------------------------------


@exact
@given(dyadic_laws())
def test_logits_of_a_dyadic_law_give_its_fractions_back_to_the_last_bit(law: Law) -> None:
    [row] = probabilities(as_logits(law), [SamplingParams()]).tolist()
    assert [Fraction(mass) for mass in row] == list(law)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_law_is_float32_whatever_the_logits_are(dtype: torch.dtype) -> None:
    assert probabilities(torch.zeros(1, 4, dtype=dtype), [SamplingParams()]).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_logits_are_widened_and_not_rounded_again(dtype: torch.dtype) -> None:
    logits = torch.linspace(-2, 2, 9)[None].to(dtype)
    params = [SamplingParams(temperature=0.7)]
    assert torch.equal(probabilities(logits, params), probabilities(logits.float(), params))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(1e-9, 2e-9, torch.float32), (1.0, 1.0 + 2**-50, torch.float64)],
)
def test_greedy_tells_logits_apart_that_a_float32_softmax_would_not(
    low: float, high: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor([[low, high, low]], dtype=dtype)
    softmax = logits.softmax(dim=1).float()[0].tolist()
    assert softmax[0] == softmax[1]
    [row] = probabilities(logits, [SamplingParams(temperature=0)]).tolist()
    assert row == one_hot(1, 3)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]])
    [row] = probabilities(logits, [SamplingParams(temperature=0)]).tolist()
    assert row == one_hot(1, 5)


def test_a_greedy_row_ignores_every_filter() -> None:
    params = SamplingParams(temperature=0, top_k=2, top_p=0.5, min_p=0.5)
    assert probabilities(logits_of("1/8 3/8 1/2"), [params]).tolist() == [one_hot(2, 3)]


def test_a_greedy_row_leaves_its_neighbours_sampled() -> None:
    params = [SamplingParams(temperature=t) for t in (1.0, 0.0, 1.0)]
    rows = probabilities(logits_of("1/4 3/4", "1/4 3/4", "1/2 1/2"), params).tolist()
    assert rows == [[0.25, 0.75], [0.0, 1.0], [0.5, 0.5]]


# --- temperature ----------------------------------------------------------------------------------


def test_half_the_temperature_squares_the_law() -> None:
    assert law("1/4 3/4", temperature=0.5) == pytest.approx([0.1, 0.9], abs=1e-7)


def test_a_high_temperature_flattens_the_law() -> None:
    # At temperature 2 the masses go as the square roots: 1/5 to 2/5 to 2/5.
    assert law("1/9 4/9 4/9", temperature=2.0) == pytest.approx([0.2, 0.4, 0.4], abs=1e-7)


# --- min-p, top-k, top-p --------------------------------------------------------------------------


def test_min_p_keeps_ids_from_its_share_of_the_largest_mass_on() -> None:
    assert law("1/2 1/4 1/8 1/8", min_p=0.4) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-7)


def test_min_p_of_one_keeps_every_id_that_ties_with_the_largest() -> None:
    assert law("3/8 1/4 3/8", min_p=1.0) == [0.5, 0.0, 0.5]


def test_top_k_keeps_the_ids_that_tie_with_the_kth() -> None:
    assert law("1/8 1/2 1/8 1/8 1/8", top_k=2) == [0.125, 0.5, 0.125, 0.125, 0.125]


@pytest.mark.parametrize("vocab", range(2, 20))
def test_equal_logits_tie_wherever_they_stand(vocab: int) -> None:
    # A vectorised exponential must not differ between lanes, or between lanes and the tail.
    logits = torch.full((1, vocab), 0.3, dtype=torch.float64)
    for params in (SamplingParams(top_k=1), SamplingParams(min_p=1.0)):
        row = probabilities(logits, [params])[0]
        assert torch.equal(row, row[:1].expand(vocab))
        assert row[0] > 0


def test_top_k_drops_what_is_below_the_kth() -> None:
    assert law("1/8 1/2 1/4 1/8", top_k=2) == pytest.approx([0, 2 / 3, 1 / 3, 0], abs=1e-7)


@pytest.mark.parametrize("top_k", [-1, 0, 3, 4])
def test_a_top_k_of_none_or_of_all_keeps_all(top_k: int) -> None:
    assert law("1/8 3/8 1/2", top_k=top_k) == [0.125, 0.375, 0.5]


def test_top_p_keeps_the_id_that_crosses() -> None:
    # 1/2 is below .6, so the second id is needed, and .75 is behind it.
    assert law("1/4 1/2 1/8 1/8", top_p=0.6) == pytest.approx([1 / 3, 2 / 3, 0, 0], abs=1e-7)


def test_top_p_keeps_the_first_id_even_if_it_crosses_alone() -> None:
    assert law("3/4 1/4", top_p=0.01) == [1.0, 0.0]


def test_top_p_takes_ids_of_one_probability_in_order() -> None:
    assert law("1/4 1/4 1/4 1/4", top_p=0.6) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-7)


@pytest.mark.parametrize(
    ("words", "top_p"),
    [("1/2 1/4 1/4", "1/2"), ("3/8 3/16 1/8 5/16", "11/16"), ("3/16 1/4 3/8 3/16", "5/8")],
)
def test_top_p_ends_where_its_mass_is_reached_exactly(words: str, top_p: str) -> None:
    ours = law(words, top_p=float(Fraction(top_p)))
    assert support(ours) == support(filtered(law_of(words), top_p=Fraction(top_p)))


@pytest.mark.parametrize(
    ("words", "min_p", "kept"),
    [
        ("1/2 1/4 1/4", "1/2", [0, 1, 2]),
        ("3/8 3/16 3/16 1/4", "1/2", [0, 1, 2, 3]),
        ("3/16 7/16 7/32 5/32", "1/2", [1, 2]),
        ("1/16 3/16 3/8 1/8 1/4", "1/2", [1, 2, 4]),
    ],
)
def test_min_p_keeps_an_id_that_has_its_share_exactly(
    words: str, min_p: str, kept: list[int]
) -> None:
    assert support(law(words, min_p=float(Fraction(min_p)))) == kept


@exact
@given(dyadic_laws(), st.integers(0, 32))
def test_min_p_keeps_what_the_definition_keeps(law: Law, unit: int) -> None:
    min_p = Fraction(unit, 32)
    [ours] = probabilities(as_logits(law), [SamplingParams(min_p=float(min_p))]).tolist()
    assert ours == pytest.approx([float(m) for m in filtered(law, min_p=min_p)], abs=1e-7)


@exact
@given(dyadic_laws(), st.integers(-1, 9))
def test_top_k_keeps_what_the_definition_keeps(law: Law, top_k: int) -> None:
    [ours] = probabilities(as_logits(law), [SamplingParams(top_k=top_k)]).tolist()
    assert ours == pytest.approx([float(mass) for mass in filtered(law, top_k)], abs=1e-7)


@exact
@given(dyadic_laws(), st.integers(1, 64))
def test_top_p_keeps_what_the_definition_keeps(law: Law, unit: int) -> None:
    top_p = Fraction(unit, 64)  # every other one may be reached exactly, whatever rounding does
    [ours] = probabilities(as_logits(law), [SamplingParams(top_p=float(top_p))]).tolist()
    assert ours == pytest.approx([float(m) for m in filtered(law, top_p=top_p)], abs=1e-7)


# --- their order, and one renormalisation ---------------------------------------------------------


def test_the_temperature_comes_before_min_p() -> None:
    # (.6, .3, .1) squared is (36, 9, 1)/46: the second id falls below .3 of the first.
    assert law("3/5 3/10 1/10", temperature=0.5, min_p=0.3) == [1.0, 0.0, 0.0]
    assert support(law("3/5 3/10 1/10", min_p=0.3)) == [0, 1]


def test_the_temperature_comes_before_top_p() -> None:
    assert law("3/5 3/10 1/10", temperature=0.5, top_p=0.75) == [1.0, 0.0, 0.0]
    assert support(law("3/5 3/10 1/10", top_p=0.75)) == [0, 1]


@pytest.mark.parametrize(("min_p", "top_k", "kept"), [(0.4, 3, [0, 1]), (0.2, 2, [0, 1])])
def test_min_p_and_top_k_keep_what_both_keep(min_p: float, top_k: int, kept: list[int]) -> None:
    assert support(law("1/2 1/4 3/16 1/16", min_p=min_p, top_k=top_k)) == kept


def test_min_p_comes_before_top_p() -> None:
    # Of (1/2, 5/16) the first has 8/13 > .6; of the whole law it has 1/2 < .6.
    assert support(law("1/2 5/16 3/16", min_p=0.5, top_p=0.6)) == [0]


def test_top_k_comes_before_top_p() -> None:
    # Top-k leaves (3/8, 1/4), of which the first has 3/5; of the whole law it has 3/8 < .55.
    assert support(law("3/8 1/4 3/16 3/16", top_k=2, top_p=0.55)) == [0]


@exact
@given(dyadic_laws(), sampling_params)
def test_the_law_is_renormalised_by_what_is_kept(law: Law, params: SamplingParams) -> None:
    if params.greedy:
        return
    plain = probabilities(as_logits(law), [SamplingParams(temperature=params.temperature)])[0]
    [ours] = probabilities(as_logits(law), [params]).tolist()
    kept = support(ours)
    mass = sum(plain[token].item() for token in kept)
    wanted = [plain[t].item() / mass if t in kept else 0.0 for t in range(len(law))]
    assert ours == pytest.approx(wanted, abs=1e-6)


# --- rows -----------------------------------------------------------------------------------------


@exact
@given(logits_rows, st.data())
def test_every_row_sums_to_one_and_is_never_empty(
    rows: list[list[float]], data: st.DataObject
) -> None:
    params = [data.draw(sampling_params) for _ in rows]
    laws = probabilities(torch.tensor(rows), params)
    assert (laws >= 0).all()
    assert laws.double().sum(dim=1).tolist() == pytest.approx([1.0] * len(rows), abs=1e-6)


@exact
@given(logits_rows, st.data())
def test_a_row_is_the_same_bits_alone_and_in_a_batch(
    rows: list[list[float]], data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    logits, params = torch.tensor(rows).to(dtype), [data.draw(sampling_params) for _ in rows]
    banned = [data.draw(st.lists(st.integers(0, 6), max_size=3)) for _ in rows]
    together = probabilities(logits, params, banned)
    for i, settings_of_row in enumerate(params):
        assert torch.equal(
            together[i : i + 1], probabilities(logits[i : i + 1], [settings_of_row], [banned[i]])
        )


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_a_row_of_a_real_vocabulary_is_the_same_bits_alone_and_in_a_batch(top_p: float) -> None:
    # So long a row, if it is alone, is cut up among the threads by some of torch's operations.
    generator, params = torch.Generator().manual_seed(0), SamplingParams(top_p=top_p)
    logits = 3 * torch.randn(4, 2**17, generator=generator)
    together = probabilities(logits, [params] * 4)
    for i in range(4):
        assert torch.equal(together[i : i + 1], probabilities(logits[i : i + 1], [params]))


def test_each_row_has_its_own_settings() -> None:
    params = [
        SamplingParams(top_k=1),
        SamplingParams(),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=0),
        SamplingParams(min_p=0.9),
    ]
    laws = probabilities(logits_of(*["1/2 1/4 1/4"] * 5), params)
    assert [support(row) for row in laws.tolist()] == [[0], [0, 1, 2], [0, 1], [0], [0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_ids_have_no_mass_in_their_row_alone(temperature: float) -> None:
    params = [SamplingParams(temperature=temperature)] * 2
    laws = probabilities(logits_of("1/2 1/4 1/4", "1/2 1/4 1/4"), params, [[], [0]])
    wanted = [[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]
    assert laws.tolist() == (wanted if temperature else [one_hot(0, 3), one_hot(1, 3)])


def test_ids_are_banned_before_anything_else_looks_at_them() -> None:
    # Of what is left, id 1 alone is within half of the largest, and it is top-1.
    params = [SamplingParams(min_p=0.9), SamplingParams(top_k=1), SamplingParams(top_p=0.5)]
    laws = probabilities(logits_of(*["5/8 1/4 1/8"] * 3), params, [[0]] * 3)
    assert laws.tolist() == [one_hot(1, 3)] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_logits_are_not_written(dtype: torch.dtype) -> None:
    logits = logits_of("1/2 1/4 1/4", "1/2 1/4 1/4", dtype=dtype)
    before = logits.clone()
    params = [SamplingParams(temperature=0), SamplingParams(top_k=2, top_p=0.5, min_p=0.1)]
    probabilities(logits, params, [[0], [1]])
    assert torch.equal(logits, before)


@pytest.mark.parametrize(("params", "banned"), [(1, None), (3, None), (2, 1), (2, 3)])
def test_another_number_of_settings_or_bans_than_rows_is_refused(
    params: int, banned: int | None
) -> None:
    with pytest.raises(ValueError, match="expected 2 as in logits"):
        probabilities(
            torch.zeros(2, 3),
            [SamplingParams()] * params,
            None if banned is None else [[]] * banned,
        )


# --- the atlas: the same settings on every verify row ---------------------------------------------


def verified(words: str, drafts: list[int], u: float, w: float, **params: float) -> list[int]:
    """Verify one-hot drafts against rows of one law, each with the same settings."""
    rows = len(drafts) + 1
    p = probabilities(logits_of(*[words] * rows), [SamplingParams(**params)] * rows)
    result = verify_chain(
        p,
        None,
        torch.tensor(drafts, dtype=torch.int32),
        torch.tensor([len(drafts)], dtype=torch.int32),
        torch.full((len(drafts),), u, dtype=torch.float64),
        torch.tensor([w], dtype=torch.float64),
        max_spec_len=len(drafts),
    )
    return result.token_ids[0].tolist()


@atlas("B21")
def test_top_p_is_applied_to_the_targets_rows(atlas_row: str) -> None:
    words = ".5 .3 .15 .05"
    assert law(words, top_p=0.8) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-7)
    assert verified(words, [2], u=0.0, w=0.8, top_p=0.8) == [1, -1]


@atlas("B21")
def test_an_id_outside_the_nucleus_is_never_emitted(atlas_row: str) -> None:
    coins = [0.0, 0.2, 0.4, 0.6, 0.8, 0.99]
    emitted = {
        token
        for draft, u, w in product(range(4), coins, coins)
        for token in verified(".5 .3 .15 .05", [draft], u, w, top_p=0.8)
    }
    assert emitted == {-1, 0, 1}


@atlas("B22")
def test_min_p_is_applied_to_draft_rows_as_to_the_bonus_row(atlas_row: str) -> None:
    words = ".6 .25 .15"
    assert law(words, min_p=0.5) == [1.0, 0.0, 0.0]
    assert verified(words, [1], u=0.2, w=0.9, min_p=0.5) == [0, -1]
    assert verified(words, [0], u=0.2, w=0.9, min_p=0.5) == [0, 0]


@atlas("B23")
def test_top_p_behind_top_k_leaves_the_row_an_id(atlas_row: str) -> None:
    assert law(".5 .3 .2", top_k=1, top_p=0.8) == [1.0, 0.0, 0.0]


@atlas("B27")
def test_speculative_tokens_follow_the_law_of_the_settings(atlas_row: str) -> None:
    # The draft says id 0 every time; its acceptance must not make it likelier.
    p = law_of("1/2 3/10 1/5")
    always_0 = TableModel([law_of("1 0 0")] * 3)
    llm = LLM(
        TableModel([p] * 3),
        {"method": "draft_model", "model": always_0, "num_speculative_tokens": 3},
        audit=True,
    )
    [output] = llm.generate([[0]], SamplingParams(n=30, max_tokens=100, seed=27))
    tokens = [token for completion in output.outputs for token in completion.token_ids]
    seen = [tokens.count(token) for token in range(3)]
    chi2 = sum(
        (count - 3000 * mass) ** 2 / (3000 * mass) for count, mass in zip(seen, p, strict=True)
    )
    # Two degrees of freedom: a right sampler exceeds 27.6 once in a million seeds.
    assert sum(seen) == 3000
    assert chi2 < 27.6
