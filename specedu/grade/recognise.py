"""Known mistakes, told by the law that they emit.

A wrong rule is asked a few dozen requests, and its answers are compared with those of rules that
have a known fault. Two rules with the same mistake answer alike, however they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction

import torch

from specedu.theory.cells import Rule, read_runs
from specedu.theory.exact import JointLaw, joint_laws
from specedu.theory.settings import PAIRS, fixed, law_of, turning
from specedu.theory.verdict import endpoints

from .broken import KERNELS, Unloadable, planted_rule
from .faults import FAULTS
from .properties import KINDS

# What a rule with the torch fault of that name does, said to its author.
MISTAKES: Mapping[str, str] = {
    "p-instead-of-residual": "you drew from p after a refusal, not from max(0, p - q)",
    "one-hot-draft-not-masked": "a refused deterministic draft can be drawn again",
    "threshold-on-p": "you compared the coin with p(x) alone, not with p(x)/q(x)",
    "top-k-membership": "you kept every draft among the target's likeliest ids",
    "inclusive-test": "your test includes equality: a coin of 0 keeps an id without probability",
    "reused-coin": "the coin that refused the draft also draws its replacement",
    "bonus-row-after-a-refusal": "after a refusal you drew from the bonus row",
    "accepts-counted-behind-a-refusal": "you counted accepted drafts behind the first refusal",
    "placeholder-as-index": "you took a draft of -1 for an id",
    "placeholder-drawn-from-p": "you replaced a draft of -1 from p, without its own row of q",
    "border-takes-the-id-before": "your running sum may equal the goal; it must exceed it",
    "no-fallback-to-p": "a residual without mass does not fall back to p",
    "wrong-row": "you tested drafts against the target rows of the request before",
    "prefix-sum-off-by-one": "your requests begin where they end",
    "one-coin-for-every-row": "every row of a request draws with the same coin",
    "block-row-of-the-draft-itself": "you weighed a run by its own last row, not the one behind it",
    "block-scale-forgotten": "the residual behind an accepted run is not scaled",
    "threshold-on-the-wrong-side": "acc stands on the side of p: a lower threshold accepts less",
}


def fingerprint(rule: Rule, function: str) -> Hashable:
    """Return the answers of a rule to a few dozen requests, comparable and small.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> fingerprint(verify_chain, "verify_chain") == fingerprint(verify_chain, "verify_chain")
        True
    """
    kind = KINDS[function]
    chain = kind.as_chain(rule)
    greedy = kind.greedy
    three = PAIRS[3][0]
    banned = law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4")
    nothing = (Fraction(0),) * 3

    def laws(*settings: object) -> Hashable:
        found = joint_laws(chain, settings, cuts=kind.cuts, random_points=0, max_found_cuts=0)
        return tuple(map(_answers, found))

    parts: list[Callable[[], Hashable]] = [
        lambda: laws(turning(*three, 1, greedy=greedy)),
        lambda: laws(turning(*PAIRS[2][0], 2, greedy=greedy)),
        lambda: laws(fixed(*banned, 1, greedy=greedy, withdraw=lambda text, x: x == 2)),
        lambda: laws(fixed(law_of("1/4 1/4 1/2"), nothing, 1, greedy=greedy)),
    ]
    if not greedy:
        parts += [
            lambda: laws(fixed(*three, 1, onehot=True)),
            lambda: tuple(end.emitted for end in endpoints(chain)),
            lambda: _without_residual(chain),
        ]
    if function == "verify_threshold":
        loose = {"accept_threshold_acc": 0.5}
        parts.append(
            lambda: _answers(
                joint_laws(
                    lambda *arguments, **options: rule(*arguments, **options, **loose),
                    [fixed(*three, 1)],
                    random_points=0,
                    max_found_cuts=0,
                )[0]
            )
        )
    return tuple(map(_answer, parts))


def recognise(rule: Rule, function: str, handed_out: Rule | None = None) -> str:
    """Return in words what a wrong rule looks like; empty where nothing known answers like it.

    Args:
        rule: the wrong one.
        function: name of the public function it stands for.
        handed_out: the rule of the file as it was handed out.
    """
    found = fingerprint(rule, function)
    if handed_out is not None and fingerprint(handed_out, function) == found:
        # Its name would give the exercise away.
        return "it answers as the file that was handed out: the fault is still there"
    for name, words in MISTAKES.items():
        if _can_have(name, function) and _known(name, function) == found:
            return f"it looks like a known mistake: {words}"
    return ""


_laws: dict[tuple[str, str], Hashable] = {}


def _known(fault: str, function: str) -> Hashable:
    """Return the fingerprint of a known mistake, None where the rule does not have it."""
    if (fault, function) not in _laws:
        try:
            answers = fingerprint(planted_rule(fault, function), function)
        except Unloadable:
            answers = None
        _laws[fault, function] = None if answers == _right(function) else answers
    return _laws[fault, function]


def _right(function: str) -> Hashable:
    if ("", function) not in _laws:
        import specedu.kernels

        _laws["", function] = fingerprint(getattr(specedu.kernels, function), function)
    return _laws["", function]


def _can_have(fault: str, function: str) -> bool:
    """Return whether a fault's file is the function's own, or one without a rule of its own."""
    file = next((each.file for each in FAULTS if each.name == fault), None)
    if file is None:
        return False
    source = (KERNELS / file.removeprefix("kernels/")).read_text(encoding="utf-8")
    return f"def {function}(" in source or "def verify_" not in source


def _answers(law: JointLaw) -> Hashable:
    return tuple(sorted(law.law.items())), law.bound


def _without_residual(chain: Rule) -> Hashable:
    """Return what a refusal emits where nothing is left of p: q is 1 at both ids."""
    result = chain(
        torch.tensor([[0.25, 0.75], [0.0, 1.0]]),
        torch.tensor([[1.0, 1.0]]),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([0.96875], dtype=torch.float64),
        torch.tensor([0.5], dtype=torch.float64),
        max_spec_len=1,
    )
    return read_runs(result, [1])[0]


def _answer(part: Callable[[], Hashable]) -> Hashable:
    try:
        return part()
    except Exception as error:
        return type(error).__name__
