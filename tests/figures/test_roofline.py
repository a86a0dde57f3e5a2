"""The roofline in the browser is the one of ``theory.cost``."""

from __future__ import annotations

import itertools

import pytest
import traitlets

from specedu.figures import Roofline

ASKED = "argument.map((s) => m.stepOf(s.models[s.model], s.machines[s.machine], s))"


def test_the_browser_computes_the_steps_of_the_theory(ask):
    figures = [
        Roofline(model=model, positions=positions, context=context, bits=bits, batch=batch)
        for model, positions, context, bits, batch in itertools.product(
            ["Llama-3-8B", "SmolLM2-135M"], [1, 4, 295, 1024], [0, 8192], ["16", "4"], [False, True]
        )
    ]
    found = ask(Roofline.parts, ASKED, [f.state() | {"bits": int(f.bits)} for f in figures])
    for figure, step in zip(figures, found, strict=True):
        wanted = figure.step()
        assert step["bound"] == wanted["bound"]
        step["ridge"] = step["ridgePositions"]
        for name in ("bytes", "flops", "intensity", "seconds", "ideal", "ridge"):
            assert step[name] == pytest.approx(wanted[name], rel=1e-12)


def test_its_first_state_is_the_floor_of_the_8b_on_an_h100(ask):
    figure = Roofline()
    assert "4.48 ms" in figure.alternative and "bound by memory" in figure.alternative
    assert ask(Roofline.parts, "m.time(argument)", figure.step()["seconds"]) == "4.48 ms"


def test_the_sliders_rungs_rise_within_the_traits_limits(ask):
    for name, highest in (("POSITIONS", 1024), ("CONTEXTS", 131072)):
        rungs = ask(Roofline.parts, f"m.{name}")
        assert rungs == sorted(set(rungs)) and rungs[-1] == highest


def test_a_model_without_counts_is_refused():
    with pytest.raises(traitlets.TraitError):
        Roofline(model="GPT-9")
