"""The verdict on a rule: a counter-example that is true, and the coins' ends one by one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from specedu.kernels import verify_chain
from specedu.theory.cells import Asker, enumerate_paths
from specedu.theory.exact import joint_law
from specedu.theory.settings import PAIRS, fixed, turning
from specedu.theory.verdict import contract_run, counter_example, endpoints, is_wrong


def coin_twice(p, q, drafts, cu, accept_coins, final_coins, **options):
    """Draw the final token with the request's first accept coin."""
    first = torch.nn.functional.pad(cu[:-1], (1, 0)).long()
    return verify_chain(p, q, drafts, cu, accept_coins, accept_coins[first], **options)


def closed(p, q, drafts, cu, accept_coins, final_coins, **options):
    """Accept at equality too: every coin is moved down by the smallest step."""
    lower = (accept_coins - 2.0**-52).clamp(min=0)
    tiny = p.where(p > 0, 1e-30)
    return verify_chain(tiny, q, drafts, cu, lower, final_coins.clamp(min=2.0**-40), **options)


@pytest.mark.parametrize("kappa", [1, 2])
def test_the_counter_example_is_true_and_simple(kappa: int) -> None:
    laws = [joint_law(coin_twice, make(*PAIRS[3][0], kappa)) for make in (fixed, turning)]
    example = counter_example(coin_twice, laws)
    point = tuple(map(float, example.coins))
    assert Asker(coin_twice, [example.path.setting]).ask([(example.path, point)]) == [
        example.emitted
    ]
    assert contract_run(example.path, example.coins) == example.contract != example.emitted
    assert all(0 < coin < 1 and coin.denominator <= 8 for coin in example.coins)


def test_the_smallest_wrong_setting_gives_the_counter_example() -> None:
    settings = [fixed(*PAIRS[3][0], 2), fixed(*PAIRS[3][0], 1), fixed(*PAIRS[2][0], 2)]
    laws = [joint_law(coin_twice, setting) for setting in settings]
    assert all(map(is_wrong, laws))
    assert counter_example(coin_twice, laws).path.setting is settings[1]


def test_a_right_law_has_no_counter_example() -> None:
    law = joint_law(verify_chain, turning(*PAIRS[3][0], 2))
    assert not is_wrong(law)
    assert counter_example(verify_chain, [law]) is None


def test_a_law_that_its_bound_explains_is_not_wrong() -> None:
    law = joint_law(coin_twice, fixed(*PAIRS[3][0], 1))
    assert not is_wrong(replace(law, bound=Fraction(1)))


def test_the_reference_run_follows_the_settings_flags() -> None:
    p, q = PAIRS[2][0]  # p = (1/4, 3/4), q = (3/4, 1/4)
    coins = [Fraction(7, 8), Fraction(1, 8)]  # 7/8·1/4 < 3/4 accepts id 1; 7/8 > 3/4 refuses it
    runs = {
        flag: [contract_run(path, coins) for path in enumerate_paths(fixed(p, q, 1, **flags))]
        for flag, flags in {"": {}, "onehot": {"onehot": True}, "greedy": {"greedy": True}}.items()
    }
    assert runs == {"": [(1,), (1, 0)], "onehot": [(1,), (0,)], "greedy": [(1,), (1, 1)]}


def test_every_endpoint_is_right_for_the_projects_rule(backend: str) -> None:
    def rule(*arguments, **options):
        return verify_chain(*arguments, backend=backend, **options)

    asked = endpoints(rule)
    assert len(asked) == 7
    assert [end.verdict for end in asked] == ["right"] * 7


def test_a_closed_interval_is_told_from_a_lost_probability() -> None:
    zero, equal, *others = endpoints(closed)
    assert zero.verdict == "emits [0, 1], expected [2]: id 0 has no probability"
    assert equal.verdict == "emits [0, 1], expected [1]"
    assert all(end.right for end in others)


def test_an_id_outside_the_vocabulary_has_no_probability() -> None:
    def outside(p, q, drafts, cu, *rest, **options):
        return torch.tensor([[3, -1]]), torch.tensor([0])

    assert "id 3 has no probability" in endpoints(outside)[0].verdict
