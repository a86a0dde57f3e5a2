"""The public face: several prompts with their own settings, streams, several outputs, cancels."""

from __future__ import annotations

import pytest

from specedu.config import SamplingParams
from specedu.llm import LLM, StreamOutput
from specedu.models.toy import ContextModel, ProbingModel, TableModel, hashed_law
from specedu.theory.settings import law_of

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
         "prompt_lookup_max": 3}  # fmt: skip
CYCLE = [law_of("0 1 0"), law_of("0 0 1"), law_of("1 0 0")]  # a -> b -> c -> a


def make(**options: object) -> LLM:
    return LLM(ContextModel(4, max_model_len=64), NGRAM, audit=True, poison=True, **options)


def cycle(**options: object) -> LLM:
    """A model that says abcabc... whatever the temperature."""
    return LLM(TableModel(CYCLE, max_model_len=64), NGRAM, audit=True, poison=True, **options)


def join(parts: list[StreamOutput]) -> tuple[str, list[int]]:
    return "".join(p.text for p in parts), [t for p in parts for t in p.token_ids]


# --- generate -------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    results = cycle().generate(["a", "b", "c"], SamplingParams(max_tokens=3))
    assert [result.outputs[0].text for result in results] == ["bca", "cab", "abc"]
    assert [result.prompt for result in results] == ["a", "b", "c"]
    assert [result.prompt_token_ids for result in results] == [[0], [1], [2]]


def test_one_prompt_needs_no_list() -> None:
    params = SamplingParams(max_tokens=2)
    assert cycle().generate("a", params)[0].outputs[0].text == "bc"
    assert cycle().generate([0, 1], params)[0].outputs[0].text == "ca"


def test_each_prompt_has_its_own_settings() -> None:
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=9, stop="ab")]
    short, stopped = cycle().generate(["a", "a"], params)
    assert (short.outputs[0].text, short.outputs[0].finish_reason) == ("b", "length")
    output = stopped.outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("bc", "stop", "ab")
    assert output.token_ids == [1, 2, 0, 1]  # the ids keep the stop string, the text does not


def test_usage_counts_what_is_delivered() -> None:
    [result] = cycle().generate(["abcabc"], SamplingParams(max_tokens=20))
    stats = result.metrics
    assert len(result.outputs[0].token_ids) == 20
    # The first token comes with the prompt; all others out of verifies.
    assert stats.num_emitted_tokens + 1 == 20
    assert stats.mean_acceptance_length > 3  # the text repeats itself, and so do the drafts


def test_several_outputs_have_seeds_of_their_own() -> None:
    params = SamplingParams(n=3, max_tokens=12, seed=5)
    [result] = make().generate([[0, 1]], params)
    texts = [output.text for output in result.outputs]
    assert [output.index for output in result.outputs] == [0, 1, 2]
    assert len(set(texts)) == 3
    [alone] = make().generate([[0, 1]], SamplingParams(max_tokens=12, seed=5))
    assert alone.outputs[0].text == texts[0]
    assert [output.text for output in make().generate([[0, 1]], params)[0].outputs] == texts


def test_unseeded_requests_differ_and_the_engine_seed_repeats_them() -> None:
    params = SamplingParams(max_tokens=16)

    def texts(**options: object) -> list[str]:
        return [r.outputs[0].text for r in make(**options).generate([[0, 1]] * 3, params)]

    assert len(set(texts())) == 3
    assert texts() == texts()
    assert texts() != texts(seed=1)


@pytest.mark.parametrize("atlas_row", [pytest.param("B29", id="atlas-B29")])
def test_a_seeded_request_is_untouched_by_unseeded_ones(atlas_row: str) -> None:
    seeded = SamplingParams(max_tokens=16, seed=7)
    [alone] = make().generate([[0, 1]], seeded)
    beside = make().generate([[2], [0, 1]], [SamplingParams(max_tokens=16), seeded])
    assert beside[1].outputs[0].token_ids == alone.outputs[0].token_ids


# --- streams and cancels --------------------------------------------------------------------------


def test_a_stream_adds_up_to_the_output() -> None:
    params = SamplingParams(max_tokens=20, seed=3)
    [result] = make().generate([[0, 1, 0, 1]], params)
    parts = list(make().stream([[0, 1, 0, 1]], params))
    assert join(parts) == (result.outputs[0].text, result.outputs[0].token_ids)
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert max(len(part.token_ids) for part in parts) > 1  # whole runs come at once


def test_a_stream_never_takes_text_back() -> None:
    params = SamplingParams(max_tokens=30, stop="cabcabx")
    parts = list(cycle().stream("a", params))
    [result] = cycle().generate("a", params)
    assert join(parts)[0] == result.outputs[0].text
    stopped = list(cycle().stream("a", SamplingParams(max_tokens=30, stop="abca")))
    assert join(stopped)[0] == "bc"
    assert stopped[-1].finish_reason == "stop"


def test_two_streams_share_an_engine() -> None:
    llm = cycle()
    first = llm.stream("a", SamplingParams(max_tokens=9))
    head = next(first)
    second = list(llm.stream("b", SamplingParams(max_tokens=5)))
    assert join(second)[0] == "cabca"
    assert join([head, *first])[0] == "bcabcabca"  # nothing of what came meanwhile is lost
    assert not llm.engine.has_unfinished()


def test_closing_a_stream_cancels_what_is_left() -> None:
    llm = cycle()
    stream = llm.stream(["a", "b"], SamplingParams(max_tokens=30))
    next(stream)
    stream.close()
    assert not llm.engine.has_unfinished()
    assert llm.engine.pool.num_free == llm.engine.pool.num_blocks


def test_a_cancelled_request_ends_and_the_others_go_on() -> None:
    llm = cycle()
    seen: dict[str, list[StreamOutput]] = {}
    for part in llm.stream(["a", "b"], SamplingParams(max_tokens=12)):
        seen.setdefault(part.request_id, []).append(part)
        if part.request_id == "0":
            llm.cancel("0")
    assert [part.finish_reason for part in seen["0"]] == [None, "abort"]
    assert join(seen["1"])[0] == "cabcabcabcab"
    llm.cancel("0")
    llm.cancel("never was")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], r"prompt: \[\], expected at least one token"),
        ([0] * 64, "prompt: 64 tokens, expected at most 63, one less than max_model_len"),
        ([0, 9], r"prompt\[1\]: 9, expected an int in \[0, 2\]"),
        ("ax", "no piece begins 'x'"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_good_ones_are_not_begun(
    prompt: list[int] | str, message: str
) -> None:
    llm = cycle()
    with pytest.raises(ValueError, match=message):
        llm.generate([[0], prompt], SamplingParams(max_tokens=2))
    assert not llm.engine.has_unfinished()
    assert llm.generate("a", SamplingParams(max_tokens=2))[0].outputs[0].text == "bc"


def test_a_bad_request_leaves_running_ones_alone() -> None:
    llm = cycle()
    stream = llm.stream("a", SamplingParams(max_tokens=9))
    parts = [next(stream)]
    with pytest.raises(ValueError, match=r"stop_token_ids\[0\]: 7"):
        llm.generate("b", SamplingParams(stop_token_ids=[7]))
    parts += stream
    assert join(parts)[0] == "bcabcabca"


def test_as_many_settings_as_prompts() -> None:
    with pytest.raises(ValueError, match="sampling_params: 1 settings, expected 2, one a prompt"):
        cycle().generate(["a", "b"], [SamplingParams()])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 7}, "model: 7, expected a model's name, a folder, or an object with forward"),
        ({"dtype": "float16"}, "dtype: 'float16', expected one of float32, bfloat16"),
        ({"num_blocks": 3}, "num_blocks: 3, expected at least 4 to hold max_model_len = 64"),
        ({"max_model_len": 65}, r"max_model_len: 65, expected an int in \[2, 64\]"),
        ({"block_size": 0}, "block_size: 0, expected an int of at least 1"),
        ({"seed": 2**63}, "seed: "),
        ({"max_num_batched_tokens": 63}, "max_num_batched_tokens: 63, expected at least 64"),
        (
            {"speculative_config": {"method": "oracle", "num_speculative_tokens": 3}},
            "method: 'oracle', expected one of ngram, draft_model, early_exit, custom",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            "num_speculative_tokens: 0, expected an int of at least 1",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 1,
                                    "num_speculative_tokens_per_batch_size": [(1, 8, 2)]}},
            r"size\[0\] kappa: 2, expected an int in \[0, 1\]",
        ),
        (
            {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 1,
                                    "model": TableModel(CYCLE[:2], pieces=["b", "a"])}},
            "id 0 means 'b', expected 'a' as in the target",
        ),
        (
            {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 1,
                                    "model": "self"}, "max_num_batched_tokens": 100},
            "expected at least 128 for max_num_seqs = 64 decodes of 1 token and draft_slots = 1",
        ),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_served_is_refused_at_construction(
    changes: dict, message: str
) -> None:
    arguments = {"model": TableModel(CYCLE, max_model_len=64), **changes}
    with pytest.raises(ValueError, match=message):
        LLM(**arguments)


def test_plain_decoding_needs_no_speculation() -> None:
    llm = LLM(ProbingModel(lambda text: hashed_law(text, 4), 4), audit=True, poison=True)
    [result] = llm.generate([[0, 1]], SamplingParams(max_tokens=5, seed=1))
    assert len(result.outputs[0].token_ids) == 5
    assert result.metrics.num_drafts == 0
    assert result.metrics.mean_acceptance_length == 1.0
