"""The package's import name, the variable that it sets, and Triton in every state it may be in.

Each state is a process of its own that prints what it found; the tests read that. Where a package
must be absent, the process gets a site folder of links to all installed packages but that one.
"""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SET_BY_US = ("TRITON_INTERPRET",)
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}

PREAMBLE = """
import json, os, sys
facts = {}

def error(run):
    try:
        run()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
"""

# A verify step with one accepted draft: ids 1 and 5, then nothing.
VERIFY = """
import torch

def verify(backend):
    int32 = lambda *ids: torch.tensor(ids, dtype=torch.int32)
    result = specedu.kernels.verify_greedy(
        torch.tensor([1, 5, 3, 4]), int32(1, 2, 3), int32(3), max_spec_len=3, backend=backend
    )
    return result.token_ids.tolist()

facts["variable"] = os.environ.get("TRITON_INTERPRET")
facts["twin"] = verify("torch")
facts["unasked"] = verify(None)
facts["refused"] = error(lambda: verify("triton"))
"""

# What a model of transformers imports, and one forward pass of it.
LLAMA = """
import torch, transformers.integrations.hub_kernels
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_kernels_available

facts["available"] = is_kernels_available()
sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
facts["logits"] = list(LlamaForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits.shape)
"""

WITHOUT_PACKAGE = """
facts["bare"] = error(lambda: exec("import kernels"))
import specedu
facts["specedu"] = specedu.kernels.__name__
"""

AFTER_TRANSFORMERS = """
facts["used"] = {
    text: error(lambda: exec(text))
    for text in (
        "from kernels import verify_chain",
        "import kernels; kernels.verify_chain",
        "import kernels.chain",
    )
}
"""

WITH_PACKAGE = """
import kernels
facts["version"], facts["file"] = kernels.__version__, kernels.__file__
import specedu
facts["specedu"], facts["ours"] = specedu.kernels.__name__, specedu.kernels.__file__
"""

WITHOUT_TRITON = """
import specedu
import specedu.kernels.targets
facts["importable"] = error(lambda: exec("import triton"))
facts["gate"] = specedu.kernels.targets.main([])
"""


def facts(script, *, cwd, without=None, site=None, **environment):
    """Run ``script`` in a fresh Python and return its facts.

    ``without`` names a package that is to be absent; ``site`` is then a folder for the links.
    """
    command = [sys.executable]
    if without is not None:
        link_site_packages(site, without)
        command.append("-S")  # no site folder but the linked one, whose .pth files still count
        script = f"import site; site.addsitedir({str(site)!r})\n{script}"
    kept = {name: value for name, value in os.environ.items() if name not in SET_BY_US}
    done = subprocess.run(
        [*command, "-c", PREAMBLE + script + "\nprint(json.dumps(facts))"],
        cwd=cwd,
        env=kept | NO_GPU | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def link_site_packages(site, without):
    """Fill ``site`` with links to every installed package but one."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            if entry.name.split("-")[0] not in (without, "__pycache__"):
                (site / entry.name).symlink_to(entry)


def installed(*packages):
    """A mark that skips where one of the packages is missing."""
    missing = []
    for name in packages:
        try:
            version(name)  # by its metadata: this repository's folder could pass for "kernels"
        except PackageNotFoundError:
            missing.append(name)
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


# --- the name "kernels" ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside_the_folder(tmp_path_factory):
    """The repository root, Hugging Face's package absent."""
    script = WITHOUT_PACKAGE + LLAMA + AFTER_TRANSFORMERS
    return facts(script, cwd=ROOT, without="kernels", site=tmp_path_factory.mktemp("site"))


def test_without_the_package_the_error_gives_the_right_name(tmp_path):
    found = facts(WITHOUT_PACKAGE, cwd=ROOT, without="kernels", site=tmp_path)
    assert found["bare"].startswith("ImportError: ")
    assert "specedu.kernels" in found["bare"]
    assert found["specedu"] == "specedu.kernels"


@installed("transformers")
def test_without_the_package_transformers_runs_a_model(beside_the_folder):
    assert beside_the_folder["available"] is False
    assert beside_the_folder["logits"] == [1, 3, 16]


@installed("transformers")
def test_after_transformers_every_use_of_the_folder_gives_the_right_name(beside_the_folder):
    for statement, raised in beside_the_folder["used"].items():
        assert raised is not None, statement
        assert raised.startswith("ImportError: "), statement
        assert "specedu.kernels" in raised, statement


@pytest.fixture(scope="module")
def with_the_package(tmp_path_factory):
    """Hugging Face's package installed: from the repository root, and from elsewhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return {
        name: facts(WITH_PACKAGE + LLAMA, cwd=cwd)
        for name, cwd in (("root", ROOT), ("elsewhere", elsewhere))
    }


@installed("transformers", "kernels")
@pytest.mark.parametrize("place", ["root", "elsewhere"])
class TestWithThePackage:
    def test_the_name_is_the_package(self, with_the_package, place):
        found = with_the_package[place]
        assert found["version"] == version("kernels")
        assert ROOT / "kernels" not in Path(found["file"]).resolve().parents

    def test_our_folder_keeps_its_own_name(self, with_the_package, place):
        found = with_the_package[place]
        assert found["specedu"] == "specedu.kernels"
        assert found["ours"] != found["file"]

    def test_transformers_sees_it_and_runs_a_model(self, with_the_package, place):
        found = with_the_package[place]
        assert found["available"] == with_the_package["elsewhere"]["available"]
        assert found["logits"] == [1, 3, 16]


# --- TRITON_INTERPRET and the states of Triton ----------------------------------------------------

ACCEPTED = [[1, 5, -1, -1]]


def test_without_a_gpu_the_interpreter_is_switched_on(tmp_path):
    found = facts("import specedu\n" + VERIFY, cwd=tmp_path)
    assert found["variable"] == "1"
    assert found["refused"] is None


@pytest.mark.parametrize(
    ("script", "variable", "environment"),
    [
        pytest.param("import specedu\n", "0", {"TRITON_INTERPRET": "0"}, id="variable-is-0"),
        pytest.param("import triton, specedu\n", None, {}, id="triton-was-first"),
    ],
)
def test_without_the_interpreter_twins_serve_and_the_error_tells_the_way_out(
    tmp_path, script, variable, environment
):
    found = facts(script + VERIFY, cwd=tmp_path, **environment)
    assert found["variable"] == variable, "a value that is set, or too late to set, is left alone"
    assert found["twin"] == found["unasked"] == ACCEPTED
    assert found["refused"].startswith("RuntimeError: ")
    assert "set TRITON_INTERPRET=1 or import specedu before" in found["refused"]


@pytest.fixture(scope="module")
def no_triton(tmp_path_factory):
    site, cwd = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    return facts(WITHOUT_TRITON + VERIFY, cwd=cwd, without="triton", site=site, PYTHONPATH="")


def test_without_triton_twins_serve_and_the_kernel_is_refused(no_triton):
    assert no_triton["importable"].startswith("ModuleNotFoundError: ")
    assert no_triton["twin"] == no_triton["unasked"] == ACCEPTED
    assert no_triton["refused"].startswith("RuntimeError: ")
    assert "triton is not installed" in no_triton["refused"]


def test_without_triton_the_compile_gate_does_not_pass(no_triton):
    assert no_triton["gate"] == 2
