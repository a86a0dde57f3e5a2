"""The square of both accept coins: how many drafts the token rule takes there, how many block's."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import traitlets

from specedu.theory.cells import block_cuts, chain_cuts, enumerate_paths
from specedu.theory.reference import Law, block, verify
from specedu.theory.settings import fixed

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

STEPS = 40  # of a coin's slider


class Patch(NamedTuple):
    """A rectangle of the square of coins in which both rules are constant.

    Attributes:
        left: where it begins in u_1.
        right: where it ends.
        low: where it begins in u_2.
        high: where it ends.
        token: drafts that the token rule accepts there.
        block: drafts that block verification accepts there.
    """

    left: Fraction
    right: Fraction
    low: Fraction
    high: Fraction
    token: int
    block: int

    @property
    def area(self) -> Fraction:
        """The probability of its coins."""
        return (self.right - self.left) * (self.high - self.low)


def patches(p: Law, q: Law, drafts: tuple[int, int]) -> list[Patch]:
    """Return the rectangles that fill the square for two given drafts, column by column.

    Raises:
        ValueError: q never draws these drafts.

    Example:
        >>> from specedu.theory.settings import law_of
        >>> found = patches(law_of("1/3 2/3"), law_of("2/3 1/3"), (0, 0))
        >>> {(patch.token, patch.block) for patch in found if patch.block < patch.token} == {
        ...     (1, 0), (2, 0)}
        True

    Book: eq-block.
    """
    path = next((path for path in enumerate_paths(fixed(p, q, 2)) if path.ids == drafts), None)
    if path is None:
        raise ValueError(f"drafts: {drafts}, expected ids that q = {q} can draw")
    sides = []
    for either in zip(chain_cuts(path)[:2], block_cuts(path)[:2], strict=True):
        inner = {cut for cuts in either for cut in cuts if 0 < cut < 1}
        edges = [Fraction(0), *sorted(inner), Fraction(1)]
        sides.append(list(zip(edges, edges[1:], strict=False)))
    found = []
    for left, right in sides[0]:
        for low, high in sides[1]:
            coins = [(left + right) / 2, (low + high) / 2]
            lengths = (len(rule(path.ps, path.qs, drafts, coins, Fraction(0))) - 1
                       for rule in (verify, block))  # fmt: skip
            found.append(Patch(left, right, low, high, *lengths))
    return found


def expected(p: Law, q: Law) -> tuple[Fraction, Fraction]:
    """Return the expected accepted drafts of a step of two: token rule, block verification.

    Example:
        >>> from specedu.theory.settings import law_of
        >>> token, block = expected(law_of("1/3 2/3"), law_of("2/3 1/3"))
        >>> str(token), str(block)
        ('10/9', '11/9')
    """
    token = joint = Fraction(0)
    for path in enumerate_paths(fixed(p, q, 2)):
        for patch in patches(p, q, path.ids):
            token += path.weight * patch.area * patch.token
            joint += path.weight * patch.area * patch.block
    return token, joint


class BlockAgainstToken(Figure):
    """Both rules on the same drafts and the same coins, side by side.

    Attributes:
        p: the target's mass of id 0, in twelfths.
        q: the draft's.
        drafts: the two drafted ids, as a word.
        u1: the first coin, in fortieths.
        u2: the second coin.

    Book: eq-block.
    """

    parts = ("common", "law", "block_against_token")
    p = traitlets.Int(4, min=0, max=12).tag(sync=True)
    q = traitlets.Int(8, min=1, max=11).tag(sync=True)
    drafts = traitlets.Enum(["00", "01", "10", "11"], "00").tag(sync=True)
    u1 = traitlets.Int(12, min=0, max=STEPS - 1).tag(sync=True)
    u2 = traitlets.Int(36, min=0, max=STEPS - 1).tag(sync=True)

    @property
    def laws(self) -> tuple[Law, Law]:
        """The target's law and the draft's."""
        return tuple((Fraction(n, 12), 1 - Fraction(n, 12)) for n in (self.p, self.q))

    @property
    def ids(self) -> tuple[int, int]:
        """The drafted ids."""
        return int(self.drafts[0]), int(self.drafts[1])

    @property
    def lengths(self) -> tuple[int, int]:
        """How many drafts each rule accepts at the marked coins: token rule, block verification."""
        p, q = self.laws
        coins = [Fraction(self.u1, STEPS), Fraction(self.u2, STEPS)]
        token, joint = (rule([p] * 3, [q] * 2, self.ids, coins, Fraction(0))
                        for rule in (verify, block))  # fmt: skip
        return len(token) - 1, len(joint) - 1

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        token, joint = self.lengths
        of_step = expected(*self.laws)
        return (
            f"Drafts {list(self.ids)} with the coins {Fraction(self.u1, STEPS)} and "
            f"{Fraction(self.u2, STEPS)}: the token rule accepts {token}, block verification "
            f"{joint}. Over all drafts and coins they accept {of_step[0]} and {of_step[1]}."
        )

    def draw(self, picture: Picture) -> None:
        """Draw both squares into an empty matplotlib figure."""
        colours = ("#b91c1c", "#1d6fd8", "#15803d")
        both = picture.subplots(1, 2, sharey=True)
        for axes, rule in zip(both, ("token", "block"), strict=True):
            for patch in patches(*self.laws, self.ids):
                length = getattr(patch, rule)
                size = float(patch.right - patch.left), float(patch.high - patch.low)
                axes.bar(float(patch.left), size[1], size[0], float(patch.low), align="edge",
                         color=colours[length], alpha=0.5)  # fmt: skip
                if min(size) > 0.08:
                    at = float(patch.left) + size[0] / 2, float(patch.low) + size[1] / 2
                    axes.text(*at, str(length), ha="center", va="center")
            axes.plot(self.u1 / STEPS, self.u2 / STEPS, "ko", mfc="white")
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="$u_1$", title=f"{rule}: drafts accepted")
        both[0].set_ylabel("$u_2$")
