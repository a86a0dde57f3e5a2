"""Laws of whole numbers: what a figure lets a reader drag, exact in Python and in the browser."""

from __future__ import annotations

from fractions import Fraction

import traitlets

from specedu.theory.reference import Law


class WholeLaw(traitlets.List):
    """A trait: a law as whole numbers over their sum.

    Args:
        entries: at least two numbers, none below 0, not all 0.
    """

    def __init__(self, *entries: int) -> None:
        super().__init__(traitlets.Int(min=0), default_value=list(entries), minlen=2)
        self.tag(sync=True)

    def validate(self, obj: object, value: list[int]) -> list[int]:
        """Refuse what is no law.

        Raises:
            TraitError: an entry is negative, there are fewer than two, or all are 0.
        """
        value = super().validate(obj, value)
        if not any(value):
            raise traitlets.TraitError(f"{self.name}: {value}, expected at least one entry above 0")
        return value


def fractions(entries: list[int]) -> Law:
    """Return the law as fractions.

    Example:
        >>> fractions([1, 3])
        (Fraction(1, 4), Fraction(3, 4))
    """
    total = sum(entries)
    return tuple(Fraction(entry, total) for entry in entries)
