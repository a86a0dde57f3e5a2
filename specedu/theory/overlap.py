"""How much of two laws coincides, and what is left: the quantities of the one-position proof.

Each function is one line of the proof in chapter 4, over fractions.
"""

from __future__ import annotations

from fractions import Fraction

from .reference import Law


def acceptance_rate(p: Law, q: Law) -> Fraction:
    """Return the probability that a draft from q is accepted: the sum of ``min(p, q)``.

    Example:
        >>> acceptance_rate((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        Fraction(1, 2)

    Book: eq-overlap.
    """
    return sum(accepted_mass(p, q), Fraction(0))


def match_rate(p: Law, q: Law) -> Fraction:
    """Return how often a draft from q equals an independent draw from p: the sum of ``p·q``.

    Never more than :func:`acceptance_rate`; as much for a certain draft.

    Example:
        >>> match_rate((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        Fraction(3, 8)

    Book: eq-match-rate.
    """
    return sum((a * b for a, b in zip(p, q, strict=True)), Fraction(0))


def total_variation(p: Law, q: Law) -> Fraction:
    """Return half the sum of ``|p - q|``; one minus it is :func:`acceptance_rate`.

    Example:
        >>> total_variation((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        Fraction(1, 2)

    Book: eq-overlap.
    """
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction(0)) / 2


def residual_mass(p: Law, q: Law) -> Fraction:
    """Return Z, the sum of ``max(0, p - q)``: what is refused, to the last fraction.

    Unlike the weights that :func:`~specedu.theory.reference.residual` draws from, it is 0 where p
    and q are the same law.

    Example:
        >>> residual_mass((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        Fraction(1, 2)

    Book: eq-residual-mass.
    """
    return sum((max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)), Fraction(0))


def accepted_mass(p: Law, q: Law) -> Law:
    """Return ``min(p, q)``: the probability of each id to be drafted and accepted.

    Example:
        >>> accepted_mass((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        (Fraction(1, 4), Fraction(1, 4))

    Book: eq-accept.
    """
    return tuple(min(a, b) for a, b in zip(p, q, strict=True))


def branches(p: Law, q: Law) -> tuple[Law, Law]:
    """Return what the accept branch and the refuse branch give to each id; they add up to p.

    The second is the probability of a refusal times the normalised residual, worked out as the rule
    does it and not as ``p - min(p, q)``, so that the sum says something.

    Example:
        >>> branches((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))[1]
        (Fraction(0, 1), Fraction(1, 2))

    Book: eq-sum-of-branches.
    """
    accepted, mass = accepted_mass(p, q), residual_mass(p, q)
    refusal = 1 - sum(accepted)
    if not mass:
        return accepted, tuple(Fraction(0) for _ in p)
    normalised = (max(Fraction(0), a - b) / mass for a, b in zip(p, q, strict=True))
    return accepted, tuple(refusal * entry for entry in normalised)
