"""Checks of Lab 01: the exact law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import torch

from specedu.theory import reference
from specedu.theory.adapters import by_request, transformers_ensemble, transformers_rule
from specedu.theory.exact import joint_law
from specedu.theory.overlap import acceptance_rate
from specedu.theory.reference import Law
from specedu.theory.settings import PAIRS, fixed, show, turning
from specedu.theory.verdict import counter_example, endpoints, is_wrong

from . import filled, report

Verify = Callable[[list[Law], list[Law], list[int], list[Fraction], Fraction], list[int]]


def check_rate(rate: object, p: Law, q: Law) -> None:
    """Check the acceptance rate of one pair."""
    expected = acceptance_rate(p, q)
    report([("the rate is the sum of min(p, q)", rate == expected, repr(rate))])


def check_residual(residual: Callable[[Law, Law], Law]) -> None:
    """Check residuals of the built-in pairs."""
    rows = []
    for vocab in (2, 3, 4):
        for p, q in PAIRS[vocab]:
            if p == q:
                continue
            left = reference.residual(p, q)
            expected = tuple(mass / sum(left) for mass in left)
            words = f"p = {show(p)}, q = {show(q)}"
            found = tuple(filled(residual(p, q), words))
            rows.append((words, found == expected, f"{show(found)}, expected {show(expected)}"))
    report(rows)


def check_rule(verify: Verify) -> None:
    """Compute the joint law of a rule, and ask it at the coins' ends."""
    rule, rows, laws = by_request(verify), [], []
    for vocab, kappa in ((2, 1), (2, 2), (3, 1)):
        for make in (fixed, turning):
            laws.append(joint_law(rule, make(*PAIRS[vocab][0], kappa)))
            rows.append(
                (
                    f"{vocab} ids, {kappa} drafts, {make.__name__} laws",
                    not is_wrong(laws[-1]),
                    f"off by {laws[-1].deviation}",
                )
            )
    example = counter_example(rule, laws)
    if example is not None:
        print(
            f"counter-example: drafts {list(example.path.drafts)}, coins "
            f"{[str(coin) for coin in example.coins]}: emits {list(example.emitted)}, the target's "
            f"rule {list(example.contract)}"
        )
    rows += [(end.question, end.right, end.verdict) for end in endpoints(rule)]
    report(rows)


# --- breaking it ----------------------------------------------------------------------------------


def p_after_refusal(
    ps: list[Law], qs: list[Law], drafts: list[int], coins: list[Fraction], w: Fraction
) -> list[int]:
    """Draw from p after a refusal."""
    run = reference.verify(ps, qs, drafts, coins, w)
    place = len(run) - 1
    return run if place == len(drafts) else [*run[:-1], reference.sample(ps[place], w)]


def one_coin(
    ps: list[Law], qs: list[Law], drafts: list[int], coins: list[Fraction], w: Fraction
) -> list[int]:
    """Test every draft with the first one's coin."""
    return reference.verify(ps, qs, drafts, coins[:1] * len(drafts), w)


def not_strict(
    ps: list[Law], qs: list[Law], drafts: list[int], coins: list[Fraction], w: Fraction
) -> list[int]:
    """Accept on the border too."""
    run: list[int] = []
    for p, q, x, u in zip(ps, qs, drafts, coins, strict=False):
        if u * q[x] > p[x]:
            return [*run, reference.sample(reference.residual(p, q), w)]
        run.append(x)
    return [*run, reference.sample(ps[-1], w)]


def first_token_law(verify: Verify, p: Law, q: Law) -> dict[int, Fraction]:
    """Return the law of the first emitted token, by enumeration of one draft's coins."""
    first: dict[int, Fraction] = {}
    for cell in joint_law(by_request(verify), fixed(p, q, 1)).cells:
        first[cell.run[0]] = first.get(cell.run[0], Fraction(0)) + cell.volume
    return first


def truth() -> dict[str, bool]:
    """Return which of the four changes change the law, computed."""
    p, q = PAIRS[2][0]
    setting = turning(p, q, 2)
    found = {
        "p-after-refusal": is_wrong(joint_law(by_request(p_after_refusal), setting)),
        "one-coin": is_wrong(joint_law(by_request(one_coin), setting)),
        "not-strict": is_wrong(joint_law(by_request(not_strict), setting)),
    }
    first = first_token_law(reference.verify, p, q)  # all that no-bonus emits
    found["no-bonus"] = any(first.get(x, 0) != mass for x, mass in enumerate(p))
    return found


def check_changes(said: Mapping[str, object]) -> None:
    """Compare what was said of the four changes with their laws."""
    words = {True: "changes the law", False: "keeps the law"}
    report(
        [
            (f"{name}: your answer is what its law says", said.get(name) is changes, words[changes])
            for name, changes in truth().items()
        ]
    )


# --- a rule that ships ----------------------------------------------------------------------------


def check_hole(hole: Mapping[str, object], how_often: object) -> None:
    """Run transformers' rule on the request, and look for an id without probability."""
    try:
        p, q = (tuple(map(float, hole[name])) for name in ("p", "q"))
        draft, u = int(hole["draft"]), float(hole["u"])
        laws = abs(sum(p) - 1) < 1e-9 and abs(sum(q) - 1) < 1e-9 and len(p) == len(q)
        drawn = laws and 0 <= draft < len(q) and q[draft] > 0 and 0 <= u < 1
    except (TypeError, ValueError, KeyError):
        laws = drawn = False
    accepted = False
    if drawn:
        result = transformers_rule(
            torch.tensor([p, p]),
            torch.tensor([q]),
            torch.tensor([draft], dtype=torch.int32),
            torch.tensor([1], dtype=torch.int32),
            torch.tensor([u], dtype=torch.float64),
            torch.tensor([0.5], dtype=torch.float64),
            max_spec_len=1,
        )
        accepted = int(result.token_ids[0, 0]) == draft and int(result.num_accepted[0]) == 1
    report(
        [
            ("p and q are laws", laws, repr(dict(hole))),
            ("the draft can be drawn, the coin lies in [0, 1)", drawn, repr(dict(hole))),
            ("the target gives the draft no probability", drawn and p[draft] == 0, "it does"),
            ("transformers emits it", accepted, "it refuses it"),
            ("once in 2**24 coins", how_often == 2**-24, repr(how_often)),
        ]
    )


def check_ensemble(total_variation: object, p: Law, q: Law) -> None:
    """Compare with the exact law of the mixed rule."""
    expected = joint_law(transformers_ensemble, fixed(p, q, 1)).total_variation
    report(
        [
            ("the law is not the target's", bool(expected > 0), ""),
            (
                "its total variation is what you say",
                total_variation == expected,
                repr(total_variation),
            ),
        ]
    )
