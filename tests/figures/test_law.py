"""The law in the browser against the law of the real source, with every fault of the playground."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest

from specedu.figures.playground import PLAYABLE
from specedu.grade.broken import planted_rule
from specedu.kernels import verify_chain
from specedu.theory import adapters, reference
from specedu.theory.cells import simplest_between
from specedu.theory.exact import joint_law
from specedu.theory.reference import Law, residual, sample
from specedu.theory.settings import Setting, fixed, law_of, turning
from specedu.theory.verdict import is_wrong

EXPRESSION = """(() => {
    const law = m.jointLaw(m.makeSetting(argument.setting), m.FAULTS[argument.fault]);
    return {
        rows: law.rows.map(({ text, law, target }) => [text.join(), m.show(law), m.show(target)]),
        variation: m.show(law.variation), deviation: m.show(law.deviation),
        emitted: m.show(law.emitted),
    };
})()"""
DYADIC = ([6, 6, 4], [2, 2, 12])
ZERO_ENTRY = ([4, 12, 0], [8, 4, 4])


def state(pair: tuple[list[int], list[int]], kappa: int, *flags: str) -> dict:
    p, q = pair
    return {"p": p, "q": q, "kappa": kappa, **{f: f in flags for f in ("turning", "onehot")}}


SETTINGS = [
    state(DYADIC, 1),
    state(DYADIC, 2, "turning"),
    state(DYADIC, 2, "turning", "onehot"),
    state(ZERO_ENTRY, 1, "onehot"),
    state(ZERO_ENTRY, 2, "turning"),
]


def named(state: Mapping) -> str:
    flags = [name for name in ("turning", "onehot") if state[name]]
    return "-".join([f"p{state['p']}", f"kappa{state['kappa']}", *flags])


def setting_of(state: Mapping) -> Setting:
    p, q = (law_of(" ".join(f"{entry}/16" for entry in state[name])) for name in ("p", "q"))
    make = turning if state["turning"] else fixed
    return make(p, q, state["kappa"], onehot=state["onehot"])


def one_coin_for_every_test(ps, qs, drafts, us, w):
    return reference.verify(ps, qs, drafts, [us[0] for _ in us], w)


def tail_kept(ps, qs, drafts, us, w):
    flags = [u * q[x] < p[x] for p, q, x, u in zip(ps, qs, drafts, us, strict=False)]
    run = reference.verify(ps, qs, drafts, us, w)
    behind = len(run)
    while behind < len(drafts) and flags[behind]:
        run.append(drafts[behind])
        behind += 1
    return run


def rule_of(fault: str):
    if fault == "none":
        return verify_chain
    if planted := PLAYABLE[fault]:
        return planted_rule(planted)
    own = {"one-coin-for-every-test": one_coin_for_every_test, "tail-kept": tail_kept}
    return adapters.by_request(own[fault])


def compare(ask, fault: str, state: Mapping) -> None:
    found = ask(("law",), EXPRESSION, {"setting": state, "fault": fault})
    law = joint_law(rule_of(fault), setting_of(state))
    for words, mass, target in found["rows"]:
        text = tuple(map(int, words.split(",")))
        assert abs(Fraction(mass) - law.law.get(text, 0)) <= law.bound, (text, mass)
        assert Fraction(target) == law.target.get(text, 0)
    assert abs(Fraction(found["deviation"]) - law.deviation) <= law.bound
    assert abs(Fraction(found["variation"]) - law.total_variation) <= len(law.law) * law.bound
    assert abs(Fraction(found["emitted"]) - law.emitted) <= 3 * law.bound


@pytest.mark.parametrize("asked", SETTINGS, ids=named)
def test_the_law_of_the_rule_is_the_exact_law(ask, asked):
    compare(ask, "none", asked)


@pytest.mark.parametrize("asked", SETTINGS, ids=named)
@pytest.mark.parametrize(
    "fault", [name for name, planted in PLAYABLE.items() if not (planted or "").endswith("-kernel")]
)
def test_the_law_of_a_fault_is_that_of_the_real_source_with_it(ask, fault, asked):
    compare(ask, fault, asked)


@pytest.mark.parametrize(
    "fault", [name for name, planted in PLAYABLE.items() if (planted or "").endswith("-kernel")]
)
def test_the_law_of_a_fault_is_that_of_the_real_kernel_with_it(ask, fault):
    for kappa, *flags in [(1, "turning"), (1, "onehot"), (1, "turning", "onehot")]:
        compare(ask, fault, state(DYADIC, kappa, *flags))


def test_every_fault_can_be_switched_on_and_names_its_plant(ask):
    found = ask(("law",), "Object.entries(m.FAULTS).map(([k, v]) => [k, v.planted ?? null])")
    assert dict(found) == {"none": None, **PLAYABLE}


@pytest.mark.parametrize("fault", PLAYABLE)
def test_every_fault_has_a_counter_example_on_which_the_rules_part(ask, fault):
    flags = ["turning", "onehot"] if fault == "one-hot-draft-not-masked" else ["turning"]
    asked = state(DYADIC, 2, *flags)
    found = ask(
        ("law",),
        """(() => {
            const found = m.counterExample(m.makeSetting(argument[0]), m.FAULTS[argument[1]]);
            const { path, coins, emitted, right, edge } = found;
            const laws = (rows) => rows.map((row) => row.map(m.show));
            return { ps: laws(path.ps), qs: laws(path.qs), drafts: path.drafts,
                     coins: coins.map(m.show), emitted, right, edge };
        })()""",
        [asked, fault],
    )
    ps, qs = ([tuple(map(Fraction, row)) for row in found[name]] for name in ("ps", "qs"))
    *us, w = map(Fraction, found["coins"])
    assert reference.verify(ps, qs, found["drafts"], us, w) == found["right"] != found["emitted"]
    wrong = is_wrong(joint_law(rule_of(fault), setting_of(asked)))
    assert wrong is not found["edge"]  # what differs at single coins alone leaves the law as it is


def test_simplest_between_is_the_theorys(ask):
    pairs = [("1/3", "1/2"), ("0", "1/7"), ("5/16", "3/8"), ("0", "1"), ("2/5", "41/100")]
    expression = """argument.map((pair) => {
        const [low, high] = pair.map((f) => m.frac(...f.split("/").map(Number)));
        return m.show(m.simplestBetween(low, high));
    })"""
    found = ask(("law",), expression, pairs)
    assert [Fraction(f) for f in found] == [
        simplest_between(Fraction(low), Fraction(high)) for low, high in pairs
    ]


def test_residual_and_sample_are_the_references(ask):
    expression = """(() => {
        const law = (entries) => entries.map((entry) => m.frac(entry, 8));
        return argument.map(([p, q, coin]) => {
            const weights = m.residual(law(p), law(q));
            return [weights.map(m.show), m.sample(weights, m.frac(coin, 8))];
        });
    })()"""
    cases = [([3, 3, 2], [1, 1, 6], c) for c in range(8)] + [([3, 3, 2], [3, 3, 2], 5)]
    for (p, q, coin), (weights, token) in zip(cases, ask(("law",), expression, cases), strict=True):
        laws: list[Law] = [tuple(Fraction(entry, 8) for entry in law) for law in (p, q)]
        assert tuple(map(Fraction, weights)) == residual(*laws)
        assert token == sample(residual(*laws), Fraction(coin, 8))
