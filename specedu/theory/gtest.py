"""The likelihood-ratio test of counts against a law, where the law itself cannot be computed.

A rule that races on continuous noise has no coin to cut (``theory.exact``). What remains is to run
it many times and to ask how rare counts at least this far from the law would be. A test that uses
it states the rate at which a right rule is called wrong, and is seeded, so that it gives one answer
for good.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import NamedTuple

import torch


class GTest(NamedTuple):
    """Counts against a law.

    Attributes:
        statistic: G, twice the sum of c·log(c / expected); infinite where what cannot be was seen.
        freedom: degrees of freedom, one less than the outcomes that can be.
        p_value: how often counts of the law itself come out as far off, or further.
    """

    statistic: float
    freedom: int
    p_value: float


def g_test(counts: Mapping[Hashable, int], law: Mapping[Hashable, Fraction | float]) -> GTest:
    """Return the G-test of independent outcomes against their law.

    G is near a chi-squared variable where every outcome that can be is expected some five times or
    more. Outcomes without mass take no part in the degrees of freedom.

    Args:
        counts: how often each outcome was seen; one that is missing was never seen.
        law: the probability of each outcome; one that is missing has none.

    Raises:
        ValueError: nothing was seen, fewer than two outcomes can be, or the law does not sum to 1.

    Example:
        >>> g_test({"heads": 50, "tails": 50}, {"heads": 0.5, "tails": 0.5}).p_value
        1.0
        >>> g_test({"heads": 90, "tails": 10}, {"heads": 0.5, "tails": 0.5}).p_value < 1e-9
        True
    """
    possible = {outcome: float(mass) for outcome, mass in law.items() if mass > 0}
    n = sum(counts.values())
    if n < 1:
        raise ValueError(f"counts: a sum of {n}, expected at least 1")
    if len(possible) < 2 or abs(sum(possible.values()) - 1) > 1e-6:
        total = sum(possible.values())
        raise ValueError(
            f"law: {len(possible)} outcomes of mass {total:g}, expected at least 2 of mass 1"
        )
    freedom = len(possible) - 1
    if any(count and outcome not in possible for outcome, count in counts.items()):
        return GTest(math.inf, freedom, 0.0)
    seen = ((count, n * possible[outcome]) for outcome, count in counts.items() if count)
    statistic = max(0.0, 2 * sum(count * math.log(count / wanted) for count, wanted in seen))
    return GTest(statistic, freedom, chi_squared_tail(statistic, freedom))


def chi_squared_tail(statistic: float, freedom: int) -> float:
    """Return the probability that a chi-squared variable is at least ``statistic``.

    Example:
        >>> round(chi_squared_tail(3.841459, 1), 6)
        0.05
    """
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(*half).item()
