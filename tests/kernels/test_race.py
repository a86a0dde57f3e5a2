"""verify_race: the ratio test, and a last token that wins a race of exponentials."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from canaries import Canaries, guard_results
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st
from ragged_batch import Request, lay_out, one_hot, runs

from specedu.kernels import Purpose, Verified, exponential, uniform, verify_chain, verify_race
from specedu.theory.exact import joint_law
from specedu.theory.gtest import g_test
from specedu.theory.settings import PAIRS, fixed

NAN = math.nan


@dataclass(frozen=True)
class Racing(Request):
    """A request with a row of noise instead of a final coin."""

    noise: tuple[float, ...] = ()


def race(*requests: Racing, backend: str, **options: Any) -> Verified:
    place = options.pop("place", lambda name, tensor: tensor)
    arguments = lay_out(requests, options.pop("dtype", torch.float32))
    options = {"max_spec_len": arguments.pop("max_spec_len"), "backend": backend, **options}
    noise = torch.tensor([request.noise for request in requests])
    arguments["final_coins"] = noise
    placed = {k: v if v is None else place(k, v) for k, v in arguments.items()}
    flags = {name: placed.pop(name) for name in ("greedy", "onehot")}
    return verify_race(*placed.values(), **flags, **options)


# --- the race -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("R07"))
def test_published_winners_of_a_residual(backend: str, case: dict) -> None:
    """Each row's winner, asked by a draft that is withdrawn beside its q row."""
    rows = zip(case["input"]["p"], case["input"]["q"], case["input"]["E"], strict=True)
    requests = [Racing([p, p], [-1], [q], [0.5], noise=tuple(e)) for p, q, e in rows]
    assert runs(race(*requests, backend=backend)) == [[t] for t in case["expect"]["token"]]


@pytest.mark.parametrize("case", cases("R08"))
def test_a_placeholder_races_with_the_whole_target(backend: str, case: dict) -> None:
    (p,), (e,) = case["input"]["p"], case["input"]["E"]
    request = Racing([p, p], [-1], None, [0.5], noise=tuple(e))
    assert runs(race(request, backend=backend)) == [case["expect"]["token"]]


@st.composite
def racing_requests(draw: st.DrawFn, vocab: int) -> Racing:
    """Requests of eighths, with noise of powers of two: every score is exact."""
    row = st.lists(st.integers(0, vocab - 1), min_size=8, max_size=8).map(
        lambda ids: [ids.count(t) / 8 for t in range(vocab)]
    )
    kappa = draw(st.integers(0, 3))
    full = draw(st.booleans())
    return Racing(
        [draw(row) for _ in range(kappa + 1)],
        [draw(st.integers(-1, vocab - 1)) for _ in range(kappa)],
        [draw(row) for _ in range(kappa)] if full and kappa else None,
        [draw(st.integers(0, 15).map(lambda n: n / 16)) for _ in range(kappa)],
        0.0,
        draw(st.sampled_from([False, False, True])),
        tuple(draw(st.integers(-6, 3).map(lambda n: 2.0**n)) for _ in range(vocab)),
    )


def reference_run(request: Racing) -> list[int]:
    ids = range(len(request.p[0]))
    rows = [tuple(map(Fraction, row)) for row in request.p]
    emitted: list[int] = []
    residual = rows[-1]
    for i, x in enumerate(request.drafts):
        p = rows[i]
        q = [Fraction(int(t == x)) for t in ids]
        if request.q is not None:
            q = list(map(Fraction, request.q[i]))
        if request.greedy:
            if x != p.index(max(p)):
                return [*emitted, p.index(max(p))]
        elif x == -1 or not Fraction(request.u[i]) * q[x] < p[x]:
            residual = tuple(max(Fraction(0), a - b) for a, b in zip(p, q, strict=True))
            residual = residual if any(residual) else p
            break
        emitted.append(x)
    if request.greedy:
        return [*emitted, rows[-1].index(max(rows[-1]))]
    scores = [mass / Fraction(e) for mass, e in zip(residual, request.noise, strict=True)]
    return [*emitted, scores.index(max(scores))]


@given(data=st.data(), vocab=st.integers(1, 5), batch=st.integers(1, 4))
def test_the_score_is_mass_over_noise(data: st.DataObject, vocab: int, batch: int) -> None:
    """Both versions, against fractions: what the race's theorem is about, id by id."""
    requests = [data.draw(racing_requests(vocab)) for _ in range(batch)]
    expected = [reference_run(request) for request in requests]
    for version in ("torch", "triton"):
        assert runs(race(*requests, backend=version)) == expected


@given(data=st.data())
def test_a_request_emits_the_same_alone_and_in_any_row(data: st.DataObject) -> None:
    requests = data.draw(st.lists(racing_requests(5), min_size=2, max_size=6))
    together = runs(race(*requests, backend="torch"))
    alone = [runs(race(request, backend="torch"))[0] for request in requests]
    assert together == alone


def test_the_bonus_row_races_with_the_same_noise(backend: str) -> None:
    """One row serves every place, since one place draws: which one, the coins decide."""
    p, bonus = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    refused = Racing([p, bonus], [0], None, [0.75], noise=(1.0, 4.0, 2.0))
    accepted = replace(refused, u=[0.25])
    assert runs(race(refused, backend=backend)) == [[2]]
    assert runs(race(accepted, backend=backend)) == [[0, 0]]


@pytest.mark.parametrize("vocab", [37, 5000])
def test_kernel_and_twin_agree_on_random_rows(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 4, (16,), generator=generator)
    drafts, rows = int(counts.sum()), int(counts.sum()) + len(counts)
    p = torch.softmax(torch.randn(rows, vocab, generator=generator) * 3, -1)
    q = torch.softmax(torch.randn(drafts, vocab, generator=generator) * 3, -1)
    arguments = (
        p, q, torch.multinomial(q, 1, generator=generator)[:, 0].int(), counts.cumsum(0).int(),
        torch.rand(drafts, dtype=torch.float64, generator=generator) / 4,
        torch.empty(16, vocab).exponential_(generator=generator),
    )  # fmt: skip
    options = {"max_spec_len": 3, "greedy": torch.rand(16, generator=generator) < 0.2}
    one, other = (verify_race(*arguments, **options, backend=b) for b in ("torch", "triton"))
    assert torch.equal(one.token_ids, other.token_ids)
    chain = verify_chain(
        *arguments[:-1], torch.rand(16, dtype=torch.float64), **options, backend="torch"
    )
    assert torch.equal(one.num_accepted, chain.num_accepted)  # the same test, another last token


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(fill)
    guard_results(canaries, monkeypatch)
    p = [0.25, 0.5, 0.25]
    requests = [
        Racing([p] * 3, [0, 1], [[0.5, 0.25, 0.25]] * 2, [0.9, 0.9], noise=(1.0, 2.0, 0.5)),
        Racing([p], [], noise=(1.0, 1.0, 4.0)),
    ]
    expected = runs(race(*requests, backend=backend))
    around = lambda name, tensor: canaries.around(tensor)  # noqa: E731
    assert runs(race(*requests, backend=backend, place=around)) == expected
    assert canaries.alive()


def test_a_padded_vocabulary_tail_never_wins(backend: str) -> None:
    """The tile behind the last id has noise of its own to divide by, and no mass."""
    request = Racing([one_hot(4, 5)], [], noise=(1e-30,) * 4 + (1e30,))
    assert runs(race(request, backend=backend)) == [[4]]


def test_nan_in_q_counts_as_zero(backend: str) -> None:
    request = Racing([[0.5, 0.5, 0.0]] * 2, [-1], [[NAN, 0.5, 0.5]], [0.0], noise=(1.0, 1.0, 1.0))
    assert runs(race(request, backend=backend)) == [[0]]


@pytest.mark.parametrize("entry", [0.0, -1.0, NAN, math.inf])
def test_noise_that_would_decide_the_race_is_refused(entry: float) -> None:
    request = Racing([[0.5, 0.5]], [], noise=(1.0, entry))
    with pytest.raises(ValueError, match=r"noise\[0\]: .*, expected every entry finite"):
        race(request, backend="torch")
    greedy = replace(request, greedy=True)
    assert runs(race(greedy, backend="torch")) == [[0]]  # its noise is not read


@atlas("B07")
def test_noise_of_zero_never_wins_where_it_is_not_checked(backend: str, atlas_row: str) -> None:
    p = [0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.9]
    noise = (1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0)
    request = Racing([p, p], [-1], [[0.0] * 8], [0.5], noise=noise)
    assert runs(race(request, backend=backend, check=False)) == [[7]]
    with pytest.raises(ValueError, match=r"noise\[0\]: 0.0, expected every entry finite"):
        race(request, backend=backend, check=True)


def test_a_wrong_shape_of_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise: shape \(1, 2\), expected \(batch, vocab\) ="):
        race(Racing([[0.5, 0.25, 0.25]], [], noise=(1.0, 1.0)), backend="torch")


# --- the law --------------------------------------------------------------------------------------


def test_the_law_by_a_g_test() -> None:
    """Runs of 60 000 seeds against the exact law of the chain rule; false alarm 1e-9."""
    p, q = PAIRS[3][0]
    expected = joint_law(verify_chain, fixed(p, q, 1)).runs()
    n = 60_000
    seeds, zero = torch.arange(n), torch.zeros(n, dtype=torch.int32)
    drafts = torch.bucketize(
        uniform(seeds, zero, zero, Purpose.DRAFT),
        torch.tensor([float(q[0]), float(q[0] + q[1])], dtype=torch.float64),
        right=True,
    )
    noise = torch.empty(n, 3)
    for first in range(0, n, 1000):  # the twin makes it a row at a time
        part = slice(first, first + 1000)
        noise[part] = exponential(seeds[part], zero[part], zero[part], 3)
    rows = torch.tensor([list(map(float, p))] * 2).repeat(n, 1)
    result = verify_race(
        rows, torch.tensor([list(map(float, q))]).repeat(n, 1), drafts.int(),
        torch.arange(1, n + 1, dtype=torch.int32), uniform(seeds, zero, zero, Purpose.ACCEPT),
        noise, max_spec_len=1,
    )  # fmt: skip
    assert g_test(Counter(map(tuple, runs(result))), expected).p_value > 1e-9
