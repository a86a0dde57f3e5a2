"""Acceptance by place: rates drawn by hand, against the one alpha that fits them best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import traitlets

from specedu.theory.rates import (
    conditional_rates,
    expected_tokens,
    fitted_alpha,
    mixed_rates,
    tokens_of_rates,
    unconditional_rates,
)

from .figure import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PLACES = 7


def presets_of(places: int) -> dict[str, list[float]]:
    """Return rates to begin with: one alpha, a mixture of two, and one that falls.

    Example:
        >>> list(presets_of(2).values())[0]
        [0.7, 0.48999999999999994]
    """
    falling = [0.85 - 0.56 * i / places for i in range(places)]
    return {
        "one alpha, 0.7": unconditional_rates([0.7] * places),
        "easy and hard steps, 0.95 and 0.3": mixed_rates([0.95, 0.3], places),
        "a draft that tires": unconditional_rates(falling),
    }


class Rates(traitlets.List):
    """A trait: unconditional rates, at least two, none larger than the one before."""

    def __init__(self, rates: Sequence[float]) -> None:
        super().__init__(traitlets.Float(), default_value=list(rates), minlen=2)
        self.tag(sync=True)

    def validate(self, obj: object, value: list[float]) -> list[float]:
        """Refuse what no acceptance can have.

        Raises:
            TraitError: a rate is outside [0, 1], or larger than the one before.
        """
        value = super().validate(obj, value)
        try:
            conditional_rates(value)
        except ValueError as error:
            raise traitlets.TraitError(f"{self.name}: {error}") from error
        return value


class RatesExplorer(Figure):
    """Rates r_i to be dragged, their c_i, and E of the rates and of the fitted alpha.

    Attributes:
        rates: r_1 to r_kappa.
        fit_on: alpha is fitted on so many first places; kappa at most.
        presets: rates by name, for the list; recorded ones are added with ``recorded``.
        preset: which of them is shown; "" for rates drawn by hand.

    Args:
        recorded: further presets, all of one length.
        settings: other attributes.

    Raises:
        ValueError: two presets have different numbers of places.

    Book: eq-fitted-alpha.
    """

    parts = ("common", "rates_explorer")
    rates = Rates(presets_of(PLACES)["one alpha, 0.7"])
    fit_on = traitlets.Int(PLACES, min=1).tag(sync=True)
    presets = traitlets.Dict().tag(sync=True)
    preset = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, recorded: Mapping[str, Sequence[float]] | None = None, **settings: Any
    ) -> None:
        recorded = {
            name: [float(rate) for rate in rates] for name, rates in (recorded or {}).items()
        }
        lengths = {len(rates) for rates in recorded.values()}
        lengths |= {len(settings["rates"])} if "rates" in settings else set()
        if len(lengths) > 1:
            raise ValueError(f"recorded: {sorted(lengths)} places, expected one number of them")
        places = lengths.pop() if lengths else PLACES
        presets = {**presets_of(places), **recorded}
        if "rates" not in settings:
            settings.setdefault("preset", next(iter(presets)))
            settings["rates"] = presets[settings["preset"]]
        super().__init__(presets=presets, **{"fit_on": places, **settings})

    @property
    def alpha(self) -> float:
        """The alpha that fits the first places best."""
        return fitted_alpha(self.rates[: self.fit_on])

    @property
    def alternative(self) -> str:
        """What the figure shows now, in words."""
        kappa = len(self.rates)
        rates, conditional = (
            ", ".join(f"{rate:.2f}" for rate in many)
            for many in (self.rates, conditional_rates(self.rates))
        )
        return (
            f"Rates by place: unconditional {rates}; conditional {conditional}. The fitted alpha "
            f"is {self.alpha:.2f}. E of the rates is {tokens_of_rates(self.rates):.2f}, of the fit "
            f"{expected_tokens(self.alpha, kappa):.2f}."
        )

    def draw(self, picture: Picture) -> None:
        """Draw the present state into an empty matplotlib figure."""
        left, right = picture.subplots(1, 2, sharey=True)
        places = range(1, len(self.rates) + 1)
        left.plot(places, self.rates, "o-", color="#1d6fd8", label="$r_i$")
        powers = [self.alpha**i for i in places]
        left.plot(places, powers, "--", color="#c2570c", label=rf"$\alpha^i$, α = {self.alpha:.2f}")
        left.set(xlabel="place i", ylim=(0, 1.05), title="the first i accepted")
        left.legend()
        right.bar(places, conditional_rates(self.rates), color="#15803d", label="$c_i$")
        right.axhline(self.alpha, linestyle="--", color="#c2570c")
        right.set(xlabel="place i", title="of those that got so far")
