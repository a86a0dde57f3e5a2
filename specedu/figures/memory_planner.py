"""What of a card's memory goes to weights, texts and reserved slots, and how many requests fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets

from specedu.theory import cost
from specedu.theory.memory import POLICIES, max_concurrency, reserved_slots

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

MODELS: dict[str, dict[str, float]] = {
    name: {"weights": cost.BF16 * cost.stored_params(shape), "kv": cost.kv_bytes_per_token(shape)}
    for name, shape in cost.SHAPES.items()
}
DRAFT = "Llama-3.2-1B"
BLOCKS = ["1", "16", "64", "256"]
PARTS = ("weights", "draft_weights", "text", "draft_text", "reserved", "unused")


class MemoryPlanner(Figure):
    """The memory of a card, plain and speculating, and the requests that fit.

    Attributes:
        models: name -> bytes of stored weights, and of a token's cache.
        model: the target.
        memory: what weights and cache may take, in GB.
        length: tokens of a request, prompt and answer.
        kappa: drafts a step.
        policy: which slots are reserved, see ``theory.memory.reserved_slots``.
        block: slots of a block.
        draft: whether a draft model's weights and cache lie there too.

    Book: eq-concurrency.
    """

    parts = ("common", "memory_planner")
    models = traitlets.Dict(MODELS).tag(sync=True)
    model = traitlets.Enum(list(MODELS), default_value="Llama-3-8B").tag(sync=True)
    memory = traitlets.Int(72, min=1, max=256).tag(sync=True)
    length = traitlets.Int(512, min=1, max=131072).tag(sync=True)
    kappa = traitlets.Int(3, min=0, max=16).tag(sync=True)
    policy = traitlets.Enum(list(POLICIES), default_value="double buffer").tag(sync=True)
    block = traitlets.Enum(BLOCKS, default_value="1").tag(sync=True)
    draft = traitlets.Bool(False).tag(sync=True)

    def fits(self, speculating: bool) -> int:
        """Return how many requests fit; 0 where the weights alone do not."""
        draft = self.models[DRAFT] if self.draft and speculating else {"weights": 0.0, "kv": 0.0}
        setting = (self.kappa, self.policy) if speculating else (0, "plain")
        try:
            return max_concurrency(
                cost.SHAPES[self.model],
                self.memory * 1e9,
                self.length,
                *setting,
                block_size=int(self.block),
                other_weights=draft["weights"],
                other_bytes_per_token=draft["kv"],
            )
        except ValueError:
            return 0

    def plan(self, speculating: bool) -> dict[str, Any]:
        """Return the requests that fit, and the bytes of each part."""
        requests = self.fits(speculating)
        target = self.models[self.model]
        draft = self.models[DRAFT] if self.draft and speculating else {"weights": 0.0, "kv": 0.0}
        size = int(self.block)
        slots = reserved_slots(self.kappa, self.policy) if speculating else 1
        blocks = -(-(self.length + slots - 1) // size)
        token = target["kv"] + draft["kv"]
        parts = {
            "weights": target["weights"],
            "draft_weights": draft["weights"],
            "text": requests * self.length * target["kv"],
            "draft_text": requests * self.length * draft["kv"],
            "reserved": requests * (blocks * size - self.length) * token,
        }
        return {
            "requests": requests,
            "slots": slots,
            **parts,
            "unused": max(0.0, self.memory * 1e9 - sum(parts.values())),
        }

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        plain, other = self.plan(False), self.plan(True)
        draft = f", with {DRAFT} as the draft" if self.draft else ""
        return (
            f"{self.memory} GB for {self.model} and requests of {self.length} tokens: plain "
            f"decoding holds {plain['requests']} requests. With {self.kappa} drafts a step, policy "
            f"{self.policy}, blocks of {self.block}{draft}: {other['slots']} slots a request and "
            f"step, {other['requests']} requests. Derived."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        axes = picture.subplots()
        plans = [self.plan(True), self.plan(False)]
        colours = ("#1d6fd8", "#c2570c", "#7fb0ee", "#e8a876", "#b91c1c", "#dddddd")
        start = [0.0, 0.0]
        for part, colour in zip(PARTS, colours, strict=True):
            wide = [plan[part] / 1e9 for plan in plans]
            axes.barh([0, 1], wide, 0.5, start, color=colour, label=part.replace("_", " "))
            start = [a + b for a, b in zip(start, wide, strict=True)]
        names = [f"{plan['requests']} requests" for plan in plans]
        axes.set(yticks=[0, 1], yticklabels=names, xlabel="GB")
        axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.28), fontsize="small")
