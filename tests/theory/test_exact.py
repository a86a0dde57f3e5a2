"""The exact law itself: it finds the known laws of broken rules, and refuses what is no run."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from engine_cases import atlas, cases

from specedu.kernels import verify_chain
from specedu.theory.cells import Asker, MalformedRun, enumerate_paths, simplest_between
from specedu.theory.exact import composed_law, joint_law, joint_laws, step_counters
from specedu.theory.reference import Text, residual, sample
from specedu.theory.settings import PAIRS, Setting, fixed, law_of, turning

Run = Callable[[Text, list, list, list[float], float], list[int]]


def rule_of(run: Run):
    """Turn a function of one request's (drafts, p rows, q rows, u, w) into a rule."""

    def rule(p, q, drafts, cu, accept_coins, final_coins, *, max_spec_len, onehot=None):
        token_ids = torch.full((len(cu), max_spec_len + 1), -1)
        accepted, start = [], 0
        for r, end in enumerate(cu.tolist()):
            ids = drafts[start:end].tolist()
            rows = p[start + r : end + r + 1].tolist()
            qs = q[start:end].tolist() if q is not None else [[float(t == x) for t in
                range(p.shape[1])] for x in ids]  # fmt: skip
            emitted = run(ids, rows, qs, accept_coins[start:end].tolist(), final_coins[r].item())
            token_ids[r, : len(emitted)] = torch.tensor(emitted)
            accepted.append(len(emitted) - 1)
            start = end
        return token_ids, torch.tensor(accepted)

    return rule


def chain_with(
    *,
    accepts: Callable = lambda x, p, q, u: u * q[x] < p[x],
    replacement: Callable = residual,
    final_coin: Callable = lambda u, w: w,
) -> Callable:
    """Return a chain rule with one part replaced."""

    def run(ids, ps, qs, us, w):
        for i, x in enumerate(ids):
            if not accepts(x, ps[i], qs[i], us[i]):
                return [*ids[:i], sample(replacement(ps[i], qs[i]), final_coin(us[i], w))]
        return [*ids, sample(ps[len(ids)], w)]

    return rule_of(run)


def near(law: tuple, expected: str, tolerance: float = 1e-6) -> bool:
    """Laws of rows that float32 rounds: the cuts move by less than the tolerance."""
    return all(abs(a - Fraction(b)) < tolerance for a, b in zip(law, expected.split(), strict=True))


# --- the known laws of broken rules ---------------------------------------------------------------


def test_the_unbroken_rule_has_the_target_law() -> None:
    law = joint_law(chain_with(), turning(*PAIRS[3][0], 2))
    assert law.exact
    assert law.total_variation == 0


@atlas("B05")
def test_a_reused_coin_shifts_mass_to_the_next_id(atlas_row: str) -> None:
    setting = fixed(law_of("2/5 2/5 1/5"), law_of("1/10 1/10 4/5"), 1)
    law = joint_law(chain_with(final_coin=lambda u, w: u), setting)
    assert near(law.first(), "3/10 1/2 1/5")
    assert law.deviation > law.bound


@atlas("B10")
def test_an_argmax_draft_tested_with_its_softmax_is_biased(atlas_row: str) -> None:
    # The draft proposes id 0 always; the rule is handed the softmax (.6, .3, .1) for q.
    def softmax_rows(p, q, *rest, **options):
        rows = torch.tensor([[0.6, 0.3, 0.1]]).expand(q.shape)
        return verify_chain(p, rows, *rest, **options)

    setting = fixed(law_of("1/2 3/10 1/5"), law_of("1 0 0"), 1)
    assert near(joint_law(softmax_rows, setting).first(), "5/6 0 1/6")


@atlas("B02")
def test_replacing_from_p_is_biased(atlas_row: str) -> None:
    setting = fixed(law_of("1/5 1/2 3/10"), law_of("3/5 1/10 3/10"), 1)
    law = joint_law(chain_with(replacement=lambda p, q: p), setting)
    assert near(law.first(), "7/25 3/10 21/50")


@pytest.mark.parametrize("case", cases("O02"))
def test_a_lowered_threshold_is_biased(case: dict) -> None:
    threshold = float(Fraction(case["input"]["threshold_acc"]))
    setting = fixed(law_of(" ".join(case["input"]["p"])), law_of("1 0 0"), 1)
    law = joint_law(chain_with(accepts=lambda x, p, q, u: u < p[x] / threshold), setting)
    assert near(law.first(), " ".join(case["expect"]["law"]))


def test_drawing_a_withdrawn_sampled_draft_from_p_is_biased() -> None:
    setting = fixed(law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4"), 1, withdraw=lambda text, x: x == 2)

    def from_p(ids, ps, qs, us, w):
        if -1 in ids:
            return [sample(ps[0], w)]
        return [ids[0], sample(ps[1], w)] if us[0] * qs[0][ids[0]] < ps[0][ids[0]] else [
            sample(residual(ps[0], qs[0]), w)]  # fmt: skip

    assert joint_law(rule_of(from_p), setting).first() == law_of("5/16 11/16 0")
    assert joint_law(chain_with(accepts=lambda x, p, q, u: x >= 0 and u * q[x] < p[x]),
                     setting).first() == law_of("1/4 3/4 0")  # fmt: skip


def test_dropping_a_draft_because_its_own_q_is_small_is_biased() -> None:
    setting = fixed(
        law_of("1/5 1/2 3/10"), law_of("3/5 1/10 3/10"), 1, withdraw=lambda text, x: x == 1
    )

    def zero_row(p, q, drafts, *rest, **options):
        return verify_chain(p, q * (drafts >= 0)[:, None], drafts, *rest, **options)

    assert near(joint_law(zero_row, setting).first(), "11/50 9/20 33/100")


def test_withdrawing_a_drawn_id_with_target_mass_is_biased_with_its_own_row_too() -> None:
    p, q = law_of("3/8 3/8 1/4"), law_of("1/8 1/8 3/4")
    law = joint_law(verify_chain, fixed(p, q, 1, withdraw=lambda text, x: x == 2))
    assert law.first() == law_of("1/2 1/2 0")


def test_withdrawing_the_one_id_of_the_residual_happens_to_keep_the_law() -> None:
    # The mass that is withdrawn comes back through the residual, which holds that id alone.
    p, q = law_of("1/5 1/2 3/10"), law_of("3/5 1/10 3/10")
    assert joint_law(verify_chain, fixed(p, q, 1, withdraw=lambda text, x: x == 1)).exact


def test_a_marginal_that_is_right_does_not_hide_a_wrong_joint_law() -> None:
    # The bonus is drawn with the coin that accepted: the first token is right, the pair is not.
    def run(ids, ps, qs, us, w):
        x = ids[0]
        if not us[0] * qs[0][x] < ps[0][x]:
            return [sample(residual(ps[0], qs[0]), w)]
        return [x, sample(ps[1], us[0])]

    law = joint_law(rule_of(run), fixed(*PAIRS[2][0], 1))
    assert law.first() == law_of("1/4 3/4")
    assert law.deviation > law.bound


def test_a_cut_that_the_theory_does_not_know_is_found_exactly() -> None:
    # Accepting below p instead of p/q puts the cut at 1/4 instead of 1/3.
    setting = fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 1)
    law = joint_law(chain_with(accepts=lambda x, p, q, u: u < p[x]), setting)
    # Id 0: q·p = 3/16 accepted; id 1: 3/16 accepted; every refusal gives id 1.
    assert law.first() == law_of("3/16 13/16")
    assert 0 < law.bound < Fraction(1, 2**38)
    assert all(cell.constant for cell in law.cells)


def test_a_curved_border_ends_in_a_bound_that_covers_the_error() -> None:
    # Accepting iff u·w < 1/4: the border is a hyperbola.
    def run(ids, ps, qs, us, w):
        return [ids[0], 0] if us[0] * w < 0.25 else [1]

    law = joint_law(rule_of(run), fixed(law_of("1/2 1/2"), law_of("1 0"), 1))
    below = 0.25 + 0.25 * 1.3862943611198906  # 1/4·(1 + log 4)
    assert law.bound > 0
    assert not all(cell.constant for cell in law.cells)
    assert abs(float(law.first()[0]) - below) <= float(law.bound) < 0.25


def test_an_id_outside_the_vocabulary_counts_against_the_law() -> None:
    law = joint_law(rule_of(lambda ids, ps, qs, us, w: [7]), fixed(*PAIRS[2][0], 1))
    assert law.law == {(7,): 1}
    assert law.deviation == 1


# --- what is no run, and what is no product -------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        None,
        torch.tensor([[0, -1]]),
        (torch.tensor([[0, -1]]), torch.tensor([1])),  # counts a draft that is not there
        (torch.tensor([[0, 1]]), torch.tensor([0])),  # an id behind the run
        (torch.tensor([[0, 1], [0, 1]]), torch.tensor([1, 1])),  # one row too many
        (torch.tensor([[0, 1]]), torch.tensor([2])),  # more accepted than drafted
    ],
)
def test_what_is_no_run_is_refused(returned: object) -> None:
    setting = fixed(*PAIRS[2][0], 1)
    path = enumerate_paths(setting)[0]
    with pytest.raises(MalformedRun, match="the rule returned"):
        Asker(lambda *arguments, **options: returned, [setting]).ask([(path, (0.5, 0.5))])


def test_a_rule_with_randomness_of_its_own_is_refused() -> None:
    dice = random.Random(0)
    rule = rule_of(lambda ids, ps, qs, us, w: [dice.randrange(2)])
    with pytest.raises(MalformedRun, match="it is no function of drafts and coins"):
        for _ in range(64):  # a chance of 1/2 a time that the two ends happen to differ again
            joint_law(rule, fixed(*PAIRS[2][0], 1))


def test_settings_of_two_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"settings: vocabularies \[2, 3\]"):
        joint_laws(verify_chain, [fixed(*PAIRS[2][0], 1), fixed(*PAIRS[3][0], 1)])


def test_steps_that_share_a_coin_are_refused() -> None:
    def by_position_alone(step: int, position: int, kappa: int):
        return {(0, *rest) for _, *rest in step_counters(step, position, kappa)}

    setting = turning(*PAIRS[2][0], 1)
    composed_law(verify_chain, setting, (2, 1))
    with pytest.raises(ValueError, match="steps 0 and 1, which begin at positions 0 and 1, share"):
        composed_law(verify_chain, setting, (2, 1), counters=by_position_alone)


def test_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="kappas"):
        composed_law(verify_chain, fixed(*PAIRS[2][0], 1), [])


def test_steps_compose_only_behind_the_text_they_emitted() -> None:
    # Drawing the second step's tokens from the laws of the first: right alone, wrong together.
    setting = turning(*PAIRS[3][0], 1)

    class Forgetful(Setting):
        def after(self, text: Text, kappa: int) -> Setting:
            return replace(setting, kappa=kappa)

    forgetful = Forgetful(setting.name, setting.target, setting.draft, 1, 3)
    assert composed_law(verify_chain, forgetful, (1,)).exact
    assert composed_law(verify_chain, forgetful, (1, 1)).deviation > 0


def test_composed_steps_emit_the_sum_of_their_tokens() -> None:
    setting = fixed(law_of("1/2 1/2"), law_of("1/2 1/2"), 1)
    assert composed_law(verify_chain, setting, (2, 0, 1)).emitted == 3 + 1 + 2


# --- the asker ------------------------------------------------------------------------------------


def test_q_rows_of_one_hot_requests_are_poisoned() -> None:
    seen = []

    def rule(p, q, *rest, **options):
        seen.append(q)
        return verify_chain(p, q, *rest, **options)

    settings = [fixed(*PAIRS[2][0], 1, onehot=True), fixed(*PAIRS[2][0], 1)]
    joint_laws(rule, settings)
    assert any(q.isnan().any() for q in seen)
    joint_laws(rule, settings[:1])
    assert seen[-1] is None


def test_requests_of_different_settings_share_launches() -> None:
    widths = []

    def rule(p, q, drafts, cu, *rest, **options):
        widths.append(set(torch.diff(cu, prepend=cu.new_zeros(1)).tolist()))
        return verify_chain(p, q, drafts, cu, *rest, **options)

    joint_laws(rule, [turning(*PAIRS[2][0], kappa) for kappa in (0, 1, 2)])
    assert {0, 1, 2} in widths


def test_progress_is_told() -> None:
    told = []
    joint_law(verify_chain, turning(*PAIRS[2][0], 2), on_progress=lambda *n: told.append(n))
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize(
    ("low", "high", "simplest"),
    [("0", "1", "1/2"), ("1/3", "1/2", "2/5"), ("1/4", "5/6", "1/2"), ("7/10", "3/4", "5/7"),
     ("0", "1/1000", "1/1001"), ("1048575/1048576", "1", "1048576/1048577")],
)  # fmt: skip
def test_the_simplest_fraction_between(low: str, high: str, simplest: str) -> None:
    assert simplest_between(Fraction(low), Fraction(high)) == Fraction(simplest)


def test_the_kernel_and_the_reference_agree_under_the_law() -> None:
    rule = functools.partial(verify_chain, backend="triton")
    assert (
        joint_law(rule, fixed(*PAIRS[2][0], 1)).law
        == joint_law(chain_with(), fixed(*PAIRS[2][0], 1)).law
    )
