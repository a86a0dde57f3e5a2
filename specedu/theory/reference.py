"""Speculative decoding as the book shows it: plain Python over fractions, slow and obviously right.

Every faster version in the project must emit what these few lines emit. A law is a tuple of
non-negative numbers, one an id, that sum to one; ``p`` is the target's, ``q`` the draft's. Coins
lie in [0, 1).

The lowest rung of a ladder, each rung passing the same exact law:

* ``drafts`` and ``qs`` of :func:`spec_step` grew into the ``propose`` of ``specedu.single``, and
  into ``specedu.draft``;
* ``ps`` grew into one forward pass over a cache, there and in ``specedu.runner``;
* :func:`verify` grew into ``specedu.kernels.verify_chain``, for many requests at a time;
* the returned list grew into commit and rollback, and then ``specedu.outputs``.

Source: Leviathan, Kalman and Matias (arXiv:2211.17192), algorithm 1; Chen
et al. (arXiv:2302.01318).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

Law = tuple[Fraction, ...]
Text = tuple[int, ...]
Conditional = Callable[[Text], Law]  # the law of the next token, given the text before it


def spec_step(
    text: Text,
    target: Conditional,
    draft: Conditional,
    kappa: int,
    coin: Callable[[], Fraction],
) -> list[int]:
    """Return the tokens that one step emits behind ``text``: 1 to ``kappa + 1`` of them.

    Example:
        >>> half, certain = (Fraction(1, 2), Fraction(1, 2)), (Fraction(0), Fraction(1))
        >>> coins = iter([Fraction(0), Fraction(9, 10), Fraction(0)])  # draft, accept, final
        >>> spec_step((), lambda text: certain, lambda text: half, 1, lambda: next(coins))
        [1]

    Book: eq-spec-step.
    """
    drafts: list[int] = []
    qs: list[Law] = []
    for _ in range(kappa):  # kappa cheap passes, one after another
        qs.append(draft((*text, *drafts)))
        drafts.append(sample(qs[-1], coin()))
    # One target pass over kappa + 1 positions: causal attention gives a law at every one.
    ps = [target((*text, *drafts[:i])) for i in range(kappa + 1)]
    return verify(ps, qs, drafts, [coin() for _ in drafts], coin())


def verify(
    ps: Sequence[Law],
    qs: Sequence[Law],
    drafts: Sequence[int],
    accept_coins: Sequence[Fraction],
    final_coin: Fraction,
) -> list[int]:
    """Return the accepted drafts and the final token; a draft of -1 is never accepted.

    ``ps`` has one row more than there are drafts: the last is the bonus row.

    Example:
        >>> p, q = (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)), (Fraction(1), 0, 0)
        >>> verify([p, p], [q], [0], [Fraction(1, 10)], Fraction(1, 2))
        [0, 1]
        >>> verify([p, p], [q], [0], [Fraction(1, 2)], Fraction(1, 2))
        [1]

    Book: eq-accept, eq-residual.
    """
    for i, (x, u) in enumerate(zip(drafts, accept_coins, strict=True)):
        if x == -1 or not u * qs[i][x] < ps[i][x]:
            # Row i is the last one that was conditioned on a text that happened.
            return [*drafts[:i], sample(residual(ps[i], qs[i]), final_coin)]
    return [*drafts, sample(ps[len(drafts)], final_coin)]


def match(ps: Sequence[Law], drafts: Sequence[int], row_coins: Sequence[Fraction]) -> list[int]:
    """Return what sample-and-match emits: each row's own token, as long as the drafts equal them.

    ``ps`` and ``row_coins`` have one entry more than there are drafts. A draft decides how many
    tokens are emitted, never which.

    Example:
        >>> p, half = (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)), Fraction(1, 2)
        >>> match([p, p], [1], [half, Fraction(0)])
        [1, 0]
        >>> match([p, p], [0], [half, Fraction(0)])
        [1]

    Book: eq-match.
    """
    run = [sample(ps[0], row_coins[0])]
    for x, p, coin in zip(drafts, ps[1:], row_coins[1:], strict=True):
        if x != run[-1]:
            break
        run.append(sample(p, coin))
    return run


def block(
    ps: Sequence[Law],
    qs: Sequence[Law],
    drafts: Sequence[int],
    accept_coins: Sequence[Fraction],
    final_coin: Fraction,
) -> list[int]:
    """Return what block verification emits: the longest run that may stand, and what is behind.

    The arguments are those of :func:`verify`. A draft of -1 ends every run before it.

    Example:
        >>> half = Fraction(1, 2)
        >>> p, q = (Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))
        >>> block([p, p, p], [q, q], [0, 1], [half, half], Fraction(0))
        [0, 1, 0]
        >>> verify([p, p, p], [q, q], [0, 1], [half, half], Fraction(0))
        [1]

    Book: eq-block.
    """
    rs, hs = block_weights(ps, qs, drafts)
    end = drafts.index(-1) if -1 in drafts else len(drafts)
    taken = max((i for i in range(1, end + 1) if accept_coins[i - 1] < hs[i]), default=0)
    if taken == len(drafts):
        return [*drafts, sample(ps[taken], final_coin)]
    scaled = tuple(rs[taken] * mass for mass in ps[taken])
    behind = tuple(max(Fraction(0), a - b) for a, b in zip(scaled, qs[taken], strict=True))
    return [*drafts[:taken], sample(behind if any(behind) else ps[taken], final_coin)]


def block_weights(
    ps: Sequence[Law], qs: Sequence[Law], drafts: Sequence[int]
) -> tuple[list[Fraction], list[Fraction]]:
    """Return r_0..r_n and h_0..h_n of a run: how far p lags behind q, and when i drafts may stand.

    Example:
        >>> p, q = (Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))
        >>> [str(r) for r in block_weights([p, p, p], [q, q], [0, 1])[0]]
        ['1', '1/3', '1']

    Book: eq-block, eq-block-survival.
    """
    one = Fraction(1)
    rs = [one]
    for p, q, x in zip(ps, qs, drafts, strict=False):
        weighed = rs[-1] * p[x] if x >= 0 else Fraction(0)
        rs.append((one if weighed >= q[x] else weighed / q[x]) if weighed else Fraction(0))
    hs = []
    for r, p, q in zip(rs, ps, qs, strict=False):
        left = sum((max(Fraction(0), r * a - b) for a, b in zip(p, q, strict=True)), Fraction(0))
        hs.append(left / (left + 1 - r) if left else Fraction(0))
    return rs, [*hs, rs[-1]]


def siblings(
    p: Law,
    candidates: Sequence[int],
    qs: Sequence[Law],
    accept_coins: Sequence[Fraction],
    final_coin: Fraction,
) -> tuple[int, int]:
    """Return (place, token) of one node of a tree: the candidate that stands, or -1 and a draw.

    The candidates are tried in their order, each with its own coin, against what the ones before it
    have left of p. Row i of ``qs`` is the law that candidate i was drawn from *given the earlier
    candidates*; a certain candidate's row is one-hot.

    Example:
        >>> p, q = (Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))
        >>> half = Fraction(1, 2)
        >>> siblings(p, [0, 1], [q, (Fraction(0), Fraction(1))], [half, half], half)
        (1, 1)
        >>> siblings(p, [0], [q], [half], half)
        (-1, 1)

    Book: eq-siblings.
    """
    laws = sibling_laws(p, qs)
    for place, (x, q, u) in enumerate(zip(candidates, qs, accept_coins, strict=True)):
        if u * q[x] < laws[place][x]:
            return place, x
    return -1, sample(laws[-1], final_coin)


def sibling_laws(p: Law, qs: Sequence[Law]) -> list[Law]:
    """Return s_1..s_{m+1}: p, and what is left of it after each refusal, normalised.

    Example:
        >>> p, q = (Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4))
        >>> sibling_laws(p, [q])[1]
        (Fraction(0, 1), Fraction(1, 1))

    Book: eq-sibling-residual.
    """
    laws = [p]
    for q in qs:
        weights = residual(laws[-1], q)
        laws.append(tuple(weight / sum(weights) for weight in weights))
    return laws


def siblings_by_mass(
    p: Law, candidates: Sequence[int], coin: Fraction, final_coin: Fraction
) -> tuple[int, int]:
    """Return what :func:`siblings` does for certain candidates, by one coin for all of them.

    The first candidate stands at which the target's mass of the ids tried so far exceeds the coin.
    An id that is tried again adds nothing. The final draw is from p without the ids tried.

    Example:
        >>> p, half = (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)), Fraction(1, 2)
        >>> siblings_by_mass(p, [0, 1], half, half)
        (1, 1)
        >>> siblings_by_mass(p, [0, 0], half, Fraction(0))
        (-1, 1)

    Raises:
        ValueError: the coin is not below 1, so that it refuses even a whole law.

    Book: eq-sibling-sum.
    """
    untried, tried = list(p), Fraction(0)
    for place, x in enumerate(candidates):
        tried, untried[x] = tried + untried[x], Fraction(0)
        if coin < tried:
            return place, x
    return -1, sample(tuple(untried), final_coin)


def residual(p: Law, q: Law) -> Law:
    """Return ``max(0, p - q)`` unnormalised, or p where that has no mass.

    Example:
        >>> residual((Fraction(1, 4), Fraction(3, 4)), (Fraction(3, 4), Fraction(1, 4)))
        (Fraction(0, 1), Fraction(1, 2))
    """
    positive = tuple(max(Fraction(0), a - b) for a, b in zip(p, q, strict=True))
    return positive if any(positive) else p


def sample(weights: Law, coin: Fraction) -> int:
    """Return the smallest id t with ``cum(t) > coin·Z``; Z is the sum of ``weights``.

    Raises:
        ValueError: no weight is positive.

    Example:
        >>> sample((Fraction(0), Fraction(1, 4), Fraction(3, 4)), Fraction(1, 4))
        2
    """
    goal = coin * sum(weights)
    running = Fraction(0)
    for token, weight in enumerate(weights):
        running += weight
        if running > goal:
            return token
    raise ValueError(f"weights: {weights}, expected at least one above 0")
