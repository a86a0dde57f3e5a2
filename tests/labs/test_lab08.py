"""Lab 08 on a rented machine: the task file, the shell recipe, and the grid it makes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from specedu.grade.loading import load_module
from specedu.sweep.grid import GridError, load, parse, presets
from specedu.sweep.recorder import DONE, Record
from specedu.sweep.samples import Sample

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "labs" / "lab08"
RUN = LAB / "run.sh"
TASK = yaml.safe_load((LAB / "task.yaml").read_text("utf-8"))
local_grid = load_module("lab08_local_grid", LAB / "local_grid.py")


def recipe(*words: str, folder: Path, **settings: str) -> subprocess.CompletedProcess:
    """Call run.sh with these settings alone."""
    kept = ("PATH", "HOME", "SPECEDU_CACHE", "TRITON_INTERPRET")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"FOLDER": str(folder), "OMP_NUM_THREADS": "1", **settings}
    return subprocess.run(["bash", RUN, *words], env=environment, cwd=folder.parent,
                          capture_output=True, text=True, timeout=120)  # fmt: skip


# --- the task -------------------------------------------------------------------------------------


def test_the_task_asks_for_one_h100_and_opens_no_port() -> None:
    assert set(TASK) == {"name", "num_nodes", "workdir", "resources", "envs", "secrets", "setup",
                         "run"}  # fmt: skip
    assert TASK["num_nodes"] == 1
    assert set(TASK["resources"]) == {"accelerators", "disk_size"}
    assert TASK["resources"]["accelerators"] == "H100:1"


def test_the_tasks_grid_is_a_preset_whose_engines_it_sets_up() -> None:
    assert TASK["envs"]["GRID"] in presets()
    text, _ = local_grid.localise(TASK["envs"]["GRID"], TASK["envs"]["ENGINES"].split())
    assert parse(text).cells


def test_every_path_of_the_task_exists() -> None:
    assert (ROOT / TASK["workdir"]).resolve() == ROOT
    for step in ("setup", "run"):
        program, path, command = TASK[step].split()
        assert program == "bash" and (ROOT / path).is_file()
        assert re.search(rf"^{command}\(\)", RUN.read_text("utf-8"), re.MULTILINE)


def test_every_setting_of_the_task_is_one_of_the_recipe() -> None:
    told = RUN.read_text("utf-8").partition("set -euo")[0]
    for name, value in {**TASK["envs"], **TASK["secrets"]}.items():
        assert value is not None, f"{name}: sky asks for what has no value"
        assert re.search(rf"^#   {name}\b", told, re.MULTILINE), name


def test_skypilots_own_parser_reads_the_task(tmp_path: Path) -> None:
    pytest.importorskip("sky", reason="SkyPilot is not installed here: pip install skypilot")
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, LAB / "check_task.py"], env=environment,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resources: {'H100': 1}" in done.stdout and "ports None" in done.stdout


# --- the recipe's settings ------------------------------------------------------------------------


def test_the_recipe_is_bash() -> None:
    subprocess.run(["bash", "-n", RUN], check=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GRID", "h1000", "a YAML file, or one of: cpu"),
        ("ENGINES", "vllm,sglang", "vllm, sglang, both"),
        ("SERVERS", "stopped", "start or running"),
        ("MAX_MINUTES", "-1", "at least 0"),
        ("MAX_MINUTES", "an hour", "at least 0"),
        ("PRICE", "2,50", "at least 0"),
        ("VLLM_VERSION", "latest", "a version like"),
        ("SGLANG_VERSION", "0.5; true", "a version like"),
        ("RESUME_FROM", "/no/such/file", "a file of records"),
        ("PYTHON", "false", "Python 3.11 or newer"),
        ("FOLDER", "/dev/null/folder", "a folder that can be made"),
        ("OUT", "/dev/null/out", "a folder that can be made"),
    ],
)
def test_a_bad_setting_is_refused(name: str, value: str, expected: str, tmp_path: Path) -> None:
    done = recipe("report", folder=tmp_path / "lab", **{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"run.sh: {name}: '{value}', expected ")
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweeep"], "run.sh: command: 'sweeep', expected setup, sweep, report, serve"),
        (["setup", "now"], "run.sh: arguments: 'setup now', expected setup alone"),
        (["report"], "expected the folder of a sweep: run.sh sweep"),
        (["sweep"], "expected one with environments: run.sh setup"),
        (["serve", "vllm", "m"], "run.sh: serve: 'vllm m', expected ENGINE MODEL PORT"),
        (["serve", "tgi", "m", "1", "1"], "run.sh: ENGINE: 'tgi', expected vllm or sglang"),
        (["serve", "vllm", "m", "0", "1"], "run.sh: PORT: '0', expected a whole number from 1"),
        (["serve", "vllm", "m", "1", "0"], "run.sh: REQUESTS: '0', expected a whole number from 1"),
        (["serve", "vllm", "m", "1", "1", "d", "65"], "run.sh: KAPPA: '65', expected a whole"),
        (["serve", "vllm", "m", "1", "1", "d", "3", "x"], "run.sh: LENGTH: 'x', expected tokens"),
        (["serve", "vllm", "m", "1", "1"], "run.sh: ENGINE: 'vllm', expected one that is set up"),
    ],
)
def test_a_bad_command_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    done = recipe(*words, folder=tmp_path / "lab")
    assert done.returncode == 2 and message in done.stderr


# --- the grid -------------------------------------------------------------------------------------


def test_the_cells_are_the_presets() -> None:
    """Commands are no part of a cell: records go on, whoever started the servers."""
    text, left = local_grid.localise("h100", ["vllm", "sglang"], token=True)
    assert left == []
    assert {c.key for c in parse(text).cells} == {c.key for c in load("h100").cells}


def test_four_engines_share_one_grid_and_what_starts_them_is_here() -> None:
    found = load(str(LAB / "engines-cpu.yaml"))
    assert list(found.backends) == ["specedu", "transformers", "llama.cpp", "vllm"]
    assert {backend.dtype for backend in found.backends.values()} == {"bfloat16"}
    asked = [{(c.method, c.settings, c.kappa, c.kind, c.concurrency) for c in found.cells
              if c.backend == name} for name in found.backends]  # fmt: skip
    assert asked[0] and all(cells == asked[0] for cells in asked)
    for server in found.backends["llama.cpp"].servers.values():
        script = re.search(r"\S+\.py", server.command)[0]
        assert (ROOT / script).is_file()


def test_every_server_takes_as_many_requests_as_the_grid_sends() -> None:
    text, _ = local_grid.localise("h100", ["vllm", "sglang"], token=True)
    found = parse(text)
    most = max(cell.concurrency for cell in found.cells)
    commands = [s.command.split() for b in found.backends.values() for s in b.servers.values()]
    assert len(commands) == 12
    for command in commands:
        assert command[:3] == ["bash", str(RUN), "serve"] and command[6] == str(most)


def test_a_synthetic_method_takes_the_draft_beside_it() -> None:
    text, _ = local_grid.localise("h100", ["vllm"], token=True)
    servers = parse(text).backends["vllm-llama3-8b"].servers
    assert servers["synthetic 2.5"].command.endswith(" meta-llama/Llama-3.2-1B '{kappa}' 2.5")


def test_without_a_token_gated_models_are_left_out() -> None:
    text, left = local_grid.localise("h100", ["vllm"])
    assert list(parse(text).backends) == ["vllm-qwen3-8b"]
    assert "vllm-llama3-8b is left out: meta-llama/Meta-Llama-3-8B is gated" in left[0]


def test_running_servers_get_no_command() -> None:
    text, left = local_grid.localise("h100", [], start=False)
    assert left == [] and "command" not in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engines": []}, "nothing of it can be served here; vllm-qwen3-8b is left out: its eng"),
        ({"engines": ["vllm"], "backends": ["x"]}, "BACKENDS: 'x', expected some of vllm-qwen3-8b"),
        ({"engines": ["vllm"], "backends": ["sglang-qwen3-8b"]}, "'sglang', expected one of ENGI"),
    ],
)
def test_a_grid_that_cannot_be_served_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(GridError, match=re.escape(message)):
        local_grid.localise("h100", **settings)


# --- a run ----------------------------------------------------------------------------------------

GRID = """
name: tiny
tokens: 8
repeats: 1
prompts: 1
backends:
  here:
    kind: openai
    engine: vllm
    model: m
    servers: {{plain: {{url: "http://127.0.0.1:{port}"}}, a: {{url: "http://127.0.0.1:{port}"}}}}
methods: {{a: {{method: draft_model, model: d, rejection_sample_method: synthetic,
               synthetic_acceptance_length: 3}}}}
sweeps: [{{kappa: [3], kind: [copy], concurrency: [1, 2]}}]
"""
VLLM = """#!{python}
import json, sys, time
sys.path.insert(0, {support!r})
from openai_server import OpenAIServer
command, model, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2], strict=True))
draft = json.loads(given.get("--speculative-config", "{{}}"))
print(json.dumps([command, given, draft]), flush=True)
accepted = int(draft["synthetic_acceptance_length"]) - 1 if draft else None
with OpenAIServer(model, accepted=accepted, port=int(given["--port"])):
    time.sleep(60)
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_sweep_goes_on_starts_the_servers_and_reports(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    text = GRID.format(port=port)
    (tmp_path / "tiny.yaml").write_text(text)
    first = Sample(rate=1.0, tokens=9, seconds=9.0, first=1.0, step=1.0)
    (tmp_path / "earlier.jsonl").write_text(Record(parse(text).cells[0], DONE, "", (first,)).line())
    folder = tmp_path / "lab"
    bin_ = folder / "project" / "bin"
    program(bin_ / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program(bin_ / "specedu", f'#!/bin/sh\n[ $1 = doctor ] && exec echo well\n'
                              f'exec {sys.executable} -m specedu.cli "$@"\n')  # fmt: skip
    support = str(ROOT / "tests" / "support")
    vllm = VLLM.format(python=sys.executable, support=support)
    program(folder / "vllm" / "bin" / "vllm", vllm)
    settings = {"GRID": "tiny.yaml", "PRICE": "2.5", "MAX_MINUTES": "1", "folder": folder}
    done = recipe("sweep", **settings, RESUME_FROM="earlier.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("well", "4 cells, 3 of them left", "cost: about 0.0", "3 cells measured, 0 fail"):
        assert words in done.stdout
    out = folder / "sweep-tiny"
    said = (out / "logs" / f"vllm-{port}.log").read_text("utf-8").splitlines()[-1]
    command, given, draft = json.loads(said)
    assert (command, given["--host"], given["--max-num-seqs"]) == ("serve", "127.0.0.1", "2")
    assert (draft["model"], draft["num_speculative_tokens"]) == ("d", 3)
    last = Record.of((out / "records.jsonl").read_text("utf-8").splitlines()[-1])
    assert last.samples[0].acceptance.tokens == 3
    (out / "report.html").unlink()
    assert recipe("report", **settings).returncode == 0
    assert (out / "report.html").exists()
