from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_cases import atlas, cases
from hypothesis import given
from hypothesis import strategies as st

from specedu.cache.block_pool import BlockPool
from specedu.cache.block_table import BlockTable
from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.llm import LLM, RequestOutput
from specedu.models.toy import TableModel
from specedu.outputs import Delivery, banned_ids, deliver
from specedu.request import Request
from specedu.sampling.coins import CoinSource
from specedu.theory.settings import law_of

EOS, STOP = 3, 99
PROMPT = [1, 2]


def request_of(output: Sequence[int] = (), **params: Any) -> Request:
    """Return a request that has emitted ``output`` so far."""
    settings = SamplingParams(**{"max_tokens": 100, **params})
    request = Request("a", PROMPT, settings, 0, BlockTable(BlockPool(1), 1))
    request.token_ids += output
    return request


def deliver_run(
    request: Request,
    run: Sequence[int],
    eos_token_id: int | tuple[int, ...] | None = EOS,
    max_model_len: int = 1000,
    pieces: dict[int, str] | None = None,
) -> Delivery:
    """Deliver a run; ``pieces`` gives the text of each id, and without it there is no tokenizer."""
    decode = None if pieces is None else lambda ids: "".join(pieces[i] for i in ids)
    return deliver(
        request, run, eos_token_id=eos_token_id, max_model_len=max_model_len, decode=decode
    )


def text_and_ids(run: Sequence[str], **params: Any) -> tuple[str, int, str | None]:
    """Deliver pieces of text; return the text, how many ids were kept, and the stop string."""
    request = request_of(**params)
    pieces = dict(enumerate(run))
    delivery = deliver_run(request, [*pieces], None, pieces=pieces)
    assert request.output_token_ids == [*pieces][: delivery.kept]
    return request.text, delivery.kept, delivery.stop_reason


# --- a toy whose text is known, and a proposer that is told what to say ---------------------------


class Scripted(StatelessProposer):
    """Proposes what the script says for each verify, counted from 1."""

    def __init__(self, *drafts: list[int]) -> None:
        self.drafts = dict(enumerate(drafts, start=1))

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [Draft(self.drafts.get(task.step, [])[: task.limit]) for task in tasks]


def counting(vocab: int, eos: int | tuple[int, ...] | None = None) -> TableModel:
    """Return the model that counts upwards, from 0 on again behind its last id."""
    rows = [" ".join(str(int(t == (i + 1) % vocab)) for t in range(vocab)) for i in range(vocab)]
    return TableModel([law_of(row) for row in rows], eos_token_id=eos)


def count_from(
    first: int,
    *drafts: list[int],
    kappa: int,
    eos: int | tuple[int, ...] | None = None,
    **params: Any,
) -> RequestOutput:
    """Let the counting model of 10 ids go on behind ``first``, under scripted drafts."""
    config = {
        "method": "custom",
        "proposer": Scripted(*drafts),
        "num_speculative_tokens": kappa,
    }
    llm = LLM(counting(10, eos), config, audit=True, poison=True)
    [output] = llm.generate([[first]], SamplingParams(seed=0, **params))
    return output


# --- where a run ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("K09", "K10", "K11"))
def test_a_run_is_kept_up_to_the_token_that_ends_it(case: dict[str, Any]) -> None:
    given, request = (
        case["input"],
        request_of(max_tokens=case["input"]["max_new"], ignore_eos=case["input"]["ignore_eos"]),
    )
    [eos] = given["stop_ids"] or [None]
    delivery = deliver_run(request, given["output"], eos)
    assert request.output_token_ids == case["expect"]["kept"]
    assert delivery.kept == len(case["expect"]["kept"])


@atlas("B101")
def test_an_end_of_text_in_mid_run_ends_it(atlas_row: str) -> None:
    request = request_of()
    assert deliver_run(request, [7, EOS, 9, 9, 5]) == Delivery(2, "stop", None)
    assert request.output_token_ids == [7, EOS]


@atlas("B101")
def test_an_end_of_text_in_an_accepted_run_ends_the_request(atlas_row: str) -> None:
    output = count_from(1, [3, 4, 5, 6], kappa=4, eos=4)
    [completion] = output.outputs
    assert (completion.token_ids, completion.finish_reason) == ([2, 3, 4], "stop")
    assert (output.metrics.num_drafts, output.metrics.num_discarded_tokens) == (1, 3)


@atlas("B103")
def test_a_drafted_end_of_text_that_is_rejected_ends_nothing(atlas_row: str) -> None:
    output = count_from(3, [9], [9], [9], kappa=1, eos=9, max_tokens=4)
    [completion] = output.outputs
    assert (completion.token_ids, completion.finish_reason) == ([4, 5, 6, 7], "length")
    assert output.metrics.num_accepted_tokens == 0


@atlas("B104")
@pytest.mark.parametrize(
    ("run", "output", "reason"),
    [
        pytest.param([STOP, 20, 21, 22], [10, 11, STOP], ("stop", STOP), id="stop-first"),
        pytest.param([20, 21, 22, STOP], [10, 11, 20, 21, 22], ("length", None), id="length-first"),
    ],
)
def test_of_a_stop_and_the_limit_the_first_in_the_run_decides(
    run: list[int], output: list[int], reason: tuple[str, int | None], atlas_row: str
) -> None:
    request = request_of([10, 11], max_tokens=5, stop_token_ids=[STOP])
    delivery = deliver_run(request, run)
    assert request.output_token_ids == output
    assert (delivery.finish_reason, delivery.stop_reason) == reason


@pytest.mark.parametrize(
    ("token", "stop_reason"), [pytest.param(EOS, None, id="eos"), pytest.param(STOP, STOP, id="id")]
)
def test_a_token_that_stops_and_reaches_max_tokens_ends_with_stop(
    token: int, stop_reason: int | None
) -> None:
    request = request_of([10, 11], max_tokens=3, stop_token_ids=[STOP])
    assert deliver_run(request, [token, 20]) == Delivery(1, "stop", stop_reason)


def test_a_stop_string_that_reaches_max_tokens_ends_with_stop() -> None:
    request = request_of(max_tokens=1, stop="x")
    assert deliver_run(request, [5], pieces={5: "axb"}) == Delivery(1, "stop", "x")


def test_a_token_that_is_end_of_text_and_stop_id_ends_as_end_of_text() -> None:
    request = request_of(stop_token_ids=[EOS])
    assert deliver_run(request, [EOS]) == Delivery(1, "stop", None)


def test_a_stop_id_ends_the_request_where_the_end_of_text_is_ignored() -> None:
    request = request_of(stop_token_ids=[EOS], ignore_eos=True)
    assert deliver_run(request, [7, EOS, 9]) == Delivery(2, "stop", EOS)


@atlas("B106")
@pytest.mark.parametrize(("max_tokens", "drafts"), [(1, 4), (5, 8)])
def test_a_run_is_never_kept_past_max_tokens(max_tokens: int, drafts: int, atlas_row: str) -> None:
    request = request_of(max_tokens=max_tokens)
    run = list(range(10, 10 + drafts + 1))
    assert deliver_run(request, run) == Delivery(max_tokens, "length", None)
    assert request.output_token_ids == run[:max_tokens]


@atlas("B106")
@pytest.mark.parametrize(("max_tokens", "kappa"), [(1, 4), (5, 8)])
def test_max_tokens_holds_where_every_draft_is_accepted(
    max_tokens: int, kappa: int, atlas_row: str
) -> None:
    drafts = [[(2 + i) % 10 for i in range(kappa)]]
    [completion] = count_from(0, *drafts, kappa=kappa, max_tokens=max_tokens).outputs
    assert completion.token_ids == [1, 2, 3, 4, 5][:max_tokens]
    assert completion.finish_reason == "length"


def test_the_end_of_the_context_ends_a_run() -> None:
    request = request_of([10, 11])
    assert deliver_run(request, [20, 21, 22], max_model_len=6) == Delivery(2, "length", None)
    assert request.num_tokens == 6


def test_a_stop_at_the_last_place_of_the_context_ends_with_stop() -> None:
    request = request_of([10, 11])
    assert deliver_run(request, [20, EOS], max_model_len=6) == Delivery(2, "stop", None)


def test_a_run_that_nothing_ends_is_kept_whole() -> None:
    request = request_of([10], max_tokens=5)
    assert deliver_run(request, [20, 21, 22]) == Delivery(3, None, None)
    assert request.output_token_ids == [10, 20, 21, 22]


def test_a_model_without_an_end_of_text_stops_at_no_id() -> None:
    assert deliver_run(request_of(), [0, 1, 2, 3], eos_token_id=None) == Delivery(4)


def test_nothing_but_tokens_and_text_of_the_request_is_written() -> None:
    request = request_of(max_tokens=2)
    before = {name: value for name, value in vars(request).items() if name != "token_ids"}
    deliver_run(request, [5, 6, 7], pieces={5: "a", 6: "b", 7: "c"})
    after = {name: value for name, value in vars(request).items() if name != "token_ids"}
    assert after == {**before, "text": "ab"}


# Two runs in a row must come to what their joined run comes to: how a text is cut into runs, and so
# how many drafts were accepted, decides nothing.
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(1, 12),
    st.integers(0, 4),
    st.sampled_from([(), "bc", ("cb", "a"), ("bcb", "cc")]),
    st.booleans(),
)
def test_the_cut_into_runs_decides_nothing(
    run: list[int], cut: int, max_tokens: int, min_tokens: int, stop: Any, include: bool
) -> None:
    params = {
        "max_tokens": max_tokens,
        "min_tokens": min(min_tokens, max_tokens),
        "stop": stop,
        "stop_token_ids": [5],
        "include_stop_str_in_output": include,
    }
    pieces = dict(enumerate(["a", "b", "c", "<eos>", "bc", "x"]))
    whole, parts = request_of(**params), request_of(**params)
    at_once = deliver_run(whole, run, pieces=pieces)
    first = deliver_run(parts, run[:cut], pieces=pieces)
    last = first
    if first.finish_reason is None:
        last = deliver_run(parts, run[cut:], pieces=pieces)
    assert (parts.token_ids, parts.text) == (whole.token_ids, whole.text)
    assert last[1:] == at_once[1:]


# --- text -----------------------------------------------------------------------------------------


@atlas("B105")
@pytest.mark.parametrize(
    ("run", "stop", "text", "kept"),
    [
        pytest.param(["ab", "c|", "d"], "|", "abc", 2, id="at-the-end-of-a-piece"),
        pytest.param(["ab", "c|e", "d"], "|", "abc", 2, id="inside-a-piece"),
        pytest.param(["ab", "c", "d", "e"], "bcd", "a", 3, id="spans-three-pieces"),
        pytest.param(["ab", "ca", "b", "cd", "e"], "abcd", "abc", 4, id="after-a-false-start"),
        pytest.param(["aa", "ab", "c"], "aab", "a", 2, id="overlaps-itself"),
        pytest.param(["ab", "c"], "ab", "", 1, id="whole-first-piece"),
    ],
)
def test_a_stop_string_cuts_the_text_before_it_and_the_ids_behind_its_last_piece(
    run: list[str], stop: str, text: str, kept: int, atlas_row: str
) -> None:
    assert text_and_ids(run, stop=stop) == (text, kept, stop)


@pytest.mark.parametrize(
    ("run", "stop", "text", "reason"),
    [
        pytest.param(["ab", "cd"], ["d", "b"], "a", "b", id="the-earlier-piece"),
        pytest.param(["abcd"], ["d", "bc"], "a", "bc", id="the-earlier-place-in-a-piece"),
        pytest.param(["abcd"], ["abc", "ab"], "", "ab", id="the-shorter-at-one-place"),
        pytest.param(["a", "bx", "c"], ["bc", "xc"], "ab", "xc", id="the-one-that-is-there"),
    ],
)
def test_of_several_stop_strings_the_earliest_cuts(
    run: list[str], stop: list[str], text: str, reason: str
) -> None:
    assert text_and_ids(run, stop=stop)[::2] == (text, reason)


@pytest.mark.parametrize(
    ("run", "stop", "text"),
    [
        pytest.param(["ab", "c|e", "d"], "|", "abc|", id="inside-a-piece"),
        pytest.param(["ab", "cd", "e"], "bc", "abc", id="spans-pieces"),
        pytest.param(["abcd"], ["d", "bc"], "abc", id="the-earliest-of-two"),
    ],
)
def test_an_included_stop_string_is_the_end_of_the_text(
    run: list[str], stop: str | list[str], text: str
) -> None:
    assert text_and_ids(run, stop=stop, include_stop_str_in_output=True)[0] == text


def test_a_stop_string_that_never_comes_leaves_the_text() -> None:
    assert text_and_ids(["ab", "c"], stop=["x", "bb"]) == ("abc", 2, None)


def test_the_prompt_is_no_part_of_a_stop_string() -> None:
    request = request_of(stop="ab")
    delivery = deliver_run(request, [5, 6], pieces={1: "x", 2: "a", 5: "b", 6: "c"})
    assert (request.text, delivery) == ("bc", Delivery(2))


def test_the_end_of_text_is_no_text() -> None:
    request = request_of()
    deliver_run(request, [5, EOS], pieces={5: "a", EOS: "<eos>"})
    assert (request.text, request.output_token_ids) == ("a", [5, EOS])


def test_an_ignored_end_of_text_is_text() -> None:
    request = request_of(ignore_eos=True)
    deliver_run(request, [5, EOS, 5], pieces={5: "a", EOS: "<eos>"})
    assert request.text == "a<eos>a"


def test_a_stop_id_is_text() -> None:
    request = request_of(stop_token_ids=[STOP])
    deliver_run(request, [5, STOP], pieces={5: "a", STOP: "!"})
    assert request.text == "a!"


def test_without_a_tokenizer_there_is_no_text() -> None:
    request = request_of()
    deliver_run(request, [5, 6])
    assert request.text == ""


# --- several end-of-text ids ----------------------------------------------------------------------


@pytest.mark.parametrize("run", [[5, 3, 5], [5, EOS, 5]])
def test_any_of_several_end_ids_ends_the_text(run: list[int]) -> None:
    request = request_of()
    delivery = deliver_run(request, run, (3, EOS), pieces={3: "<3>", 5: "a", EOS: "<eos>"})
    assert delivery == Delivery(2, "stop", None)
    assert request.text == "a"


def test_ignoring_the_end_ignores_all_of_them() -> None:
    request = request_of(ignore_eos=True)
    assert deliver_run(request, [3, EOS, 5], (3, EOS)) == Delivery(3)
    assert banned_ids(request_of(ignore_eos=True, min_tokens=1), 0, (3, EOS)) == []


def test_every_end_id_is_banned_where_it_would_be_too_early() -> None:
    request = request_of(min_tokens=2, stop_token_ids=[5])
    assert banned_ids(request, 1, (3, EOS)) == [5, 3, EOS]
    assert banned_ids(request, 2, (3, EOS)) == []


def test_the_second_end_id_ends_an_accepted_run() -> None:
    [completion] = count_from(1, [3, 4, 5, 6], kappa=4, eos=(9, 4)).outputs
    assert completion.token_ids == [2, 3, 4]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


# --- min_tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "stop_reason"),
    [
        pytest.param({}, None, id="eos"),
        pytest.param({"stop_token_ids": [5]}, 5, id="stop-id"),
        pytest.param({"stop": "x"}, "x", id="stop-string"),
    ],
)
def test_a_stop_counts_from_min_tokens_on(params: dict[str, Any], stop_reason: object) -> None:
    stopping = EOS if stop_reason is None else 5
    request = request_of(min_tokens=3, **params)
    pieces = {stopping: "x", 7: "a"}
    delivery = deliver_run(request, [7, stopping, stopping, 7], pieces=pieces)
    assert delivery == Delivery(3, "stop", stop_reason)


def test_a_stop_string_that_ended_too_early_does_not_stop_later() -> None:
    request = request_of(min_tokens=3, stop="ab")
    delivery = deliver_run(request, [5, 6, 7, 7], pieces={5: "a", 6: "b", 7: "c"})
    assert (request.text, delivery) == ("abcc", Delivery(4))


def test_a_stop_string_that_began_too_early_stops_where_it_ends() -> None:
    request = request_of(min_tokens=3, stop="bcd")
    delivery = deliver_run(request, [5, 6, 7, 7], pieces={5: "ab", 6: "c", 7: "d"})
    assert (request.text, delivery) == ("a", Delivery(3, "stop", "bcd"))


@pytest.mark.parametrize(
    ("place", "params", "banned"),
    [
        pytest.param(0, {"min_tokens": 2}, [EOS], id="first"),
        pytest.param(1, {"min_tokens": 2}, [EOS], id="last-that-is-too-early"),
        pytest.param(2, {"min_tokens": 2}, [], id="early-enough"),
        pytest.param(0, {}, [], id="no-min-tokens"),
        pytest.param(0, {"min_tokens": 1, "stop_token_ids": [5, 6]}, [5, 6, EOS], id="stop-ids"),
        pytest.param(0, {"min_tokens": 1, "ignore_eos": True}, [], id="ignored-eos"),
        pytest.param(
            0,
            {"min_tokens": 1, "ignore_eos": True, "stop_token_ids": [EOS]},
            [EOS],
            id="ignored-eos-that-stops",
        ),
    ],
)
def test_the_stops_are_banned_where_they_would_be_too_early(
    place: int, params: dict[str, Any], banned: list[int]
) -> None:
    assert banned_ids(request_of(**params), place, EOS) == banned


def test_without_an_end_of_text_the_stop_ids_are_banned_alone() -> None:
    assert banned_ids(request_of(min_tokens=1, stop_token_ids=[5]), 0, None) == [5]


@pytest.mark.parametrize("kappa", [1, 2, 5])
def test_min_tokens_is_kept_on_every_row_of_a_verify(kappa: int) -> None:
    # From every id the model ends the text or says 0, and the drafts say that it ends.
    model = TableModel([law_of("1/4 3/4")] * 2, eos_token_id=1)
    config = {
        "method": "custom",
        "proposer": Scripted(*[[0] * i + [1] * (kappa - i) for i in range(kappa)]),
        "num_speculative_tokens": kappa,
    }
    llm = LLM(model, config, audit=True)
    params = [SamplingParams(min_tokens=7, max_tokens=20, seed=seed) for seed in range(20)]
    outputs = [output.outputs[0].token_ids for output in llm.generate([[0]] * 20, params)]
    assert all(ids[:7] == [0] * 7 for ids in outputs)
    assert any(ids == [0] * 7 + [1] for ids in outputs)
