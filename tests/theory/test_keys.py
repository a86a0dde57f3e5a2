"""Coins that come back: harmless to the token rule, not to block verification."""

from __future__ import annotations

from fractions import Fraction

import pytest

from specedu.theory import reference
from specedu.theory.keys import law_of_keys
from specedu.theory.settings import fixed, law_of, turning

SIXTEENTHS = fixed(law_of("5/16 11/16"), law_of("13/16 3/16"), 2)


def test_block_verification_with_coins_keyed_by_position_is_biased() -> None:
    law = law_of_keys(reference.block, SIXTEENTHS, 3, keyed_by_step=False)
    assert law.total_variation == Fraction(5, 128)


def test_block_verification_with_coins_keyed_by_step_is_exact() -> None:
    assert law_of_keys(reference.block, SIXTEENTHS, 3, keyed_by_step=True).exact


def test_the_token_rule_is_exact_with_either_key() -> None:
    for keyed_by_step in (False, True):
        law = law_of_keys(reference.verify, SIXTEENTHS, 3, keyed_by_step=keyed_by_step,
                          cuts=chain_and_block)  # fmt: skip
        assert law.exact


def chain_and_block(path):
    from specedu.theory.cells import block_cuts, chain_cuts

    return [a | b for a, b in zip(chain_cuts(path), block_cuts(path), strict=True)]


def test_not_every_pair_shows_it() -> None:
    pair = fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 2)
    assert law_of_keys(reference.block, pair, 3, keyed_by_step=False).exact


@pytest.mark.parametrize("keyed_by_step", [False, True])
def test_one_draft_a_step_never_meets_a_coin_again(keyed_by_step: bool) -> None:
    setting = turning(law_of("5/16 11/16"), law_of("13/16 3/16"), 1)
    assert law_of_keys(reference.block, setting, 3, keyed_by_step=keyed_by_step).exact
