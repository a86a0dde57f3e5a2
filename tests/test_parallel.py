"""Ranks that differ a little stay in step by broadcast, and part without it."""

from __future__ import annotations

import pytest
from engine_cases import atlas

from specedu.parallel import REQUESTS, RankReport, run_ranks

PATIENT = 30.0  # seconds, where nothing should hang however loaded the machine is


@pytest.fixture(scope="module")
def alone() -> RankReport:
    return run_ranks(1)[0]


@pytest.fixture(scope="module")
def together() -> list[RankReport]:
    return run_ranks(timeout=PATIENT)


@pytest.fixture(scope="module")
def apart() -> list[RankReport]:
    return run_ranks(broadcast=(), timeout=3.0)


def test_the_requests_are_of_every_kind() -> None:
    assert {params.greedy for params in REQUESTS} == {True, False}
    assert any(params.top_k for params in REQUESTS)


@atlas("B131")
def test_with_the_broadcast_every_rank_has_rank_0s_texts(together, alone, atlas_row: str) -> None:
    assert [report.hung_at for report in together] == [None, None]
    assert together[0].texts == together[1].texts == alone.texts
    assert together[0].passes == together[1].passes


@atlas("B131")
def test_without_it_the_texts_part(apart, atlas_row: str) -> None:
    first, second = apart
    assert first.texts[0] != second.texts[0]  # greedy, at a tie
    assert first.texts[1] != second.texts[1]  # sampled, at the border of a top-k


def test_without_it_every_rank_waits_in_vain_and_says_where(apart) -> None:
    assert None not in [report.hung_at for report in apart]
    assert apart[0].waited_for != apart[1].waited_for


def test_they_hang_where_their_passes_first_differ_in_size(apart) -> None:
    first, second = apart
    pairs = enumerate(zip(first.passes, second.passes, strict=False))
    differ = next(i for i, (a, b) in pairs if a != b)
    assert first.hung_at == second.hung_at == differ


def test_a_hang_is_detected_within_seconds(apart) -> None:
    assert max(report.seconds_waited for report in apart) < 10


@atlas("B132")
def test_drafts_that_differ_are_made_equal_by_a_broadcast(alone, atlas_row: str) -> None:
    first, second = run_ranks(differ="drafts", broadcast=("drafts",), timeout=PATIENT)
    assert first.texts == second.texts == alone.texts
    assert first.passes == second.passes and second.hung_at is None


@atlas("B132")
def test_the_verdicts_alone_do_not_make_up_for_other_drafts(atlas_row: str) -> None:
    reports = run_ranks(differ="drafts", broadcast=("ids", "counts"))
    assert all(report.hung_at is not None for report in reports)


def test_ids_without_counts_do_not_keep_ranks_in_step() -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 failed: .*the count is another rank's"):
        run_ranks(broadcast=("drafts", "ids"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world_size": 0}, r"world_size: 0, expected an int in \[1, 8\]"),
        ({"broadcast": "ids"}, "broadcast: 'ids', expected a sequence of some of drafts, ids"),
        ({"broadcast": ["texts"]}, r"broadcast\[0\]: 'texts', expected one of drafts, ids, counts"),
        ({"differ": "seeds"}, "differ: 'seeds', expected one of logits, drafts"),
        ({"timeout": 0}, r"timeout: 0, expected a number in \[0.1, 60\]"),
        ({"max_tokens": 0}, r"max_tokens: 0, expected an int in \[1, 200\]"),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_the_range(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        run_ranks(**settings)
