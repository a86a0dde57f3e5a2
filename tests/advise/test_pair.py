"""What is predicted from measured steps and passes, and what is said of it."""

from __future__ import annotations

import dataclasses

import pytest

from specedu.advise import pair
from specedu.advise.pair import BATCHES, Measured, Steps
from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.models.toy import TableModel
from specedu.theory.settings import law_of
from specedu.theory.speedup import batch_speedup


def measured(
    accepted: tuple[int, ...], *, draft: float = 0.0, T_star: float = 1e9, kappa: int = 3
) -> Measured:
    """A machine that follows the roofline, with steps of 1 s and no time outside the model."""
    steps = Steps(accepted, (kappa,) * len(accepted), (1.0, 0.0), (kappa * draft, 1.0, 0.0))
    passes = {
        (batch, width): (max(1.0, batch * width / T_star),)
        for batch in BATCHES
        for width in range(1, kappa + 2)
    }
    return Measured(kappa, (steps,), passes, model_draft=True)


SEVEN_TENTHS = (0,) * 300 + (1,) * 210 + (2,) * 147 + (3,) * 343  # r_i = .7, .49, .343


def test_the_prediction_is_the_models_where_the_machine_is_the_model() -> None:
    found = measured(SEVEN_TENTHS, draft=0.165, T_star=20)
    for batch in BATCHES:
        expected = batch_speedup(batch, 0.7, 3, 0.165, 20)
        assert found.gain(batch, 3).middle == pytest.approx(expected)


def test_fewer_drafts_are_predicted_from_the_same_steps() -> None:
    found = measured(SEVEN_TENTHS, draft=0.165)
    assert found.gain(1, 1).middle == pytest.approx(batch_speedup(1, 0.7, 1, 0.165, 1e9))
    assert found.rates == [0.7, 0.49, 0.343]


def test_the_best_number_is_the_models() -> None:
    assert measured(SEVEN_TENTHS, draft=0.165).best(1)[0] == 3
    assert measured(SEVEN_TENTHS, draft=0.5).best(1)[0] == 1
    assert measured(SEVEN_TENTHS, draft=0.9).best(1)[1].high < 1


def test_the_crossing_lies_between_two_measured_loads() -> None:
    found = measured(SEVEN_TENTHS, draft=0.165, T_star=20)  # the model's: 20 (2.533 - .495) / 4
    assert 4 < found.crossing(3) < 16
    assert measured(SEVEN_TENTHS, draft=0.165).crossing(3) is None


def test_prompts_that_differ_widen_the_range() -> None:
    easy, hard = (Steps((n,) * 50, (3,) * 50, (1.0, 0.0), (0.3, 1.0, 0.0)) for n in (3, 0))
    same = dataclasses.replace(measured((1, 2)), steps=(easy,) * 6)
    mixed = dataclasses.replace(same, steps=(easy, hard) * 3)
    narrow, wide = same.gain(1, 3), mixed.gain(1, 3)
    assert narrow.low == narrow.high and wide.low < wide.middle < wide.high


@pytest.mark.parametrize(
    ("draft", "first"),
    [(0.05, "SPECULATE with 3 drafts"), (0.95, "DO NOT SPECULATE")],
)
def test_the_advice(draft: float, first: str) -> None:
    assert pair.verdict(measured(SEVEN_TENTHS, draft=draft))[0].startswith(first)


def test_an_uncertain_gain_is_called_so() -> None:
    easy, hard = (Steps((n,) * 50, (3,) * 50, (1.0, 0.0), (1.5, 1.0, 0.0)) for n in (2, 0))
    found = dataclasses.replace(measured((1,)), steps=(easy, easy, hard))
    assert pair.verdict(found)[0].startswith("NO CLEAR GAIN")


def test_loads_where_nothing_gains_are_named() -> None:
    words = pair.verdict(measured(SEVEN_TENTHS, draft=0.165, T_star=8))
    assert "At 16 requests no number of drafts gains." in words
    assert any(word.startswith("These 3 drafts stop gaining near") for word in words)


def test_steps_without_a_draft_cost_a_plain_pass() -> None:
    found = measured((3, 0), T_star=2)  # four positions cost 2, one costs 1
    [steps] = found.steps
    looked_up = dataclasses.replace(found, steps=(dataclasses.replace(steps, drafted=(3, 0)),))
    assert found.gain(1, 3).middle == pytest.approx(2.5 / 2)
    assert looked_up.gain(1, 3).middle == pytest.approx(2.5 / 1.5)
    # Four at once: ten positions on average, of which two take as long as a plain pass of one.
    assert looked_up.gain(4, 3).middle == pytest.approx(2.5 * 2 / 5)


# --- measuring ------------------------------------------------------------------------------------

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1,
         "prompt_lookup_max": 2}  # fmt: skip
TOY = LLM(TableModel([law_of("1/2 1/4 1/8 1/8")] * 4, max_model_len=512))


def test_a_toy_is_measured_and_its_advice_run() -> None:
    prompts, params = [[1, 2, 1, 2], [3, 0, 2]], SamplingParams(max_tokens=12, temperature=0)
    ticks = []
    found = pair.measure(TOY, NGRAM, prompts, params, lambda: ticks.append(1))
    assert len(ticks) == pair.units(2, len(prompts))
    assert len(found.steps) == 2 and set(found.passes) == {
        (batch, width) for batch in BATCHES for width in (1, 2, 3)
    }
    assert all(sum(steps.accepted) + len(steps.accepted) >= 11 for steps in found.steps)
    assert found.gain(1, 2).middle > 0 and pair.verdict(found)
    assert pair.check(TOY, NGRAM, prompts, params, batch=2) > 0


def test_no_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompts: none, expected at least one"):
        pair.measure(TOY, NGRAM, [], SamplingParams())
