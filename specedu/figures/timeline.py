"""Plain and speculative decoding on one axis of time, under the weight-streaming model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import traitlets

from specedu.theory import cost
from specedu.theory.hardware import hardware
from specedu.theory.rates import expected_tokens

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TARGET_MS = 1e3 * cost.floor_seconds(cost.weight_bytes(cost.LLAMA_3_8B), hardware("H100 SXM"))
RATIO = round(cost.draft_ratio(cost.LLAMA_3_2_1B, cost.LLAMA_3_8B), 3)  # the slider's step


class Timeline(Figure):
    """kappa draft passes and a verify, against as much time of plain decoding.

    A hypothetical schedule: a verify takes as long as a decode, and nothing else takes time.

    Attributes:
        alpha: how often a draft is accepted, each alike and on its own.
        kappa: drafts a step.
        c: one draft pass over one target pass.
        target_ms: one target pass, in milliseconds.

    Book: eq-speculative-step.
    """

    parts = ("common", "timeline")
    alpha = traitlets.Float(0.7, min=0, max=1).tag(sync=True)
    kappa = traitlets.Int(3, min=0, max=8).tag(sync=True)
    c = traitlets.Float(RATIO, min=0, max=1).tag(sync=True)
    target_ms = traitlets.Float(TARGET_MS, min=1e-6).tag(sync=True)

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        step = cost.speculative_step_seconds(self.target_ms, self.kappa, self.c)
        tokens = expected_tokens(self.alpha, self.kappa)
        return (
            f"Hypothetical timelines, not measured. Plain decoding: a token each "
            f"{self.target_ms:.2f} ms. Speculative: {self.kappa} drafts and a verify take "
            f"{step:.2f} ms and give {tokens:.2f} tokens on average at alpha = {self.alpha}; "
            f"{tokens * self.target_ms / step:.2f} times as fast."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        step = cost.speculative_step_seconds(self.target_ms, self.kappa, self.c)
        end = max(6 * self.target_ms, 2 * step)
        axes = picture.subplots()
        plain = [
            (i * self.target_ms, self.target_ms * 0.96) for i in range(int(end / self.target_ms))
        ]
        axes.broken_barh(plain, (1.1, 0.6), color="#1d6fd8")
        one = self.target_ms * self.c
        for k in range(int(end / step)):
            drafts = [(k * step + i * one, one * 0.9) for i in range(self.kappa)]
            axes.broken_barh(drafts, (0.1, 0.6), color="#c2570c")
            verify = (k * step + self.kappa * one, self.target_ms * 0.96)
            axes.broken_barh([verify], (0.1, 0.6), color="#1d6fd8")
        axes.set(
            xlim=(0, end),
            ylim=(0, 2),
            yticks=[0.4, 1.4],
            yticklabels=["speculative", "plain"],
            xlabel="ms",
            title="A hypothetical weight-streaming model, not a measured schedule",
        )
