"""Speed-up against draft length: slide acceptance and draft cost, choose what a verify costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from specedu.theory import cost
from specedu.theory.rates import expected_tokens
from specedu.theory.speedup import measured_speedup

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

FREE = "free"
MOST_KAPPA = 63  # a verify of 64 positions is the longest that is recorded
RATIO = round(cost.draft_ratio(cost.LLAMA_3_2_1B, cost.LLAMA_3_8B), 3)  # the slider's step
LEAST_GAIN = 1e-9  # what a longer draft must gain to be called better
AXES = (8, 16, 32, MOST_KAPPA)  # where the axis of kappa may end


class SpeedupExplorer(Figure):
    """S against kappa, with its optimum, the break-even line, and a map of S over alpha and kappa.

    Attributes:
        alpha: how often a draft is accepted, each alike and on its own.
        c: one draft pass over one target step.
        curves: name -> [[positions, time over the time of one position], ...] of measured verifies,
            positions rising from 1. Between two of them time is taken as a straight line.
        verify: what a verify costs: ``free``, or one of the curves.

    Example:
        >>> figure = SpeedupExplorer(alpha=0.7, c=0.165)
        >>> figure.point()["kappa"], round(figure.point()["best"], 3)
        (3, 1.694)

    Book: eq-speedup, eq-best-kappa.
    """

    parts = ("common", "speedup_explorer")
    alpha = traitlets.Float(0.7, min=0, max=1).tag(sync=True)
    c = traitlets.Float(RATIO, min=0, max=1).tag(sync=True)
    curves = traitlets.Dict().tag(sync=True)
    verify = traitlets.Unicode(FREE).tag(sync=True)

    @traitlets.validate("verify")
    def _known(self, proposal: Any) -> str:
        legal = [FREE, *self.curves]
        if proposal["value"] not in legal:
            raise traitlets.TraitError(f"verify: {proposal['value']!r}, expected one of {legal}")
        return proposal["value"]

    def verify_cost(self, kappa: int) -> float:
        """Return the time of a verify of so many drafts over that of a plain step."""
        if self.verify == FREE:
            return 1.0
        positions, times = np.transpose(self.curves[self.verify])
        return float(np.interp(kappa + 1, positions, times))

    def speedup(self, kappa: int, alpha: float | None = None) -> float:
        """Return S at a draft length, at the figure's alpha unless another is given."""
        tokens = expected_tokens(self.alpha if alpha is None else alpha, kappa)
        return measured_speedup(tokens, 1.0, self.verify_cost(kappa), kappa * self.c)

    def break_even_alpha(self, kappa: int) -> float | None:
        """Return the alpha at which S is 1, or None where even perfect drafts lose."""
        if self.speedup(kappa, 1.0) < 1:
            return None
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.speedup(kappa, middle) < 1 else (low, middle)
        return high

    def point(self) -> dict[str, Any]:
        """Return the best kappa, S there and at twice of it, and the break-even alpha there.

        Without a best kappa above 0 the break-even is that of one draft.
        """
        gains, best = [self.speedup(kappa) for kappa in range(MOST_KAPPA + 1)], 0
        for kappa, gain in enumerate(gains):  # all: a measured S may have several tops
            best = kappa if gain > gains[best] + LEAST_GAIN else best
        doubled = gains[2 * best] if 2 * best <= MOST_KAPPA else None
        even = self.break_even_alpha(max(1, best))
        return {"kappa": best, "best": gains[best], "doubled": doubled, "even": even}

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        found = self.point()
        even = "none" if found["even"] is None else f"{found['even']:.2f}"
        cost_of = "a verify costs no more than a plain step"
        if self.verify != FREE:
            cost_of = f"verify cost measured ({self.verify})"
        return (
            f"Speed-up against draft length at alpha = {self.alpha:.2f}, c = {self.c:.3f}; "
            f"{cost_of}. Best kappa: {found['kappa']}, with S = {found['best']:.2f}. "
            f"Break-even alpha of {max(1, found['kappa'])} drafts: {even}."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        found = self.point()
        last = next((end for end in AXES if end >= 2 * found["kappa"]), MOST_KAPPA)
        lengths = range(last + 1)
        axes = picture.subplots()
        axes.axhline(1, color="#777777", linestyle="--", linewidth=1)
        axes.plot(lengths, [self.speedup(k) for k in lengths], "o-", color="#1d6fd8", markersize=3)
        axes.plot([found["kappa"]], [found["best"]], "o", color="#15803d", markersize=8)
        axes.set(
            xlabel="drafts a step",
            ylabel="speed-up S",
            ylim=(0, None),
            title=f"alpha = {self.alpha:.2f}, c = {self.c:.3f}, verify: {self.verify}",
        )
