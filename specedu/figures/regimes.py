"""The speed-up against the number of requests, with the borders of its three regimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from specedu.theory import cost
from specedu.theory.hardware import HARDWARE
from specedu.theory.speedup import batch_speedup, first_loss, regime

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

RIDGES: dict[str, float] = {name: cost.T_star(sheet) for name, sheet in HARDWARE.items()}
# name -> c, and the draft's ridge over the target's: fewer bits a weight lower both alike.
PAIRS: dict[str, dict[str, float]] = {
    "Llama-3-8B, drafts by Llama-3.2-1B": {
        "c": cost.draft_ratio(cost.LLAMA_3_2_1B, cost.LLAMA_3_8B),
        "ridge": 1.0,
    },
    "any target, drafts looked up (c = 0)": {"c": 0.0, "ridge": 1.0},
    "SmolLM2-135M, drafts by itself in 4 bits": {"c": 4 / 16, "ridge": 4 / 16},
    "SmolLM2-135M, drafts by 24 of its 30 layers": {
        "c": (24 * cost.layer_params(cost.SMOLLM2_135M) + 49152 * 576)
        / cost.streamed_params(cost.SMOLLM2_135M),
        "ridge": 1.0,
    },
}
WORDS = {
    "memory": "bound by memory",
    "verify": "the verify bound by arithmetic",
    "arithmetic": "all bound by arithmetic",
}


class Regimes(Figure):
    """S(B), the borders of its regimes, and where speculation begins to lose.

    Attributes:
        ridges: processor -> its ridge in positions, from ``theory.hardware``.
        pairs: target and draft -> c, and the draft's ridge over the target's.
        machine: which of the processors.
        pair: which of the pairs.
        alpha: how often a draft is accepted.
        kappa: drafts a step.
        batch: B, requests at once.

    Book: eq-regimes.
    """

    parts = ("common", "regimes")
    ridges = traitlets.Dict(RIDGES).tag(sync=True)
    pairs = traitlets.Dict(PAIRS).tag(sync=True)
    machine = traitlets.Enum(list(RIDGES), default_value="H100 SXM").tag(sync=True)
    pair = traitlets.Enum(list(PAIRS), default_value=next(iter(PAIRS))).tag(sync=True)
    alpha = traitlets.Float(0.7, min=0, max=1).tag(sync=True)
    kappa = traitlets.Int(3, min=1, max=8).tag(sync=True)
    batch = traitlets.Int(16, min=1, max=1024).tag(sync=True)

    def gain(self, batch: Any) -> Any:
        """Return S(B) for the present choice."""
        pair, ridge = self.pairs[self.pair], self.ridges[self.machine]
        own = ridge * pair["ridge"]
        return batch_speedup(batch, self.alpha, self.kappa, pair["c"], ridge, own)

    def step(self) -> dict[str, Any]:
        """Return speed-up, regime and crossing at the present batch."""
        ridge = self.ridges[self.machine]
        return {
            "speedup": float(self.gain(self.batch)),
            "regime": regime(self.batch, self.kappa, ridge),
            "borders": [ridge / (self.kappa + 1), ridge],
            "crossing": first_loss(self.gain),
        }

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        step = self.step()
        low, high = step["borders"]
        lost = step["crossing"]
        where = "it loses at every batch" if lost is None else f"it loses above {lost:.0f} requests"
        if lost == np.inf:
            where = "it never loses"
        return (
            f"Speed-up against the number of requests: {self.pair} on {self.machine}, "
            f"alpha = {self.alpha}, {self.kappa} drafts. At {self.batch} requests "
            f"{step['speedup']:.2f}, {WORDS[step['regime']]}. The regimes meet at {low:.0f} and "
            f"{high:.0f} requests; {where}. Modelled."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        step = self.step()
        axes = picture.subplots()
        x = np.geomspace(1, 1024, 400)
        axes.semilogx(x, self.gain(x), color="#1d6fd8", base=2)
        axes.axhline(1, color="#777777", linewidth=1)
        for border in step["borders"]:
            axes.axvline(border, color="#777777", linestyle="--", linewidth=1)
        axes.plot([self.batch], [step["speedup"]], "o", color="#1d6fd8")
        axes.set(
            ylim=(0, None),
            xlabel="requests at once, B",
            ylabel="speed-up",
            title=f"{self.pair} on {self.machine} (modelled)",
        )
