"""verify_match: every row's own token, drafts kept while they equal it, and its exact law."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from canaries import Canaries, guard_results
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st
from ragged_batch import Request, lay_out, one_hot, runs

from specedu.kernels import Verified, verify_chain, verify_match
from specedu.theory import reference
from specedu.theory.adapters import match as match_as_chain
from specedu.theory.cells import Asker, Box, enumerate_paths, match_cuts
from specedu.theory.exact import JointLaw, joint_law, joint_laws
from specedu.theory.reference import Law
from specedu.theory.settings import PAIRS, Setting, fixed, grid, law_of, turning

NAN = math.nan
LARGEST_COIN = 1 - 2**-53


def match(*requests: Request, backend: str, **options: Any) -> Verified:
    """Verify the requests in one launch; u and w of a request are its rows' coins."""
    place = options.pop("place", lambda name, tensor: tensor)
    arguments = match_arguments(*requests, dtype=options.pop("dtype", torch.float32))
    arguments = {
        name: place(name, value) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    return verify_match(**{**arguments, "backend": backend, **options})


def match_arguments(*requests: Request, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    arguments = lay_out(requests, dtype)
    coins = [coin for request in requests for coin in [*request.u, request.w]]
    return {
        "target_probs": arguments["target_probs"],
        "draft_token_ids": arguments["draft_token_ids"],
        "cu_num_draft_tokens": arguments["cu_num_draft_tokens"],
        "row_coins": torch.tensor(coins, dtype=torch.float64),
        "max_spec_len": arguments["max_spec_len"],
        "greedy": arguments["greedy"],
    }


# --- keeping and ending ---------------------------------------------------------------------------

HALVES = [0.5, 0.5]


@pytest.mark.parametrize(
    ("drafts", "run"),
    [([0, 1], [0, 1, 0]), ([0, 0], [0, 1]), ([1, 1], [0]), ([0, -1], [0, 1]), ([-1, 1], [0])],
)
def test_the_run_ends_with_the_first_token_that_its_draft_misses(
    backend: str, drafts: list[int], run: list[int]
) -> None:
    request = Request([HALVES] * 3, drafts, None, [0.25, 0.75], 0.25)
    assert runs(match(request, backend=backend)) == [run]


def test_a_draft_never_decides_which_token_a_row_emits(backend: str) -> None:
    rows = [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]
    plain = [[match(Request([row], w=w), backend=backend).token_ids.item()]
             for row, w in zip(rows, [0.5, 0.75, 0.125], strict=True)]  # fmt: skip
    for first in range(-1, 3):
        for second in range(-1, 3):
            request = Request(rows, [first, second], None, [0.5, 0.75], 0.125)
            [run] = runs(match(request, backend=backend))
            assert [[token] for token in run] == plain[: len(run)]


def test_every_row_has_a_coin_of_its_own(backend: str) -> None:
    request = Request([HALVES] * 4, [0, 1, 0], None, [0.25, 0.75, 0.25], 0.75)
    assert runs(match(request, backend=backend)) == [[0, 1, 0, 1]]


@pytest.mark.parametrize("missed_at", [0, 1, 2])
def test_what_lies_behind_a_miss_does_not_matter(backend: str, missed_at: int) -> None:
    p = [one_hot(i, 9) if i <= missed_at else [NAN] * 9 for i in range(4)]
    drafts = [i if i != missed_at else 5 for i in range(3)]
    request = Request(p, drafts, None, [0.5] * 3, 0.5)
    assert runs(match(request, backend=backend)) == [list(range(missed_at + 1))]


@pytest.mark.parametrize("draft", [3, 100, 2**31 - 1, -2, -(2**31)])
def test_an_unchecked_illegal_id_is_never_kept(backend: str, draft: int) -> None:
    request = Request([[0.25, 0.75, 0], [1, 0, 0]], [draft], None, [0.5], 0.0)
    assert runs(match(request, backend=backend, check=False)) == [[1]]


def test_greedy_requests_keep_the_argmax_and_leave_their_coins_unread(backend: str) -> None:
    p = [[0.25, 0.75], [0.5, 0.5], [0.25, 0.75]]
    requests = [Request(p, [1, 0], None, [coin] * 2, coin, greedy=True) for coin in (0.0, NAN)]
    sampled = Request(p, [1, 0], None, [0.0] * 2, 0.0)
    ids = runs(match(*requests, sampled, backend=backend, check=False))
    assert ids == [[1, 0, 1], [1, 0, 1], [0]]


# --- the draw -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "w", "token"),
    [
        ([0.0, 0.5, 0.5], 0.0, 1),  # coin 0 draws no id without mass
        ([0.25, 0.75, 0.0], 0.25, 1),  # a border belongs to the next id
        ([0.25, 0.75, 0.0], 0.25 - 2**-54, 0),
        ([0.5, 0.5, 0.0], LARGEST_COIN, 1),  # the last id with mass, not the last id
        ([0.25, 0.25, 0.0], 0.5, 1),  # a row need not sum to 1
        ([NAN, 0.5, 0.5], 0.25, 1),
        ([-0.5, 0.5, 0.5], 0.25, 1),
        ([-math.inf, 0.5, 0.5], 0.5, 2),
    ],
)
def test_a_rows_token_is_the_inverse_cdf_at_its_coin(
    backend: str, p: list[float], w: float, token: int
) -> None:
    assert runs(match(Request([p], w=w), backend=backend)) == [[token]]
    kept = Request([p, one_hot(0, 3)], [token], None, [w], 0.5)
    assert runs(match(kept, backend=backend)) == [[token, 0]]


@pytest.mark.parametrize("vocab", [2, 700])
@pytest.mark.parametrize("entry", [0.0, NAN, -1.0])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_row_without_mass_yields_id_zero_unchecked(
    backend: str, vocab: int, entry: float, greedy: bool
) -> None:
    request = Request([[entry] * vocab], w=0.5, greedy=greedy)
    assert runs(match(request, backend=backend, check=False)) == [[0]]


@pytest.mark.parametrize("greedy", [False, True])
def test_every_row_that_was_drawn_from_must_have_mass(backend: str, greedy: bool) -> None:
    empty = Request([[0.0, 0.0], [1.0, 0.0]], [0], None, [0.5], 0.5, greedy)  # its draft is kept
    with pytest.raises(ValueError, match=r"target_probs\[1\]: largest entry 0.0"):
        match(Request([HALVES]), empty, backend=backend)
    behind = Request([[0.0, 1.0], [0.0, 0.0]], [0], None, [0.5], 0.5, greedy)
    assert runs(match(behind, backend=backend)) == [[1]]


@pytest.mark.parametrize("vocab", [511, 513, 4097, 9000])
def test_the_draw_crosses_the_borders_of_its_tiles(backend: str, vocab: int) -> None:
    places = sorted({0, 510, 511, 512, 1024, 4095, 4096, vocab - 1} & set(range(vocab)))
    row = [0.125 * (token in places) for token in range(vocab)]
    requests = [Request([row], w=i / 64) for i in range(64)]
    expected = [[places[i * len(places) // 64]] for i in range(64)]
    assert runs(match(*requests, backend=backend)) == expected


# --- the layout -----------------------------------------------------------------------------------

MIXED = [
    Request([[0.25, 0.75, 0], [0.5, 0.375, 0.125], [1, 0, 0]], [1, 0], None, [0.5, 0.75], 0.5),
    Request([[0, 0.5, 0.5]], w=0.5),
    Request([[0.25, 0.5, 0.25]] * 4, [1, 2, -1], None, [0.25, 0.75, 0.0], 0.75),
    Request([[0.25, 0.5, 0.25]] * 2, [1], None, [0.0], 0.0, greedy=True),
    Request([[0.125, 0.5, 0.375]] * 2, [0], None, [0.0625], 0.25),
]
MIXED_RUNS = [[1, 1], [2], [1, 2, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mixed_requests_in_one_launch(backend: str, dtype: torch.dtype) -> None:
    result = match(*MIXED, backend=backend, dtype=dtype, max_spec_len=5)
    assert runs(result) == MIXED_RUNS
    assert result.token_ids.shape == (5, 6)
    assert (result.token_ids.dtype, result.num_accepted.dtype) == (torch.int64, torch.int32)


def test_rows_may_lie_at_any_distance(backend: str) -> None:
    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2:
            return tensor
        wide = torch.full((tensor.shape[0], tensor.shape[1] + 3), 9.0)
        wide[:, : tensor.shape[1]] = tensor
        return wide[:, : tensor.shape[1]]

    assert runs(match(*MIXED, backend=backend, place=spread)) == MIXED_RUNS


def test_an_empty_batch_gives_an_empty_result(backend: str) -> None:
    none = torch.empty(0, dtype=torch.int32)
    result = verify_match(torch.empty(0, 3), none, none, torch.empty(0, dtype=torch.float64),
                          max_spec_len=2, backend=backend)  # fmt: skip
    assert result.token_ids.shape == (0, 3)
    assert result.num_accepted.shape == (0,)


@pytest.mark.parametrize("fill", [0x00, 0x3F, 0x7F, 0xFF])
def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries, copies = Canaries(fill), []
    guard_results(canaries, monkeypatch)

    def guarded(name: str, tensor: torch.Tensor) -> torch.Tensor:
        copies.append((canaries.around(tensor), tensor))
        return copies[-1][0]

    assert runs(match(*MIXED, backend=backend, place=guarded)) == MIXED_RUNS
    assert canaries.alive()
    assert len(copies) == 5
    assert all(torch.equal(inside, tensor) for inside, tensor in copies)  # nor are they written


@pytest.mark.parametrize(
    "cu", [[9, 9, 9, 9, 9], [-3, 2, 1, 6, 7], [2**31 - 1] * 5, [-(2**31)] * 5, [7, 0, 7, 0, 7]]
)
def test_an_unchecked_prefix_sum_stays_inside_the_buffers(
    backend: str, cu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(0x7F)
    guard_results(canaries, monkeypatch)
    sums = {"cu_num_draft_tokens": torch.tensor(cu, dtype=torch.int32)}
    result = match(*MIXED, backend=backend, check=False,
                   place=lambda name, tensor: canaries.around(sums.get(name, tensor)))  # fmt: skip
    assert bool(((result.token_ids >= -1) & (result.token_ids < 3)).all())
    assert canaries.alive()


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"row_coins": torch.tensor([0.5, 1.0], dtype=torch.float64)},
            r"row_coins\[1\]: 1.0, expected a coin in \[0, 1\)",
        ),
        ({"row_coins": torch.zeros(2)}, "row_coins: dtype torch.float32, expected float64"),
        (
            {"row_coins": torch.zeros(1, dtype=torch.float64)},
            r"row_coins: shape \(1,\), expected \(num_draft \+ batch,\) = \(2,\)",
        ),
        (
            {"target_probs": torch.ones(1, 3)},
            r"target_probs: shape \(1, 3\), expected \(num_draft \+ batch, vocab\) = \(2, 3\)",
        ),
        (
            {"draft_token_ids": torch.tensor([3], dtype=torch.int32)},
            r"draft_token_ids\[0\]: 3, expected an id in \[-1, 3\)",
        ),
        ({"greedy": torch.tensor([1])}, "greedy: dtype torch.int64, expected bool"),
        ({"max_spec_len": 0}, r"cu_num_draft_tokens\[0\]: 1, expected at most max_spec_len = 0"),
        ({"backend": "cuda"}, "backend: 'cuda', expected None or one of torch, triton"),
    ],
)
def test_a_refusal_names_the_argument_the_value_and_the_range(
    changes: dict[str, Any], message: str
) -> None:
    arguments = match_arguments(Request([[0.25, 0.75, 0]] * 2, [1], None, [0.5], 0.5))
    verify_match(**arguments)
    with pytest.raises(ValueError, match=message):
        verify_match(**{**arguments, **changes})


# --- both versions against the reference ----------------------------------------------------------


@st.composite
def dyadic_requests(draw: st.DrawFn, vocab: int) -> Request:
    """Requests whose numbers all versions hold exactly, with mass in every row."""
    entries = st.lists(st.integers(0, 8), min_size=vocab, max_size=vocab).filter(any)
    row = entries.map(lambda row: [n / 64 for n in row])
    coins = st.one_of(st.sampled_from([0.0, 0.25, 0.5, LARGEST_COIN]),
                      st.integers(0, 2**20 - 1).map(lambda n: n / 2**20))  # fmt: skip
    kappa = draw(st.integers(0, 4))
    return Request(
        [draw(row) for _ in range(kappa + 1)],
        [draw(st.integers(-1, vocab - 1)) for _ in range(kappa)],
        None,
        [draw(coins) for _ in range(kappa)],
        draw(coins),
        draw(st.sampled_from([False, False, True])),
    )


def reference_run(request: Request) -> list[int]:
    ps = [tuple(map(Fraction, row)) for row in request.p]
    if request.greedy:
        ps = [tuple(map(Fraction, one_hot(p.index(max(p)), len(p)))) for p in ps]
    return reference.match(ps, request.drafts, list(map(Fraction, [*request.u, request.w])))


@given(data=st.data(), vocab=st.integers(1, 5), batch=st.integers(1, 4))
def test_both_versions_emit_what_the_reference_does(
    data: st.DataObject, vocab: int, batch: int
) -> None:
    requests = [data.draw(dyadic_requests(vocab)) for _ in range(batch)]
    expected = [reference_run(request) for request in requests]
    for version in ("torch", "triton"):
        assert runs(match(*requests, backend=version)) == expected


@given(data=st.data())
def test_a_request_emits_the_same_alone_and_in_any_row(data: st.DataObject) -> None:
    requests = data.draw(st.lists(dyadic_requests(5), min_size=2, max_size=6))
    together = runs(match(*requests, backend="torch"))
    alone = [runs(match(request, backend="torch"))[0] for request in requests]
    backwards = runs(match(*reversed(requests), backend="torch"))
    assert together == alone == backwards[::-1]


@pytest.mark.parametrize("vocab", [37, 5000])
def test_kernel_and_twin_agree_on_random_rows(vocab: int) -> None:
    """Their sums round differently in the last bit: a false alarm has a chance below 1e-10."""
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 4, (16,), generator=generator)
    rows = int(counts.sum()) + len(counts)
    p = torch.softmax(torch.randn(rows, vocab, generator=generator) * 4, -1)
    arguments = (
        p, p[: int(counts.sum())].argmax(1).int(), counts.cumsum(0).int(),
        torch.rand(rows, dtype=torch.float64, generator=generator),
    )  # fmt: skip
    options = {"max_spec_len": 3, "greedy": torch.rand(16, generator=generator) < 0.2}
    twin, kernel = (verify_match(*arguments, **options, backend=b) for b in ("torch", "triton"))
    assert torch.equal(twin.token_ids, kernel.token_ids)
    assert torch.equal(twin.num_accepted, kernel.num_accepted)


# --- the exact law --------------------------------------------------------------------------------

twin = functools.partial(match_as_chain, backend="torch")
kernel = functools.partial(match_as_chain, backend="triton")


def laws(rule: Any, settings: list[Setting]) -> list[JointLaw]:
    """Return the settings' laws, each of which must be the target's without a remainder."""
    found = joint_laws(rule, settings, cuts=match_cuts)
    for law in found:
        assert law.deviation == law.bound == 0, (law.setting, law.law, law.target)
    return found


# Four ids and three drafts make up to 256 cells a tuple of drafts: one pair, and the rest in full.
@pytest.mark.parametrize(
    ("vocab", "kappa"), [(v, k) for v in (2, 3, 4) for k in (1, 2, 3) if (v, k) != (4, 3)]
)
def test_the_twin_emits_the_target_law(vocab: int, kappa: int) -> None:
    settings = list(grid([vocab], [kappa], [False]))
    assert len(settings) >= 10
    laws(twin, settings)


def test_the_twin_emits_the_target_law_of_four_ids_behind_three_drafts() -> None:
    laws(twin, [turning(*PAIRS[4][2], 3)])


def ragged_settings(vocab: int) -> list[Setting]:
    """Different draft lengths, zero included, one-hot, greedy and withdrawn drafts among them."""
    pairs = PAIRS[vocab]
    return [
        turning(*pairs[0], 2),
        turning(*pairs[1], 0),
        turning(*pairs[2], 1, onehot=True),
        turning(*pairs[3], 2, greedy=True),
        fixed(*pairs[0], 1, greedy=True, onehot=True),
        turning(*pairs[4], 2, withdraw=lambda text, x: x == 0),
    ]


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_the_twin_emits_the_target_law_in_ragged_mixed_batches(vocab: int) -> None:
    laws(twin, ragged_settings(vocab))


def test_the_kernel_emits_the_target_law(interpreter_share: float) -> None:
    pairs = PAIRS[2] if interpreter_share == 1 else PAIRS[2][:1]
    laws(kernel, [*(turning(p, q, 1) for p, q in pairs), *ragged_settings(2)[1:5]])


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_kernel_and_twin_emit_the_same_ids_in_random_cells(
    vocab: int, interpreter_share: float
) -> None:
    dice, settings = random.Random(vocab), list(grid([vocab]))
    requests = []
    for _ in range(round(100 * interpreter_share)):
        path = dice.choice(enumerate_paths(dice.choice(settings)))
        requests.append((path, dice.choice(Box(path, match_cuts(path), seed=vocab).points)))
    assert Asker(kernel, settings).ask(requests) == Asker(twin, settings).ask(requests)


@pytest.mark.parametrize("kappa", [1, 2])
def test_every_run_is_the_beginning_of_what_plain_decoding_emits(kappa: int) -> None:
    """Stronger than the law: the very ids, so that coins keyed by position are never used twice.

    A step's run and the runs behind it are one plain text, whatever was drafted. Therefore the law
    of several steps follows from that of one, although rejected rows' coins are seen again.
    """
    setting = turning(*PAIRS[3][0], kappa)
    requests = [
        (path, point)
        for path in enumerate_paths(setting)
        for point in Box(path, match_cuts(path), seed=0).points
    ]
    for (_, point), run in zip(requests, Asker(twin, [setting]).ask(requests), strict=True):
        text: tuple[int, ...] = ()
        for coin in point[: len(run)]:
            text += (reference.sample(setting.target(text), Fraction(coin)),)
        assert run == text


def test_a_rule_that_draws_every_row_with_one_coin_is_biased() -> None:
    def one_coin(p, q, drafts, cu, accept_coins, final_coins, **options):
        first = torch.nn.functional.pad(cu[:-1], (1, 0)).long()
        return twin(p, q, drafts, cu, accept_coins, accept_coins[first], **options)

    law = joint_law(one_coin, turning(*PAIRS[3][0], 1), cuts=match_cuts)
    assert law.deviation > law.bound


# --- how much is accepted -------------------------------------------------------------------------


@atlas("B12")
def test_keeping_what_equals_a_target_sample_is_exact_and_accepts_less(atlas_row: str) -> None:
    """The report that calls it biased is mistaken: the target's sample is emitted either way."""
    p, q = law_of("1/2 3/10 1/5"), law_of("1/5 3/10 1/2")
    [law] = laws(twin, [fixed(p, q, 1)])
    assert law.first() == p
    assert law.emitted - 1 == Fraction(29, 100)  # sum of p·q, where the ratio test keeps 7/10


@pytest.mark.parametrize("case", cases("O03"))
def test_expected_accepts_of_sampled_and_one_hot_drafts(case: dict) -> None:
    p, q = (law_of(" ".join(case["input"][name])) for name in ("p", "q"))
    expected = {name: Fraction(value) for name, value in case["expect"].items()}
    argmax_of_q = tuple(Fraction(int(x == q.index(max(q)))) for x in range(3))
    [sampled, one_hot_draft] = laws(twin, [fixed(p, q, 1), fixed(p, argmax_of_q, 1, onehot=True)])
    assert sampled.emitted - 1 == expected["sample_and_match"]
    assert one_hot_draft.emitted - 1 == expected["one_hot_on_argmax_q"]


@pytest.mark.parametrize("vocab", [2, 3])
@pytest.mark.parametrize("kappa", [1, 2])
def test_one_hot_drafts_are_kept_as_often_as_by_the_ratio_test(vocab: int, kappa: int) -> None:
    def at_argmax(q: Law) -> Law:
        return tuple(Fraction(int(x == q.index(max(q)))) for x in range(vocab))

    def certain(setting: Setting) -> Setting:
        return replace(setting, draft=lambda text: at_argmax(setting.draft(text)), onehot=True)

    settings = [certain(turning(p, q, kappa)) for p, q in PAIRS[vocab]]
    ratios = joint_laws(verify_chain, settings)
    assert [law.emitted for law in laws(twin, settings)] == [law.emitted for law in ratios]
