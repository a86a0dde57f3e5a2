"""verify_logspace: the chain rule from logits, with coins and noise made where they are used."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import pytest
import torch
from canaries import Canaries, guard_results
from ragged_batch import runs

from specedu.kernels import (
    Purpose,
    Verified,
    contract,
    exponential,
    uniform,
    verify_chain,
    verify_logspace,
    verify_race,
)
from specedu.theory.cells import Asker, Box, chain_cuts, enumerate_paths
from specedu.theory.exact import joint_laws
from specedu.theory.settings import PAIRS, fixed, grid, turning

NAN, INF = math.nan, math.inf


def random_step(vocab: int, batch: int = 16, temperature: float | None = None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 4, (batch,), generator=generator)
    drafts, rows = int(counts.sum()), int(counts.sum()) + batch
    heat = torch.rand(batch, generator=generator) + 0.5
    heat[torch.rand(batch, generator=generator) < 0.2] = 0.0
    q = torch.randn(drafts, vocab, generator=generator) * 3
    ids = torch.multinomial(torch.softmax(q, 1), 1, generator=generator)[:, 0].int()
    ids[::7] = -1
    p = torch.randn(rows, vocab, generator=generator) * 3
    request = torch.repeat_interleave(torch.arange(batch), counts)
    p[torch.arange(drafts) + request] = q + torch.randn(drafts, vocab, generator=generator)
    return {
        "target_logits": p,
        "draft_logits": q,
        "draft_token_ids": ids,
        "cu_num_draft_tokens": counts.cumsum(0).int(),
        "temperature": heat if temperature is None else torch.full((batch,), temperature),
        "seeds": torch.randint(-(2**62), 2**62, (batch,), generator=generator),
        "steps": torch.randint(0, 99, (batch,), generator=generator, dtype=torch.int32),
        "positions": torch.randint(0, 999, (batch,), generator=generator, dtype=torch.int32),
        "onehot": torch.rand(batch, generator=generator) < 0.3,
        "max_spec_len": 3,
    }


def given_coins(step: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the coins and the noise that the keys of a step give, as tensors."""
    starts, counts = contract.spans(
        step["cu_num_draft_tokens"], len(step["draft_token_ids"]), step["max_spec_len"]
    )
    request, place = contract.draft_places(starts, counts)
    keys = step["seeds"], step["steps"], step["positions"]
    return {
        "accept_coins": uniform(
            keys[0][request], keys[1][request], keys[2][request] + place.int(), Purpose.ACCEPT
        ),
        "noise": exponential(*keys, step["target_logits"].shape[1]),
    }


# --- the same rule as the others ------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [37, 5000])
def test_kernel_and_twin_agree_on_random_rows(vocab: int) -> None:
    """Their exponentials round differently: a false alarm has a chance below 1e-4 a row."""
    step = random_step(vocab)
    one, other = (verify_logspace(**step, backend=b) for b in ("torch", "triton"))
    assert torch.equal(one.token_ids, other.token_ids)
    assert torch.equal(one.num_accepted, other.num_accepted)
    assert 0 < int(one.num_accepted.sum())


def test_coins_made_inside_are_those_of_their_keys(backend: str) -> None:
    step = random_step(37)
    inside = verify_logspace(**step, backend=backend)
    handed_in = verify_logspace(**step, **given_coins(step), backend=backend)
    assert torch.equal(inside.token_ids, handed_in.token_ids)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_it_emits_what_the_race_does_on_the_softmax(backend: str, temperature: float) -> None:
    step = random_step(37, temperature=temperature)
    coins = given_coins(step)
    p, q = (torch.softmax(step[f"{name}_logits"] / temperature, 1) for name in ("target", "draft"))
    race = verify_race(
        p, q, step["draft_token_ids"], step["cu_num_draft_tokens"], coins["accept_coins"],
        coins["noise"], max_spec_len=3, onehot=step["onehot"], backend="torch",
    )  # fmt: skip
    mine = verify_logspace(**step, backend=backend)
    assert torch.equal(mine.token_ids, race.token_ids)


def test_temperature_zero_takes_the_argmax_and_no_coin(backend: str) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, -INF], [-1.0, -3.0, -1.0]])
    arguments = (
        torch.tensor([1, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32),
        torch.zeros(1), torch.tensor([3]), *torch.zeros(2, 1, dtype=torch.int32),
    )  # fmt: skip
    coins = {"accept_coins": torch.full((2,), NAN, dtype=torch.float64),
             "noise": torch.full((1, 3), NAN)}  # fmt: skip
    result = verify_logspace(
        logits, None, *arguments, **coins, max_spec_len=2, check=False, backend=backend
    )
    assert runs(result) == [[1, 0]]


def test_a_request_emits_the_same_alone_and_in_any_row(backend: str) -> None:
    step = random_step(37)
    together = runs(verify_logspace(**step, backend=backend))
    ends = [0, *step["cu_num_draft_tokens"].tolist()]
    for r in range(0, 16, 3):
        first, last = ends[r], ends[r + 1]
        alone = {name: value[r : r + 1] for name, value in step.items()
                 if name in ("temperature", "seeds", "steps", "positions", "onehot")}  # fmt: skip
        result = verify_logspace(
            step["target_logits"][first + r : last + r + 1], step["draft_logits"][first:last],
            step["draft_token_ids"][first:last], torch.tensor([last - first], dtype=torch.int32),
            **alone, max_spec_len=3, backend=backend,
        )  # fmt: skip
        assert runs(result) == [together[r]]


def test_nothing_outside_the_buffers_is_read_or_written(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries(0xFF)
    guard_results(canaries, monkeypatch)
    step = random_step(37, batch=4)
    expected = runs(verify_logspace(**step, backend=backend))
    placed = {
        name: canaries.around(value) if isinstance(value, torch.Tensor) else value
        for name, value in step.items()
    }
    assert runs(verify_logspace(**placed, backend=backend)) == expected
    assert canaries.alive()


# --- ends and holes -------------------------------------------------------------------------------


def one_draft(p: list[float], q: list[float] | None, draft: int, **coins: Any) -> dict[str, Any]:
    zero = torch.zeros(1, dtype=torch.int32)
    return {
        "target_logits": torch.tensor([p, [0.0] * len(p)]),
        "draft_logits": None if q is None else torch.tensor([q]),
        "draft_token_ids": torch.tensor([draft], dtype=torch.int32),
        "cu_num_draft_tokens": torch.tensor([1], dtype=torch.int32),
        "temperature": torch.ones(1),
        "seeds": zero.long(),
        "steps": zero,
        "positions": zero,
        "accept_coins": torch.tensor([coins.get("u", 0.5)], dtype=torch.float64),
        "noise": torch.tensor([coins.get("noise", [1.0] * len(p))]),
        "max_spec_len": 1,
    }


def test_a_coin_of_zero_accepts_nothing_without_probability(backend: str) -> None:
    step = one_draft([-INF, 0.0, 0.0], [0.0, 0.0, 0.0], 0, u=0.0)
    assert runs(verify_logspace(**step, backend=backend)) == [[1]]


def test_a_coin_of_zero_accepts_what_has_some(backend: str) -> None:
    step = one_draft([-30.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0, u=0.0)
    assert runs(verify_logspace(**step, backend=backend))[0][0] == 0


def test_a_residual_without_mass_falls_back_to_p(backend: str) -> None:
    step = one_draft([0.0, 1.0, 0.0], [0.0, 1.0, 0.0], -1, noise=[1.0, 1.0, 0.125])
    assert runs(verify_logspace(**step, backend=backend)) == [[2]]


@pytest.mark.parametrize("logits", [[NAN, 0.0, 0.0], [-INF, 0.0, 0.0]])
def test_nan_counts_as_no_probability(backend: str, logits: list[float]) -> None:
    step = one_draft(logits, None, 0, u=0.0, noise=[1e-30, 2.0, 1.0])
    assert runs(verify_logspace(**step, backend=backend)) == [[2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_nothing_yields_id_zero_and_is_refused(backend: str, temperature: float) -> None:
    step = one_draft([-INF] * 3, None, 1) | {"temperature": torch.tensor([temperature])}
    assert runs(verify_logspace(**step, backend=backend, check=False)) == [[0]]
    with pytest.raises(ValueError, match=r"target_logits\[0\]: .*, expected an entry above -inf"):
        verify_logspace(**step, backend=backend)


def test_a_draft_row_of_nothing_leaves_the_race_to_p(backend: str) -> None:
    """What stands beside a -1 that was decided before an id was drawn: a row of zeros, as log q."""
    step = one_draft([0.0, 1.0, 0.0], [-INF] * 3, -1, u=0.0, noise=[1.0, 4.0, 0.5])
    assert runs(verify_logspace(**step, backend=backend)) == [[2]]


def test_logits_far_from_zero_do_not_overflow(backend: str) -> None:
    step = one_draft([1e4, 1e4 - 1, -1e4], [3e4, 3e4, 3e4], 0, u=0.99)
    step["target_logits"][1] = torch.tensor([-1e4, 1e4, -1e4])
    assert runs(verify_logspace(**step, backend=backend)) == [[0, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_logits_are_widened_and_not_rounded_again(backend: str, dtype: torch.dtype) -> None:
    step = random_step(37)
    for name in ("target_logits", "draft_logits"):
        step[name] = step[name].to(dtype)
    half = verify_logspace(**step, backend=backend)
    wide = {n: v.float() if n.endswith("logits") else v for n, v in step.items()}
    assert torch.equal(half.token_ids, verify_logspace(**wide, backend=backend).token_ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": torch.tensor([-1.0])}, r"temperature\[0\]: -1.0, expected 0 or a finite"),
        ({"temperature": torch.tensor([INF])}, r"temperature\[0\]: inf, expected 0 or a finite"),
        ({"steps": torch.tensor([-1], dtype=torch.int32)}, r"steps\[0\]: -1, expected at least 0"),
        ({"noise": torch.zeros(1, 3)}, r"noise\[0\]: 0.0, expected every entry finite"),
        ({"seeds": torch.zeros(1)}, r"seeds: dtype torch.float32, expected int64"),
        ({"accept_coins": torch.ones(1).double()}, r"accept_coins\[0\]: 1.0, expected a coin"),
    ],
)
def test_a_refusal_names_the_argument_the_value_and_the_range(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        verify_logspace(**{**one_draft([0.0, 0.0, 0.0], None, 0), **changes})


# --- the law --------------------------------------------------------------------------------------


def as_chain(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor,
    *,
    max_spec_len: int,
    onehot: torch.Tensor | None = None,
    backend: str = "torch",
) -> Verified:
    """Hand logarithms to the log-space rule; the last token is then ``verify_chain``'s.

    The race has no coin that could be cut. What is asked here is which drafts are accepted; the
    race itself is compared id by id with ``verify_race``, whose score is compared with fractions.
    """
    batch = len(cu_num_draft_tokens)
    nothing = torch.zeros(batch, dtype=torch.int32)
    accepted = verify_logspace(
        target_probs.log(), None if draft_probs is None else draft_probs.log(), draft_token_ids,
        cu_num_draft_tokens, torch.ones(batch), nothing.long(), nothing, nothing,
        accept_coins=accept_coins, max_spec_len=max_spec_len, onehot=onehot, backend=backend,
    ).num_accepted  # fmt: skip
    chain = verify_chain(
        target_probs, draft_probs, draft_token_ids, cu_num_draft_tokens, accept_coins, final_coins,
        max_spec_len=max_spec_len, onehot=onehot, backend="torch",
    )  # fmt: skip
    assert torch.equal(accepted, chain.num_accepted)
    return chain


@pytest.mark.parametrize("kappa", [1, 2])
@pytest.mark.parametrize("vocab", [2, 3])
def test_it_accepts_in_every_cell_what_the_chain_rule_does(vocab: int, kappa: int) -> None:
    for law in joint_laws(as_chain, list(grid([vocab], [kappa]))):
        assert law.exact


def test_the_kernel_accepts_in_cells_what_the_chain_rule_does(interpreter_share: float) -> None:
    dice = random.Random(0)
    settings = [turning(*PAIRS[3][0], 2), fixed(*PAIRS[3][1], 1, onehot=True)]
    requests = []
    for _ in range(round(150 * interpreter_share)):
        path = dice.choice(enumerate_paths(dice.choice(settings)))
        requests.append((path, dice.choice(Box(path, chain_cuts(path), seed=1).points)))
    Asker(functools.partial(as_chain, backend="triton"), settings).ask(requests)
