"""What a running server says of its speculation: both engines' pages, read, subtracted, judged.

``pages/vllm-*.txt`` were read from a server (see ``pages/README.md``); ``pages/sglang.txt`` is in
the form that SGLang documents.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specedu.advise import page
from specedu.metrics import SpecDecodeStats

PAGES = Path(__file__).parent / "pages"


def vllm_page(drafts: int, drafted: int, per_pos: list[int], running: int = 3) -> str:
    lines = [
        f'vllm:num_requests_running{{engine="0"}} {running}.0',
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0',
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}.0',
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {sum(per_pos)}.0',
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {n}.0'
            for i, n in enumerate(per_pos)
        ),
    ]
    return "\n".join(lines) + "\n"


def without(text: str, name: str) -> str:
    return "\n".join(line for line in text.splitlines() if name not in line) + "\n"


# --- reading --------------------------------------------------------------------------------------


def test_a_page_gives_its_rates_and_their_uncertainty() -> None:
    reading = page.interpret(page.read(vllm_page(100, 300, [70, 50, 40])))
    assert reading.rates == (0.7, 0.5, 0.4) and reading.measured and reading.running == 3
    assert reading.tokens[0] == 2.6 and reading.kappa == 3
    # n is 0, 1, 2, 3 in 30, 20, 10, 40 of 100 steps: variance 1.64
    assert reading.tokens[1] == pytest.approx((1.64 / 100) ** 0.5)


def test_engines_of_one_server_are_added() -> None:
    one = vllm_page(100, 300, [70, 50, 40])
    both = page.read(one + one.replace('engine="0"', 'engine="1"'))
    assert both.counts["spec_decode_num_drafts"] == 200
    assert both.accepted_per_pos == (140.0, 100.0, 80.0) and both.running == 6


def test_this_engines_own_page_is_read() -> None:
    stats = SpecDecodeStats()
    for accepted in (0, 1, 3, 3):
        stats.observe(3, accepted, accepted + 1)
    reading = page.interpret(page.read(stats.prometheus()))
    assert list(reading.rates) == stats.acceptance_rates
    assert reading.tokens[0] == stats.mean_acceptance_length


def test_two_readings_give_what_lies_between() -> None:
    before, after = (
        page.read(vllm_page(*counts)) for counts in ((100, 300, [70, 50]), (150, 450, [110, 60, 9]))
    )
    seen = page.between(before, after)
    assert seen.counts["spec_decode_num_drafts"] == 50
    assert seen.accepted_per_pos == (40.0, 10.0, 9.0) and not seen.notes


def test_a_restart_between_two_readings_is_noticed() -> None:
    before, after = (
        page.read(vllm_page(*counts)) for counts in ((100, 300, [70, 50]), (20, 60, [10, 5]))
    )
    seen = page.between(before, after)
    assert seen.counts["spec_decode_num_drafts"] == 20 and seen.accepted_per_pos == (10.0, 5.0)
    assert any("spec_decode_num_drafts_total fell" in note for note in seen.notes)


def test_sglangs_length_gives_one_alpha() -> None:
    reading = page.interpret(page.read((PAGES / "sglang.txt").read_text()), kappa=3)
    assert reading.alpha == pytest.approx(0.7) and reading.tokens == (2.533, 0.0)
    assert not reading.measured and reading.running == 12


def test_rates_by_place_may_be_missing() -> None:
    text = without(vllm_page(100, 300, [70, 50, 40]), "per_pos")
    reading = page.interpret(page.read(text))
    assert not reading.measured and any("per_pos_total is missing" in n for n in reading.notes)
    assert sum(reading.rates) == pytest.approx(1.6)


def test_drafts_of_several_lengths_are_noted() -> None:
    reading = page.interpret(page.read(vllm_page(100, 210, [70, 50, 40])))
    assert "2.10 drafts a verify on average, of 3" in reading.notes


@pytest.mark.parametrize("name", page.COUNTERS)
def test_a_missing_counter_is_named(name: str) -> None:
    text = without(vllm_page(100, 300, [70, 50, 40]), f"{name}_total")
    with pytest.raises(page.PageError, match=f"page: vllm:{name}_total missing, expected"):
        page.read(text)


@pytest.mark.parametrize(
    ("text", "kappa", "message"),
    [
        ("up 1\n", None, "no name begins with vllm: or sglang:"),
        ("not { a page", None, "not in Prometheus' text format"),
        ("sglang:num_running_reqs 3\n", 3, "sglang:spec_accept_length missing"),
        ("sglang:spec_accept_length 0\n", 3, "spec_accept_length is 0, expected at least 1"),
        ("sglang:spec_accept_length 2.5\n", None, "--num-spec-tokens: missing"),
        ("sglang:spec_accept_length 2.5\n", 1, "--num-spec-tokens: 1, expected at least 2"),
        (vllm_page(0, 0, [0]), None, "num_drafts_total is 0, expected drafts"),
    ],
)
def test_what_a_page_lacks_is_named(text: str, kappa: int | None, message: str) -> None:
    with pytest.raises(page.PageError, match=message):
        page.interpret(page.read(text), kappa)


def test_pages_of_two_engines_are_not_subtracted() -> None:
    vllm, sglang = page.read(vllm_page(1, 3, [1])), page.read((PAGES / "sglang.txt").read_text())
    with pytest.raises(page.PageError, match="sglang: after vllm:, expected the same engine"):
        page.between(vllm, sglang)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(page.PageError, match="'http://127.0.0.1:9/metrics' gives no page"):
        page.fetch("http://127.0.0.1:9")
    with pytest.raises(page.PageError, match="--metrics: 'nowhere.txt', expected a URL or a file"):
        page.fetch("nowhere.txt")


# --- the verdict ----------------------------------------------------------------------------------

READING = page.interpret(page.read(vllm_page(10_000, 30_000, [7000, 4900, 3430], running=200)))


def test_at_seven_tenths_three_drafts_of_the_1b_are_kept_up_to_150_requests() -> None:
    words = page.verdict(READING, c=0.165, T_star=295)
    assert words[1].startswith("KEEP IT at low load: 1.69")
    assert words[2:] == [
        "Above 150 requests at once it loses (modelled).",
        "200 run now: ABOVE that.",
    ]


def test_drafts_that_are_hardly_accepted_are_switched_off() -> None:
    reading = page.interpret(page.read(vllm_page(10_000, 30_000, [1000, 100, 10])))
    words = page.verdict(reading, c=0.165)
    assert words[1].startswith("SWITCH IT OFF") and words[2].startswith("No number of drafts gains")


def test_few_counts_give_no_clear_gain() -> None:
    reading = page.interpret(page.read(vllm_page(5, 15, [3, 1, 0])))
    assert page.verdict(reading, c=0.2)[1].startswith("NO CLEAR GAIN")


def test_fewer_drafts_are_advised_where_the_last_ones_do_not_pay() -> None:
    reading = page.interpret(page.read(vllm_page(10_000, 70_000, [7000, 3000, 500, 9, 3, 1, 0])))
    assert "2 drafts would gain" in page.verdict(reading, c=0.1)[2]


def test_more_drafts_are_advised_where_the_last_place_still_pays() -> None:
    assert "More drafts may gain more" in page.verdict(READING, c=0.01)[2]


def test_without_a_cost_the_bound_is_told() -> None:
    words = page.verdict(READING)
    assert len(words) == 2 and "costs less than 0.51" in words[1]


def test_an_alpha_is_found_for_every_length() -> None:
    for length in (1.0, 1.5, 3.9, 4.0):
        alpha = page.alpha_of_length(length, 3)
        assert page.expected_tokens(alpha, 3) == pytest.approx(length)
    with pytest.raises(ValueError, match="length: 5, expected 1 to 4"):
        page.alpha_of_length(5, 3)


def test_readings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        READING.kappa = 2


# --- pages of a real server -----------------------------------------------------------------------


def test_a_servers_pages_are_read_and_subtracted() -> None:
    before, after = (
        page.read((PAGES / f"vllm-{name}.txt").read_text()) for name in ("before", "after")
    )
    assert before.counts["spec_decode_num_drafts"] == 5 and before.running == 0
    reading = page.interpret(page.between(before, after))
    assert reading.rates == (16 / 21, 16 / 21, 15 / 21) and reading.kappa == 3
    assert reading.tokens[0] == 1 + 47 / 21
    assert page.verdict(reading, c=0.0)[1].startswith("KEEP IT at low load: 3.24")
