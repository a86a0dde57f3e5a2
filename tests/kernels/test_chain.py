"""verify_chain: the ratio test, the residual, the bonus row, the coins' ends, the layout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from canaries import Canaries, guard_results
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st
from ragged_batch import Request, chain, lay_out, one_hot, runs

from specedu.kernels import Verified, backend, draw, verify_chain

NAN = math.nan
LARGEST_COIN = 1 - 2**-53
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


# --- acceptance -----------------------------------------------------------------------------------


@atlas("B01")
def test_only_the_leading_run_of_accepted_drafts_counts(backend: str, atlas_row: str) -> None:
    # accept flags 1, 0, 1, 1
    p = [[0.5, 0.5]] * 5
    request = Request(p, [0, 0, 0, 0], [[0.5, 0.5], [1, 0], [0.5, 0.5], [0.5, 0.5]],
                      [0.9, 0.9, 0.9, 0.9], 0.0)  # fmt: skip
    assert runs(chain(request, backend=backend)) == [[0, 1]]


@atlas("B09")
def test_the_ratio_decides_and_not_the_target_alone(backend: str, atlas_row: str) -> None:
    p, q = [[0.9, 0.1], [0.9, 0.1]], [[0.5, 0.5]]
    assert runs(chain(Request(p, [1], q, [0.15], 0.5), backend=backend)) == [[1, 0]]
    assert runs(chain(Request(p, [1], q, [0.25], 0.5), backend=backend)) == [[0]]


@atlas("B08")
def test_the_one_hot_test_reads_p_before_the_id_is_masked(backend: str, atlas_row: str) -> None:
    request = Request([[0.5, 0.3, 0.2]] * 2, [0], None, [0.4], 0.0)
    assert runs(chain(request, backend=backend)) == [[0, 0]]


@atlas("B10")
def test_a_deterministic_draft_is_tested_as_one_hot(backend: str, atlas_row: str) -> None:
    # With the draft's softmax (.6 at id 0) in the ratio this coin would accept.
    request = Request([[0.5, 0.3, 0.2]] * 2, [0], None, [0.7], 0.0)
    assert runs(chain(request, backend=backend)) == [[1]]


@pytest.mark.parametrize("case", cases("R10"))
def test_peaked_rows_accept_to_the_first_disagreement(backend: str, case: dict) -> None:
    peaks = case["input"]["target_peaks"]
    drafts = case["input"]["drafts"]
    p = [one_hot(peak, 10) for peak in peaks] + [one_hot(0, 10)]
    result = chain(Request(p, drafts, None, [0.5] * 3, 0.5), backend=backend)
    assert runs(result) == [case["expect"]["output"]]
    assert result.num_accepted.tolist() == [case["expect"]["n_matches"]]


def test_q_zero_at_a_drafted_id_with_p_positive_is_accepted(backend: str) -> None:
    request = Request([[0.5, 0.5], [1, 0]], [0], [[0, 1]], [LARGEST_COIN], 0.0)
    assert runs(chain(request, backend=backend)) == [[0, 0]]


def test_the_comparison_is_made_in_float64(backend: str) -> None:
    # u·q and p differ by 2**-40: equal in float32.
    u = 0.5 + 2**-40
    request = Request([[0.25, 0.75], [1, 0]], [0], [[0.5, 0.5]], [u], 0.0)
    assert runs(chain(request, backend=backend)) == [[1]]
    below = Request([[0.25, 0.75], [1, 0]], [0], [[0.5, 0.5]], [0.5 - 2**-40], 0.0)
    assert runs(chain(below, backend=backend)) == [[0, 0]]


# --- the ends of the coins ------------------------------------------------------------------------


@atlas("B06")
def test_a_coin_of_zero_accepts_nothing_without_probability(backend: str, atlas_row: str) -> None:
    request = Request([[0, 0.6, 0.4]] * 2, [0], [[1, 0, 0]], [0.0], 0.0)
    assert runs(chain(request, backend=backend)) == [[1]]


@atlas("B06")
def test_a_final_coin_on_a_border_takes_the_next_id(backend: str, atlas_row: str) -> None:
    assert runs(chain(Request([[0.25, 0.75]], w=0.25), backend=backend)) == [[1]]


@pytest.mark.parametrize("case", cases("R04"))
def test_no_mass_at_the_draft_refuses_it_at_coin_zero(backend: str, case: dict) -> None:
    given = case["input"]
    request = Request([*given["p"], [1.0, 0.0]], given["drafts"], given["q"], given["u"], 0.5)
    expected = [token for token in case["expect"]["output"] if token != -1]
    assert runs(chain(request, backend=backend)) == [expected]


@atlas("B162")
def test_a_float32_zero_coin_is_no_hole_for_one_hot_drafts(backend: str, atlas_row: str) -> None:
    request = Request([[0, 1], [1, 0]], [0], None, [0.0], 0.0)
    assert runs(chain(request, backend=backend)) == [[1]]


def test_equality_of_both_sides_is_a_refusal(backend: str) -> None:
    request = Request([[0.25, 0.75], [1, 0]], [0], [[0.5, 0.5]], [0.5], 0.0)
    assert runs(chain(request, backend=backend)) == [[1]]


def test_the_largest_coin_accepts_where_p_equals_q(backend: str) -> None:
    request = Request([[0.5, 0.5], [1, 0]], [1], [[0.5, 0.5]], [LARGEST_COIN], 0.0)
    assert runs(chain(request, backend=backend)) == [[1, 0]]


@atlas("B161")
def test_a_final_coin_at_or_near_one_stays_inside_the_mass(backend: str, atlas_row: str) -> None:
    for coin in (LARGEST_COIN, 1.0):
        request = Request([[0.5, 0.5, 0]], w=coin)
        assert runs(chain(request, backend=backend, check=False)) == [[1]]


@atlas("B161")
def test_a_coin_of_one_is_refused_by_the_check(backend: str, atlas_row: str) -> None:
    with pytest.raises(ValueError, match=r"final_coins\[0\]: 1.0, expected a coin in \[0, 1\)"):
        chain(Request([[0.5, 0.5]], w=1.0), backend=backend)


# --- the final draw -------------------------------------------------------------------------------


@atlas("B02")
def test_after_a_refusal_only_the_residual_is_drawn_from(backend: str, atlas_row: str) -> None:
    p, q = [[0.2, 0.5, 0.3]] * 2, [[0.6, 0.1, 0.3]]
    for w in (0.0, 0.1, 0.5, LARGEST_COIN):
        assert runs(chain(Request(p, [0], q, [0.9], w), backend=backend)) == [[1]]


@atlas("B05")
def test_the_final_draw_has_a_coin_of_its_own(backend: str, atlas_row: str) -> None:
    p, q = [[0.4, 0.4, 0.2]] * 2, [[0.1, 0.1, 0.8]]
    assert runs(chain(Request(p, [2], q, [0.3], 0.9), backend=backend)) == [[1]]
    assert runs(chain(Request(p, [2], q, [0.9], 0.3), backend=backend)) == [[0]]


@atlas("B04")
@pytest.mark.parametrize("refused_at", [0, 1, 2])
def test_nothing_behind_a_refusal_is_read(backend: str, atlas_row: str, refused_at: int) -> None:
    # Row i is one-hot at id i; every row behind the refusal holds a forbidden id.
    p = [one_hot(i if i <= refused_at else 8, 9) for i in range(4)]
    drafts = [i if i != refused_at else 5 for i in range(3)]
    q = [one_hot(x, 9) for x in drafts]
    request = Request(p, drafts, q, [0.5] * 3, 0.5)
    assert runs(chain(request, backend=backend)) == [list(range(refused_at + 1))]


@atlas("B04")
def test_a_last_draft_that_is_refused_grows_the_text_by_one(backend: str, atlas_row: str) -> None:
    result = chain(Request([one_hot(3, 9), one_hot(8, 9)], [5], None, [0.0], 0.5), backend=backend)
    assert result.token_ids.tolist() == [[3, -1]]
    assert result.num_accepted.tolist() == [0]


def test_the_bonus_row_is_drawn_from_in_full(backend: str) -> None:
    p, q = [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5]]
    assert runs(chain(Request(p, [1], q, [0.5], 0.25), backend=backend)) == [[1, 0]]
    assert runs(chain(Request(p, [1], q, [0.5], 0.75), backend=backend)) == [[1, 1]]


@atlas("B18")
@pytest.mark.parametrize("onehot", [False, True])
def test_a_residual_without_mass_falls_back_to_p(
    backend: str, atlas_row: str, onehot: bool
) -> None:
    # p = q forces nothing to be refused in exact arithmetic: -1 forces it here.
    p = [[0.25, 0.75], [1, 0]]
    request = Request(p, [-1], [[0.25, 0.75]], [0.0], 0.5)
    if onehot:  # all of p lies at the draft, and the coin refuses it by rounding
        request = Request([[0, 0.75], [1, 0]], [1], None, [0.875], 0.5)
    assert runs(chain(request, backend=backend)) == [[1]]


@pytest.mark.parametrize("vocab", [511, 512, 513, 1025, 4096, 4097, 9000])
def test_the_draw_crosses_the_borders_of_its_tiles(backend: str, vocab: int) -> None:
    # Mass at the ends of the tiles of both versions, equal and dyadic: every border is exact.
    places = sorted({0, 510, 511, 512, 1024, 4095, 4096, vocab - 1} & set(range(vocab)))
    row = [0.0] * vocab
    for place in places:
        row[place] = 0.125
    total = len(places)
    requests = [Request([row], w=i / 64) for i in range(64)]
    expected = [[places[i * total // 64]] for i in range(64)]
    assert runs(chain(*requests, backend=backend)) == expected


@pytest.mark.parametrize("case", cases("R09"))
def test_a_padded_vocabulary_tail_is_never_drawn(backend: str, case: dict) -> None:
    given = case["input"]
    for vocab in given["vocab"][: 4 if backend == "torch" else 3]:
        row = torch.zeros(1, vocab)
        wide = torch.full((1, vocab + given["block"]), 7.0)  # what lies behind the row
        wide[:, :vocab] = row
        with_mass = wide.clone()
        with_mass[0, vocab - 1] = 2.0**-30
        for table, expected in ((wide, 0), (with_mass, vocab - 1)):
            result = verify_chain(
                table[:, :vocab], None, *_no_drafts(1, 0.9), max_spec_len=0, backend=backend,
                check=False,
            )  # fmt: skip
            assert result.token_ids.tolist() == [[expected]]


def _no_drafts(batch: int, w: float) -> tuple[torch.Tensor, ...]:
    none = torch.empty(0, dtype=torch.int32)
    coins = torch.full((batch,), w, dtype=torch.float64)
    return none, torch.zeros(batch, dtype=torch.int32), torch.empty(0, dtype=torch.float64), coins


# --- drafts of -1 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("R02", "R03"))
def test_placeholders_yield_one_recovered_token(backend: str, case: dict) -> None:
    given = case["input"]
    vocab = len(given["p"][0])
    p = [one_hot(token, vocab) for token in given["recovered"]] + [one_hot(0, vocab)]
    request = Request(p, given["drafts"], given["q"], given["u"], 0.5)
    expected = [token for token in case["expect"]["output"] if token != -1]
    assert runs(chain(request, backend=backend)) == [expected]


@pytest.mark.parametrize("case", cases("R08"))
def test_a_placeholder_keeps_the_whole_target_row(backend: str, case: dict) -> None:
    given = case["input"]
    for w, expected in ((0.05, 0), (0.2, 1), (0.5, 2)):
        request = Request([*given["p"], [1, 0, 0]], given["draft"], None, [0.0], w)
        assert runs(chain(request, backend=backend)) == [[expected]]
    assert case["expect"]["token"] == [2]


@pytest.mark.parametrize("case", cases("R07"))
def test_a_residual_of_one_id_is_drawn_whatever_the_coin(backend: str, case: dict) -> None:
    # The case hands in race noise; its residuals have one id, so that any fair draw agrees.
    given = case["input"]
    for w in (0.0, 0.5, LARGEST_COIN):
        requests = [
            Request([p, [0, 0, 1]], [-1], [q], [0.0], w)
            for p, q in zip(given["p"], given["q"], strict=True)
        ]
        expected = [[token] for token in case["expect"]["token"]]
        assert runs(chain(*requests, backend=backend)) == expected


@atlas("B17")
def test_a_placeholder_is_no_index(backend: str, atlas_row: str) -> None:
    request = Request([[0.1, 0.2, 0.7], [1, 0, 0]], [-1], None, [0.0], 0.5)
    assert runs(chain(request, backend=backend)) == [[2]]


@atlas("B17")
def test_a_placeholder_beside_a_q_row_is_no_index(backend: str, atlas_row: str) -> None:
    # Read as an index, -1 would find p(2) = .7 and q(2) = 0 and accept.
    request = Request([[0.1, 0.2, 0.7], [1, 0, 0]], [-1], [[0.5, 0.5, 0]], [0.0], 0.5)
    assert runs(chain(request, backend=backend)) == [[2]]


def test_nothing_behind_a_placeholder_is_accepted(backend: str) -> None:
    p, q = [[0.5, 0.5]] * 4, [[0.5, 0.5]] * 3
    request = Request(p, [0, -1, 1], q, [0.0] * 3, 0.75)
    assert runs(chain(request, backend=backend)) == [[0, 1]]


def test_a_withdrawn_draft_is_replaced_from_its_own_residual(backend: str) -> None:
    p, q = [[0.25, 0.75, 0], [1, 0, 0]], [[0.5, 0.25, 0.25]]
    for w in (0.0, 0.1, 0.9):  # the residual (0, 1/2, 0); drawing from p would give id 0 at w < 1/4
        assert runs(chain(Request(p, [-1], q, [0.0], w), backend=backend)) == [[1]]


@pytest.mark.parametrize("draft", [3, 100, 2**31 - 1, -2, -(2**31)])
@pytest.mark.parametrize("onehot", [False, True])
def test_an_unchecked_illegal_id_counts_as_a_placeholder(
    backend: str, draft: int, onehot: bool
) -> None:
    p, q = [[0.25, 0.75, 0], [1, 0, 0]], None if onehot else [[0.5, 0.25, 0.25]]
    illegal, placeholder = (Request(p, [x], q, [0.0], 0.1) for x in (draft, -1))
    assert runs(chain(illegal, backend=backend, check=False)) == runs(
        chain(placeholder, backend=backend)
    )


# --- NaN, negative entries, empty rows ------------------------------------------------------------


@atlas("B165")
@pytest.mark.parametrize("vocab", [2, 700])
def test_nan_in_q_counts_as_zero(backend: str, atlas_row: str, vocab: int) -> None:
    pad = [0.0] * (vocab - 2)
    p = [[0.25, 0.75, *pad], [1.0, 0, *pad]]
    q = [[NAN, NAN, *pad]]
    accepted = Request(p, [1], q, [0.99], 0.5)
    replaced = [Request(p, [-1], q, [0.0], w) for w in (0.125, 0.25)]
    assert runs(chain(accepted, *replaced, backend=backend)) == [[1, 0], [0], [1]]


@pytest.mark.parametrize("vocab", [3, 700])
@pytest.mark.parametrize("bad", [NAN, -0.5, -math.inf])
def test_nan_and_negative_entries_of_p_and_q_count_as_zero(
    backend: str, vocab: int, bad: float
) -> None:
    pad = [bad] * (vocab - 3)
    p = [[bad, 0.5, 0.5, *pad], [bad, bad, 1.0, *pad]]
    q = [[0.5, bad, 0.25, *pad]]
    requests = [Request(p, [0], q, [0.0], w) for w in (0.0, 0.5, 0.75)]
    # Residual (0, 1/2, 1/4): the border lies at 2/3.
    assert runs(chain(*requests, backend=backend)) == [[1], [1], [2]]
    accepted = Request(p, [1], q, [0.99], 0.5)
    assert runs(chain(accepted, backend=backend)) == [[1, 2]]


@pytest.mark.parametrize("vocab", [2, 700])
@pytest.mark.parametrize("entry", [0.0, NAN, -1.0])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_row_without_mass_yields_id_zero_unchecked(
    backend: str, vocab: int, entry: float, greedy: bool
) -> None:
    request = Request([[entry] * vocab], w=0.5, greedy=greedy)
    assert runs(chain(request, backend=backend, check=False)) == [[0]]


@pytest.mark.parametrize("greedy", [False, True])
def test_a_row_without_mass_is_refused_by_the_check(backend: str, greedy: bool) -> None:
    requests = [Request([[0.5, 0.5]]), Request([[0.0, 0.0]], greedy=greedy)]
    with pytest.raises(ValueError, match=r"target_probs\[1\]: largest entry 0.0"):
        chain(*requests, backend=backend)


# --- greedy and one-hot requests in one launch ----------------------------------------------------


@atlas("B19")
@pytest.mark.parametrize("first", [3, 9, 4100])
def test_the_argmax_is_the_lowest_id_across_tiles(backend: str, atlas_row: str, first: int) -> None:
    row = [0.0] * 4200
    row[first] = row[4150] = 0.5
    assert runs(chain(Request([row], greedy=True), backend=backend)) == [[first]]


def test_a_greedy_request_keeps_the_drafts_that_are_the_argmax(backend: str) -> None:
    p = [[0.25, 0.75], [0.75, 0.25], [0.25, 0.75]]
    requests = [
        Request(p, [1, 0], [[1, 0]] * 2, [0.999] * 2, 0.0, greedy=True),
        Request(p, [1, 1], [[0, 1]] * 2, [0.0] * 2, 0.999, greedy=True),
        Request(p, [0, 0], None, [0.0] * 2, 0.0, greedy=True),
        Request(p, [-1, 0], None, [0.0] * 2, 0.0, greedy=True),
    ]
    assert runs(chain(*requests, backend=backend)) == [[1, 0, 1], [1, 0], [1], [1]]


@atlas("B15")
def test_a_neighbour_without_q_does_not_change_the_rule(backend: str, atlas_row: str) -> None:
    a = Request([[0.5, 0.5]] * 2, [0], [[0.5, 0.5]], [0.99], 0.75)
    b = Request([[0.5, 0.5]] * 2, [-1], None, [0.0], 0.25)
    assert runs(chain(a, b, backend=backend)) == [[0, 1], [0]]
    assert runs(chain(b, a, backend=backend)) == [[0], [0, 1]]


@pytest.mark.parametrize("case", cases("G05"))
def test_a_request_without_drafts_draws_from_its_bonus_row(backend: str, case: dict) -> None:
    request = Request([one_hot(case["input"]["bonus"][0], 6)], w=0.5)
    assert chain(request, backend=backend).token_ids.tolist() == case["expect"]["output"]


@atlas("B163")
def test_a_zero_draft_neighbour_changes_nothing(backend: str, atlas_row: str) -> None:
    p, q = [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]], [[0.5, 0.5], [0.75, 0.25]]
    request = Request(p, [0, 1], q, [0.375, 0.5], 0.625)
    alone = runs(chain(request, backend=backend))
    idle = Request([[1.0, 0.0]], w=0.5)
    assert runs(chain(idle, request, backend=backend)) == [[0], *alone]
    assert runs(chain(request, idle, backend=backend)) == [*alone, [0]]


def test_an_empty_batch_gives_an_empty_result(backend: str) -> None:
    result = verify_chain(torch.empty(0, 3), None, *_no_drafts(0, 0.0), max_spec_len=2,
                          backend=backend)  # fmt: skip
    assert result.token_ids.shape == (0, 3)
    assert result.num_accepted.shape == (0,)


def test_the_result_is_as_wide_as_the_caller_says(backend: str) -> None:
    request = Request([[0.5, 0.5]] * 2, [0], [[0.5, 0.5]], [0.0], 0.0)
    result = chain(request, backend=backend, max_spec_len=5)
    assert result.token_ids.tolist() == [[0, 0, -1, -1, -1, -1]]
    assert (result.token_ids.dtype, result.num_accepted.dtype) == (torch.int64, torch.int32)


# --- memory ---------------------------------------------------------------------------------------

MIXED = [
    Request([[0.25, 0.75, 0], [0.5, 0.375, 0.125], [1, 0, 0]], [1, 2],
            [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], [0.5, 0.75], 0.5),
    Request([[0, 0.5, 0.5]], w=0.5),
    Request([[0.25, 0.5, 0.25]] * 4, [1, 1, -1], None, [0.25, 0.25, 0.0], 0.75),
    Request([[0.25, 0.5, 0.25]] * 2, [1], None, [0.0], 0.0, greedy=True),
    Request([[0.125, 0.5, 0.375]] * 2, [0], [[0.5, 0.25, 0.25]], [0.5], 0.25),
]  # fmt: skip
MIXED_RUNS = [[1, 0], [2], [1, 1, 2], [1, 1], [1]]


def test_mixed_requests_in_one_launch(backend: str) -> None:
    assert runs(chain(*MIXED, backend=backend)) == MIXED_RUNS


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_probability_dtype_gives_the_same_runs(backend: str, dtype: torch.dtype) -> None:
    assert runs(chain(*MIXED, backend=backend, dtype=dtype)) == MIXED_RUNS


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_rows_are_widened_and_not_rounded_again(backend: str, dtype: torch.dtype) -> None:
    # u·q with q = 1/2 in any dtype, against p just above and below it.
    near = torch.tensor(0.25, dtype=dtype)
    above = torch.nextafter(near, torch.tensor(1.0, dtype=dtype)).item()
    u = 0.25 + above  # between twice 1/4 and twice the next number
    p_above = Request([[above, 1 - above], [1, 0]], [0], [[0.5, 0.5]], [u], 0.0)
    p_equal = Request([[0.25, 0.75], [1, 0]], [0], [[0.5, 0.5]], [u], 0.0)
    assert runs(chain(p_above, p_equal, backend=backend, dtype=dtype)) == [[0, 0], [1]]


@pytest.mark.parametrize("gap", [1, 3, 64])
def test_rows_may_lie_at_any_distance(backend: str, gap: int) -> None:
    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2:
            return tensor
        wide = torch.full((tensor.shape[0], tensor.shape[1] + gap), 9.0)
        wide[:, : tensor.shape[1]] = tensor
        return wide[:, : tensor.shape[1]]

    assert runs(chain(*MIXED, backend=backend, place=spread)) == MIXED_RUNS


def test_one_row_may_serve_every_place(backend: str) -> None:
    request = Request([[0.25, 0.75]] * 3, [1, 1], [[0.25, 0.75]] * 2, [0.9, 0.9], 0.5)

    def expand(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:1].expand(tensor.shape) if tensor.dim() == 2 else tensor  # row stride 0

    assert runs(chain(request, backend=backend, place=expand)) == [[1, 1, 1]]


def test_row_offsets_beyond_32_bits(backend: str, tmp_path: Path) -> None:
    """Rows half a billion entries apart, in a sparse file: only the pages that hold them exist."""
    stride = 2**29 + 64

    def far_apart(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2:
            return tensor
        size = (len(tensor) - 1) * stride + tensor.shape[1]
        storage = torch.from_file(str(tmp_path / name), shared=True, size=size, dtype=tensor.dtype)
        return storage.as_strided(tensor.shape, (stride, 1)).copy_(tensor)

    # The first request's last row and all rows of the second lie beyond 2**31 entries.
    p, q = [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]
    long = Request([p] * 5 + [[0, 0.25, 0.75]], [1] * 5, [q] * 5, [0.5] * 5, 0.5)
    short = Request([[0.25, 0.75, 0], p], [0], [[0.5, 0.5, 0]], [0.75], 0.5)
    result = chain(long, short, backend=backend, dtype=torch.float16, place=far_apart)
    assert runs(result) == [[1, 1, 1, 1, 1, 2], [1]]


@atlas("B08")
def test_the_arguments_are_never_written(backend: str, atlas_row: str) -> None:
    before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def remember(name: str, tensor: torch.Tensor) -> torch.Tensor:
        before[name] = tensor, tensor.clone()
        return tensor

    chain(*MIXED, backend=backend, place=remember)
    assert len(before) == 8
    for tensor, copy in before.values():
        assert torch.equal(tensor.view(torch.uint8), copy.view(torch.uint8))


@pytest.mark.parametrize("fill", [0x00, 0x3F, 0x7F, 0xFF])
def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever bytes lie around the buffers, the runs are the same and the bytes stay."""
    canaries = Canaries(fill)
    guard_results(canaries, monkeypatch)
    result = chain(*MIXED, backend=backend, place=lambda name, tensor: canaries.around(tensor))
    assert runs(result) == MIXED_RUNS
    assert len(canaries.buffers) == 10
    assert canaries.alive()


@pytest.mark.parametrize(
    "cu", [[9, 9, 9, 9, 9], [-3, 2, 1, 6, 7], [2**31 - 1] * 5, [-(2**31)] * 5, [7, 0, 7, 0, 7]]
)
def test_an_unchecked_prefix_sum_stays_inside_the_buffers(
    backend: str, cu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(0x7F)
    guard_results(canaries, monkeypatch)

    def place(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "cu_num_draft_tokens":
            tensor = torch.tensor(cu, dtype=torch.int32)
        return canaries.around(tensor)

    result = chain(*MIXED, backend=backend, place=place, check=False)
    assert bool(((result.token_ids >= -1) & (result.token_ids < 3)).all())
    assert canaries.alive()


# --- checks ---------------------------------------------------------------------------------------

WRONG = {
    "draft_token_ids too large": (
        {"draft_token_ids": torch.tensor([1, 3], dtype=torch.int32)},
        r"draft_token_ids\[1\]: 3, expected an id in \[-1, 3\)",
    ),
    "draft_token_ids too small": (
        {"draft_token_ids": torch.tensor([-2, 1], dtype=torch.int32)},
        r"draft_token_ids\[0\]: -2, expected an id in \[-1, 3\)",
    ),
    "draft_token_ids dtype": (
        {"draft_token_ids": torch.tensor([1, 2])},
        r"draft_token_ids: dtype torch.int64, expected int32",
    ),
    "accept_coins range": (
        {"accept_coins": torch.tensor([0.5, 1.0], dtype=torch.float64)},
        r"accept_coins\[1\]: 1.0, expected a coin in \[0, 1\)",
    ),
    "accept_coins NaN": (
        {"accept_coins": torch.tensor([NAN, 0.5], dtype=torch.float64)},
        r"accept_coins\[0\]: nan, expected a coin in \[0, 1\)",
    ),
    "accept_coins dtype": (
        {"accept_coins": torch.tensor([0.5, 0.5])},
        r"accept_coins: dtype torch.float32, expected float64",
    ),
    "accept_coins stride": (
        {"accept_coins": torch.zeros(4, dtype=torch.float64)[::2]},
        r"accept_coins: stride 2 along the last axis, expected 1",
    ),
    "final_coins range": (
        {"final_coins": torch.tensor([-0.1], dtype=torch.float64)},
        r"final_coins\[0\]: -0.1, expected a coin in \[0, 1\)",
    ),
    "final_coins shape": (
        {"final_coins": torch.zeros(2, dtype=torch.float64)},
        r"final_coins: shape \(2,\), expected \(batch,\) = \(1,\)",
    ),
    "cu decreasing": (
        {"cu_num_draft_tokens": torch.tensor([-1], dtype=torch.int32)},
        r"cu_num_draft_tokens\[0\]: -1, expected a prefix sum that never decreases",
    ),
    "cu short": (
        {"cu_num_draft_tokens": torch.tensor([1], dtype=torch.int32)},
        r"cu_num_draft_tokens\[0\]: 1, expected the sum to end at num_draft = 2",
    ),
    "cu beyond max_spec_len": (
        {"max_spec_len": 1},
        r"cu_num_draft_tokens\[0\]: 2, expected at most max_spec_len = 1 drafts more",
    ),
    "max_spec_len negative": ({"max_spec_len": -1}, r"max_spec_len: -1, expected an int of at"),
    "max_spec_len bool": ({"max_spec_len": True}, r"max_spec_len: True, expected an int of at"),
    "target_probs rows": (
        {"target_probs": torch.zeros(2, 3)},
        r"target_probs: shape \(2, 3\), expected \(num_draft \+ batch, vocab\) = \(3, 3\)",
    ),
    "target_probs dtype": (
        {"target_probs": torch.zeros(3, 3, dtype=torch.float64)},
        r"target_probs: dtype torch.float64, expected float32 or float16 or bfloat16",
    ),
    "target_probs columns apart": (
        {"target_probs": torch.zeros(3, 6)[:, ::2]},
        r"target_probs: stride 2 along the last axis, expected 1",
    ),
    "target_probs empty vocabulary": (
        {"target_probs": torch.zeros(3, 0)},
        r"target_probs: vocabulary of 0 ids, expected at least 1",
    ),
    "draft_probs vocabulary": (
        {"draft_probs": torch.zeros(2, 4)},
        r"draft_probs: shape \(2, 4\), expected \(num_draft, vocab\) = \(2, 3\)",
    ),
    "greedy dtype": (
        {"greedy": torch.tensor([1])},
        r"greedy: dtype torch.int64, expected bool",
    ),
    "onehot shape": (
        {"onehot": torch.tensor([True, False])},
        r"onehot: shape \(2,\), expected \(batch,\) = \(1,\)",
    ),
    "backend": ({"backend": "cuda"}, r"backend: 'cuda', expected None or one of torch, triton"),
    "device": (
        {"final_coins": torch.zeros(1, dtype=torch.float64, device="meta")},
        r"final_coins: on meta, expected cpu",
    ),
}


def _call(**changes: Any) -> Verified:
    request = Request([[0.25, 0.75, 0]] * 3, [0, 1], [[0.5, 0.5, 0]] * 2, [0.5, 0.5], 0.5)
    arguments = {**lay_out([request]), **changes}
    return verify_chain(**arguments)


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_refusal_names_the_argument_the_value_and_the_range(
    changes: dict[str, Any], message: str
) -> None:
    _call()
    with pytest.raises(ValueError, match=message):
        _call(**changes)


def test_shapes_are_checked_even_where_values_are_not() -> None:
    with pytest.raises(ValueError, match="final_coins: shape"):
        _call(final_coins=torch.zeros(2, dtype=torch.float64), check=False)


def test_values_are_unchecked_on_request() -> None:
    _call(final_coins=torch.tensor([1.0], dtype=torch.float64), check=False)


# --- both versions against the reference ----------------------------------------------------------


@st.composite
def dyadic_requests(draw: st.DrawFn, vocab: int) -> Request:
    """Requests whose numbers all versions hold exactly, so that their runs must be equal."""
    entries = st.integers(0, 8).map(lambda n: n / 64)
    bad = st.sampled_from([NAN, -0.25])
    row = st.lists(st.one_of(entries, entries, entries, bad), min_size=vocab, max_size=vocab)
    kappa = draw(st.integers(0, 4))
    coins = st.one_of(st.sampled_from([0.0, 0.25, 0.5, LARGEST_COIN]),
                      st.integers(0, 2**20 - 1).map(lambda n: n / 2**20))  # fmt: skip
    return Request(
        [draw(row) for _ in range(kappa + 1)],
        [draw(st.integers(-1, vocab - 1)) for _ in range(kappa)],
        draw(st.one_of(st.none(), st.just([draw(row) for _ in range(kappa)]))),
        [draw(coins) for _ in range(kappa)],
        draw(coins),
        draw(st.sampled_from([False, False, True])),
    )


def reference_run(request: Request) -> list[int]:
    """The contract in plain Python, NaN and negative entries and empty rows included."""

    def clean(row: Any) -> list[float]:
        return [entry if entry > 0 else 0.0 for entry in row]

    def pick(weights: list[float]) -> int:
        running = 0.0
        for token, weight in enumerate(weights):
            running += weight
            if running > request.w * sum(weights):
                return token
        return max((t for t, weight in enumerate(weights) if weight > 0), default=0)

    rows = [clean(row) for row in request.p]
    emitted: list[int] = []
    for i, x in enumerate(request.drafts):
        if request.greedy:
            if x != rows[i].index(max(rows[i])):
                return [*emitted, rows[i].index(max(rows[i]))]
        else:
            q = one_hot(x, len(rows[i])) if request.q is None else clean(request.q[i])
            if x == -1 or not request.u[i] * q[x] < rows[i][x]:
                residual = [max(0.0, a - b) for a, b in zip(rows[i], q, strict=True)]
                return [*emitted, pick(residual if any(residual) else rows[i])]
        emitted.append(x)
    bonus = rows[len(request.drafts)]
    return [*emitted, bonus.index(max(bonus)) if request.greedy else pick(bonus)]


@given(data=st.data(), vocab=st.integers(1, 9), batch=st.integers(1, 6))
def test_the_twin_emits_what_the_reference_does(
    data: st.DataObject, vocab: int, batch: int
) -> None:
    requests = [data.draw(dyadic_requests(vocab)) for _ in range(batch)]
    expected = [reference_run(request) for request in requests]
    assert runs(chain(*requests, backend="torch", check=False)) == expected


@given(data=st.data(), vocab=st.integers(1, 9), batch=st.integers(1, 4))
def test_the_kernel_emits_what_the_reference_does(
    data: st.DataObject, vocab: int, batch: int
) -> None:
    requests = [data.draw(dyadic_requests(vocab)) for _ in range(batch)]
    expected = [reference_run(request) for request in requests]
    assert runs(chain(*requests, backend="triton", check=False)) == expected


@given(data=st.data())
def test_a_request_emits_the_same_alone_and_in_any_row(data: st.DataObject) -> None:
    requests = data.draw(st.lists(dyadic_requests(5), min_size=2, max_size=6))
    together = runs(chain(*requests, backend="torch", check=False))
    alone = [runs(chain(request, backend="torch", check=False))[0] for request in requests]
    backwards = runs(chain(*reversed(requests), backend="torch", check=False))
    assert together == alone == backwards[::-1]


@pytest.mark.parametrize("vocab", [37, 600, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_and_twin_agree_on_random_rows(vocab: int, dtype: torch.dtype) -> None:
    """Their sums round differently in the last bit: a false alarm has a chance below 1e-10."""
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 4, (24,), generator=generator)
    num_draft, batch = int(counts.sum()), len(counts)

    def probabilities(rows: int) -> torch.Tensor:
        return torch.softmax(torch.randn(rows, vocab, generator=generator) * 2, -1).to(dtype)

    p = probabilities(num_draft + batch)
    q = probabilities(num_draft)
    drafts = torch.multinomial(q.float(), 1, generator=generator).flatten().int()
    drafts[torch.rand(num_draft, generator=generator) < 0.1] = -1
    arguments = (
        p, q, drafts, counts.cumsum(0).int(),
        torch.rand(num_draft, dtype=torch.float64, generator=generator),
        torch.rand(batch, dtype=torch.float64, generator=generator),
    )  # fmt: skip
    options = {
        "max_spec_len": 3,
        "greedy": torch.rand(batch, generator=generator) < 0.2,
        "onehot": torch.rand(batch, generator=generator) < 0.3,
    }
    twin, kernel = (verify_chain(*arguments, **options, backend=b) for b in ("torch", "triton"))
    assert torch.equal(twin.token_ids, kernel.token_ids)
    assert torch.equal(twin.num_accepted, kernel.num_accepted)


def test_tiles_depend_on_the_vocabulary_alone() -> None:
    assert [backend.tile_width(vocab) for vocab in (1, 2, 3, 4096, 4097, 2**20)] == [
        1, 2, 4, 4096, 4096, 4096,
    ]  # fmt: skip
    assert draw.BLOCK <= backend.MAX_FLOAT64_TILE
