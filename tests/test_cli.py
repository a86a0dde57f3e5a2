"""``specedu law``: right rules pass, broken ones are shown, mistakes in the call are named."""

from __future__ import annotations

import importlib.metadata
import itertools
from pathlib import Path

import pytest

from specedu import cli
from specedu.kernels import backend
from specedu.models.loading import DEFAULT, EMBEDDED

# A module name is imported once a process: every user's file gets its own.
_NAMES = itertools.count()

USES_THE_COIN_TWICE = """
from torch.nn.functional import pad
from specedu.kernels import verify_chain

def rule(p, q, drafts, cu, accept_coins, final_coins, *, max_spec_len):
    first = pad(cu[:-1], (1, 0)).long()
    return verify_chain(p, q, drafts, cu, accept_coins, accept_coins[first],
                        max_spec_len=max_spec_len)
"""

CLOSED_INTERVAL = """
import torch

def rule(p, q, drafts, cu, accept_coins, final_coins, *, max_spec_len):
    token_ids = torch.full((len(cu), max_spec_len + 1), -1)
    accepted, start = [], 0
    for r, end in enumerate(cu.tolist()):
        i = 0
        while i < end - start and (
            accept_coins[start + i] * q[start + i, drafts[start + i]]
            <= p[start + r + i, drafts[start + i]]
        ):
            token_ids[r, i] = drafts[start + i]
            i += 1
        row = p[start + r + i].double()
        if i < end - start and (row > q[start + i]).any():
            row = (p[start + r + i] - q[start + i]).clamp(min=0).double()
        token_ids[r, i] = int((row.cumsum(0) > final_coins[r] * row.sum()).int().argmax())
        accepted.append(i)
        start = end
    return token_ids, torch.tensor(accepted)
"""


@pytest.fixture
def law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Run ``specedu law`` on a user's file and return (exit status, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*cli.sys.path])

    def run(source: str, *options: str) -> tuple[int, str, str]:
        name = f"users_rule_{next(_NAMES)}"
        Path(f"{name}.py").write_text(source, encoding="utf-8")
        status = cli.main(["law", f"{name}:rule", *options])
        return status, *capsys.readouterr()

    return run


def test_the_projects_own_rule_is_exact(capsys: pytest.CaptureFixture) -> None:
    status = cli.main(["law", "specedu.kernels:verify_chain", "--vocab", "2", "--all"])
    out = capsys.readouterr().out
    assert status == cli.RIGHT
    assert "the target's law, deviation 0, in all 40 settings; every coin endpoint right" in out
    assert "one-hot" in out
    assert "counter-example" not in out


def test_the_kernel_is_asked_through_its_backend(capsys: pytest.CaptureFixture) -> None:
    words = ["--p", "1/4 3/4", "--q", "3/4 1/4", "--kappa", "1", "--backend", "triton"]
    assert cli.main(["law", "specedu.kernels:verify_chain", *words]) == cli.RIGHT
    assert "in all 4 settings" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["verify_block", "verify_threshold"])
def test_the_other_rules_that_take_coins_are_exact(
    rule: str, capsys: pytest.CaptureFixture
) -> None:
    cuts = ["--cuts", "block"] if rule == "verify_block" else []
    words = ["law", f"specedu.kernels:{rule}", "--vocab", "2", "--kappa", "1", "2", *cuts]
    assert cli.main(words) == cli.RIGHT
    assert "the target's law, deviation 0, in all 40 settings" in capsys.readouterr().out


def test_block_verification_without_its_cuts_is_exact_to_within_a_bound(
    capsys: pytest.CaptureFixture,
) -> None:
    words = ["--p", "1/4 3/4", "--q", "3/4 1/4", "--kappa", "2"]
    assert cli.main(["law", "specedu.kernels:verify_block", *words]) == cli.RIGHT
    assert "the target's law" in capsys.readouterr().out


def test_the_hole_of_transformers_rule_is_named(capsys: pytest.CaptureFixture) -> None:
    words = ["law", "specedu.theory.adapters:transformers_rule", "--vocab", "2", "--kappa", "1"]
    assert cli.main(words) == cli.WRONG
    out = capsys.readouterr().out
    assert "the target's law, deviation 0, in all 20 settings; 2 coin endpoints wrong" in out
    assert "emits [0, 1], expected [2]: id 0 has no probability" in out


def test_transformers_ensemble_weight_is_biased(capsys: pytest.CaptureFixture) -> None:
    words = ["--p", "1/4 3/4", "--q", "3/4 1/4", "--kappa", "1"]
    assert cli.main(["law", "specedu.theory.adapters:transformers_ensemble", *words]) == cli.WRONG
    assert "NOT the target's law" in capsys.readouterr().out


def test_a_broken_rule_is_shown_with_its_law_and_a_small_counter_example(law) -> None:
    status, out, _ = law(USES_THE_COIN_TWICE, "--p", "3/8 3/8 1/4", "--q", "1/8 1/8 3/4",
                         "--kappa", "1")  # fmt: skip
    assert status == cli.WRONG
    assert "NOT the target's law in 4 of 4 settings" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["2", "0", "1/4", "3/32", "5/32"] in lines  # text 2 0: emitted, target, difference
    at = lines.index(["Smallest", "counter-example"])
    example = [" ".join(words) for words in lines[at + 1 : at + 5]]
    assert example == [
        "row 0 p = (3/8 3/8 1/4) q = (1/8 1/8 3/4) draft 0 u = 1/2",
        "row 1 p = (3/8 3/8 1/4) bonus",
        "w = 1/3",
        "emitted [0, 1], and the contract's rule emits [0, 0]",
    ]


def test_a_closed_interval_has_the_right_law_and_a_wrong_endpoint(law) -> None:
    status, out, _ = law(CLOSED_INTERVAL, "--vocab", "2", "--kappa", "1")
    assert status == cli.WRONG
    assert "the target's law, deviation 0, in all 10 settings; 2 coin endpoints wrong" in out
    assert "emits [0, 1], expected [2]: id 0 has no probability" in out
    assert "one-hot drafts left out, since it does not take draft_probs=None" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "rule: 'nothing', expected MODULE:FUNCTION"),
        (["no_such_module:rule"], "No module named 'no_such_module'"),
        (["specedu.kernels:nothing"], "has no attribute 'nothing'"),
        (["specedu.kernels:__name__"], "is a str, expected a function"),
        (["specedu.kernels:verify_chain", "--p", "1/2 1/2"], "--p and --q go together"),
        (
            ["specedu.kernels:verify_chain", "--p", "1/2 1/2", "--q", "1 0 0"],
            "--p has 2 ids and --q 3",
        ),
        (["specedu.kernels:verify_greedy"], "raised TypeError"),
        (
            ["specedu.kernels:verify_chain", "--backend", "cuda"],
            "backend: 'cuda', expected None or",
        ),
    ],
)
def test_a_mistake_in_the_call_is_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["law", *words]) == cli.USAGE
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--p", "1/2 1/3"], "'1/2 1/3' sums to 5/6, expected entries >= 0 that sum to 1"),
        (["--vocab", "9"], "invalid choice: 9"),
        (["--kappa", "-1"], "invalid choice: -1 (choose from 0, 1, 2, 3, 4)"),
    ],
)
def test_an_option_out_of_range_is_refused_with_the_range(
    words: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["law", "specedu.kernels:verify_chain", *words])
    assert stop.value.code == cli.USAGE
    assert message in capsys.readouterr().err


def test_a_rule_that_returns_no_run_is_told_so(law) -> None:
    status, _, errors = law("def rule(*arguments, **options):\n    return 7\n")
    assert status == cli.USAGE
    assert "MalformedRun: the rule returned int, expected (token_ids, num_accepted)" in errors


# --- specedu doctor -------------------------------------------------------------------------------


def test_the_doctor_knows_whether_the_real_model_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = EMBEDDED[DEFAULT], tmp_path / "not-made-yet" / "cache"
    monkeypatch.setenv("SPECEDU_CACHE", str(cache))
    assert cli.real_model(model) == "after a download of 93 MB at first use"
    monkeypatch.setattr(cli, "NEEDED_BYTES", 10**18)
    assert f"GB free in {tmp_path}, expected 1000000000" in cli.real_model(model)
    cache.mkdir(parents=True)
    (cache / model.wheel).touch()
    assert cli.real_model(model) == f"yes, converted at first use from {model.wheel}"
    (cache / model.name).mkdir()
    assert cli.real_model(model) == "yes, cached"


def test_the_doctor_tells_the_versions_that_figures_need(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"anywidget": "0.11.0", "ipywidgets": "8.1.9"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert cli.widgets() == "yes, anywidget 0.11.0, ipywidgets 8.1.9"
    assert dict(cli.abilities(kernels=True))["figures in a notebook"] == cli.widgets()
    del versions["ipywidgets"]
    assert cli.widgets() == "no, pip install ipywidgets"


def test_the_doctor_tells_what_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_int4() -> None:
        raise ValueError("quantization: 'int4', expected None: no such kernel")

    monkeypatch.setattr(cli, "int4_products", no_int4)
    monkeypatch.setattr(cli, "packing_works", lambda dtype: False)
    monkeypatch.setattr(backend, "interpreting", lambda: False)
    monkeypatch.setattr(cli.torch.cuda, "is_available", lambda: False)
    found = dict(cli.abilities(kernels=False))
    assert found["kernels, interpreted"] == "no, the interpreter is off"
    assert found["kernels on a GPU"] == "no GPU"
    assert found["a draft in four bits"].endswith("no such kernel")
    assert found["packed products"] == "none, plain products serve"
    monkeypatch.setattr(backend, "interpreting", lambda: True)
    monkeypatch.setattr(cli.torch.cuda, "is_available", lambda: True)
    found = dict(cli.abilities(kernels=True))
    assert found["kernels, interpreted"] == "yes"
    assert found["kernels on a GPU"] == "no, the interpreter is on"
