from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st

from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.llm import LLM
from specedu.metrics import SpecDecodeStats
from specedu.models.toy import TableModel
from specedu.sampling.coins import CoinSource
from specedu.theory.settings import law_of


def observed(*verifies: tuple[int, int, int]) -> SpecDecodeStats:
    """Return the counters of verifies of (drafts, accepted, kept), each draft proposed."""
    stats = SpecDecodeStats()
    for num_drafts, num_accepted, kept in verifies:
        stats.observe(num_drafts, num_accepted, kept)
        stats.num_proposed_tokens += num_drafts
    return stats


def uncut(*verifies: tuple[int, int]) -> SpecDecodeStats:
    """Return the counters of verifies of (drafts, accepted) that no stop cut."""
    return observed(*((n, accepted, accepted + 1) for n, accepted in verifies))


# --- a model that counts, and a proposer that is told where to be wrong ---------------------------

VOCAB = 32
ROWS = [[int(t == (i + 1) % VOCAB) for t in range(VOCAB)] for i in range(VOCAB)]
COUNTING = [law_of(" ".join(map(str, row))) for row in ROWS]  # behind i comes i + 1


class Flagged(StatelessProposer):
    """Proposes, for each verify counted from 1, the right id under a 1, a wrong one under a 0."""

    def __init__(self, *flags: Sequence[int]) -> None:
        self.flags = dict(enumerate(flags, start=1))

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> Draft:
        flags = self.flags.get(task.step, [])[: task.limit]
        last = task.token_ids[-1]
        return Draft([(last + i + 1 + (not flag)) % VOCAB for i, flag in enumerate(flags)])


class Literal(StatelessProposer):
    """Proposes the given ids at the first verify, and nothing later."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [Draft(self.ids if task.step == 1 else []) for task in tasks]


def count_up(
    proposer: StatelessProposer,
    kappa: int,
    max_tokens: int = 16,
    eos: int | None = None,
    **options: Any,
) -> SpecDecodeStats:
    """Let the model count from 0 under the drafts, and return the counters."""
    config = {"method": "custom", "proposer": proposer, "num_speculative_tokens": kappa}
    llm = LLM(TableModel(COUNTING, eos_token_id=eos), config, audit=True, **options)
    [output] = llm.generate([[0]], SamplingParams(seed=0, max_tokens=max_tokens))
    ids = output.outputs[0].token_ids
    assert ids == [1 + i for i in range(len(ids))]
    return output.metrics


# --- engine cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("K01", "K03", "K04", "K05", "K07"))
def test_drafts_tokens_accepted_and_accepted_per_place(case: dict[str, Any]) -> None:
    stats = SpecDecodeStats()
    for drafts, run in zip(case["input"]["drafts"], case["input"]["outputs"], strict=True):
        stats.observe(len(drafts), max(len(run) - 1, 0), kept=len(run))
    *counts, per_place = case["expect"]["stats"]
    assert [stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens] == counts
    # Places that no verify drafted are left out here.
    assert stats.accepted_per_pos == per_place[: len(stats.accepted_per_pos)]
    assert not any(per_place[len(stats.accepted_per_pos) :])


@pytest.mark.parametrize("case", cases("K05", "K07"))
def test_a_verify_that_drafts_or_delivers_nothing_leaves_every_counter(
    case: dict[str, Any],
) -> None:
    stats = SpecDecodeStats()
    [drafts], [run] = case["input"]["drafts"], case["input"]["outputs"]
    stats.observe(len(drafts), 0, kept=len(run))
    assert stats == SpecDecodeStats()


# --- what counts as accepted ----------------------------------------------------------------------


@atlas("B140")
@pytest.mark.parametrize(
    ("flags", "accepted", "emitted"),
    [
        pytest.param([[1, 0, 1], [1, 1, 1]], 4, 6, id="two-verifies"),
        pytest.param([[0, 1, 0, 0, 0]], 0, 1, id="nothing-behind-a-rejection"),
    ],
)
def test_what_lies_behind_a_rejection_is_not_accepted(
    flags: list[list[int]], accepted: int, emitted: int, atlas_row: str
) -> None:
    stats = count_up(Flagged(*flags), kappa=5)
    assert (stats.num_accepted_tokens, stats.num_emitted_tokens) == (accepted, emitted)


@atlas("B141")
def test_the_mean_length_counts_the_last_token(atlas_row: str) -> None:
    stats = count_up(Flagged([1, 1, 0], [0, 1, 1], [1, 0, 1]), kappa=3)
    assert stats.num_drafts == 3
    assert stats.mean_acceptance_length == stats.tokens_per_verify == 2.0
    assert stats.acceptance_rate == 3 / 9


@atlas("B142")
def test_drafts_behind_an_end_of_text_are_not_counted_as_committed(atlas_row: str) -> None:
    # The prompt is 0 and the first token 1, so the third draft is 4.
    stats = count_up(Flagged([1, 1, 1, 1, 1]), kappa=5, eos=4)
    assert (stats.num_drafts, stats.num_draft_tokens) == (1, 5)
    assert (stats.num_emitted_tokens, stats.num_accepted_tokens) == (3, 3)
    assert (stats.num_discarded_tokens, stats.num_discarded_draft_tokens) == (3, 2)
    assert stats.tokens_per_verify == 3.0


@atlas("B143")
def test_the_rate_leaves_the_last_token_out_and_the_length_counts_it(atlas_row: str) -> None:
    stats = count_up(Flagged([1, 1, 1]), kappa=3)
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (1.0, 4.0)


@atlas("B144")
@pytest.mark.parametrize(
    ("drafts", "counts"),
    [
        pytest.param([2, -1, -1], (1, 1, 1, 1), id="accepted"),
        pytest.param([4, -1, -1], (1, 1, 1, 0), id="rejected"),
        pytest.param([2, -1, 4], (1, 1, 1, 1), id="ids-behind-a-filler"),
        pytest.param([-1, -1, -1], (0, 0, 0, 0), id="fillers-alone"),
    ],
)
def test_fillers_are_no_drafts(
    drafts: list[int], counts: tuple[int, int, int, int], atlas_row: str
) -> None:
    stats = count_up(Literal(*drafts), kappa=3)
    assert counts == (
        stats.num_drafts,
        stats.num_proposed_tokens,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    )


@atlas("B144")
def test_the_rate_of_an_accepted_draft_before_fillers_is_1(atlas_row: str) -> None:
    assert count_up(Literal(2, -1, -1), kappa=3).acceptance_rate == 1.0


@atlas("B149")
def test_drafts_are_counted_one_by_one_where_the_context_shortens_the_last(atlas_row: str) -> None:
    # 2 tokens behind the prompt's step, then 5 a verify; at 12 of 14 there is room for one draft.
    stats = count_up(Flagged(*[[1] * 4] * 3), kappa=4, max_model_len=14)
    assert (stats.num_drafts, stats.num_draft_tokens) == (3, 9)
    assert stats.drafted_per_pos == [3, 2, 2, 2]
    assert stats.acceptance_rate == 1.0


# --- before the first draft -----------------------------------------------------------------------


@atlas("B148")
def test_without_drafts_no_ratio_divides_by_0(atlas_row: str) -> None:
    stats = count_up(Flagged(), kappa=3)
    assert stats == SpecDecodeStats()
    assert (stats.mean_acceptance_length, stats.tokens_per_verify) == (1.0, 1.0)
    assert stats.acceptance_rate is None
    assert stats.acceptance_rates == stats.conditional_acceptance_rates == []


@atlas("B148")
def test_without_drafts_the_metrics_page_has_its_counters_at_0(atlas_row: str) -> None:
    assert samples(SpecDecodeStats().prometheus()) == {
        "vllm:spec_decode_num_drafts_total": 0,
        "vllm:spec_decode_num_draft_tokens_total": 0,
        "vllm:spec_decode_num_accepted_tokens_total": 0,
    }


# --- several replicas -----------------------------------------------------------------------------


def accepting(num_steps: int, first: int, second: int) -> SpecDecodeStats:
    """Return a replica of two drafts a step, whose places were accepted so often."""
    verifies = [2] * second + [1] * (first - second) + [0] * (num_steps - first)
    return uncut(*((2, accepted) for accepted in verifies))


def total(*parts: SpecDecodeStats) -> SpecDecodeStats:
    stats = SpecDecodeStats()
    for part in parts:
        stats.add(part)
    return stats


@atlas("B146")
def test_rates_of_two_replicas_are_ratios_of_sums(atlas_row: str) -> None:
    stats = total(accepting(10, 8, 5), accepting(30, 15, 6))
    assert stats.accepted_per_pos == [23, 11]
    assert stats.acceptance_rates == [23 / 40, 11 / 40] == [0.575, 0.275]
    assert stats.mean_acceptance_length == 1 + 34 / 40 == 1.85


@atlas("B146")
def test_mean_lengths_of_two_replicas_are_weighted_by_their_verifies(atlas_row: str) -> None:
    stats = total(uncut(*[(3, 3)] * 10), uncut(*[(3, 1)] * 30))
    assert stats.mean_acceptance_length == stats.tokens_per_verify == 2.5


@atlas("B146")
def test_the_counters_of_an_engine_are_the_sum_over_its_requests(atlas_row: str) -> None:
    config = {
        "method": "custom",
        "proposer": Flagged([1, 1], [0, 1], [1, 0]),
        "num_speculative_tokens": 2,
    }
    llm = LLM(TableModel(COUNTING), config, audit=True)
    params = [SamplingParams(seed=0, max_tokens=n) for n in (2, 5, 9)]
    outputs = llm.generate([[0], [3], [6]], params)
    assert llm.metrics == total(*(output.metrics for output in outputs))
    assert [output.metrics.num_drafts for output in outputs] == [1, 2, 3]


def test_adding_leaves_the_other_as_it_was() -> None:
    part = uncut((2, 1))
    stats = total(part)
    stats.add(uncut((3, 3)))
    assert part == uncut((2, 1))


# Verifies as (drafts, accepted, kept), made from three numbers that always fit.
verifies = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(1, 6)).map(
        lambda t: (t[0], min(t[1], t[0]), min(t[2], min(t[1], t[0]) + 1))
    ),
    max_size=12,
)


@given(verifies, st.integers(0, 12))
def test_counting_in_two_parts_and_adding_is_counting_at_once(
    counted: list[tuple[int, int, int]], cut: int
) -> None:
    assert total(observed(*counted[:cut]), observed(*counted[cut:])) == observed(*counted)


def rounded(exact: Fraction) -> Any:
    """Return what equals a float made from the number in two roundings."""
    return pytest.approx(float(exact), rel=2**-51, abs=0)


# --- conservation ---------------------------------------------------------------------------------


@given(verifies)
def test_every_draft_and_every_emitted_token_is_accounted_for(
    counted: list[tuple[int, int, int]],
) -> None:
    stats = observed(*counted)
    stats.check()
    assert stats.num_draft_tokens == sum(n for n, _, _ in counted)
    assert stats.num_emitted_tokens == sum(kept for _, _, kept in counted)
    assert stats.num_emitted_tokens + stats.num_discarded_tokens == sum(
        accepted + 1 for _, accepted, _ in counted
    )


@given(verifies)
def test_the_counters_agree_with_a_walk_over_every_draft(
    counted: list[tuple[int, int, int]],
) -> None:
    fates = {"accepted": 0, "discarded": 0, "rejected": 0, "never tested": 0}
    for n, accepted, kept in counted:
        for place in range(n):
            if place < accepted:
                fates["accepted" if place < kept else "discarded"] += 1
            else:
                fates["rejected" if place == accepted else "never tested"] += 1
    stats = observed(*counted)
    assert [*fates.values()] == [
        stats.num_accepted_tokens,
        stats.num_discarded_draft_tokens,
        stats.num_rejected_tokens,
        stats.num_never_tested_tokens,
    ]


@given(verifies)
def test_the_two_mean_lengths_differ_exactly_by_the_cut_runs(
    counted: list[tuple[int, int, int]],
) -> None:
    stats = observed(*counted)
    cut = sum(kept < accepted + 1 for _, accepted, kept in counted)
    vllm = stats.num_drafts + stats.num_accepted_tokens
    assert vllm - stats.num_emitted_tokens == cut
    if counted:
        assert stats.mean_acceptance_length == rounded(Fraction(vllm, len(counted)))
        assert stats.tokens_per_verify == rounded(Fraction(vllm - cut, len(counted)))


@given(verifies)
def test_the_histogram_tells_how_often_so_many_were_accepted(
    counted: list[tuple[int, int, int]],
) -> None:
    kept = [min(accepted, kept) for _, accepted, kept in counted]
    assert dict(observed(*counted).histogram) == {n: kept.count(n) for n in set(kept)}


# For every counter there is a line of ``check`` that notices it.
@pytest.mark.parametrize("name", [field.name for field in fields(SpecDecodeStats)])
@pytest.mark.parametrize("by", [1, -1])
def test_check_trips_on_a_counter_that_is_off_by_one(name: str, by: int) -> None:
    stats = uncut((3, 2), (3, 3), (2, 0))
    stats.check()
    counter = getattr(stats, name)
    if isinstance(counter, int):
        setattr(stats, name, counter + by)
    else:
        counter[1 if isinstance(counter, list) else 0] += by
    with pytest.raises(AssertionError):
        stats.check()


def test_check_trips_on_a_verify_in_the_wrong_bar_of_the_histogram() -> None:
    stats = uncut((3, 2), (3, 3))
    stats.histogram[2] -= 1
    stats.histogram[1] += 1
    with pytest.raises(AssertionError):
        stats.check()


def test_check_counts_the_drafts_that_wait_for_their_verify() -> None:
    stats = uncut((3, 2))
    stats.num_proposed_tokens += 2
    stats.check(pending=2)
    with pytest.raises(AssertionError):
        stats.check(pending=1)


def test_check_counts_the_drafts_that_no_verify_saw() -> None:
    stats = uncut((3, 2))
    stats.num_proposed_tokens += 2
    stats.num_never_scheduled_tokens += 2
    stats.check()


@pytest.mark.parametrize(
    ("num_drafts", "num_accepted", "kept"),
    [
        pytest.param(3, 4, 1, id="accepted-more-than-drafted"),
        pytest.param(3, -1, 0, id="accepted-negative"),
        pytest.param(3, 2, 4, id="kept-more-than-emitted"),
        pytest.param(3, 2, -1, id="kept-negative"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    num_drafts: int, num_accepted: int, kept: int
) -> None:
    stats = SpecDecodeStats()
    words = f"^num_accepted, kept: {num_accepted}, {kept}, expected 0 to 3 and 0 to "
    with pytest.raises(ValueError, match=words):
        stats.observe(num_drafts, num_accepted, kept)
    assert stats == SpecDecodeStats()


# --- rates at each place --------------------------------------------------------------------------


def test_rates_of_verifies_of_one_length() -> None:
    stats = uncut((3, 3), (3, 1), (3, 0), (3, 1))
    assert stats.acceptance_rates == [3 / 4, 1 / 4, 1 / 4]
    assert stats.conditional_acceptance_rates == [3 / 4, 1 / 3, 1 / 1]


def test_conditional_rates_divide_by_the_tested_drafts_where_lengths_vary() -> None:
    # The first place is accepted three times in four. Two of those verifies had a second draft.
    stats = uncut((2, 2), (1, 1), (3, 1), (2, 0))
    assert stats.drafted_per_pos == [4, 3, 1]
    assert stats.tested_per_pos == [4, 2, 0]
    assert stats.accepted_per_pos == [3, 1, 0]
    assert stats.conditional_acceptance_rates == [3 / 4, 1 / 2, None]


def test_a_draft_that_a_stop_cut_was_not_tested() -> None:
    stats = observed((4, 3, 2))
    assert (stats.tested_per_pos, stats.accepted_per_pos) == ([1, 1, 0, 0], [1, 1, 0, 0])


def test_a_rejection_whose_replacement_a_stop_cut_was_tested() -> None:
    stats = observed((4, 2, 2))
    assert (stats.tested_per_pos, stats.accepted_per_pos) == ([1, 1, 1, 0], [1, 1, 0, 0])


@given(verifies)
def test_unconditional_rates_and_the_mean_length_agree(
    counted: list[tuple[int, int, int]],
) -> None:
    stats = observed(*counted)
    places = [Fraction(count, stats.num_drafts) for count in stats.accepted_per_pos]
    assert [float(rate) for rate in places] == stats.acceptance_rates
    assert stats.mean_acceptance_length == rounded(1 + sum(places))


@given(verifies)
def test_a_place_is_accepted_at_most_as_often_as_tested_and_tested_as_drafted(
    counted: list[tuple[int, int, int]],
) -> None:
    stats = observed(*counted)
    counts = [stats.accepted_per_pos, stats.tested_per_pos, stats.drafted_per_pos]
    for accepted, tested, drafted in zip(*counts, strict=True):
        assert 0 <= accepted <= tested <= drafted


# --- the metrics page -----------------------------------------------------------------------------

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{position="\d+"\})?) (\d+)')
TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) counter")


def samples(page: str) -> dict[str, int]:
    """Return the samples of a metrics page; a line that is none must be a type."""
    assert page.endswith("\n")
    lines = [line for line in page.splitlines() if not TYPE.fullmatch(line)]
    found = [SAMPLE.fullmatch(line).groups() for line in lines]
    assert len({name for name, _ in found}) == len(found)
    return {name: int(value) for name, value in found}


def test_the_metrics_page_has_vllms_names_and_this_engines_counters() -> None:
    prefix = "vllm:spec_decode_num_"
    assert samples(uncut((3, 2), (3, 0), (1, 1)).prometheus()) == {
        f"{prefix}drafts_total": 3,
        f"{prefix}draft_tokens_total": 7,
        f"{prefix}accepted_tokens_total": 3,
        f'{prefix}accepted_tokens_per_pos_total{{position="0"}}': 2,
        f'{prefix}accepted_tokens_per_pos_total{{position="1"}}': 1,
        f'{prefix}accepted_tokens_per_pos_total{{position="2"}}': 0,
    }


def test_each_sample_of_the_metrics_page_stands_under_its_own_type() -> None:
    # In the text format a type line names the samples below it in full, the suffix too.
    typed, names = None, []
    for line in uncut((3, 2)).prometheus().splitlines():
        found = TYPE.fullmatch(line)
        if found:
            typed = found[1]
        else:
            names.append((typed, line.partition(" ")[0].partition("{")[0]))
    assert len(names) == 6
    assert all(typed == name for typed, name in names)


@given(verifies)
def test_no_counter_of_the_metrics_page_is_negative_or_shrinks(
    counted: list[tuple[int, int, int]],
) -> None:
    before: dict[str, int] = {}
    for end in range(len(counted) + 1):
        now = samples(observed(*counted[:end]).prometheus())
        assert all(0 <= before.get(name, 0) <= value for name, value in now.items())
        assert before.keys() <= now.keys()
        before = now
