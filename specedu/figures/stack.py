"""min(p, q) + residual = p, with p and q to drag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .figure import Figure
from .laws import WholeLaw

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


class Stack(Figure):
    """The accepted mass of each id and the residual, which stack up to p.

    Attributes:
        p: the target's law in whole numbers.
        q: the draft's, over the same sum.

    Book: eq-sum-of-branches.
    """

    parts = ("common", "stack")
    p = WholeLaw(6, 6, 4)
    q = WholeLaw(2, 2, 12)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        total = sum(self.p)
        sums = [
            f"id {i}: {min(a, b)}/{total} accepted and {max(0, a - b)}/{total} residual make "
            f"{a}/{total}"
            for i, (a, b) in enumerate(zip(self.p, self.q, strict=True))
        ]
        return "; ".join(sums) + "."

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        p, q = (np.array(law) / sum(law) for law in (self.p, self.q))
        axes = picture.subplots()
        ids = np.arange(len(p))
        low, high = np.minimum(p, q), np.maximum(0, p - q)
        axes.bar(ids, low, 0.6, color="#1d6fd8", label="min(p, q)")
        axes.bar(ids, high, 0.6, low, color="#15803d", label="residual")
        axes.bar(ids, q, 0.6, fill=False, edgecolor="#c2570c", linestyle="--", label="q")
        axes.set(xticks=ids, xlabel="id", ylabel="probability")
        axes.legend()
