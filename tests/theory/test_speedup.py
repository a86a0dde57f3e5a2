"""What speculation gains: the source's numbers, and statements around them as exact searches."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from specedu.config import SpeculativeConfig
from specedu.theory import speedup as gains
from specedu.theory.cost import LLAMA_3_2_1B, LLAMA_3_8B, draft_ratio
from specedu.theory.hardware import hardware
from specedu.theory.rates import expected_tokens

ALPHAS = np.linspace(0.02, 0.98, 25)
COSTS = (0.0, 0.02, 0.165, 0.43, 0.9)
EXACT_ALPHAS = [Fraction(k, 12) for k in range(13)]
EXACT_COSTS = [Fraction(0), Fraction(1, 50), Fraction(33, 200), Fraction(43, 100), Fraction(9, 10)]
PAIR = (LLAMA_3_8B, LLAMA_3_2_1B, hardware("H100 SXM"), 0.7, 3)


# --- one request ----------------------------------------------------------------------------------


def test_three_drafts_at_seven_tenths_gain_1_69() -> None:
    assert round(gains.speedup(0.7, 3, 0.165), 2) == 1.69


def test_at_one_half_seven_drafts_of_the_1b_are_a_net_loss() -> None:
    c = draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B)
    gained = [gains.speedup(0.5, kappa, c) for kappa in range(1, 8)]
    assert gained[-1] < 1 < gained[0]
    assert round(max(gained), 2) == 1.32


def test_no_drafts_change_nothing() -> None:
    assert gains.speedup(0.3, 0, 0.165) == 1


def test_the_break_even_of_three_drafts_of_the_1b_is_0_34() -> None:
    assert round(gains.break_even_alpha(3, 0.165), 2) == 0.34


@pytest.mark.parametrize("kappa", [1, 3, 8])
@pytest.mark.parametrize("c", COSTS)
def test_at_the_break_even_nothing_is_gained(kappa: int, c: float) -> None:
    alpha = gains.break_even_alpha(kappa, c)
    assert gains.speedup(alpha, kappa, c) == pytest.approx(1, abs=1e-12)


def test_the_break_even_cost_is_the_mean_power() -> None:
    alpha = Fraction(3, 5)
    assert gains.break_even_c(alpha, 3) == (alpha + alpha**2 + alpha**3) / 3
    assert gains.speedup(alpha, 3, gains.break_even_c(alpha, 3)) == 1


@pytest.mark.parametrize("c", COSTS)
def test_lengthening_pays_exactly_where_the_speed_up_grows(c: float) -> None:
    for alpha in ALPHAS:
        for kappa in range(12):
            longer, now = gains.speedup(alpha, kappa + 1, c), gains.speedup(alpha, kappa, c)
            if abs(longer - now) > 1e-12:
                assert gains.lengthening_pays(alpha, kappa, c) == (longer > now)


@pytest.mark.parametrize("c", COSTS[1:])
def test_the_best_kappa_is_found_by_search_too(c: float) -> None:
    for alpha in ALPHAS:
        gained = [gains.speedup(alpha, kappa, c) for kappa in range(33)]
        assert gains.best_kappa(alpha, c, most=32) == np.argmax(np.round(gained, 13))


def test_free_drafts_are_worth_any_number() -> None:
    assert all(gains.best_kappa(alpha, 0.0, most=32) == 32 for alpha in ALPHAS)


def test_the_best_kappa_counts_the_drafts_that_pay() -> None:
    """Draft m pays exactly if the sum of alpha^-j - 1 up to m is below 1/c - 1."""
    grid = [Fraction(i, 12) for i in range(1, 12)]
    for alpha in grid:
        for c in grid:
            sums = [sum(alpha**-j - 1 for j in range(1, m + 1)) for m in range(1, 9)]
            assert gains.best_kappa(alpha, c, most=8) == sum(s < 1 / c - 1 for s in sums)


@pytest.mark.parametrize("c", COSTS[1:])
def test_past_the_optimum_each_further_draft_loses(c: float) -> None:
    for alpha in ALPHAS:
        best = gains.best_kappa(alpha, c)
        tail = [gains.speedup(alpha, kappa, c) for kappa in range(best, best + 20)]
        assert all(a >= b - 1e-13 for a, b in zip(tail, tail[1:], strict=False))


def test_the_best_kappa_moves_left_as_drafts_get_dearer() -> None:
    best = [gains.best_kappa(0.9, c) for c in np.linspace(0.01, 1, 40)]
    assert best == sorted(best, reverse=True) and best[0] > 8 and best[-1] == 0


@pytest.mark.parametrize("c", COSTS)
def test_one_draft_gains_exactly_if_alpha_is_above_c_and_else_none_does(c: float) -> None:
    for alpha in ALPHAS:
        assert (gains.best_kappa(alpha, c) > 0) == (alpha > c)


def test_the_best_kappa_moves_right_as_alpha_rises() -> None:
    best = [gains.best_kappa(alpha, 0.165) for alpha in ALPHAS]
    assert best == sorted(best) and best[0] == 0 and best[-1] > 8


def test_doubling_past_the_optimum_loses_yet_may_still_beat_plain_decoding() -> None:
    best = gains.best_kappa(0.7, 0.165)
    assert 1 < gains.speedup(0.7, 2 * best, 0.165) < gains.speedup(0.7, best, 0.165)


# --- in a batch -----------------------------------------------------------------------------------


def test_the_crossing_lies_at_150_requests() -> None:
    assert round(gains.crossing(0.7, 3, 0.165, 295)) == 150


def test_at_295_requests_44_percent_are_lost() -> None:
    assert round(1 - gains.batch_speedup(295, 0.7, 3, 0.165, 295), 2) == 0.44
    assert gains.batch_speedup(295, 0.7, 3, 0.165, 295) == gains.arithmetic_limit(0.7, 3, 0.165)


def test_regimes_meet_at_their_borders() -> None:
    assert [gains.regime(b, 3, 400) for b in (100, 101, 399, 400)] == [
        "memory", "verify", "verify", "arithmetic",
    ]  # fmt: skip


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("kappa", [1, 3, 7])
def test_in_the_first_regime_it_is_the_textbooks_formula(alpha: float, kappa: int) -> None:
    batch = 295 // (kappa + 1)
    assert gains.regime(batch, kappa, 295) == "memory"
    found = gains.batch_speedup(batch, alpha, kappa, 0.165, 295)
    assert found == pytest.approx(gains.speedup(alpha, kappa, 0.165), abs=1e-14)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("kappa", [1, 3, 7])
def test_at_the_crossing_nothing_is_gained(alpha: float, kappa: int) -> None:
    batch = gains.crossing(alpha, kappa, 0.1, 295)
    assert 295 / (kappa + 1) < batch < 295
    assert gains.batch_speedup(batch, alpha, kappa, 0.1, 295) == pytest.approx(1, abs=1e-12)


def test_where_it_never_gains_there_is_no_crossing() -> None:
    alpha = gains.break_even_alpha(3, 0.165)
    assert gains.crossing(alpha - 1e-6, 3, 0.165, 295) is None
    assert gains.crossing(alpha + 1e-6, 3, 0.165, 295) == pytest.approx(295 / 4, rel=1e-4)


def test_free_and_perfect_drafts_alone_never_lose() -> None:
    assert gains.arithmetic_limit(1.0, 3, 0.0) == 1
    for alpha, c in ((0.99, 0.0), (1.0, 0.01)):
        assert gains.arithmetic_limit(alpha, 3, c) < 1


def test_the_speed_up_never_rises_with_the_batch() -> None:
    gained = gains.batch_speedup(np.arange(1, 400), 0.7, 3, 0.165, 295)
    assert np.all(np.diff(gained) <= 1e-15)


def test_a_scaled_copy_has_the_targets_ridge_and_another_draft_its_own() -> None:
    batches = np.arange(1, 400)
    copy = gains.batch_speedup(batches, 0.7, 3, 0.25, 295)
    assert np.array_equal(copy, gains.batch_speedup(batches, 0.7, 3, 0.25, 295, 295))
    own = gains.batch_speedup(batches, 0.7, 3, 0.25, 295, 295 / 4)
    assert np.all(own <= copy) and own[72] == copy[72] and own[74] < copy[74]


@pytest.mark.parametrize("batch", [1, 74, 120, 150, 295, 400])
def test_the_roofline_of_weights_alone_is_the_models(batch: int) -> None:
    found = gains.roofline_speedup(batch, *PAIR, weights_only=True)
    c, ridge = draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B), hardware("H100 SXM").ridge
    assert found == pytest.approx(gains.batch_speedup(batch, 0.7, 3, c, ridge), rel=1e-12)


def test_whoever_reads_the_cache_again_is_never_faster() -> None:
    batches = np.arange(1, 300)
    for context in (0, 512, 8192):
        shared = gains.roofline_speedup(batches, *PAIR, context)
        again = gains.roofline_speedup(batches, *PAIR, context, shared=False)
        assert np.all(again <= shared) and (context == 0) == np.array_equal(again, shared)


def test_the_numerical_crossing_is_the_closed_one() -> None:
    c, ridge = draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B), hardware("H100 SXM").ridge
    found = gains.first_loss(lambda b: gains.roofline_speedup(b, *PAIR, weights_only=True))
    assert found == pytest.approx(gains.crossing(0.7, 3, c, ridge), abs=1e-4)


def test_long_contexts_that_are_read_once_never_lose_and_read_again_lose_early() -> None:
    def crossing(context: int, shared: bool) -> float | None:
        gain = lambda b: gains.roofline_speedup(b, *PAIR, context, shared=shared)  # noqa: E731
        return gains.first_loss(gain)

    assert crossing(512, True) < crossing(1024, True) <= crossing(8192, True) == np.inf
    assert crossing(512, False) > crossing(2048, False) > crossing(8192, False)


def test_draft_passes_that_take_longer_bring_the_crossing_nearer() -> None:
    def crossing(**more: float) -> float | None:
        gain = lambda b: gains.roofline_speedup(b, *PAIR, 512, **more)  # noqa: E731
        return gains.first_loss(gain)

    assert crossing() > crossing(overhead=50e-6) > crossing(overhead=100e-6)
    assert crossing() >= crossing(draft_peak=0.5) > crossing(draft_peak=0.1)


def test_the_schedule_is_the_best_length_at_each_batch_and_a_legal_setting() -> None:
    schedule = gains.lengths_by_batch(0.7, 0.165, 295, most_batch=300, most=6)
    for first, last, kappa in schedule:
        for batch in (first, last):
            gained = [gains.batch_speedup(batch, 0.7, k, 0.165, 295) for k in range(7)]
            assert gained[kappa] == pytest.approx(max(gained), abs=1e-12)
    assert schedule[-1][2] == 0
    config = SpeculativeConfig(
        method="ngram", num_speculative_tokens=6, num_speculative_tokens_per_batch_size=schedule
    )
    assert config.num_speculative_tokens_per_batch_size == tuple(schedule)


def test_measured_parts_in_place_of_the_models_give_the_models_answer() -> None:
    plain, verify, draft = 1.0, gains.step_cost(400, 295), 3 * 0.165
    found = gains.measured_speedup(expected_tokens(0.7, 3), plain, verify, draft)
    assert found == pytest.approx(gains.batch_speedup(100, 0.7, 3, 0.165, 295), abs=1e-14)


def test_a_line_is_found_again() -> None:
    assert gains.fitted_line([1, 4, 16], [10.5, 12.0, 18.0]) == (10.0, 0.5)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gains.speedup(1.5, 3, 0.1), "alpha: 1.5, expected 0 to 1"),
        (lambda: gains.speedup(0.5, -1, 0.1), "kappa: -1, expected at least 0"),
        (lambda: gains.speedup(0.5, 3, -0.1), "c: -0.1, expected at least 0"),
        (lambda: gains.break_even_alpha(0, 0.1), "kappa: 0, expected at least 1"),
        (lambda: gains.break_even_alpha(3, 1.1), "c: 1.1, expected 0 to 1"),
        (lambda: gains.break_even_c(0.5, 0), "kappa: 0, expected at least 1"),
        (lambda: gains.best_kappa(0.5, 0.1, most=-1), "most: -1, expected at least 0"),
        (lambda: gains.step_cost(-1, 295), "positions: -1, expected at least 0"),
        (lambda: gains.step_cost(1, 0), "T_star: 0, expected above 0"),
        (lambda: gains.batch_speedup(-1, 0.5, 3, 0.1, 295), "batch: -1, expected at least 0"),
        (
            lambda: gains.roofline_speedup(1, *PAIR, draft_peak=0),
            "draft_peak: 0, expected above 0 and at most 1",
        ),
        (
            lambda: gains.roofline_speedup(1, *PAIR, overhead=-1),
            "overhead: -1, expected at least 0",
        ),
        (lambda: gains.crossing(0.5, 0, 0.1, 295), "kappa: 0, expected at least 1"),
        (lambda: gains.crossing(0.5, 3, 0.1, 0), "T_star: 0, expected above 0"),
        (lambda: gains.lengths_by_batch(0.5, 0.1, 295, 0), "most_batch: 0, expected at least 1"),
        (lambda: gains.measured_speedup(2, 1, -1), "verify: -1, expected at least 0"),
        (lambda: gains.measured_speedup(2, 1, 0), "verify .* 0, expected a time above 0"),
        (lambda: gains.fitted_line([2, 2], [1, 1]), r"positions: \[2, 2\], expected at least two"),
    ],
)
def test_what_is_out_of_range_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
