"""A step on the roofline: choose a model and a processor, slide positions and context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from specedu.theory import cost
from specedu.theory.hardware import HARDWARE

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

MODELS: dict[str, dict[str, float]] = {
    name: {
        "params": cost.streamed_params(shape),
        "kv": cost.kv_bytes_per_token(shape),
        "position": cost.activation_bytes_per_position(shape)
        + cost.logit_bytes_per_position(shape),
        "flops": cost.flops_per_token(shape),
        "attention": cost.attention_flops(shape),
    }
    for name, shape in cost.SHAPES.items()
}
MACHINES: dict[str, dict[str, float]] = {
    name: {"peak": sheet.peak_flops, "bandwidth": sheet.bandwidth}
    for name, sheet in HARDWARE.items()
}


class Roofline(Figure):
    """Where a step of T positions lies under the roof, and what bounds it.

    Attributes:
        models: name -> its counts, from ``theory.cost``.
        machines: name -> its two peaks, from ``theory.hardware``.
        model: which of the models.
        machine: which of the machines.
        positions: T, all positions of the step.
        context: tokens in the cache of each request.
        bits: of a stored weight; arithmetic stays bf16.
        batch: whether the positions are T requests' rather than one request's.

    Book: eq-roofline.
    """

    parts = ("common", "roofline")
    models = traitlets.Dict(MODELS).tag(sync=True)
    machines = traitlets.Dict(MACHINES).tag(sync=True)
    model = traitlets.Enum(list(MODELS), default_value="Llama-3-8B").tag(sync=True)
    machine = traitlets.Enum(list(MACHINES), default_value="H100 SXM").tag(sync=True)
    positions = traitlets.Int(1, min=1, max=1024).tag(sync=True)
    context = traitlets.Int(0, min=0, max=131072).tag(sync=True)
    bits = traitlets.Enum(["16", "8", "4"], default_value="16").tag(sync=True)
    batch = traitlets.Bool(False).tag(sync=True)

    def step(self) -> dict[str, Any]:
        """Return bytes, FLOPs, intensity, seconds and the bound of the present step."""
        shape, sheet = cost.SHAPES[self.model], HARDWARE[self.machine]
        requests, each = (self.positions, 1) if self.batch else (1, self.positions)
        stored = int(self.bits) / 8
        moved = cost.decode_bytes(shape, self.context, each, requests, bytes_per_param=stored).total
        computed = cost.decode_flops(shape, self.context, each, requests)
        seconds = max(moved / sheet.bandwidth, computed / sheet.peak_flops)
        return {
            "bytes": moved,
            "flops": computed,
            "intensity": computed / moved,
            "seconds": seconds,
            "bound": "memory" if computed / moved < sheet.ridge else "arithmetic",
            "ideal": cost.intensity(self.positions, stored),
            "ridge": cost.T_star(sheet, stored),
        }

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        step = self.step()
        return (
            f"Roofline of {self.machine} with a step of {self.model}: {self.positions} positions, "
            f"{self.context} tokens of context, {self.bits}-bit weights. "
            f"Intensity {step['intensity']:.2f} FLOP/byte, {step['seconds'] * 1e3:.2f} ms, bound "
            f"by {step['bound']}. The weight-only ridge: {step['ridge']:.1f} positions. Modelled."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        sheet, step = HARDWARE[self.machine], self.step()
        axes = picture.subplots()
        x = np.logspace(-1, 3.6, 200)
        axes.loglog(x, np.minimum(sheet.peak_flops, x * sheet.bandwidth) / 1e12, color="#444444")
        axes.axvline(sheet.ridge, color="#777777", linestyle="--", linewidth=1)
        for intensity, face in ((step["ideal"], "none"), (step["intensity"], "#1d6fd8")):
            reached = min(sheet.peak_flops, intensity * sheet.bandwidth) / 1e12
            axes.plot([intensity], [reached], "o", color="#1d6fd8", markerfacecolor=face)
        axes.set(
            xlabel="intensity, FLOP/byte",
            ylabel="TFLOP/s",
            title=f"{self.model} on {self.machine}, T = {self.positions} (modelled)",
        )
