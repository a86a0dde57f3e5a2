"""verify_block: the longest run that may stand, its exact law, and what it gains."""

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

from specedu.kernels import Verified, verify_block, verify_chain
from specedu.theory import reference
from specedu.theory.adapters import by_request
from specedu.theory.cells import Asker, Box, block_cuts, enumerate_paths
from specedu.theory.exact import JointLaw, extend, joint_laws, product_law
from specedu.theory.settings import PAIRS, Setting, fixed, grid, law_of, turning

NAN = math.nan
twin = functools.partial(verify_block, backend="torch")
kernel = functools.partial(verify_block, backend="triton")


def block(*requests: Request, backend: str, **options: Any) -> Verified:
    """Verify the requests in one launch."""
    place = options.pop("place", lambda name, tensor: tensor)
    arguments = lay_out(requests, options.pop("dtype", torch.float32))
    options = {"max_spec_len": arguments.pop("max_spec_len"), "backend": backend, **options}
    placed = {k: v if v is None else place(k, v) for k, v in arguments.items()}
    flags = {name: placed.pop(name) for name in ("greedy", "onehot")}
    return verify_block(*placed.values(), **flags, **options)


# --- single runs ----------------------------------------------------------------------------------

P, Q = [0.25, 0.75], [0.75, 0.25]


def padded(row: list[float], vocab: int) -> list[float]:
    return row + [0.0] * (vocab - len(row))


@pytest.mark.parametrize("case", cases("B01", "B02"))
def test_published_runs(backend: str, case: dict) -> None:
    given_ = case["input"]
    vocab = given_["bonus"] + 1
    rows = [padded(row, vocab) for row in given_["p"]] + [one_hot(given_["bonus"], vocab)]
    request = Request(
        rows, given_["drafts"], [padded(row, vocab) for row in given_["q"]], given_["u"], 0.5
    )
    expected = [token for token in case["expect"]["output"] if token >= 0]
    assert runs(block(request, backend=backend)) == [expected]


@atlas("B14")
@pytest.mark.parametrize("u", [[0.0, 0.0], [0.9, 0.9], [0.999, 0.001]])
def test_a_later_draft_can_carry_an_earlier_one(
    backend: str, u: list[float], atlas_row: str
) -> None:
    """h is 0 and then 1: to stop at the first coin that fails would refuse both, always."""
    request = Request([P, P, P], [0, 1], [Q, Q], u, 0.0)
    assert runs(block(request, backend=backend)) == [[0, 1, 0]]


def test_coin_by_coin_it_may_accept_less_than_the_token_rule(backend: str) -> None:
    """Drafts [0, 0] at u = (.3, .9): the token rule takes one, block verification none."""
    p, q = [1 / 3, 2 / 3], [2 / 3, 1 / 3]
    request = Request([p, p, p], [0, 0], [q, q], [0.3, 0.9], 0.5)
    assert len(runs(block(request, backend=backend))[0]) == 1
    arguments = lay_out([request])
    options = {"max_spec_len": arguments.pop("max_spec_len"), "backend": backend}
    assert len(runs(verify_chain(**arguments, **options))[0]) == 2


def test_the_residual_behind_an_accepted_run_is_scaled(backend: str) -> None:
    """r = 1/2 behind the first draft, h = 1/3: the second row's residual is that of p/2."""
    p, q = [[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25], [0.0, 0.125, 0.875]]
    request = Request([*p, [0.0, 0.0, 1.0]], [0, 2], q, [0.3, 0.9], 0.9)
    assert runs(block(request, backend=backend)) == [[0, 0]]  # (1/2, 1/8, 0) would give id 1


def test_a_withdrawn_draft_ends_every_run_before_it(backend: str) -> None:
    request = Request([P, P, P], [1, -1], [Q, Q], [0.0, 0.0], 0.9)
    assert runs(block(request, backend=backend)) == [[1, 1]]  # from the residual of its own row


def test_greedy_requests_take_the_argmax_and_leave_their_coins_unread(backend: str) -> None:
    request = Request([P, P, [0.5, 0.5]], [1, 1], [Q, Q], [NAN, NAN], NAN, greedy=True)
    assert runs(block(request, backend=backend, check=False)) == [[1, 1, 0]]


@pytest.mark.parametrize("entry", [NAN, -1.0])
def test_what_is_no_probability_counts_as_zero(backend: str, entry: float) -> None:
    clean = Request([P + [0.0]] * 3, [0, 1], [Q + [0.0]] * 2, [0.2, 0.9], 0.5)
    spoilt = replace(clean, q=[Q + [entry]] * 2)
    assert runs(block(spoilt, backend=backend)) == runs(block(clean, backend=backend))


# --- both versions against the reference ----------------------------------------------------------


def reference_run(request: Request) -> list[int]:
    vocab = range(len(request.p[0]))
    ps = [tuple(map(Fraction, row)) for row in request.p]
    if request.greedy:
        ps = [tuple(Fraction(int(t == p.index(max(p)))) for t in vocab) for p in ps]
    qs = [tuple(map(Fraction, row)) for row in request.q or []]
    if request.q is None or request.greedy:
        qs = [tuple(Fraction(int(t == x)) for t in vocab) for x in request.drafts]
    return reference.block(
        ps, qs, request.drafts, list(map(Fraction, request.u)), Fraction(request.w)
    )


@st.composite
def dyadic_requests(draw: st.DrawFn, vocab: int) -> Request:
    """Requests whose laws are eighths, so that every product of a step of two drafts is exact."""
    row = st.lists(st.integers(0, vocab - 1), min_size=8, max_size=8).map(
        lambda ids: [ids.count(t) / 8 for t in range(vocab)]
    )
    coins = st.integers(0, 2**20 - 1).map(lambda n: (n + 1 / 3) / 2**20)  # on no border
    kappa = draw(st.integers(0, 3))
    drafts = [draw(st.integers(-1, vocab - 1)) for _ in range(kappa)]
    full = draw(st.booleans())
    return Request(
        [draw(row) for _ in range(kappa + 1)],
        drafts,
        [draw(row) for _ in range(kappa)] if full and kappa else None,
        [draw(coins) for _ in range(kappa)],
        draw(coins),
        draw(st.sampled_from([False, False, False, True])),
    )


@given(data=st.data(), vocab=st.integers(1, 5), batch=st.integers(1, 4))
def test_both_versions_emit_what_the_reference_does(
    data: st.DataObject, vocab: int, batch: int
) -> None:
    requests = [data.draw(dyadic_requests(vocab)) for _ in range(batch)]
    expected = [reference_run(request) for request in requests]
    for version in ("torch", "triton"):
        assert runs(block(*requests, backend=version)) == expected


@given(data=st.data())
def test_a_request_emits_the_same_alone_and_in_any_row(data: st.DataObject) -> None:
    requests = data.draw(st.lists(dyadic_requests(5), min_size=2, max_size=6))
    together = runs(block(*requests, backend="torch"))
    alone = [runs(block(request, backend="torch"))[0] for request in requests]
    backwards = runs(block(*reversed(requests), backend="torch"))
    assert together == alone == backwards[::-1]


@pytest.mark.parametrize("vocab", [37, 5000])
def test_kernel_and_twin_agree_on_random_rows(vocab: int) -> None:
    """Their sums round differently in the last bit: a false alarm has a chance below 1e-10."""
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 5, (16,), generator=generator)
    drafts, rows = int(counts.sum()), int(counts.sum()) + len(counts)
    q = torch.softmax(torch.randn(drafts, vocab, generator=generator) * 3, -1)
    noise = torch.randn(rows, vocab, generator=generator)
    p = torch.softmax(noise + 2 * q.log()[torch.arange(rows).clamp(max=drafts - 1)] / 3, -1)
    arguments = (
        p, q, torch.multinomial(q, 1, generator=generator)[:, 0].int(), counts.cumsum(0).int(),
        torch.rand(drafts, dtype=torch.float64, generator=generator) / 2,
        torch.rand(16, dtype=torch.float64, generator=generator),
    )  # fmt: skip
    options = {"max_spec_len": 4, "greedy": torch.rand(16, generator=generator) < 0.2,
               "onehot": torch.rand(16, generator=generator) < 0.3}  # fmt: skip
    one, other = (verify_block(*arguments, **options, backend=b) for b in ("torch", "triton"))
    assert torch.equal(one.token_ids, other.token_ids)
    assert torch.equal(one.num_accepted, other.num_accepted)
    assert 0 < int(one.num_accepted.sum()) < drafts


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F])
def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(fill)
    guard_results(canaries, monkeypatch)
    requests = [Request([P, P, P], [0, 1], [Q, Q], [0.5, 0.5]), Request([P], []),
                Request([P, P], [1], None, [0.9])]  # fmt: skip
    expected = runs(block(*requests, backend=backend))
    around = lambda name, tensor: canaries.around(tensor)  # noqa: E731
    assert runs(block(*requests, backend=backend, place=around)) == expected
    assert canaries.alive()


def test_an_empty_batch_gives_an_empty_result(backend: str) -> None:
    none = torch.zeros(0, dtype=torch.int32)
    coins = torch.zeros(0, dtype=torch.float64)
    result = verify_block(
        torch.zeros(0, 3), None, none, none, coins, coins, max_spec_len=2, backend=backend
    )
    assert result.token_ids.shape == (0, 3)


# --- the exact law --------------------------------------------------------------------------------


def laws(rule: Any, settings: list[Setting]) -> list[JointLaw]:
    """Return the settings' laws, each of which must be the target's without a remainder."""
    found = joint_laws(rule, settings, cuts=block_cuts)
    for law in found:
        assert law.deviation == law.bound == 0, (law.setting, law.law, law.target)
    return found


@pytest.mark.parametrize("onehot", [False, True], ids=["full-q", "one-hot"])
@pytest.mark.parametrize("kappa", [1, 2, 3])
@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_the_twin_emits_the_target_law(
    vocab: int, kappa: int, onehot: bool, interpreter_share: float
) -> None:
    settings = list(grid([vocab], [kappa], [onehot]))
    # 256 tuples of drafts a setting: two of the ten; and the twin is the same on every Triton.
    if (vocab, kappa) == (4, 3) or interpreter_share < 1:
        settings = settings[1:4:2]
    laws(twin, settings)


def test_the_twin_emits_the_target_law_in_ragged_mixed_batches() -> None:
    pairs = PAIRS[3]
    laws(twin, [turning(*pairs[0], 2), turning(*pairs[1], 0), turning(*pairs[2], 1, onehot=True),
                turning(*pairs[3], 2, greedy=True), turning(*pairs[4], 1)])  # fmt: skip


def test_the_kernel_emits_the_target_law(interpreter_share: float) -> None:
    pairs = PAIRS[2] if interpreter_share == 1 else PAIRS[2][:1]
    laws(kernel, [turning(p, q, 2) for p, q in pairs])
    if interpreter_share == 1:
        laws(kernel, [turning(*PAIRS[3][0], 2)])


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_kernel_and_twin_emit_the_same_ids_in_random_cells(
    vocab: int, interpreter_share: float
) -> None:
    """A hundred seeded points of the whole grid a vocabulary; no tolerance."""
    dice = random.Random(vocab)
    settings = list(grid([vocab]))
    requests = []
    for _ in range(round(100 * interpreter_share)):
        path = dice.choice(enumerate_paths(dice.choice(settings)))
        requests.append((path, dice.choice(Box(path, block_cuts(path), seed=vocab).points)))
    assert Asker(kernel, settings).ask(requests) == Asker(twin, settings).ask(requests)


@pytest.mark.parametrize("case", cases("B06"))
def test_the_joint_law_of_the_block_cases(case: dict) -> None:
    for pair in case["input"]["pairs"]:
        p, q = (law_of(" ".join(pair[name])) for name in ("p", "q"))
        laws(twin, [fixed(p, q, kappa) for kappa in pair["k"][:3]])


def test_withdrawing_a_draft_without_target_mass_keeps_the_law(backend: str) -> None:
    rule = functools.partial(verify_block, backend=backend)
    p, q = law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4")
    laws(rule, [fixed(p, q, 2 if backend == "torch" else 1, withdraw=lambda text, x: x == 2)])


def truncated(ps: Any, qs: Any, drafts: list[int], us: Any, w: Fraction) -> list[int]:
    """The obvious treatment of -1: forget it and what lies behind it, and draw from p."""
    end = drafts.index(-1) if -1 in drafts else len(drafts)
    return reference.block(ps[: end + 1], qs[:end], drafts[:end], us[:end], w)


def test_truncating_at_a_withdrawn_draft_is_biased() -> None:
    setting = turning(
        law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4"), 2,
        withdraw=lambda text, x: turning(law_of("1/4 3/4 0"), law_of("1 0 0"), 1).target(text)[x]
        == 0,
    )  # fmt: skip
    (wrong,) = joint_laws(by_request(truncated), [setting], cuts=block_cuts)
    laws(by_request(reference.block), [setting])
    assert wrong.total_variation > 10 * wrong.bound


# --- what it gains --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("B04"))
def test_expected_accepts_of_the_seed_pair(case: dict) -> None:
    p, q = (law_of(" ".join(case["input"][name])) for name in ("p", "q"))
    found = laws(twin, [fixed(p, q, kappa) for kappa in case["input"]["k"]])
    assert [law.emitted - 1 for law in found] == list(map(Fraction, case["expect"]["block"]))


@atlas("B13")
def test_expected_accepts_of_thirds(atlas_row: str) -> None:
    p, q = law_of("1/3 2/3"), law_of("2/3 1/3")
    kappas = [1, 2, 3, 4]
    block_rule = [law.emitted - 1 for law in laws(twin, [fixed(p, q, k) for k in kappas])]
    chain_laws = joint_laws(verify_chain, [fixed(p, q, k) for k in kappas])
    token_rule = [law.emitted - 1 for law in chain_laws]
    assert block_rule == list(map(Fraction, ["2/3", "11/9", "5/3", "166/81"]))
    assert token_rule == list(map(Fraction, ["2/3", "10/9", "38/27", "130/81"]))


@pytest.mark.parametrize("vocab", [2, 3])
@pytest.mark.parametrize("kappa", [1, 2])
def test_it_accepts_as_often_with_one_hot_drafts_and_never_less_with_others(
    vocab: int, kappa: int
) -> None:
    for onehot in (False, True):
        settings = list(grid([vocab], [kappa], [onehot]))
        pairs = zip(laws(twin, settings), joint_laws(verify_chain, settings), strict=True)
        for block_law, token_law in pairs:
            if onehot or kappa == 1:
                assert block_law.emitted == token_law.emitted
            else:
                assert block_law.emitted >= token_law.emitted


# --- coins behind the accepted length -------------------------------------------------------------


def law_of_three_tokens(keyed_by_step: bool) -> Fraction:
    """Return the total variation of three tokens of steps of two drafts, by the reference.

    Keyed by position alone, the coins behind the accepted length are the same in the next step.
    Nothing is sampled: coins are cut wherever a step's rule may change, drafts enumerated.
    """
    setting = fixed(law_of("5/16 11/16"), law_of("13/16 3/16"), 2)
    paths = enumerate_paths(setting)
    coins = intervals({cut for path in paths for coin in block_cuts(path)[:-1] for cut in coin})
    emitted: list[tuple[tuple[int, ...], Fraction]] = []

    def step(text: tuple[int, ...], known: Fraction | None, mass: Fraction) -> None:
        """Add what follows ``text``; ``known`` is the next position's coin, if it was used."""
        if len(text) >= 3:
            emitted.append((text[:3], mass))
            return
        for u, size in [(known, Fraction(1))] if known is not None else coins:
            for u_next, size_next in coins:
                for path in paths:
                    for w, share in intervals(block_cuts(path)[-1]):
                        run = tuple(reference.block(path.ps, path.qs, path.ids, [u, u_next], w))
                        again = u_next if len(run) == 1 and not keyed_by_step else None
                        weight = mass * size * size_next * path.weight * share
                        step(text + run, again, weight)

    step((), None, Fraction(1))
    law, target = extend(emitted, setting, 3), product_law(setting, 3)
    return sum(abs(law.get(text, Fraction(0)) - target[text]) for text in target) / 2


def intervals(cuts: set[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """Return the middle and the length of every interval between cuts of [0, 1]."""
    edges = sorted({Fraction(0), Fraction(1)} | {cut for cut in cuts if 0 < cut < 1})
    return [((a + b) / 2, b - a) for a, b in zip(edges, edges[1:], strict=False)]


def test_coins_keyed_by_position_alone_are_biased_and_keyed_by_step_are_not() -> None:
    assert law_of_three_tokens(keyed_by_step=False) == Fraction(5, 128)
    assert law_of_three_tokens(keyed_by_step=True) == 0
