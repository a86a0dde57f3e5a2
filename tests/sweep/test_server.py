"""Servers: what they tell is recorded, what they lack is noted, what goes wrong is one cell's."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openai_server import OpenAIServer

from specedu.sweep.backends import BackendError
from specedu.sweep.grid import Grid, parse
from specedu.sweep.recorder import DONE, FAILED, Recorder
from specedu.sweep.run import run
from specedu.sweep.server_backend import ServerBackend, end

GRID = """
tokens: 12
repeats: 2
prompts: 2
backends:
  far:
    kind: openai
    engine: {engine}
    model: m
    timeout: {timeout}
    chat: {chat}
    extra: {{top_k: 1}}
    servers: {{plain: {{url: "{plain}"}}, a: {{url: "{a}"}}}}
methods: {{a: {{method: draft_model}}}}
sweeps: [{{kappa: [3], kind: [copy], concurrency: [1, 4]}}]
"""


def grid(plain: str, a: str, engine: str = "vllm", timeout: float = 20, chat: str = "true") -> Grid:
    return parse(GRID.format(plain=plain, a=a, engine=engine, timeout=timeout, chat=chat))


def swept(found: Grid, tmp_path: Path) -> list:
    with Recorder(tmp_path / "r.jsonl") as recorder:
        run(found, recorder)
        return recorder.records


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_a_sweep_over_two_servers(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=2) as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
        assert spec.counts["most"] == plain.counts["most"] == 4
        asked = spec.asked[-1]
    assert {r.state for r in records} == {DONE}
    assert asked["path"] == "/v1/chat/completions" and asked["max_tokens"] == 13
    assert asked["ignore_eos"] and asked["top_k"] == 1 and asked["top_p"] == 1
    assert asked["messages"][0]["role"] == "user"
    for record in records:
        assert record.versions == {"engine": "vllm", "server": "1.2.3"}
        sample = record.samples[0]
        assert sample.tokens == record.cell.requests * 13 and sample.seconds > sample.first > 0
        if record.cell.plain:
            assert sample.acceptance is None and sample.step > 0.002
        else:  # 12 tokens behind the first: four verifies that accept 2 of 3 each
            assert sample.acceptance.rates == (1.0, 1.0, 0.0) and sample.acceptance.tokens == 3
            assert sample.acceptance.verifies == 4 * record.cell.requests
            assert not sample.notes
    by = {(r.cell.plain, r.cell.concurrency): r.samples[0].rate for r in records}
    assert by[False, 1] > 1.5 * by[True, 1] and by[True, 4] > 1.5 * by[True, 1]


def test_a_page_that_lacks_a_counter_is_noted(tmp_path: Path) -> None:
    lacking = "num_drafts_total"
    with OpenAIServer() as plain, OpenAIServer(accepted=2, without=lacking) as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert {r.state for r in records} == {DONE} and sample.acceptance is None
    [note] = sample.notes
    assert "acceptance is not known: page: vllm:spec_decode_num_drafts_total missing" in note


def test_a_server_without_a_page_is_noted(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=2, page="none") as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance is None and "gives no page" in sample.notes[0]


def test_sglangs_gauge_gives_the_length_alone(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=2, page="sglang") as spec:
        records = swept(grid(plain.url, spec.url, "sglang"), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance.tokens == 3 and sample.acceptance.rates == ()
    assert any("a gauge of the last rounds" in note for note in sample.notes)


def test_llama_cpps_timings_give_the_acceptance(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=1, timings=True, page="none") as spec:
        records = swept(grid(plain.url, spec.url, "llama.cpp"), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance.tokens == 2 and sample.acceptance.kappa == 3 and not sample.notes


def test_timings_without_a_draft_say_that_none_was_made(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(timings=True, page="none") as spec:
        records = swept(grid(plain.url, spec.url, "llama.cpp"), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance.kappa == 0 and "no draft was made" in sample.notes[0]


def test_answers_without_timings_are_noted(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=1) as spec:
        records = swept(grid(plain.url, spec.url, "llama.cpp"), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance is None and "the answers have no timings" in sample.notes[0]


def test_rates_by_place_may_be_missing_from_the_page(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(accepted=2, without="per_pos") as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    sample = next(r for r in records if not r.cell.plain).samples[0]
    assert sample.acceptance.tokens == 3 and sample.acceptance.rates == ()
    assert any("rates by place are not known" in note for note in sample.notes)


def test_tokens_that_are_not_counted_are_noted(tmp_path: Path) -> None:
    with OpenAIServer(usage=False) as plain, OpenAIServer() as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    assert (
        "the server does not count tokens: each chunk counts as one" in records[0].samples[0].notes
    )


def test_a_base_model_gets_a_bare_prompt(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer() as spec:
        swept(grid(plain.url, spec.url, chat="false"), tmp_path)
        assert plain.asked[0]["path"] == "/v1/completions" and "prompt" in plain.asked[0]


def test_an_unreachable_server_fails_its_cells_alone(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with OpenAIServer() as plain:
        records = swept(grid(plain.url, nowhere), tmp_path)
    states = {(r.cell.plain, r.cell.concurrency): r for r in records}
    assert {r.state for (plain, _), r in states.items() if plain} == {DONE}
    failed = [r for (plain, _), r in states.items() if not plain]
    assert {r.state for r in failed} == {FAILED}
    assert all(f"{nowhere} cannot be reached" in r.reason for r in failed)


def test_a_server_without_the_model_says_what_it_has(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer("other") as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    reasons = {r.reason for r in records if r.state == FAILED}
    assert reasons == {f"model: 'm', expected what {spec.url} serves: 'other'"}


def test_a_silent_server_is_a_timeout(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(step=3.0) as spec:
        records = swept(grid(plain.url, spec.url, timeout=0.15), tmp_path)
    failed = [r for r in records if r.state == FAILED]
    assert len(failed) == 2 and all("was silent for 0.15 s" in r.reason for r in failed)


def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    with OpenAIServer() as plain, OpenAIServer(refuse=400) as spec:
        records = swept(grid(plain.url, spec.url), tmp_path)
    reasons = {r.reason for r in records if r.state == FAILED}
    assert reasons == {f"{spec.url}/v1/chat/completions: status 400: the context is too short"}


SERVER = """
import sys, time
sys.path.insert(0, {support!r})
from openai_server import OpenAIServer
with OpenAIServer(port=int(sys.argv[1]), accepted=2 if sys.argv[2] != "0" else None):
    time.sleep(60)
"""


def commands(tmp_path: Path, command: str) -> Grid:
    port = free_port()
    text = GRID.format(plain=f"http://127.0.0.1:{port}", a=f"http://127.0.0.1:{port}",
                       engine="vllm", timeout=20, chat="true")  # fmt: skip
    text = text.replace('"}', f'", command: "{command}"}}').replace(
        "timeout:", "start_timeout: 20\n    timeout:"
    )
    return parse(text)


def test_servers_are_started_in_turn_and_ended(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(SERVER.format(support=str(Path(__file__).parents[1] / "support")))
    found = commands(tmp_path, f"{sys.executable} {script} {{port}} {{kappa}}")
    records = swept(found, tmp_path)
    assert [r.state for r in records] == [DONE] * 4, records
    assert [r.cell.plain for r in records] == [True, True, False, False]
    with pytest.raises(BackendError, match="cannot be reached"):  # it was ended
        alone = parse(GRID.format(plain=found.backends["far"].servers["plain"].url, a="http://h",
                                  engine="vllm", timeout=20, chat="true"))  # fmt: skip
        ServerBackend(alone.backends["far"]).open(alone.cells[0])


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python -c 'raise SystemExit(chr(110) + chr(111))'", "server ended with status 1: no"),
        ("/no/such/program", "command: '/no/such/program' cannot be run"),
    ],
)
def test_a_server_that_does_not_start_says_why(tmp_path: Path, command: str, reason: str) -> None:
    records = swept(commands(tmp_path, command.replace("python", sys.executable)), tmp_path)
    assert {r.state for r in records} == {FAILED} and all(reason in r.reason for r in records)


LEADER = """
import subprocess, sys, time
child = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(60)"
)
worker = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_what_outlives_a_server_is_ended_too() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True,
                              start_new_session=True)  # fmt: skip
    worker = int(leader.stdout.readline())
    end(leader)
    leader.stdout.close()
    until = time.monotonic() + 10
    while running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(worker)


def running(pid: int) -> bool:
    """Return whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
