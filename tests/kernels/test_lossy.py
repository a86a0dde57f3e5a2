"""verify_threshold and verify_synthetic: what they accept, and how far their law is off."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from engine_cases import cases
from ragged_batch import Request, lay_out, runs

from specedu.kernels import Verified, verify_chain, verify_synthetic, verify_threshold
from specedu.theory.exact import joint_law, joint_laws
from specedu.theory.settings import PAIRS, Setting, fixed, grid, law_of, turning

NAN = math.nan


def asked(rule: Any, *requests: Request, backend: str, **options: Any) -> Verified:
    arguments = lay_out(requests)
    return rule(**{**arguments, "backend": backend, **options})


def random_step(vocab: int) -> tuple[dict[str, Any], dict[str, Any]]:
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.randint(0, 4, (16,), generator=generator)
    drafts, rows = int(counts.sum()), int(counts.sum()) + len(counts)
    q = torch.softmax(torch.randn(drafts, vocab, generator=generator) * 3, -1)
    ids = torch.multinomial(q, 1, generator=generator)[:, 0].int()
    ids[::5] = -1
    step = {
        "target_probs": torch.softmax(torch.randn(rows, vocab, generator=generator) * 3, -1),
        "draft_probs": q,
        "draft_token_ids": ids,
        "cu_num_draft_tokens": counts.cumsum(0).int(),
        "accept_coins": torch.rand(drafts, dtype=torch.float64, generator=generator),
        "final_coins": torch.rand(16, dtype=torch.float64, generator=generator),
    }
    options = {"max_spec_len": 3, "greedy": torch.rand(16, generator=generator) < 0.2,
               "onehot": torch.rand(16, generator=generator) < 0.3}  # fmt: skip
    return step, options


# --- thresholds -----------------------------------------------------------------------------------


def test_thresholds_of_one_are_the_chain_rule(backend: str) -> None:
    step, options = random_step(37)
    mine = verify_threshold(**step, **options, backend=backend)
    theirs = verify_chain(**step, **options, backend=backend)
    assert torch.equal(mine.token_ids, theirs.token_ids)


def test_thresholds_of_one_keep_the_law() -> None:
    for vocab in (2, 3):
        for law in joint_laws(verify_threshold, list(grid([vocab], [1, 2]))):
            assert law.exact


@pytest.mark.parametrize("case", cases("O02"))
def test_the_bias_of_a_threshold(case: dict) -> None:
    p = law_of(" ".join(case["input"]["p"]))
    draft = case["input"]["draft"]
    q = tuple(Fraction(int(x == draft)) for x in range(3))
    acc = float(Fraction(case["input"]["threshold_acc"]))
    rule = functools.partial(verify_threshold, accept_threshold_acc=acc)
    law = joint_law(rule, fixed(p, q, 1, onehot=True))
    for found, expected in zip(law.first(), case["expect"]["law"], strict=True):
        assert abs(found - Fraction(expected)) < Fraction(1, 2**23)  # p is rounded to float32
    assert law.bound < Fraction(1, 10**9)


@pytest.mark.parametrize("name", ["accept_threshold_single", "accept_threshold_acc"])
def test_the_lower_a_threshold_the_more_is_accepted_and_the_worse_the_law(name: str) -> None:
    setting = turning(*PAIRS[3][0], 2)
    laws = [
        joint_law(functools.partial(verify_threshold, **{name: value}), setting)
        for value in (1.0, 0.5, 0.25, 0.125)
    ]
    assert laws[0].exact
    for high, low in zip(laws, laws[1:], strict=False):
        assert low.emitted >= high.emitted
        assert low.total_variation >= high.total_variation
    assert laws[-1].total_variation > Fraction(1, 8)


def test_a_probable_draft_is_accepted_at_every_coin(backend: str) -> None:
    request = Request([[0.25, 0.75], [1.0, 0.0]], [0], [[0.75, 0.25]], [0.999], 0.0)
    options = {"accept_threshold_single": 0.25, "backend": backend}
    assert runs(asked(verify_threshold, request, **options)) == [[0, 0]]
    options["accept_threshold_single"] = 0.26
    assert runs(asked(verify_threshold, request, **options)) == [[1]]


def test_acceptance_is_raised_by_the_inverse(backend: str) -> None:
    request = Request([[0.25, 0.75], [1.0, 0.0]], [0], [[0.75, 0.25]], [0.5], 0.0)
    assert runs(asked(verify_threshold, request, backend=backend)) == [[1]]
    options = {"accept_threshold_acc": 0.5, "backend": backend}
    assert runs(asked(verify_threshold, request, **options)) == [[0, 0]]


def test_a_draft_without_target_mass_is_never_accepted(backend: str) -> None:
    request = Request([[0.0, 1.0], [1.0, 0.0]], [0], [[0.75, 0.25]], [0.0], 0.0)
    options = {"accept_threshold_single": 1e-6, "accept_threshold_acc": 1e-6, "backend": backend}
    assert runs(asked(verify_threshold, request, **options)) == [[1]]


@pytest.mark.parametrize("value", [0, -0.5, 1.5, True, "1", NAN])
@pytest.mark.parametrize("name", ["accept_threshold_single", "accept_threshold_acc"])
def test_a_threshold_outside_its_range_is_refused(name: str, value: object) -> None:
    request = Request([[0.25, 0.75]] * 2, [0], None, [0.5], 0.5)
    with pytest.raises(ValueError, match=rf"{name}: .*, expected a number in \(0, 1\]"):
        asked(verify_threshold, request, backend="torch", **{name: value})


def test_kernel_and_twin_agree_on_thresholds() -> None:
    for vocab, single, acc in [(37, 0.9, 0.3), (5000, 0.02, 1.0)]:
        step, options = random_step(vocab)
        options |= {"accept_threshold_single": single, "accept_threshold_acc": acc}
        one, other = (verify_threshold(**step, **options, backend=b) for b in ("torch", "triton"))
        assert torch.equal(one.token_ids, other.token_ids)


# --- synthetic ------------------------------------------------------------------------------------


def synthetic(*rates: float, **options: Any) -> Any:
    tensor = torch.tensor(rates, dtype=torch.float64)
    return functools.partial(verify_synthetic, conditional_rates=tensor, **options)


def test_synthetic_rates_are_met_exactly() -> None:
    """E = 1 + r_1 + r_2, whatever p and q are."""
    for p, q in PAIRS[3]:
        law = joint_law(synthetic(0.75, 0.5), turning(p, q, 2))
        assert abs(law.emitted - (1 + Fraction(3, 4) + Fraction(3, 8))) <= 3 * law.bound


def test_a_refused_draft_is_replaced_as_by_the_chain_rule() -> None:
    setting: Setting = fixed(*PAIRS[3][0], 1)
    law = joint_law(synthetic(0.0), setting)
    wanted = [Fraction(1, 2), Fraction(1, 2), Fraction(0)]  # the residual of every draft
    assert list(law.first()) == wanted


def test_a_placeholder_is_never_accepted(backend: str) -> None:
    request = Request([[0.25, 0.75]] * 2, [-1], None, [0.0], 0.5)
    result = asked(synthetic(1.0), request, backend=backend)
    assert runs(result) == [[1]]


def test_greedy_requests_are_accepted_by_decree_and_end_with_the_argmax(backend: str) -> None:
    request = Request([[0.25, 0.75], [0.75, 0.25]], [0], None, [0.5], NAN, greedy=True)
    options = {"backend": backend, "check": False}
    assert runs(asked(synthetic(0.75), request, **options)) == [[0, 0]]
    assert runs(asked(synthetic(0.25), request, **options)) == [[1]]


def test_kernel_and_twin_agree_on_rates() -> None:
    step, options = random_step(37)
    one, other = (
        synthetic(0.9, 0.5, 0.25)(**step, **options, backend=b) for b in ("torch", "triton")
    )
    assert torch.equal(one.token_ids, other.token_ids)
    assert 0 < int(one.num_accepted.sum())


@pytest.mark.parametrize("rate", [-0.1, 1.1, NAN])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    request = Request([[0.25, 0.75]] * 2, [0], None, [0.5], 0.5)
    with pytest.raises(ValueError, match=r"conditional_rates\[0\]: .*, expected a rate in \["):
        asked(synthetic(rate), request, backend="torch")


def test_another_number_of_rates_is_refused() -> None:
    request = Request([[0.25, 0.75]] * 2, [0], None, [0.5], 0.5)
    with pytest.raises(ValueError, match=r"conditional_rates: shape \(2,\), expected"):
        asked(synthetic(0.5, 0.5), request, backend="torch")
