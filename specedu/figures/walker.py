"""One draft walked through the rule: test, residual, final draw."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import traitlets

from specedu.theory.reference import residual, verify

from .figure import Figure
from .laws import WholeLaw, fractions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

STEPS = 64  # a coin's slider stands on k/64: exact in Python and in the browser
STAGES = ("draft", "test", "weights", "final")


class Walker(Figure):
    """One draft with its two coins, taken through the rule one stage at a time.

    Attributes:
        p: the target's law in sixteenths; the bonus row is the same law.
        q: the draft's.
        draft: the drafted id.
        u: the accept coin in 64ths.
        w: the final coin in 64ths.
        stage: how many stages are behind, an index of ``STAGES``.

    Book: eq-spec-step.
    """

    parts = ("common", "law", "walker")
    p = WholeLaw(6, 6, 4)
    q = WholeLaw(2, 2, 12)
    draft = traitlets.Int(2, min=0, max=2).tag(sync=True)
    u = traitlets.Int(32, min=0, max=STEPS - 1).tag(sync=True)
    w = traitlets.Int(26, min=0, max=STEPS - 1).tag(sync=True)
    stage = traitlets.Int(0, min=0, max=len(STAGES) - 1).tag(sync=True)

    @property
    def run(self) -> list[int]:
        """The emitted ids, whatever the stage."""
        p, q = fractions(self.p), fractions(self.q)
        u, w = Fraction(self.u, STEPS), Fraction(self.w, STEPS)
        return verify([p, p], [q], [self.draft], [u], w)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        p, q = fractions(self.p)[self.draft], fractions(self.q)[self.draft]
        run = self.run
        verdict = "accepted" if len(run) == 2 else "refused"
        return (
            f"Id {self.draft} is drafted: p = {p}, q = {q}. With u = {Fraction(self.u, STEPS)} it "
            f"is {verdict}; with w = {Fraction(self.w, STEPS)} the step emits {run}."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the whole walk into an empty matplotlib figure."""
        p, q, run = fractions(self.p), fractions(self.q), self.run
        left, middle, right = picture.subplots(1, 3, width_ratios=(2, 2, 2))
        border = min(Fraction(1), p[self.draft] / q[self.draft]) if q[self.draft] else Fraction(1)
        left.barh(0, float(border), 0.5, color="#1d6fd8")
        left.axvline(self.u / STEPS, color="black")
        left.set(xlim=(0, 1), yticks=[], title=f"u against {border}", xlabel="accept coin u")
        weights = p if len(run) == 2 else residual(p, q)
        name = "bonus row" if len(run) == 2 else "residual"
        middle.bar(range(len(p)), [float(mass) for mass in weights], color="#15803d")
        middle.set(xticks=range(len(p)), title=name, xlabel="id")
        at = Fraction(0)
        for token, mass in enumerate(weights):
            share = mass / sum(weights)
            right.barh(0, float(share), 0.5, float(at), color="#15803d", edgecolor="white")
            if share:
                right.text(float(at + share / 2), 0, str(token), ha="center", va="center")
            at += share
        right.axvline(self.w / STEPS, color="black")
        right.set(xlim=(0, 1), yticks=[], title=f"emits {run}", xlabel="final coin w")
