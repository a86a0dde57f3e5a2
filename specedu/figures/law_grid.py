"""The unit square of chance: a column a draft, its coins inside, and the emitted run as colour."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import traitlets

from specedu.theory.cells import chain_cuts, enumerate_paths
from specedu.theory.reference import Law, verify
from specedu.theory.settings import fixed

from .figure import Figure
from .laws import WholeLaw, fractions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


class Patch(NamedTuple):
    """A rectangle of the unit square in which one run is emitted.

    Attributes:
        draft: the drafted id, whose column it lies in.
        left: where it begins; a column is as wide as q of its id.
        right: where it ends.
        low: the final coin it begins at.
        high: the final coin it ends at.
        run: the emitted ids; two where the draft is accepted.
    """

    draft: int
    left: Fraction
    right: Fraction
    low: Fraction
    high: Fraction
    run: tuple[int, ...]

    @property
    def area(self) -> Fraction:
        """The probability to land in it."""
        return (self.right - self.left) * (self.high - self.low)


def patches(p: Law, q: Law) -> list[Patch]:
    """Return the rectangles that fill the unit square, for one draft a step.

    Example:
        >>> from specedu.theory.settings import law_of
        >>> found = patches(law_of("1/4 3/4"), law_of("3/4 1/4"))
        >>> sum(patch.area for patch in found if patch.run[0] == 0)
        Fraction(1, 4)

    Book: eq-exact-law.
    """
    found, start = [], Fraction(0)
    for path in enumerate_paths(fixed(p, q, 1)):
        inner_u, inner_w = ({cut for cut in cuts if 0 < cut < 1} for cuts in chain_cuts(path))
        us, ws = ([0, *sorted(inner), 1] for inner in (inner_u, inner_w))
        for u0, u1 in zip(us, us[1:], strict=False):
            for w0, w1 in zip(ws, ws[1:], strict=False):
                u, w = Fraction(u0 + u1) / 2, Fraction(w0 + w1) / 2
                run = tuple(verify(path.ps, path.qs, path.ids, [u], w))
                left, right = (start + path.weight * edge for edge in (u0, u1))
                found.append(Patch(path.ids[0], left, right, Fraction(w0), Fraction(w1), run))
        start += path.weight
    return found


class LawGrid(Figure):
    """Every outcome of a step with one draft, drawn so that areas are probabilities.

    Attributes:
        p: the target's law in sixteenths.
        q: the draft's.
        whole: colour by the whole emitted run instead of its first id.

    Book: eq-exact-law.
    """

    parts = ("common", "law", "law_grid")
    p = WholeLaw(6, 6, 4)
    q = WholeLaw(2, 2, 12)
    whole = traitlets.Bool(False).tag(sync=True)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        p = fractions(self.p)
        areas = [Fraction(0)] * len(p)
        for patch in patches(p, fractions(self.q)):
            areas[patch.run[0]] += patch.area
        return "Areas of the unit square by first emitted id: " + "; ".join(
            f"id {token}: {area}, where p is {mass}"
            for token, (area, mass) in enumerate(zip(areas, p, strict=True))
        )

    def draw(self, picture: Picture) -> None:
        """Draw the square into an empty matplotlib figure."""
        axes = picture.subplots()
        colours = ("#1d6fd8", "#c2570c", "#15803d", "#7e22ce")
        for patch in patches(fractions(self.p), fractions(self.q)):
            width, height = float(patch.right - patch.left), float(patch.high - patch.low)
            axes.bar(
                float(patch.left), height, width, float(patch.low), align="edge", alpha=0.5,
                color=colours[patch.run[0] % len(colours)], edgecolor="white",
                hatch="//" if len(patch.run) == 2 else None,
            )  # fmt: skip
            if width > 0.04 and height > 0.08:
                middle = float(patch.left) + width / 2, float(patch.low) + height / 2
                axes.text(*middle, " ".join(map(str, patch.run)), ha="center", va="center")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="draft, then accept coin", ylabel="final coin w")
