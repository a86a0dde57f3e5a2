"""What one repeat of a cell gives, and what follows from a cell's repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PARTS = ("draft", "forward", "verify", "host")


@dataclass(frozen=True)
class Acceptance:
    """What was accepted, in the book's terms.

    Attributes:
        tokens: E, of a step.
        kappa: drafts of a step, the mean where they differ.
        rates: r_i by place; empty where the backend does not tell.
        verifies: how many were counted; 0 where the backend does not tell.
    """

    tokens: float
    kappa: float
    rates: tuple[float, ...] = ()
    verifies: float = 0.0


@dataclass(frozen=True)
class Sample:
    """One repeat.

    Attributes:
        rate: tokens a second of all requests together, behind each one's first token.
        tokens: delivered in all.
        seconds: from the first request to the last token, prompts included.
        first: seconds to a request's first token, the median.
        step: seconds of a step; of a server's plain decoding the time between two tokens; None
            where it is not known.
        parts: seconds of a step's parts; empty where they are not known.
        acceptance: None of plain decoding, or where it is not known.
        notes: what was missing or odd.
    """

    rate: float
    tokens: int
    seconds: float
    first: float
    step: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    notes: tuple[str, ...] = ()

    def content(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Sample:
        """Return what :meth:`content` gave.

        Example:
            >>> sample = Sample(10.0, 20, 2.5, 0.5, acceptance=Acceptance(1.5, 1, (0.5,), 7))
            >>> Sample.of(sample.content()) == sample
            True
        """
        given = dict(content)
        accepted = given.pop("acceptance", None)
        if accepted is not None:
            accepted = Acceptance(**{**accepted, "rates": tuple(accepted["rates"])})
        return cls(**{**given, "acceptance": accepted, "notes": tuple(given.get("notes", ()))})


def acceptance_of(accepted: Sequence[int], kappa: int) -> Acceptance:
    """Return the acceptance of steps that each accepted so many of ``kappa`` drafts.

    Example:
        >>> acceptance_of([0, 1, 2, 2], 2).rates
        (0.75, 0.5)
    """
    rates = tuple(sum(n >= i for n in accepted) / len(accepted) for i in range(1, kappa + 1))
    return Acceptance(1 + sum(accepted) / len(accepted), kappa, rates, len(accepted))


def pooled(found: Sequence[Acceptance]) -> Acceptance | None:
    """Return several as one, each weighted by its verifies; None of none.

    Where a count is not known every one weighs the same. Rates stay only where all have them.
    """
    if not found:
        return None
    counted = all(one.verifies for one in found)
    weights = [one.verifies if counted else 1.0 for one in found]
    total = sum(weights)

    def mean(values: Sequence[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total

    places = max(len(one.rates) for one in found)
    padded = [(*one.rates, *[0.0] * (places - len(one.rates))) for one in found if one.rates]
    rates = tuple(map(mean, zip(*padded, strict=True))) if len(padded) == len(found) else ()
    return Acceptance(
        mean([one.tokens for one in found]),
        mean([one.kappa for one in found]),
        rates,
        total if counted else 0.0,
    )
