"""The walk in the browser emits what the reference emits."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from specedu.figures import Walker
from specedu.theory.reference import verify

PARTS = ("common", "law", "walker")


def states(count: int) -> list[dict]:
    dice = Random(0)
    found = []
    while len(found) < count:
        p, q = ([dice.randint(0, 6) for _ in range(3)] for _ in "pq")
        state = {"p": p, "q": q, "draft": dice.randrange(3)}
        if any(p) and q[state["draft"]]:
            found.append(state | {"u": dice.randrange(64), "w": dice.randrange(64)})
    return found


def test_the_walk_emits_what_the_reference_emits(ask):
    asked = states(200)
    runs = ask(PARTS, "argument.map((state) => m.walk(state).run)", asked)
    for state, run in zip(asked, runs, strict=True):
        p, q = ([Fraction(n, sum(state[law])) for n in state[law]] for law in "pq")
        coins = Fraction(state["u"], 64), Fraction(state["w"], 64)
        assert run == verify([p, p], [q], [state["draft"]], [coins[0]], coins[1]), state


def test_a_coin_is_accepted_exactly_below_the_border(ask):
    asked = states(200)
    shown = "argument.map((s) => { const w = m.walk(s); return [m.show(w.border), w.accepted]; })"
    for state, (border, accepted) in zip(asked, ask(PARTS, shown, asked), strict=True):
        below = Fraction(state["u"], 64) < Fraction(border)
        assert accepted == below, state


def test_an_id_that_is_never_drafted_is_said_to_be_so(ask):
    state = {"p": [1, 1, 1], "q": [1, 1, 0], "draft": 2, "u": 0, "w": 0}
    assert ask(PARTS, "m.walk(argument).never", state)


def test_the_alternative_tells_what_is_emitted():
    assert "refused; with w = 13/32 the step emits [0]" in Walker().alternative
