"""The law of several steps whose accept coins may come back: what a coin's key is good for.

``exact.composed_law`` refuses steps that share a coin, because their law is no product. Here the
shared coins are carried along, so that the law is right whatever the key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import product

from .cells import Path, block_cuts, enumerate_paths
from .exact import JointLaw, extend, product_law
from .reference import Text
from .settings import Setting
from .siblings import boxes


def law_of_keys(
    rule: Callable[..., list[int]],
    setting: Setting,
    length: int,
    *,
    keyed_by_step: bool,
    cuts: Callable[[Path], list[set[Fraction]]] = block_cuts,
) -> JointLaw:
    """Return the law of the first ``length`` tokens of as many steps as it takes.

    Args:
        rule: called as :func:`specedu.theory.reference.verify`.
        setting: the laws, and the drafts of a step.
        length: how many tokens.
        keyed_by_step: True: every step has coins of its own. False: an accept coin belongs to a
            position alone, so that a position behind an emitted run meets its coin again. The coins
            of drafts and of final draws are new in either case.
        cuts: where the rule may change its mind.

    Returns:
        JointLaw: without cells.

    Example:
        >>> from specedu.theory.reference import block
        >>> from specedu.theory.settings import fixed, law_of
        >>> setting = fixed(law_of("5/16 11/16"), law_of("13/16 3/16"), 2)
        >>> law_of_keys(block, setting, 2, keyed_by_step=True).exact
        True
    """
    steps = {
        text: enumerate_paths(setting.after(text, setting.kappa))
        for size in range(length)
        for text in product(range(setting.vocab), repeat=size)
    }
    every = {path: cuts(path) for paths in steps.values() for path in paths}
    # One set of cuts for all accept coins: a coin that comes back lies in the same interval.
    common = {cut for found in every.values() for coin in found[:-1] for cut in coin}
    reached: dict[Text, dict[tuple[Fraction, ...], Fraction]] = defaultdict(
        lambda: defaultdict(Fraction)
    )
    reached[()][()] = Fraction(1)  # text -> coins of the positions behind it -> probability
    done: dict[Text, Fraction] = defaultdict(Fraction)
    asked = 0
    for text, paths in steps.items():
        for known, mass in reached.pop(text, {}).items():
            for fresh, volume in boxes([common] * (setting.kappa - len(known))):
                us = known + fresh
                for path in paths:
                    for (w,), share in boxes([every[path][-1]]):
                        run = tuple(rule(path.ps, path.qs, path.ids, us, w))
                        asked += 1
                        weight = mass * volume * path.weight * share
                        if len(text + run) >= length:
                            done[(text + run)[:length]] += weight
                        else:
                            behind = () if keyed_by_step else us[len(run) :]
                            reached[text + run][behind] += weight
    law = extend(done.items(), setting, length)
    return JointLaw(setting, law, product_law(setting, length), (), Fraction(0), asked)
