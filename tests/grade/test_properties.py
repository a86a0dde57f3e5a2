"""The properties: every right rule has them all, a wrong one loses its own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import specedu.kernels
from specedu.grade import properties as has
from specedu.grade.broken import load_rule, planted_rule
from specedu.grade.properties import KINDS, Property, PropertyResult, properties
from specedu.grade.recognise import MISTAKES, fingerprint, recognise
from specedu.theory.cells import Rule

ALTERNATIVES = sorted(Path(__file__).with_name("alternatives").glob("*.py"))


def twin(function: str) -> Rule:
    return functools.partial(getattr(specedu.kernels, function), backend="torch", check=False)


def failures(function: str, rule: Rule, seed: int | None = None) -> set[str]:
    results = [each.check(rule) for each in properties(function, seed)]
    return {result.name for result in results if not result.passed}


def has_property(name: str, function: str, rule: Rule, seed: int | None = None) -> bool:
    (one,) = (each for each in properties(function, seed) if each.name == name)
    return one.check(rule).passed


@pytest.mark.parametrize("function", KINDS)
@pytest.mark.parametrize("seed", [None, 1])
def test_the_twin_has_every_property(function: str, seed: int | None) -> None:
    assert failures(function, twin(function), seed) == set()


def test_there_are_at_least_five_alternatives() -> None:
    assert len(ALTERNATIVES) >= 5


@pytest.mark.parametrize("path", ALTERNATIVES, ids=lambda path: path.stem)
@pytest.mark.parametrize("seed", [None, 3])
def test_another_right_solution_has_every_property(path: Path, seed: int | None) -> None:
    rule = load_rule(path.read_text(encoding="utf-8"), "chain.py", "verify_chain", "torch")
    assert failures("verify_chain", rule, seed) == set()


@pytest.mark.parametrize(
    ("fault", "function", "name"),
    [
        ("threshold-on-p", "verify_chain", has.TWO_IDS),
        ("reused-coin", "verify_chain", has.THREE_IDS),
        ("one-hot-draft-not-masked", "verify_chain", has.CERTAIN),
        ("p-instead-of-residual", "verify_chain", has.STEPS),
        ("border-takes-the-id-before", "verify_chain", has.ENDS),
        ("placeholder-as-index", "verify_chain", has.PLACEHOLDERS),
        ("wrong-row", "verify_chain", has.BATCH),
        ("no-fallback-to-p", "verify_chain", has.ODD),
        ("block-scale-forgotten", "verify_block", has.THREE_IDS),
        ("one-coin-for-every-row", "verify_match", has.TEXT),
        ("threshold-on-the-wrong-side", "verify_threshold", has.THRESHOLD),
        ("p-instead-of-residual", "verify_synthetic", has.RATES),
    ],
)
def test_a_drawn_case_shows_the_fault_too(fault: str, function: str, name: str) -> None:
    assert not has_property(name, function, planted_rule(fault, function), seed=4)


# --- faults that no planted one has ---------------------------------------------------------------


def changed(function: str, change: Any) -> Rule:
    right = twin(function)

    def rule(*arguments: Any, **options: Any) -> Any:
        return change(right, arguments, options)

    return rule


def writes(right: Rule, arguments: Any, options: Any) -> Any:
    result = right(*arguments, **options)
    arguments[0].zero_()
    return result


def wrong_dtype(right: Rule, arguments: Any, options: Any) -> Any:
    token_ids, num_accepted = right(*arguments, **options)
    return token_ids, num_accepted.long()


def own_width(right: Rule, arguments: Any, options: Any) -> Any:
    token_ids, num_accepted = right(*arguments, **options)
    return token_ids[:, : int(num_accepted.max()) + 1], num_accepted


def needs_drafts(right: Rule, arguments: Any, options: Any) -> Any:
    arguments[2][0]
    return right(*arguments, **options)


def single_precision(right: Rule, arguments: Any, options: Any) -> Any:
    *rows, u, w = arguments
    return right(*rows, u.float().double().clamp(max=1 - 2**-24), w, **options)


def low_precision(right: Rule, arguments: Any, options: Any) -> Any:
    if arguments[0].dtype == torch.bfloat16:
        raise TypeError("float32 only")
    return right(*arguments, **options)


def last_of_equals(right: Rule, arguments: Any, options: Any) -> Any:
    p, *rest = arguments
    if "greedy" in options:
        p = p + torch.linspace(0, 1e-3, p.shape[1])
    return right(p, *rest, **options)


def short_vocabulary(right: Rule, arguments: Any, options: Any) -> Any:
    p, *rest = arguments
    return right(torch.cat([p[:, :600], torch.zeros_like(p[:, 600:])], 1), *rest, **options)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (writes, has.INPUTS),
        (wrong_dtype, has.FORM),
        (own_width, has.FORM),
        (needs_drafts, has.NO_DRAFTS),
        (single_precision, has.CLOSE),
        (low_precision, has.STORAGE),
        (last_of_equals, has.GREEDY),
        (short_vocabulary, has.LARGE),
    ],
)
def test_each_property_can_fail(change: Any, name: str) -> None:
    assert not has_property(name, "verify_chain", changed("verify_chain", change))


def test_a_rule_that_raises_fails_and_says_so() -> None:
    def raises(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError("by zero")

    results = [each.check(raises) for each in properties("verify_chain")]
    assert not any(result.passed for result in results)
    assert all("ZeroDivisionError: by zero" in result.counter_example for result in results)


def test_a_result_says_where() -> None:
    rule = planted_rule("p-instead-of-residual", "verify_chain")
    two = next(each for each in properties("verify_chain") if each.name == has.TWO_IDS)
    words = two.check(rule).counter_example
    assert "text [0, 1] has probability 9/32, expected 3/16" in words
    assert "emitted [0], expected [1]" in words
    assert Property("nothing", "", lambda rule: "").check(rule) == PropertyResult("nothing", True)


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(ValueError, match="function: 'verify', expected one of verify_chain, "):
        properties("verify")


# --- known mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "right", "wrong", "words"),
    [
        ("division", "(p - clean(draft_probs[start + i])).clamp_min(0)", "p.clone()",
         MISTAKES["p-instead-of-residual"]),
        ("division", "ratio > accept_coins", "p[x] > accept_coins", MISTAKES["threshold-on-p"]),
        ("tiles", "    if first <= banned < first + TILE:\n        mass[banned - first] = 0.0\n",
         "", MISTAKES["one-hot-draft-not-masked"]),
        ("plain_python", "not u[i] *", "u[i] *", ""),  # wrong in a way that nobody has described
    ],
)  # fmt: skip
def test_a_mistake_is_recognised_however_it_is_written(
    file: str, right: str, wrong: str, words: str
) -> None:
    source = next(path for path in ALTERNATIVES if path.stem == file).read_text(encoding="utf-8")
    assert source.count(right) == 1 or file == "division"
    rule = load_rule(source.replace(right, wrong), "chain.py", "verify_chain", "torch")
    found = recognise(rule, "verify_chain")
    assert found == (f"it looks like a known mistake: {words}" if words else "")


def test_known_mistakes_of_the_chain_rule_differ_from_it_and_from_each_other() -> None:
    chain = [
        name for name in MISTAKES if not name.startswith(("block", "one-coin", "threshold-on-t"))
    ]
    prints = {
        name: fingerprint(planted_rule(name, "verify_chain"), "verify_chain") for name in chain
    }
    prints["right"] = fingerprint(twin("verify_chain"), "verify_chain")
    same = {a: b for a in prints for b in prints if a < b and prints[a] == prints[b]}
    assert same == {}
