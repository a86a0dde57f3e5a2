"""Thresholds: the law of the emitted token as acceptance is raised, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PAIRS = {
    "a draft that is close": ([0.4, 0.3, 0.2, 0.1], [0.5, 0.25, 0.15, 0.1]),
    "a draft that is far off": ([0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.15, 0.05]),
    "a one-hot draft": ([0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]),
}
LEAST = 0.01  # of a threshold's slider


class Thresholds(Figure):
    """Bars of the emitted law beside p, and the bias against the acceptance.

    Attributes:
        pair: which p and q.
        single: ``accept_threshold_single``.
        acc: ``accept_threshold_acc``.

    Example:
        >>> found = Thresholds(pair="a one-hot draft", acc=0.5).point()
        >>> round(found["acceptance"], 3), round(found["bias"], 3)
        (0.6, 0.3)

    Book: eq-threshold-law.
    """

    parts = ("common", "thresholds")
    pair = traitlets.Enum(list(PAIRS), default_value="a draft that is close").tag(sync=True)
    pairs = traitlets.Dict(PAIRS).tag(sync=True)
    single = traitlets.Float(1.0, min=LEAST, max=1).tag(sync=True)
    acc = traitlets.Float(1.0, min=LEAST, max=1).tag(sync=True)

    def point(self) -> dict[str, Any]:
        """Return the acceptance, the one without thresholds, the bias, and the emitted law."""
        p, q = (np.array(law) for law in PAIRS[self.pair])
        accepted = np.where(p >= self.single, q, np.minimum(q, p / self.acc))
        left = np.maximum(p - q, 0)
        law = accepted + (1 - accepted.sum()) * left / left.sum()
        return {
            "acceptance": float(accepted.sum()),
            "exact": float(np.minimum(p, q).sum()),
            "bias": float(np.abs(law - p).sum() / 2),
            "law": law.tolist(),
        }

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        found = self.point()
        return (
            f"With {self.pair}, thresholds single = {self.single:.2f} and acc = {self.acc:.2f}: "
            f"acceptance {found['acceptance']:.2f} instead of {found['exact']:.2f}, and the "
            f"emitted law is off by {found['bias']:.2f} in total variation."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        found, (p, _) = self.point(), PAIRS[self.pair]
        bars, line = picture.subplots(1, 2)
        ids = np.arange(len(p))
        bars.bar(ids - 0.2, p, 0.4, color="#1d6fd8", label="p")
        bars.bar(ids + 0.2, found["law"], 0.4, color="#b91c1c", label="emitted")
        bars.set(xlabel="id", ylabel="probability", xticks=ids)
        bars.legend()
        line.plot([found["exact"], 1], [0, 1 - found["exact"]], color="#777777")
        line.plot([found["acceptance"]], [found["bias"]], "o", color="#b91c1c")
        line.set(xlabel="acceptance", ylabel="total variation from p", xlim=(0, 1), ylim=(0, 1))
