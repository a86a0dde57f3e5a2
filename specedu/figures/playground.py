"""The break-it playground: switch on a fault, and see what becomes of the law."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import traitlets

from .figure import Figure
from .laws import WholeLaw

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# What a reader can switch on, and the planted fault of the real source with the same law
# (``specedu.grade.faults``); None where the fault is a rule of its own.
PLAYABLE: dict[str, str | None] = {
    "threshold-on-p": "threshold-on-p",
    "top-k-membership": "top-k-membership",
    "inclusive-test": "inclusive-test",
    "one-coin-for-every-test": None,
    "p-instead-of-residual": "p-instead-of-residual",
    "residual-by-absolute-value": "residual-by-absolute-value-kernel",
    "reused-coin": "reused-coin",
    "one-hot-draft-not-masked": "one-hot-draft-not-masked",
    "accepts-counted-behind-a-refusal": "accepts-counted-behind-a-refusal",
    "tail-kept": None,
    "bonus-row-after-a-refusal": "bonus-row-after-a-refusal",
    "row-behind-the-refusal": "row-behind-the-refusal-kernel",
    "border-takes-the-id-before": "border-takes-the-id-before",
}


class Playground(Figure):
    """The law of the chain rule with one fault in it, against the target's.

    Attributes:
        p: the target's law in sixteenths.
        q: the draft's.
        kappa: drafts a step, 1 or 2.
        fault: a key of ``PLAYABLE``, or ``none``.
        turning: the laws turn with the text, so that no row is like the next.
        onehot: the rule is told that drafts are deterministic.

    Book: eq-exact-law.
    """

    parts = ("common", "law", "playground")
    p = WholeLaw(6, 6, 4)
    q = WholeLaw(2, 2, 12)
    kappa = traitlets.Int(1, min=1, max=2).tag(sync=True)
    fault = traitlets.Enum(["none", *PLAYABLE], default_value="none").tag(sync=True)
    turning = traitlets.Bool(False).tag(sync=True)
    onehot = traitlets.Bool(False).tag(sync=True)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        return (
            f"The law of the chain rule with the fault {self.fault!r} at p = {self.p} and "
            f"q = {self.q} sixteenths, {self.kappa} drafts a step. The figure needs scripts."
        )

    def draw(self, picture: Picture) -> None:
        """Draw p and q; the law itself is computed in the browser."""
        axes = picture.subplots()
        ids = np.arange(len(self.p))
        axes.bar(ids - 0.2, np.array(self.p) / sum(self.p), 0.4, color="#1d6fd8", label="p")
        axes.bar(ids + 0.2, np.array(self.q) / sum(self.q), 0.4, color="#c2570c", label="q")
        axes.set(xticks=ids, xlabel="id", ylabel="probability")
        axes.legend()
