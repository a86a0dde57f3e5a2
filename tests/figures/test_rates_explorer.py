"""The rates explorer in the browser computes what ``theory.rates`` does."""

from __future__ import annotations

import itertools

import pytest
import traitlets

from specedu.figures import RatesExplorer
from specedu.figures.rates_explorer import presets_of
from specedu.theory.rates import conditional_rates, expected_tokens, fitted_alpha, tokens_of_rates

RATES = [*presets_of(7).values(), [1.0, 1.0, 1.0], [0.5, 0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("rates", RATES)
def test_the_browser_computes_the_rates_of_the_theory(ask, rates: list[float]) -> None:
    for fit_on in range(1, len(rates) + 1):
        found = ask(RatesExplorer.parts, "m.resultOf(...argument)", [rates, fit_on])
        alpha = fitted_alpha(rates[:fit_on])
        kappas = range(1, len(rates) + 1)
        assert found["alpha"] == pytest.approx(alpha)
        assert found["conditional"] == pytest.approx(conditional_rates(rates))
        assert found["powers"] == pytest.approx([alpha**k for k in kappas])
        assert found["tokens"] == pytest.approx([tokens_of_rates(rates[:k]) for k in kappas])
        assert found["fitted"] == pytest.approx([expected_tokens(alpha, k) for k in kappas])


def test_whatever_is_dragged_the_rates_never_rise(ask) -> None:
    rates = [0.9, 0.6, 0.5, 0.2]
    for place, value in itertools.product(range(4), [-1, 0, 0.3, 0.55, 1, 2]):
        found = ask(RatesExplorer.parts, "m.withRate(...argument)", [rates, place, value])
        conditional_rates(found)  # refuses rates that rise or are none
        assert found[place] == min(1, max(0, value))
        for i, (old, new) in enumerate(zip(rates, found, strict=True)):
            assert new >= old if i < place else new <= old if i > place else True


def test_rates_that_rise_are_refused() -> None:
    with pytest.raises(traitlets.TraitError, match=r"rates\[1\]: 0.6, expected"):
        RatesExplorer(rates=[0.5, 0.6])


def test_recorded_rates_stand_behind_the_presets() -> None:
    figure = RatesExplorer({"recorded": [0.5, 0.25]}, preset="recorded")
    assert list(figure.presets) == [*presets_of(2), "recorded"]
    assert figure.rates == [0.5, 0.25] and figure.fit_on == 2
    assert figure.alpha == pytest.approx(0.5)


def test_presets_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"recorded: \[2, 3\] places, expected one number"):
        RatesExplorer({"one": [0.5, 0.25], "other": [0.5, 0.25, 0.1]})


def test_it_begins_with_one_alpha_that_is_its_own_fit() -> None:
    figure = RatesExplorer()
    assert figure.alpha == pytest.approx(0.7)
    words = figure.alternative
    assert "alpha is 0.70" in words and words.count(f"{expected_tokens(0.7, 7):.2f}") == 2
