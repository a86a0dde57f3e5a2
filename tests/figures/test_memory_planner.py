"""The planner in the browser is ``theory.memory``."""

from __future__ import annotations

import itertools

import pytest

from specedu.figures import MemoryPlanner
from specedu.figures.memory_planner import DRAFT, PARTS
from specedu.theory.memory import POLICIES, reserved_slots

ASKED = """argument.map(([s, draft]) => m.planOf(
    s.models[s.model], s.draft ? s.models[draft] : null,
    { ...s, memory: s.memory * 1e9, block: Number(s.block) }))"""


def test_the_browser_plans_as_the_theory_does(ask):
    many = [
        MemoryPlanner(
            model=model, memory=memory, length=length, kappa=kappa, policy=policy, block=block,
            draft=draft,
        )
        for model, memory, length, kappa, policy, block, draft in itertools.product(
            ["Llama-3-8B", "SmolLM2-135M"], [16, 72, 180], [16, 512, 8192], [0, 3, 16], POLICIES,
            ["1", "16"], [False, True],
        )
    ]  # fmt: skip
    found = ask(MemoryPlanner.parts, ASKED, [[figure.state(), DRAFT] for figure in many])
    for figure, answer in zip(many, found, strict=True):
        wanted = figure.plan(True)
        assert answer["requests"] == wanted["requests"]
        assert answer["slots"] == reserved_slots(figure.kappa, figure.policy)
        for part in PARTS:
            assert answer[part] == pytest.approx(wanted[part], rel=1e-12, abs=1)


def test_the_parts_fill_the_memory():
    for speculating in (False, True):
        plan = MemoryPlanner(draft=True).plan(speculating)
        assert sum(plan[part] for part in PARTS) == pytest.approx(72e9)


def test_weights_that_do_not_fit_leave_no_request():
    figure = MemoryPlanner(memory=8)
    assert figure.plan(True)["requests"] == 0 and "0 requests" in figure.alternative


def test_it_begins_with_eight_slots_a_request():
    assert "8 slots a request" in MemoryPlanner().alternative
