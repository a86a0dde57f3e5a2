from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from engine_cases import atlas, cases

from specedu.config import CacheConfig, SamplingParams, SchedulerConfig, SpeculativeConfig
from specedu.draft.base import StatelessProposer
from specedu.llm import LLM
from specedu.models.toy import ContextModel

NAN, INFINITY = float("nan"), float("inf")


def ngram(**settings: Any) -> SpeculativeConfig:
    return SpeculativeConfig(**{"method": "ngram", "num_speculative_tokens": 3, **settings})


# --- SamplingParams -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"temperature": -1}, r"temperature: -1, .* \[0, 100\]", id="negative"),
        pytest.param({"temperature": NAN}, r"temperature: nan, .* \[0, 100\]", id="nan"),
        pytest.param({"temperature": INFINITY}, r"temperature: inf, .* \[0, 100\]", id="infinite"),
        pytest.param({"temperature": 101}, r"temperature: 101, .* \[0, 100\]", id="hot"),
        pytest.param(
            {"temperature": 0.0099},
            r"temperature: 0.0099, expected 0 \(greedy\) or at least 0.01",
            id="nearly-greedy",
        ),
        pytest.param({"temperature": None}, r"temperature: None, .* a number", id="no-temperature"),
        pytest.param({"temperature": True}, r"temperature: True, .* a number", id="bool"),
        pytest.param({"top_k": -2}, r"top_k: -2, .* at least -1", id="top-k"),
        pytest.param({"top_k": 1.5}, r"top_k: 1.5, .* an int", id="top-k-float"),
        pytest.param({"top_p": 0}, r"top_p: 0, .* \(0, 1\]", id="top-p-zero"),
        pytest.param({"top_p": 1.1}, r"top_p: 1.1, .* \(0, 1\]", id="top-p-large"),
        pytest.param({"top_p": NAN}, r"top_p: nan, .* \(0, 1\]", id="top-p-nan"),
        pytest.param({"min_p": -0.1}, r"min_p: -0.1, .* \[0, 1\]", id="min-p-negative"),
        pytest.param({"min_p": 2}, r"min_p: 2, .* \[0, 1\]", id="min-p-large"),
        pytest.param({"max_tokens": 0}, r"max_tokens: 0, .* at least 1", id="max-tokens"),
        pytest.param({"max_tokens": 2.0}, r"max_tokens: 2.0, .* an int", id="max-tokens-float"),
        pytest.param({"min_tokens": -1}, r"min_tokens: -1, .* \[0, 16\]", id="min-tokens"),
        pytest.param(
            {"min_tokens": 5, "max_tokens": 4}, r"min_tokens: 5, .* \[0, 4\]", id="min-over-max"
        ),
        pytest.param({"stop": ""}, r"stop\[0\]: '', .* at least one character", id="empty-stop"),
        pytest.param({"stop": ["a", ""]}, r"stop\[1\]: '', .*", id="empty-second-stop"),
        pytest.param({"stop": ["a", 3]}, r"stop\[1\]: 3, expected a string", id="stop-no-string"),
        pytest.param({"stop": 5}, r"stop: 5, expected", id="stop-no-sequence"),
        pytest.param({"stop_token_ids": [4, -1]}, r"stop_token_ids\[1\]: -1, .*", id="stop-id"),
        pytest.param({"stop_token_ids": 5}, r"stop_token_ids: 5, expected", id="stop-ids-no-list"),
        pytest.param({"ignore_eos": "no"}, r"ignore_eos: 'no', expected", id="flag"),
        pytest.param(
            {"include_stop_str_in_output": "no"},
            r"include_stop_str_in_output: 'no', expected",
            id="second-flag",
        ),
        pytest.param({"seed": 2**63}, r"seed: 9223372036854775808, .*", id="large-seed"),
        pytest.param({"seed": -(2**63) - 1}, r"seed: -9223372036854775809, .*", id="small-seed"),
        pytest.param({"seed": 0.5}, r"seed: 0.5, expected an int", id="seed-float"),
        pytest.param({"n": 0}, r"n: 0, .* at least 1", id="no-output"),
    ],
)
def test_sampling_params_refuse(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"temperature": 0.01}, id="coldest"),
        pytest.param({"temperature": 100}, id="hottest"),
        pytest.param({"top_k": -1}, id="all-ids"),
        pytest.param({"top_p": 1}, id="whole-mass"),
        pytest.param({"top_p": 1e-9}, id="least-mass"),
        pytest.param({"min_p": 1}, id="ties-of-the-best"),
        pytest.param({"min_tokens": 4, "max_tokens": 4}, id="min-is-max"),
        pytest.param({"stop_token_ids": [0]}, id="first-id"),
        pytest.param({"seed": -(2**63)}, id="smallest-seed"),
        pytest.param({"seed": 2**63 - 1}, id="largest-seed"),
    ],
)
def test_sampling_params_accept_the_ends_of_the_ranges(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    value = getattr(SamplingParams(**settings), name)
    assert (list(value) if isinstance(value, tuple) else value) == settings[name]


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (0.0, True), (0.01, False)])
def test_only_a_temperature_of_0_is_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="ab") == SamplingParams(stop=["ab"])


# --- SpeculativeConfig ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"method": "medusa"},
            r"method: 'medusa', expected one of ngram, draft_model, early_exit, custom",
            id="method",
        ),
        pytest.param({"method": None}, r"method: None, expected one of", id="no-method"),
        pytest.param(
            {"num_speculative_tokens": 0},
            r"num_speculative_tokens: 0, .* at least 1",
            id="no-drafts",
        ),
        pytest.param(
            {"num_speculative_tokens": True}, r"num_speculative_tokens: True, .* an int", id="bool"
        ),
        pytest.param(
            {"draft_sample_method": "argmax"},
            r"draft_sample_method: 'argmax', expected one of greedy, probabilistic",
            id="draft-sampling",
        ),
        pytest.param(
            {"draft_sample_method": "probabilistic"},
            r"draft_sample_method: 'probabilistic', expected 'greedy' with method 'ngram'",
            id="ngram-has-no-q",
        ),
        pytest.param(
            {"rejection_sample_method": "strict"},
            r"rejection_sample_method: 'strict', expected one of standard, block, match, synthetic",
            id="rule",
        ),
        pytest.param(
            {"sampler": "alias"},
            r"sampler: 'alias', expected one of chain, race, logspace",
            id="kernel",
        ),
        pytest.param(
            {"sampler": "logspace", "rejection_sample_method": "match"},
            r"sampler: 'logspace', expected 'chain' with rejection_sample_method 'match'",
            id="kernel-of-another-rule",
        ),
        pytest.param(
            {"prompt_lookup_latest": "no"}, r"prompt_lookup_latest: 'no', expected", id="flag"
        ),
        pytest.param(
            {"method": "custom"}, r"proposer of method 'custom': None, expected one", id="custom"
        ),
        pytest.param(
            {"proposer": StatelessProposer()},
            r"proposer of method 'ngram': .*, expected none with method 'ngram'",
            id="proposer-of-ngram",
        ),
        pytest.param(
            {"method": "draft_model", "model": "self", "prompt_lookup_max": 4},
            r"prompt_lookup_max: 4, expected none with method 'draft_model'",
            id="lookup-of-a-model",
        ),
        pytest.param(
            {"method": "draft_model", "model": "self", "prompt_lookup_min": 0},
            r"prompt_lookup_min: 0, expected none with method 'draft_model'",
            id="lookup-of-0-of-a-model",
        ),
        pytest.param(
            {"method": "draft_model", "model": "self", "prompt_lookup_latest": True},
            r"prompt_lookup_latest: True, expected none with method 'draft_model'",
            id="order-of-a-model",
        ),
    ],
)
def test_speculative_config_refuses(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        ngram(**settings)


@atlas("B151")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"prompt_lookup_min": 0, "prompt_lookup_max": 3},
            r"prompt_lookup_min: 0, .* at least 1",
            id="0-3",
        ),
        pytest.param(
            {"prompt_lookup_min": 4, "prompt_lookup_max": 2},
            r"prompt_lookup_min: 4, expected at most prompt_lookup_max = 2",
            id="4-2",
        ),
        pytest.param(
            {"prompt_lookup_min": -1, "prompt_lookup_max": 3},
            r"prompt_lookup_min: -1, .* at least 1",
            id="-1-3",
        ),
        pytest.param({"prompt_lookup_min": 0}, r"prompt_lookup_min: 0, .* at least 1", id="0-none"),
        pytest.param({"prompt_lookup_max": 0}, r"prompt_lookup_max: 0, .* at least 1", id="none-0"),
        pytest.param(
            {"prompt_lookup_min": 2, "prompt_lookup_max": 2.5},
            r"prompt_lookup_max: 2.5, .* an int",
            id="2-2.5",
        ),
    ],
)
def test_an_illegal_lookup_range_is_refused_under_the_name_that_was_given(
    settings: dict[str, Any], words: str, atlas_row: str
) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        ngram(**settings)


@atlas("B151")
@pytest.mark.parametrize(
    ("low", "high", "filled"),
    [(2, 2, (2, 2)), (None, None, (5, 5)), (3, None, (3, 3)), (None, 7, (7, 7)), (1, 4, (1, 4))],
)
def test_a_lookup_range_is_filled_in(
    low: int | None, high: int | None, filled: tuple[int, int], atlas_row: str
) -> None:
    config = ngram(prompt_lookup_min=low, prompt_lookup_max=high)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == filled


@atlas("B151")
def test_a_draft_length_of_0_is_legal_in_a_schedule_only(atlas_row: str) -> None:
    schedule = [(1, 4, 3), (5, 8, 0)]
    config = ngram(num_speculative_tokens_per_batch_size=schedule)
    assert [list(entry) for entry in config.num_speculative_tokens_per_batch_size] == [
        list(entry) for entry in schedule
    ]
    with pytest.raises(ValueError, match="^num_speculative_tokens: 0, .* at least 1"):
        ngram(num_speculative_tokens=0)


@atlas("B152")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"model": "self", "num_speculative_tokens": 3},
            r"speculative_config: .*, expected a value for 'method'",
            id="model-without-method",
        ),
        pytest.param(
            {"method": "ngram", "model": "self", "num_speculative_tokens": 3},
            r"model of method 'ngram': 'self', expected none with method 'ngram'",
            id="model-of-another-method",
        ),
        pytest.param(
            {"method": "draft_model", "num_speculative_tokens": 3},
            r"model of method 'draft_model': None, expected one",
            id="method-without-model",
        ),
        pytest.param(
            {"method": "ngram"},
            r"speculative_config: .*, expected a value for 'num_speculative_tokens'",
            id="no-draft-length",
        ),
    ],
)
def test_speculation_is_never_silently_off(
    settings: Mapping[str, Any], words: str, atlas_row: str
) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        LLM(ContextModel(4), settings)


@atlas("B152")
def test_without_a_configuration_nothing_is_drafted(atlas_row: str) -> None:
    [output] = LLM(ContextModel(4), audit=True).generate([[0, 0, 0]], SamplingParams(seed=0))
    assert output.metrics.num_proposed_tokens == output.metrics.num_draft_tokens == 0


def test_an_unknown_name_in_the_mapping_is_refused_with_the_list_of_names() -> None:
    names = ", ".join(field.name for field in fields(SpeculativeConfig))
    settings = {"method": "ngram", "num_speculative_tokens": 3, "num_tokens": 4}
    with pytest.raises(ValueError, match=f"^speculative_config: 'num_tokens', .* one of {names}$"):
        SpeculativeConfig.of(settings)


@pytest.mark.parametrize("rule", ["standard", "match"])
def test_the_rule_of_a_configuration_is_the_runners(rule: str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": rule}
    assert LLM(ContextModel(4), config).engine.runner.rule.method == rule
    assert LLM(ContextModel(4)).engine.runner.rule.method == "standard"


def test_a_mapping_and_a_configuration_mean_the_same() -> None:
    settings = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    config = SpeculativeConfig.of(settings)
    assert config == ngram(prompt_lookup_max=4)
    assert SpeculativeConfig.of(config) is config
    assert SpeculativeConfig.of(None) is None


@pytest.mark.parametrize("case", cases("K15"))
def test_every_bad_schedule_is_refused(case: dict[str, Any]) -> None:
    for schedule in case["input"]["schedules"]:
        with pytest.raises(ValueError, match="^num_speculative_tokens_per_batch_size"):
            ngram(num_speculative_tokens_per_batch_size=schedule)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        pytest.param([], r": \[\], expected at least one \(first, last, kappa\)", id="empty"),
        pytest.param([(2, 16, 3)], r"\[0\] first: 2, .* \[1, 1\]", id="begins-late"),
        pytest.param(
            [(1, 16, 3), (32, 64)], r"\[1\]: \(32, 64\), expected three ints", id="two-numbers"
        ),
        pytest.param([(1, 16, 3), (18, 32, 2)], r"\[1\] first: 18, .* \[17, 17\]", id="gap"),
        pytest.param([(1, 16, 3), (16, 32, 2)], r"\[1\] first: 16, .* \[17, 17\]", id="overlap"),
        pytest.param([(1, 0, 3)], r"\[0\] last: 0, .* at least 1", id="ends-before-it-begins"),
        pytest.param([(1, 16, -1)], r"\[0\] kappa: -1, .* at least 0", id="negative"),
        pytest.param([3], r"\[0\]: 3, expected three ints", id="entry-is-a-number"),
        pytest.param(5, r": 5, expected", id="schedule-is-a-number"),
    ],
)
def test_a_refused_schedule_names_its_entry(schedule: Any, words: str) -> None:
    name = "num_speculative_tokens_per_batch_size"
    with pytest.raises(ValueError, match=f"^{name}{words}"):
        ngram(num_speculative_tokens_per_batch_size=schedule)


# --- CacheConfig and SchedulerConfig --------------------------------------------------------------


@pytest.mark.parametrize("name", ["block_size", "num_blocks"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
def test_cache_config_refuses(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {value!r}, expected an int of at least 1"):
        CacheConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("max_num_seqs", 0, 1),
        ("max_num_batched_tokens", 0, 1),
        ("max_model_len", 1, 2),
        ("draft_slots", -1, 0),
        ("num_lookahead_tokens", -1, 0),
        ("max_num_seqs", 1.5, 1),
    ],
)
def test_scheduler_config_refuses(name: str, value: object, least: int) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {value}, expected an int of at least {least}"):
        SchedulerConfig(**{name: value})


def budget_of(max_num_seqs: int, tokens: int, draft_slots: int) -> SchedulerConfig:
    return SchedulerConfig(max_num_seqs, tokens, draft_slots=draft_slots)


@atlas("B150")
def test_a_budget_without_room_for_the_draft_slots_names_three_settings_and_a_legal_value(
    atlas_row: str,
) -> None:
    words = (
        r"^max_num_batched_tokens: 512, expected at least 576 for max_num_seqs = 64 decodes of 1 "
        r"token and draft_slots = 8 each$"
    )
    with pytest.raises(ValueError, match=words):
        budget_of(64, 512, draft_slots=8)


@atlas("B150")
def test_the_legal_budget_that_the_error_names_is_the_least(atlas_row: str) -> None:
    assert budget_of(64, 576, draft_slots=8).max_num_batched_tokens == 576
    with pytest.raises(ValueError, match="575, expected at least 576"):
        budget_of(64, 575, draft_slots=8)


@atlas("B150")
def test_the_draft_slots_of_a_draft_model_count_against_the_budget(atlas_row: str) -> None:
    draft = {"method": "draft_model", "model": "self", "num_speculative_tokens": 3}
    with pytest.raises(ValueError, match="^max_num_batched_tokens: 7, expected at least 8 .* = 1 "):
        LLM(ContextModel(4), draft, max_num_seqs=4, max_num_batched_tokens=7)


# --- all of them ----------------------------------------------------------------------------------

CONFIGURATIONS = [SamplingParams(), ngram(), CacheConfig(), SchedulerConfig()]


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: type(config).__name__)
def test_a_configuration_is_frozen(config: Any) -> None:
    for field in fields(config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))


def test_the_callers_lists_are_copied_so_that_later_changes_pass_by() -> None:
    stop, stop_token_ids, schedule = ["a"], [1], [[1, 4, 2]]
    params = SamplingParams(stop=stop, stop_token_ids=stop_token_ids)
    config = ngram(num_speculative_tokens_per_batch_size=schedule)
    stop.append("")
    stop_token_ids.append(-1)
    schedule[0][2] = -1
    schedule.append([])
    assert params == SamplingParams(stop=["a"], stop_token_ids=[1])
    assert config.num_speculative_tokens_per_batch_size == ((1, 4, 2),)


def test_no_stop_may_be_written_as_none() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None)
    assert (params.stop, params.stop_token_ids) == ((), ())


def test_a_custom_proposer_does_not_draw_by_the_sample_method() -> None:
    settings = {"method": "custom", "num_speculative_tokens": 1, "proposer": object()}
    SpeculativeConfig(**settings)
    with pytest.raises(ValueError, match="expected 'greedy' with method 'custom'"):
        SpeculativeConfig(**settings, draft_sample_method="probabilistic")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "early_exit"}, "early_exit_layers of method 'early_exit': None, expected one"),
        ({"method": "early_exit", "early_exit_layers": 0}, "early_exit_layers: 0, expected an int"),
        ({"method": "ngram", "early_exit_layers": 3}, "early_exit_layers of method 'ngram': 3"),
        ({"method": "ngram", "quantization": "int4"}, "quantization: 'int4', expected none with"),
        (
            {"method": "draft_model", "model": "self", "quantization": "fp8"},
            "quantization: 'fp8', expected one of int4",
        ),
    ],
)
def test_settings_of_a_models_own_drafts_are_checked(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpeculativeConfig(num_speculative_tokens=2, **settings)


def test_toys_have_no_layers_to_leave_early_and_no_weights_to_round() -> None:
    from specedu.llm import LLM
    from specedu.models.toy import ContextModel

    for config, words in (
        ({"method": "early_exit", "early_exit_layers": 1}, "the target has no layers"),
        ({"method": "draft_model", "model": "self", "quantization": "int4"}, "no such weights"),
    ):
        with pytest.raises(ValueError, match=words):
            LLM(ContextModel(4), {"num_speculative_tokens": 2, **config})
