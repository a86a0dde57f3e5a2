"""The exact law of one node of a tree of drafts: which candidate stands, and what is emitted.

As for a chain, nothing is sampled: every tuple of candidates is enumerated, and for each of them
the coins are cut where the rule may change its mind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product
from math import prod

from .cells import running_sums
from .reference import Law, Text, sibling_laws, siblings, siblings_by_mass

Draws = Callable[[Text], Law]  # the law of the next candidate, given the ones before it
Outcomes = dict[tuple[int, int], Fraction]  # (place or -1, token) -> probability


def with_replacement(q: Law) -> Draws:
    """Return the laws of independent draws from q: an id may come twice.

    Example:
        >>> with_replacement((Fraction(1, 4), Fraction(3, 4)))((1,))
        (Fraction(1, 4), Fraction(3, 4))
    """
    return lambda earlier: q


def without_replacement(q: Law) -> Draws:
    """Return the laws of draws from q that leave out the ids already drawn, renormalised.

    Raises:
        ValueError: (when called) q has no further id.

    Example:
        >>> without_replacement((Fraction(1, 4), Fraction(3, 4)))((1,))
        (Fraction(1, 1), Fraction(0, 1))
    """

    def draws(earlier: Text) -> Law:
        rest = tuple(Fraction(0) if t in earlier else mass for t, mass in enumerate(q))
        if not any(rest):
            raise ValueError(f"number: {len(earlier) + 1} candidates, expected at most the "
                             f"{len(earlier)} ids that q can draw")  # fmt: skip
        return tuple(mass / sum(rest) for mass in rest)

    return draws


def certain(ids: Sequence[int], vocab: int) -> Draws:
    """Return the laws of candidates that are chosen and not drawn: one-hot, one after the other.

    Example:
        >>> certain([1, 0], vocab=2)(())
        (Fraction(0, 1), Fraction(1, 1))
    """
    return lambda earlier: tuple(Fraction(int(t == ids[len(earlier)])) for t in range(vocab))


def sibling_law(p: Law, draws: Draws, number: int, *, told: Draws | None = None) -> Outcomes:
    """Return the law of (place, token) under :func:`~specedu.theory.reference.siblings`.

    Args:
        p: the target's law behind the node.
        draws: what each candidate is drawn from.
        number: candidates of the node.
        told: what the rule is told that each was drawn from; None: the truth.

    Example:
        >>> p, q = (Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))
        >>> emitted(sibling_law(p, without_replacement(q), 2), vocab=2)
        (Fraction(1, 4), Fraction(3, 4))

    Book: eq-siblings.
    """
    law: Outcomes = defaultdict(Fraction)
    for candidates, weight in tuples(draws, number):
        qs = [(told or draws)(candidates[:i]) for i in range(number)]
        laws = sibling_laws(p, qs)
        cuts = [{s[x] / q[x]} if q[x] else set()
                for s, q, x in zip(laws, qs, candidates, strict=False)]  # fmt: skip
        for coins, volume in boxes([*cuts, running_sums(laws[-1])]):
            law[siblings(p, candidates, qs, coins[:-1], coins[-1])] += weight * volume
    return dict(law)


def mass_law(p: Law, candidates: Sequence[int]) -> Outcomes:
    """Return the law of (place, token) of one coin for all candidates, the same as certain ones'.

    Example:
        >>> p = (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10))
        >>> mass_law(p, [0, 1]) == sibling_law(p, certain([0, 1], vocab=3), 2)
        True

    Book: eq-sibling-sum.
    """
    law: Outcomes = defaultdict(Fraction)
    tried = {x: p[x] for x in candidates}
    untried = tuple(Fraction(0) if t in tried else mass for t, mass in enumerate(p))
    sums = [sum(list(tried.values())[:i], Fraction(0)) for i in range(1, len(tried) + 1)]
    for (coin, final), volume in boxes([sums, running_sums(untried)]):
        law[siblings_by_mass(p, candidates, coin, final)] += volume
    return dict(law)


def emitted(law: Outcomes, vocab: int) -> Law:
    """Return the law of the emitted token, whichever way it came.

    Example:
        >>> emitted({(0, 1): Fraction(1, 4), (-1, 1): Fraction(3, 4)}, vocab=2)
        (Fraction(0, 1), Fraction(1, 1))
    """
    masses = defaultdict(Fraction)
    for (_, token), mass in law.items():
        masses[token] += mass
    return tuple(masses[token] for token in range(vocab))


def accepted(law: Outcomes) -> Fraction:
    """Return how often any candidate stands.

    Example:
        >>> accepted({(0, 1): Fraction(1, 4), (-1, 1): Fraction(3, 4)})
        Fraction(1, 4)
    """
    return sum((mass for (place, _), mass in law.items() if place >= 0), Fraction(0))


def tuples(draws: Draws, number: int) -> list[tuple[Text, Fraction]]:
    """Return every tuple of candidates that may be drawn, with its probability.

    Example:
        >>> len(tuples(without_replacement((Fraction(1, 4), Fraction(3, 4))), 2))
        2
    """
    grown: list[tuple[Text, Fraction]] = [((), Fraction(1))]
    for _ in range(number):
        grown = [
            ((*ids, x), weight * mass)
            for ids, weight in grown
            for x, mass in enumerate(draws(ids))
            if mass
        ]
    return grown


def boxes(cuts: Sequence[Iterable[Fraction]]) -> list[tuple[tuple[Fraction, ...], Fraction]]:
    """Return the middle and the volume of every box between the cuts of each coin.

    Example:
        >>> [volume for _, volume in boxes([[Fraction(1, 4)]])]
        [Fraction(1, 4), Fraction(3, 4)]
    """
    sides = []
    for inner in cuts:
        edges = sorted({Fraction(0), Fraction(1)} | {cut for cut in inner if 0 < cut < 1})
        sides.append([((a + b) / 2, b - a) for a, b in zip(edges, edges[1:], strict=False)])
    return [
        (tuple(middle for middle, _ in box), prod(size for _, size in box))
        for box in product(*sides)
    ]
