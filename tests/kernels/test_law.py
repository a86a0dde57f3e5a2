"""The joint law of every rule and backend is the target's: deviation 0, as a fraction."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from engine_cases import atlas, cases

from specedu.kernels import verify_chain
from specedu.theory.adapters import greedy
from specedu.theory.cells import Asker, Box, chain_cuts, enumerate_paths
from specedu.theory.exact import JointLaw, composed_law, joint_law, joint_laws
from specedu.theory.settings import PAIRS, Setting, fixed, grid, law_of, turning
from specedu.theory.verdict import contract_run

twin = functools.partial(verify_chain, backend="torch")
kernel = functools.partial(verify_chain, backend="triton")


def assert_exact(laws: list[JointLaw]) -> None:
    for law in laws:
        assert law.deviation == 0, (law.setting, law.law, law.target)
        assert law.bound == 0, law.setting
        assert sum(law.law.values()) == 1


# --- the twin: the whole grid ---------------------------------------------------------------------


@pytest.mark.parametrize("onehot", [False, True], ids=["full-q", "one-hot"])
@pytest.mark.parametrize("kappa", [1, 2, 3])
@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_the_twin_emits_the_target_law(vocab: int, kappa: int, onehot: bool) -> None:
    settings = list(grid([vocab], [kappa], [onehot]))
    assert len(settings) >= 10  # at least five pairs, with laws that stay and laws that turn
    assert_exact(joint_laws(twin, settings))


def ragged_settings(vocab: int) -> list[Setting]:
    """Different draft lengths, zero included; full, one-hot and greedy requests side by side."""
    pairs = PAIRS[vocab]
    return [
        turning(*pairs[0], 2),
        turning(*pairs[1], 0),
        turning(*pairs[2], 1, onehot=True),
        turning(*pairs[3], 2, greedy=True),
        turning(*pairs[4], 3 if vocab == 2 else 1),
        fixed(*pairs[0], 1, greedy=True, onehot=True),
    ]


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_the_twin_emits_the_target_law_in_ragged_mixed_batches(vocab: int) -> None:
    assert_exact(joint_laws(twin, ragged_settings(vocab)))


@pytest.mark.parametrize("backend_of_greedy", ["torch", "triton"])
def test_verify_greedy_emits_the_argmax_law(backend_of_greedy: str) -> None:
    settings = [turning(p, q, kappa, greedy=True) for p, q in PAIRS[3][:2] for kappa in (0, 1, 2)]
    settings += [fixed(law_of("1/2 1/2 0"), law_of("1/4 1/2 1/4"), 2, greedy=True)]  # a tie
    if backend_of_greedy == "triton":
        settings = settings[1:3] + settings[-1:]
    assert_exact(joint_laws(functools.partial(greedy, backend=backend_of_greedy), settings))


@pytest.mark.parametrize("onehot", [False, True], ids=["full-q", "one-hot"])
def test_every_cell_emits_the_run_of_the_reference(backend: str, onehot: bool) -> None:
    """Not only the law: the very ids, at every probe of a setting with two-id residuals."""
    rule = functools.partial(verify_chain, backend=backend)
    setting = turning(*PAIRS[3][0], 2, onehot=onehot)
    requests = [
        (path, point)
        for path in enumerate_paths(setting)
        for point in Box(path, chain_cuts(path), seed=0).points[:60]
    ]
    expected = [contract_run(path, [Fraction(u) for u in point]) for path, point in requests]
    assert Asker(rule, [setting]).ask(requests) == expected


@pytest.mark.parametrize("kappas", [(1, 1), (2, 0, 1), (0, 2), (1, 2)])
def test_several_steps_emit_the_target_law(kappas: tuple[int, ...]) -> None:
    setting = turning(*PAIRS[2][1], 1)
    assert_exact([composed_law(twin, setting, kappas)])


def test_several_steps_of_three_ids_emit_the_target_law() -> None:
    assert_exact([composed_law(twin, turning(*PAIRS[3][0], 1), (2, 1))])


# --- the kernel: some laws in full, and cells of all the others -----------------------------------


def interpreter_settings(share: float) -> list[list[Setting]]:
    """What the interpreter is asked in full: five pairs of two ids, one of three."""
    five = PAIRS[2] if share == 1 else PAIRS[2][:1]
    two = [turning(p, q, 2) for p, q in five]
    two += [fixed(p, q, 1, onehot=onehot) for p, q in five for onehot in (False, True)]
    two += [turning(*PAIRS[2][0], 3)] if share == 1 else []
    return [two, [turning(*PAIRS[3][0], 2)]]


def test_the_kernel_emits_the_target_law(interpreter_share: float) -> None:
    for settings in interpreter_settings(interpreter_share):
        assert_exact(joint_laws(kernel, settings))


def test_the_kernel_emits_the_target_law_in_ragged_mixed_batches(interpreter_share: float) -> None:
    settings = [
        setting
        for setting in ragged_settings(2)
        if interpreter_share == 1 or setting.kappa < 2 or setting.greedy
    ]
    assert_exact(joint_laws(kernel, settings))


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
        requests.append((path, dice.choice(Box(path, chain_cuts(path), seed=vocab).points)))
    assert Asker(kernel, settings).ask(requests) == Asker(twin, settings).ask(requests)


# --- what the contract says of drafts of -1 -------------------------------------------------------


def test_withdrawing_a_draft_without_target_mass_keeps_the_law(backend: str) -> None:
    rule = functools.partial(verify_chain, backend=backend)
    setting = fixed(law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4"), 1, withdraw=lambda text, x: x == 2)
    assert_exact([joint_law(rule, setting)])


def test_proposing_nothing_draws_from_the_target(backend: str) -> None:
    rule = functools.partial(verify_chain, backend=backend)
    setting = fixed(law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4"), 2)
    nothing = (Fraction(0),) * 3
    sometimes = replace(setting, draft=lambda text: nothing if text else setting.draft(text))
    assert_exact([joint_law(rule, sometimes)])


# --- laws that are right against a first impression -----------------------------------------------


@atlas("B11")
def test_sampled_drafts_tested_as_one_hot_stay_exact_and_accept_less(atlas_row: str) -> None:
    p, q = law_of("1/2 3/10 1/5"), law_of("1/5 3/10 1/2")
    in_full = joint_law(twin, fixed(p, q, 1))
    as_one_hot = joint_law(twin, fixed(p, q, 1, onehot=True))
    assert_exact([in_full, as_one_hot])
    assert in_full.emitted - 1 == Fraction(7, 10)  # sum of min(p, q)
    assert as_one_hot.emitted - 1 == Fraction(29, 100)  # sum of p·q


@pytest.mark.parametrize("case", cases("O03"))
def test_expected_accepts_of_the_chain_rules(case: dict) -> None:
    p, q = (law_of(" ".join(case["input"][name])) for name in ("p", "q"))
    expected = {name: Fraction(value) for name, value in case["expect"].items()}
    argmax_of_q = tuple(Fraction(int(x == q.index(max(q)))) for x in range(3))
    assert joint_law(twin, fixed(p, q, 1)).emitted - 1 == expected["ratio"]
    one_hot = joint_law(twin, fixed(p, argmax_of_q, 1, onehot=True))
    assert one_hot.emitted - 1 == expected["one_hot_on_argmax_q"]
    sampled = joint_law(twin, fixed(p, q, 1, onehot=True))  # accepts as sample-and-match does
    assert sampled.emitted - 1 == expected["sample_and_match"]


@pytest.mark.parametrize("case", cases("B04"))
@pytest.mark.parametrize("kappa", [1, 2, 3])
def test_expected_accepts_of_the_token_rule(case: dict, kappa: int) -> None:
    p, q = (law_of(" ".join(case["input"][name])) for name in ("p", "q"))
    law = joint_law(twin, fixed(p, q, kappa))
    assert law.emitted - 1 == Fraction(case["expect"]["token"][kappa - 1])


@pytest.mark.parametrize("case", cases("B06"))
def test_the_token_rule_keeps_the_joint_law_of_the_block_cases(case: dict) -> None:
    for pair in case["input"]["pairs"]:
        p, q = (law_of(" ".join(pair[name])) for name in ("p", "q"))
        for kappa in pair["k"][:3]:
            assert_exact([joint_law(twin, fixed(p, q, kappa))])
