"""What holds of every acceptance rule: the property cases of the public engines, by their ids.

Sizes are the cases' own unless a test says otherwise. Large tables are windows into one vector, a
few entries apart: rows may lie at any distance, so that a row of 128 256 ids costs a few.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import prop
from ragged_batch import runs

from specedu.config import SamplingParams
from specedu.kernels import (
    Purpose,
    Verified,
    contract,
    exponential,
    uniform,
    verify_block,
    verify_chain,
    verify_logspace,
    verify_match,
    verify_race,
    verify_synthetic,
    verify_threshold,
)
from specedu.sampling.transforms import probabilities

INVERSE_CDF: dict[str, Callable[..., Verified]] = {
    "chain": verify_chain,
    "block": verify_block,
    "threshold": verify_threshold,
}
EXACT = ["chain", "block", "threshold", "race", "logspace", "match"]
RULES = [*EXACT, "synthetic"]
rules = pytest.mark.parametrize("name", RULES)


def verify(
    name: str,
    p: torch.Tensor,
    q: torch.Tensor | None,
    drafts: torch.Tensor,
    counts: torch.Tensor,
    seeds: torch.Tensor,
    *,
    width: int | None = None,
    **options: Any,
) -> Verified:
    """Verify by a rule's name, with the coins and the noise of each request's seed."""
    cu, width = counts.cumsum(0).int(), int(counts.max()) if width is None else width
    zero = torch.zeros(len(counts), dtype=torch.int32)
    options = {"max_spec_len": width, **options}
    if name == "logspace":
        logits = (p.float().log(), None if q is None else q.float().log())
        keys = torch.ones(len(counts)), seeds, zero, zero
        return verify_logspace(*logits, drafts, cu, *keys, **options)
    request, place = contract.draft_places(cu.long() - counts, counts)
    coins = uniform(seeds[request], zero[request], place.int(), Purpose.ACCEPT)
    if name == "match":
        request, place = contract.draft_places(cu.long() - counts, counts + 1)
        rows = uniform(seeds[request], zero[request], place.int(), Purpose.FINAL)
        return verify_match(p, drafts, cu, rows, **options)
    if name == "race":
        noise = exponential(seeds, zero, zero, p.shape[1])
        return verify_race(p, q, drafts, cu, coins, noise, **options)
    last = uniform(seeds, zero, zero, Purpose.FINAL)
    if name == "synthetic":
        options["conditional_rates"] = torch.full((width,), 0.5, dtype=torch.float64)
        return verify_synthetic(p, q, drafts, cu, coins, last, **options)
    return INVERSE_CDF[name](p, q, drafts, cu, coins, last, **options)


def sampled(q: torch.Tensor, seeds: torch.Tensor, place: int) -> torch.Tensor:
    """Draw a draft of each seed from one law, ``[vocab]``, with the seed's draft coin."""
    zero = torch.zeros(len(seeds), dtype=torch.int32)
    coins = uniform(seeds, zero, zero + place, Purpose.DRAFT)
    ids = torch.bucketize(coins, q.double().cumsum(0) / q.double().sum(), right=True)
    return ids.clamp(max=len(q) - 1).int()


def ragged(vocab: int, counts: Sequence[int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random rows, drafts drawn from theirs, and seeds, for requests of those lengths."""
    generator = torch.Generator().manual_seed(seed)
    n, drafts = torch.tensor(counts), sum(counts)
    q = torch.softmax(torch.randn(drafts, vocab, generator=generator), 1)
    p = torch.softmax(torch.randn(drafts + len(n), vocab, generator=generator), 1)
    ids = torch.multinomial(q, 1, generator=generator)[:, 0].int()
    return {"p": p, "q": q, "drafts": ids, "counts": n, "seeds": torch.arange(len(n)) + 100}


# --- the law --------------------------------------------------------------------------------------


@prop("D01")
@pytest.mark.parametrize("name", [*INVERSE_CDF, "match"])
def test_the_distance_falls_to_the_target_and_to_no_other_law(name: str, property_row: str) -> None:
    """First tokens of 10 and of 100 000 seeds; the rules that race have a G-test of their own."""
    generator = torch.Generator().manual_seed(1)
    target, draft, other = torch.rand(3, 10, generator=generator)
    target, draft, other = (law / law.sum() for law in (target, draft, other))

    def distances(n: int) -> tuple[float, float]:
        seeds = torch.arange(n)
        drafts = torch.stack([sampled(draft, seeds, i) for i in range(2)], 1).flatten()
        result = verify(
            name, target.expand(3 * n, -1), draft.expand(2 * n, -1), drafts,
            torch.full((n,), 2), seeds,
        )  # fmt: skip
        seen = torch.bincount(result.token_ids[:, 0], minlength=10) / n
        return (seen - target).norm().item(), (seen - other).norm().item()

    (near, near_other), (last, last_other) = distances(10), distances(100_000)
    # It falls with the root of the draws: by some 100 over 10 000 times as many.
    assert near / last > 20 * near_other / last_other


def worst_chi_square(
    name: str, kappa: int, temperature: float, onehot: bool, dtype: torch.dtype, vocab: int
) -> list[tuple[float, int]]:
    """Return (chi-square, degrees of freedom) of every place over the requests that reached it."""
    generator = torch.Generator().manual_seed(42)
    n = 10 * vocab
    p_logits, q_logits = torch.randn(2, vocab, generator=generator)
    p = torch.softmax(p_logits / temperature, 0)
    q = torch.softmax(q_logits / temperature, 0).to(dtype)
    seeds = torch.arange(n) + 42
    drafts = torch.stack([sampled(q.float(), seeds, i) for i in range(kappa)], 1).flatten()
    result = verify(
        name, p.expand(n * (kappa + 1), -1), None if onehot else q.expand(n * kappa, -1), drafts,
        torch.full((n,), kappa), seeds,
    )  # fmt: skip
    found = []
    for place in range(kappa + 1):
        ids = result.token_ids[:, place]
        reached = int((ids >= 0).sum())
        seen = torch.bincount(ids[ids >= 0], minlength=vocab).double()
        order = p.argsort(descending=True)
        wanted, seen = p[order].double() * reached, seen[order]
        # Bins are merged from the likeliest id on until each expects five.
        edges = ((wanted.cumsum(0) - wanted) / 5).floor().long()
        bins = torch.unique(edges, return_inverse=True)[1]
        size = int(bins.max()) + 1
        expected = torch.zeros(size).double().scatter_add(0, bins, wanted)
        counts = torch.zeros(size).double().scatter_add(0, bins, seen)
        kept = expected >= 2.5
        if int(kept.sum()) > 1:
            chi = ((counts - expected)[kept] ** 2 / expected[kept]).sum().item()
            found.append((chi, int(kept.sum()) - 1))
    return found


@prop("D02")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("onehot", [False, True], ids=["with-q", "one-hot"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("kappa", [1, 3])
def test_the_ratio_test_has_the_targets_law_at_every_place(
    kappa: int, temperature: float, onehot: bool, dtype: torch.dtype, property_row: str
) -> None:
    """512 ids where the case has 4096; ten sigma of a chi-square."""
    for chi, freedom in worst_chi_square("chain", kappa, temperature, onehot, dtype, 512):
        assert chi <= freedom + 10 * (2 * freedom) ** 0.5


@prop("D03")
@pytest.mark.parametrize(
    ("kappa", "temperature"), [(1, 0.6), (3, 0.6), (1, 1.0), (3, 1.0), (5, 1.0)]
)
def test_block_verification_has_the_targets_law_at_every_place(
    kappa: int, temperature: float, property_row: str
) -> None:
    """512 ids where the case has 4096. A place is reached by luck, which block makes no bias of."""
    first, *_ = worst_chi_square("block", kappa, temperature, False, torch.float32, 512)
    assert first[0] <= first[1] + 10 * (2 * first[1]) ** 0.5


@prop("D04")
@pytest.mark.parametrize("kappa", [3, 5])
def test_block_verification_accepts_no_less(kappa: int, property_row: str) -> None:
    generator = torch.Generator().manual_seed(kappa)
    vocab, n = 512, 20 * 512
    logits = torch.randn(vocab, generator=generator)
    p = torch.softmax(logits, 0)
    q = torch.softmax(logits + 0.5 * torch.randn(vocab, generator=generator), 0)
    seeds = torch.arange(n)
    drafts = torch.stack([sampled(q, seeds, i) for i in range(kappa)], 1).flatten()
    laws = p.expand(n * (kappa + 1), -1), q.expand(n * kappa, -1)
    mean = {
        name: verify(name, *laws, drafts, torch.full((n,), kappa), seeds)
        .num_accepted.double()
        .mean()
        .item()
        for name in ("block", "chain")
    }
    assert mean["block"] >= mean["chain"] - 0.01
    assert mean["chain"] > 0.5


# --- filters --------------------------------------------------------------------------------------


def emitted_under(name: str, params: SamplingParams, logits: torch.Tensor) -> list[list[int]]:
    """Return the runs of 100 requests of three random drafts, filtered p, unfiltered q."""
    generator = torch.Generator().manual_seed(7)
    p = probabilities(logits, [params] * len(logits))
    q = torch.softmax(torch.randn(300, logits.shape[1], generator=generator), 1)
    drafts = torch.multinomial(q, 1, generator=generator)[:, 0].int()
    return runs(verify(name, p, q, drafts, torch.full((100,), 3), torch.arange(100)))


def assert_within(kept: torch.Tensor, emitted: list[list[int]]) -> None:
    for request, run in enumerate(emitted):
        assert all(kept[4 * request + place, token] for place, token in enumerate(run))


@prop("D05")
@pytest.mark.parametrize("top_k", [1, 5, 99])
@pytest.mark.parametrize("name", EXACT)
def test_every_emitted_id_is_in_the_top_k_set(name: str, top_k: int, property_row: str) -> None:
    generator = torch.Generator().manual_seed(top_k)
    kept = torch.zeros(400, 100, dtype=torch.bool)
    for row in kept:
        row[torch.randperm(100, generator=generator)[:top_k]] = True
    logits = kept * 0.1  # by so little the filter must see it
    assert_within(kept, emitted_under(name, SamplingParams(top_k=top_k), logits))


@prop("D06")
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", EXACT)
def test_every_emitted_id_is_in_the_nucleus(name: str, top_p: float, property_row: str) -> None:
    logits = torch.randn(400, 100, generator=torch.Generator().manual_seed(3))
    law = torch.softmax(logits.double(), 1)
    largest, order = law.sort(dim=1, descending=True)
    inside = largest.cumsum(1) - largest < top_p
    kept = torch.zeros_like(inside).scatter(1, order, inside)
    assert not kept.all(1).any()
    assert_within(kept, emitted_under(name, SamplingParams(top_p=top_p), logits))


# --- coins and layout -----------------------------------------------------------------------------


@prop("D07")
@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("kappa", [1, 3, 5])
@rules
def test_a_seed_gives_one_run_however_often_and_wherever(
    name: str, kappa: int, batch: int, property_row: str
) -> None:
    """Twenty repeats, each with the requests in another order."""
    step = ragged(1000, [kappa] * batch)
    step["seeds"][0] = 42
    first = runs(verify(name, **step))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        order = torch.randperm(batch, generator=generator)
        shuffled = {
            "p": step["p"].view(batch, kappa + 1, -1)[order].flatten(0, 1),
            "q": step["q"].view(batch, kappa, -1)[order].flatten(0, 1),
            "drafts": step["drafts"].view(batch, kappa)[order].flatten(),
            "counts": step["counts"],
            "seeds": step["seeds"][order],
        }
        assert runs(verify(name, **shuffled)) == [first[i] for i in order.tolist()]


@prop("D08")
@rules
def test_chunks_of_a_batch_emit_what_the_batch_does(
    name: str, backend: str, property_row: str
) -> None:
    """Five requests, 257 ids, rows 260 apart, in chunks of two and three requests."""
    counts = [3, 1, 0, 3, 2]
    step = ragged(257, counts)
    for table in ("p", "q"):
        wide = torch.full((len(step[table]), 260), float("nan"))
        wide[:, :257] = step[table]
        step[table] = wide[:, :257]
    whole = verify(name, **step, width=3, backend=backend)
    for first, last in ((0, 2), (2, 5)):
        before, until = sum(counts[:first]), sum(counts[:last])
        part = verify(
            name, step["p"][before + first : until + last], step["q"][before:until],
            step["drafts"][before:until], step["counts"][first:last], step["seeds"][first:last],
            width=3, backend=backend,
        )  # fmt: skip
        assert torch.equal(part.token_ids, whole.token_ids[first:last])
        assert torch.equal(part.num_accepted, whole.num_accepted[first:last])


@prop("D11")
@rules
def test_row_offsets_beyond_32_bits_in_every_rule(
    name: str, backend: str, tmp_path: Path, property_row: str
) -> None:
    """Rows half a billion entries apart, in a sparse file: only the pages that hold them exist."""
    stride = 2**29 + 64
    step = ragged(7, [5, 2])
    expected = verify(name, **step, backend=backend)

    def far_apart(file: str, tensor: torch.Tensor) -> torch.Tensor:
        size = (len(tensor) - 1) * stride + tensor.shape[1]
        storage = torch.from_file(str(tmp_path / file), shared=True, size=size, dtype=tensor.dtype)
        return storage.as_strided(tensor.shape, (stride, 1)).copy_(tensor)

    if name == "logspace":  # its tables are logits: laid out behind the logarithm
        cu, zero = step["counts"].cumsum(0).int(), torch.zeros(2, dtype=torch.int32)
        logits = far_apart("p", step["p"].log()), far_apart("q", step["q"].log())
        result = verify_logspace(
            *logits, step["drafts"], cu, torch.ones(2), step["seeds"], zero, zero, max_spec_len=5,
            backend=backend,
        )  # fmt: skip
    else:
        far = {table: far_apart(table, step[table]) for table in ("p", "q")}
        result = verify(name, **{**step, **far}, backend=backend)
    assert runs(result) == runs(expected)


# --- ends and holes -------------------------------------------------------------------------------


@prop("D09")
@rules
def test_a_row_of_nan_yields_a_legal_id(name: str, backend: str, property_row: str) -> None:
    p = torch.full((2, 20_000), float("nan"))
    q = torch.softmax(torch.randn(1, 20_000, generator=torch.Generator().manual_seed(0)), 1)
    arguments = torch.tensor([17], dtype=torch.int32), torch.tensor([1]), torch.tensor([5])
    for rows in (q, None):
        [run] = runs(verify(name, p, rows, *arguments, backend=backend, check=False))
        assert all(0 <= token < 20_000 for token in run)


@prop("D10")
@rules
def test_nothing_at_or_behind_a_withdrawn_draft_is_accepted(
    name: str, backend: str, property_row: str
) -> None:
    """Drafts that the target is certain of, and a -1 between them."""
    certain = torch.eye(5)[[2, 3, 4, 1]]
    proposed = certain[:3] * torch.tensor([[1.0], [0.0], [1.0]])  # zeros beside the -1
    step = {
        "p": certain.repeat(20, 1),
        "q": proposed.repeat(20, 1),
        "drafts": torch.tensor([2, -1, 4], dtype=torch.int32).repeat(20),
        "counts": torch.full((20,), 3),
        "seeds": torch.arange(20),
    }
    emitted = runs(verify(name, **step, backend=backend))
    assert all(len(run) <= 2 for run in emitted)
    assert [2, 3] in emitted


# --- whole batches at the vocabularies of real models ---------------------------------------------


def certain_rows(rows: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one-hot rows, seven entries apart in one vector, and the id of each."""
    storage = torch.zeros(7 * rows + vocab)
    storage[vocab - 1 :: vocab] = 1.0
    ids = (vocab - 1 - 7 * torch.arange(rows)) % vocab
    return storage.as_strided((rows, vocab), (7, 1)), ids


@functools.cache
def random_vector(length: int, seed: int) -> torch.Tensor:
    return torch.rand(length, generator=torch.Generator().manual_seed(seed))


SHAPES = [
    pytest.param(batch, vocab, kappa, id=f"B{batch}-V{vocab}-n{kappa}")
    for batch in (1, 99, 989)
    for vocab in (111, 32_000, 128_256)
    for kappa in (1, 3, 5, 7)
]


@prop("D12")
@pytest.mark.parametrize(("batch", "vocab", "kappa"), SHAPES)
def test_a_certain_target_accepts_its_drafts_and_ends_with_its_token(
    batch: int, vocab: int, kappa: int, property_row: str
) -> None:
    p, ids = certain_rows(batch * (kappa + 1), vocab)
    wanted = ids.view(batch, kappa + 1)
    drafts = wanted[:, :kappa].flatten().int()
    seeds, counts = torch.arange(batch), torch.full((batch,), kappa)
    result = verify("chain", p, None, drafts, counts, seeds)
    assert torch.equal(result.token_ids, wanted)
    assert result.num_accepted.tolist() == [kappa] * batch


@prop("D13")
@pytest.mark.parametrize(("batch", "vocab", "kappa"), SHAPES)
def test_a_random_target_emits_its_run_and_nothing_behind_it(
    batch: int, vocab: int, kappa: int, property_row: str
) -> None:
    rows, n = batch * (kappa + 1), batch * kappa
    laws = (random_vector(7 * rows + vocab, 1), random_vector(7 * rows + vocab, 2))
    p, q = (law.as_strided((k, vocab), (7, 1)) for law, k in zip(laws, (rows, n), strict=True))
    drafts = torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(3)).int()
    seeds, counts = torch.arange(batch), torch.full((batch,), kappa)
    result = verify("chain", p, q, drafts, counts, seeds)
    for r, run in enumerate(runs(result)):  # -1 behind the last id, and counts that agree
        mine = drafts[r * kappa : (r + 1) * kappa].tolist()
        assert run[:-1] == mine[: len(run) - 1]
        assert len(run) <= kappa + 1
    assert batch == 1 or len(set(result.num_accepted.tolist())) > 1
