"""The settings of the exact law: well-formed laws, and residuals that can betray a reused coin."""

from __future__ import annotations

from fractions import Fraction

import pytest

from specedu.theory.reference import residual
from specedu.theory.settings import PAIRS, fixed, grid, law_of, turning


@pytest.mark.parametrize("vocab", sorted(PAIRS))
def test_every_pair_is_two_laws_of_its_vocabulary(vocab: int) -> None:
    assert len(PAIRS[vocab]) >= 5
    for p, q in PAIRS[vocab]:
        assert len(p) == len(q) == vocab
        assert sum(p) == sum(q) == 1


@pytest.mark.parametrize("vocab", [3, 4])
def test_most_residuals_have_two_ids(vocab: int) -> None:
    """A coin used twice hides behind a residual of one id."""
    sizes = [sum(w > 0 for w in residual(p, q)) for p, q in PAIRS[vocab]]
    assert sum(size >= 2 for size in sizes) >= 3


def test_a_turning_law_differs_by_position_and_by_text() -> None:
    setting = turning(*PAIRS[3][0], 2)
    laws = {setting.target(text) for text in [(), (0,), (1,), (2,), (0, 0)]}
    assert len(laws) >= 3


def test_a_later_step_sees_the_text_before_it() -> None:
    setting = turning(*PAIRS[3][0], 2)
    assert setting.after((1, 2), 1).target((0,)) == setting.target((1, 2, 0))
    assert setting.after((1, 2), 1).draft((0,)) == setting.draft((1, 2, 0))


def test_a_greedy_setting_expects_the_lowest_argmax() -> None:
    setting = fixed(law_of("1/4 3/8 3/8"), law_of("1 0 0"), 1, greedy=True)
    assert setting.law(()) == (0, 1, 0)


def test_the_grid_holds_what_the_contract_asks() -> None:
    settings = list(grid())
    for vocab in (2, 3, 4):
        for kappa in (1, 2, 3):
            for onehot in (False, True):
                asked = (vocab, kappa, onehot)
                assert sum((s.vocab, s.kappa, s.onehot) == asked for s in settings) >= 10


@pytest.mark.parametrize("words", ["", "1/2 1/3", "3/2 -1/2", "1/0 1", "a b"])
def test_words_that_are_no_law_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        law_of(words)


def test_a_law_may_be_written_as_decimals() -> None:
    assert law_of(".2, .5 .3") == (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10))
