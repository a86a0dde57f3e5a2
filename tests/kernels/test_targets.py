"""The compile gate passes on the package's kernels and refuses each kind of planted fault."""

import json
import os
import subprocess
import sys

import pytest

from specedu.kernels.targets import FUSED_BY_DESIGN

pytest.importorskip("triton")

KERNELS = {
    "_verify_chain_kernel",
    "_verify_greedy_kernel",
    "_verify_match_kernel",
    "_verify_block_kernel",
    "_verify_race_kernel",
    "_verify_logspace_kernel",
    "_verify_lossy_kernel",
    "_uniform_kernel",
    "_exponential_kernel",
}

PLANTED = '''
"""Kernels with one fault each, launched as the package's functions launch theirs."""

import sys

import torch
import triton
import triton.language as tl

from specedu.kernels import targets

pick = None  # the recorder puts its own here


@triton.jit
def _clean_kernel(x):
    tl.store(x, tl.load(x) + 1.0)


@triton.jit
def _broken_kernel(x):
    tl.store(x, tl.no_such_function())


@triton.jit
def _spilling_kernel(x, TILE: tl.constexpr):
    ids = tl.arange(0, TILE)
    entries = tl.load(x + ids)
    running = tl.cumsum(entries, 0)
    tl.store(x + ids, tl.where(running > tl.max(entries, 0), running, entries))


@triton.jit
def _shared_kernel(x, TILE: tl.constexpr):
    tl.store(x, tl.sum(tl.load(x + tl.arange(0, TILE)), 0))


@triton.jit
def _fused_kernel(x):
    tl.store(x, tl.load(x) * tl.load(x + 1) + tl.load(x + 2))


x = torch.zeros(2048, dtype=torch.float64)
plain = {"enable_fp_fusion": False}
tight = {"maxnreg": 32, "waves_per_eu": 8}  # far fewer registers than 2048 numbers in one warp need
calls = [
    lambda: _clean_kernel[(1,)](x, **plain),
    lambda: _broken_kernel[(1,)](x, **plain),
    lambda: _spilling_kernel[(1,)](x, TILE=2048, num_warps=1, **tight, **plain),
    lambda: _shared_kernel[(1,)](x, TILE=1024, num_warps=8, **plain),
    lambda: _fused_kernel[(1,)](x),
]
here = sys.modules[__name__]
targets.SAMPLES = tuple(targets.Sample(here, "planted", call) for call in calls)
sys.exit(targets.main(["--json", "--max-shared", "0"]))
'''


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,  # three minutes of compiling on a quiet core
    )


@pytest.fixture(scope="module")
def gate():
    """The gate on the package, started as a user would: with the interpreter on."""
    done = run("-m", "specedu.kernels.targets", "--json", TRITON_INTERPRET="1")
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The gate on a module of faulty kernels, and every kernel of the package left out."""
    folder = tmp_path_factory.mktemp("planted")
    script = folder / "planted.py"
    script.write_text(PLANTED)
    done = run(str(script), TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(folder / "cache"))
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_every_kernel_compiles_without_spills_in_48_kib(gate, target):
    compiled = [entry for entry in gate[1]["compiled"] if entry["target"] == target]
    assert {entry["kernel"] for entry in compiled} >= KERNELS
    for entry in compiled:
        assert entry["seconds"] is not None, entry
        assert entry["spills"] == 0, entry
        assert entry["shared"] <= 48 * 1024, entry
        assert entry["registers"] > 0, entry


def test_no_multiplication_of_an_acceptance_rule_is_fused_into_an_addition(gate):
    """Where a rule divides, the gate leaves the division's own fused steps uncounted."""
    rules = [entry for entry in gate[1]["compiled"] if entry["kernel"].startswith("_verify_")]
    plain = [entry for entry in rules if entry["kernel"] not in FUSED_BY_DESIGN]
    assert {entry["kernel"] for entry in plain} >= {"_verify_chain_kernel", "_verify_match_kernel"}
    assert {entry["fused"] for entry in plain} == {0}


def test_the_gate_passes(gate):
    done, report = gate
    assert (done.returncode, report["unlisted"]) == (0, []), done.stderr


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        ("_broken_kernel", "does not compile"),
        ("_spilling_kernel", "spills: "),
        ("_shared_kernel", "shared memory: "),
        ("_fused_kernel", "fused multiply-adds, expected 0"),
        ("_fused_kernel", "without enable_fp_fusion=False"),
    ],
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_a_planted_fault_is_found_and_named(planted, kernel, fault, target):
    done, report = planted
    assert done.returncode == 1
    (entry,) = (
        entry
        for entry in report["compiled"]
        if (entry["kernel"], entry["target"]) == (kernel, target)
    )
    assert any(fault in words for words in entry["faults"]), entry
    assert f"{kernel} (planted) for {target}: " in done.stderr


def test_a_kernel_without_fault_is_not_named(planted):
    done, report = planted
    clean = [entry for entry in report["compiled"] if entry["kernel"] == "_clean_kernel"]
    assert [entry["faults"] for entry in clean] == [[]] * 4
    assert "_clean_kernel" not in done.stderr


def test_a_kernel_in_no_sample_is_named(planted):
    done, report = planted
    assert set(report["unlisted"]) >= KERNELS
    assert "_verify_chain_kernel: in none of the SAMPLES" in done.stderr
