"""Two rows of logits for one position, of two shapes of a pass: is a difference a near-tie?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# How each id's logit moves for a change of one; in the worst case the two largest move oppositely.
DIRECTIONS: dict[str, tuple[int, int, int, int]] = {
    "against": (0, -1, 1, 0),
    "along": (0, 1, -1, 0),
    "alike": (1, 1, 1, 1),
}
LARGEST, OTHERS = 20, {0: 12, 3: 9}  # ids 1 and 2 compete; the others are far below


class Ties(Figure):
    """The argmax of a plain row and of a verify row, and what may be compared afterwards.

    Attributes:
        gap: by how much id 2 lies below id 1 in the plain row, in whole steps; 0 is an exact tie.
        change: the largest change that the shape of the pass makes to a logit.
        direction: how it moves the two largest: ``against`` each other, ``along``, all ``alike``.
        draft: the drafted id.
        highest: whether plain decoding takes the highest id among equals; the rule the lowest.

    Book: eq-greedy.
    """

    parts = ("common", "ties")
    gap = traitlets.Int(3, min=0, max=12).tag(sync=True)
    change = traitlets.Int(2, min=0, max=8).tag(sync=True)
    direction = traitlets.Enum(list(DIRECTIONS), default_value="against").tag(sync=True)
    draft = traitlets.Enum(["0", "1", "2", "3"], default_value="1").tag(sync=True)
    highest = traitlets.Bool(False).tag(sync=True)

    def outcome(self) -> dict[str, Any]:
        """Return both rows, both choices, the verdict, and of which kind a difference is."""
        plain = [OTHERS[0], LARGEST, LARGEST - self.gap, OTHERS[3]]
        moves = [self.change * step for step in DIRECTIONS[self.direction]]
        verify = [logit + move for logit, move in zip(plain, moves, strict=True)]
        best = [i for i, logit in enumerate(plain) if logit == max(plain)]
        chosen, emitted = best[-1 if self.highest else 0], verify.index(max(verify))
        near = self.gap < 2 * max(map(abs, moves))
        kind = "same" if chosen == emitted else "near-tie" if near else "tie-break"
        return {"plain": plain, "verify": verify, "chosen": chosen, "emitted": emitted,
                "accepted": int(self.draft) == emitted, "near": near, "kind": kind}  # fmt: skip

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        found = self.outcome()
        verdict = "accepted" if found["accepted"] else "refused"
        near = "a near-tie" if found["near"] else "no near-tie"
        return (
            f"Logits of a plain pass {found['plain']} and of a verify {found['verify']}, in steps. "
            f"Plain decoding takes id {found['chosen']}. The draft {self.draft} is {verdict} and "
            f"the verify emits id {found['emitted']}. A gap of {self.gap} against a change of "
            f"{self.change} is {near}."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        found = self.outcome()
        axes = picture.subplots()
        ids = np.arange(4)
        axes.bar(ids - 0.2, found["plain"], 0.36, color="#1d6fd8", label="one token")
        axes.bar(ids + 0.2, found["verify"], 0.36, color="#15803d", label="verify")
        axes.set(xticks=ids, xlabel="id", ylabel="logit, in steps")
        axes.legend()
