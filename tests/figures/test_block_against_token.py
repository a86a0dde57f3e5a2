"""Two rules on one square of coins: what the browser draws is what the reference does."""

from __future__ import annotations

from fractions import Fraction

import pytest

from specedu.figures import BlockAgainstToken
from specedu.figures.block_against_token import STEPS, expected, patches
from specedu.kernels import verify_block, verify_chain
from specedu.theory.cells import block_cuts, chain_cuts
from specedu.theory.exact import joint_law
from specedu.theory.reference import Law, block, block_weights, verify
from specedu.theory.settings import fixed, law_of

PARTS = ("common", "law", "block_against_token")
LAWS = [(p, q) for p in (0, 1, 4, 6, 8, 12) for q in (1, 4, 6, 8, 11)]
DRAFTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
# What a test hands over: twelfths, drafts and fortieths; in the browser they become fractions.
TAKE = (
    "const law = (n) => [m.frac(n, 12), m.frac(12 - n, 12)];"
    "const [p, q] = [law(argument.p), law(argument.q)];"
)


def law(twelfths: int) -> Law:
    return Fraction(twelfths, 12), 1 - Fraction(twelfths, 12)


def call(ask, body: str, **argument):
    return ask(PARTS, f"(() => {{ {TAKE} return {body}; }})()", argument)


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_browser_weighs_runs_as_the_reference_does(ask, p: int, q: int) -> None:
    for drafts in DRAFTS:
        rs, hs = block_weights([law(p)] * 3, [law(q)] * 2, drafts)
        got = call(
            ask,
            "((w) => [w.rs.map(m.show), w.hs.map(m.show)])(m.blockWeights(p, q, argument.drafts))",
            p=p, q=q, drafts=drafts,
        )  # fmt: skip
        assert [[Fraction(entry) for entry in row] for row in got] == [rs, hs[1:]]


@pytest.mark.parametrize(("p", "q"), [(4, 8), (5, 10), (0, 6), (9, 3)])
def test_the_browser_accepts_at_every_coin_what_the_reference_does(ask, p: int, q: int) -> None:
    coins = [(u1, u2) for u1 in range(0, STEPS, 3) for u2 in range(0, STEPS, 3)]
    for drafts in DRAFTS:
        got = call(
            ask,
            "argument.coins.map((pair) => pair.map((u) => m.frac(u, 40))).map((us) => "
            "[m.tokenLength(p, q, argument.drafts, us), m.blockLength(p, q, argument.drafts, us)])",
            p=p, q=q, drafts=drafts, coins=coins,
        )  # fmt: skip
        ps, qs = [law(p)] * 3, [law(q)] * 2
        for (u1, u2), lengths in zip(coins, got, strict=True):
            us = [Fraction(u1, STEPS), Fraction(u2, STEPS)]
            runs = [rule(ps, qs, drafts, us, Fraction(0)) for rule in (verify, block)]
            assert lengths == [len(run) - 1 for run in runs]


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_browser_draws_the_patches(ask, p: int, q: int) -> None:
    for drafts in DRAFTS:
        got = call(
            ask,
            "m.patches(p, q, argument.drafts).map((o) => [m.show(o.u1.low), m.show(o.u1.high), "
            "m.show(o.u2.low), m.show(o.u2.high), o.token, o.block])",
            p=p, q=q, drafts=drafts,
        )  # fmt: skip
        assert [tuple(map(Fraction, row)) for row in got] == patches(law(p), law(q), drafts)


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_browser_expects_what_the_reference_does(ask, p: int, q: int) -> None:
    got = call(ask, "((e) => [m.show(e.token), m.show(e.block)])(m.expected(p, q))", p=p, q=q)
    assert tuple(map(Fraction, got)) == expected(law(p), law(q))


def test_the_expected_lengths_are_those_of_the_kernels() -> None:
    p, q = law_of("1/3 2/3"), law_of("2/3 1/3")
    setting = fixed(p, q, 2)
    token = joint_law(verify_chain, setting, cuts=chain_cuts).emitted - 1
    joint = joint_law(verify_block, setting, cuts=block_cuts).emitted - 1
    assert expected(p, q) == (token, joint) == (Fraction(10, 9), Fraction(11, 9))


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_button_finds_a_coin_where_block_accepts_less_if_there_is_one(ask, p, q) -> None:
    where = {"drafts": "00", "u1": 0, "u2": 0}
    place = call(ask, "m.nextLess(p, q, argument.where)", p=p, q=q, where=where)
    large = [
        patch
        for drafts in DRAFTS
        for patch in patches(law(p), law(q), drafts)
        if patch.block < patch.token
        and min(patch.right - patch.left, patch.high - patch.low) > Fraction(2, STEPS)
    ]
    if place is None:
        assert not large
    else:
        figure = BlockAgainstToken(p=p, q=q, **place)
        assert figure.lengths[1] < figure.lengths[0]


def test_the_alternative_tells_both_lengths() -> None:
    words = BlockAgainstToken().alternative
    assert "the token rule accepts 1, block verification 0" in words
    assert "10/9 and 11/9" in words


def test_drafts_that_are_never_drawn_are_refused() -> None:
    with pytest.raises(ValueError, match="expected ids that q"):
        patches(law(6), law(12), (1, 1))
