"""What chapter 6 proves of block verification, on the kernel: survival, domination, optimality."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import pytest

from specedu.kernels import verify_block, verify_chain
from specedu.theory.adapters import match
from specedu.theory.cells import block_cuts, enumerate_paths, match_cuts
from specedu.theory.exact import JointLaw, joint_law
from specedu.theory.reference import Text, block_weights
from specedu.theory.settings import PAIRS, Setting, turning

SETTINGS = [turning(p, q, kappa) for vocab, kappa in ((2, 3), (3, 2)) for p, q in PAIRS[vocab]]


def standing(law: JointLaw) -> dict[Text, Fraction]:
    """Return how often each text of drafts stands, i.e. is drafted and accepted."""
    found: dict[Text, Fraction] = defaultdict(Fraction)
    for cell in law.cells:
        for i in range(1, len(cell.run)):
            found[cell.path.ids[:i]] += cell.volume
    return found


def bounds(setting: Setting) -> dict[Text, Fraction]:
    """Return Q·r of every text of drafts."""
    found: dict[Text, Fraction] = defaultdict(Fraction)
    for path in enumerate_paths(setting):
        rs, _ = block_weights(path.ps, path.qs, path.ids)
        for i in range(1, len(rs)):
            found[path.ids[:i]] += path.weight * rs[i]
    return found


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_text_of_drafts_stands_with_probability_r(setting: Setting) -> None:
    found = standing(joint_law(verify_block, setting, cuts=block_cuts))
    assert {text: found[text] for text in bounds(setting)} == bounds(setting)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_no_exact_rule_keeps_a_text_of_drafts_more_often(setting: Setting) -> None:
    most = bounds(setting)
    for law in (joint_law(verify_chain, setting), joint_law(match, setting, cuts=match_cuts)):
        assert law.exact
        assert all(mass <= most[text] for text, mass in standing(law).items())
