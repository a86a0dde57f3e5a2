"""What an installation holds: every package, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_is_listed() -> None:
    folders = {"specedu.kernels"} | {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "specedu").rglob("__init__.py")
    }
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == folders


def test_torch_and_triton_are_never_pinned() -> None:
    project = SETTINGS["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["triton"]]
    bounds = [word.partition(";")[0] for word in wanted]
    assert any("torch" in bound for bound in bounds)
    assert [bound for bound in bounds if "==" in bound or "<" in bound] == []


def test_a_wheel_has_the_kernels_where_they_are_imported(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves folders behind
    for folder in ("specedu", "kernels"):
        shutil.copytree(ROOT / folder, source / folder)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("specedu-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "specedu/kernels/chain.py" in names
    assert "specedu/theory/exact.py" in names
    assert not any(name.startswith(("kernels/", "tests/")) for name in names)


def test_no_script_shadows_an_installed_package() -> None:
    """A script's folder comes first on the path: a neighbour named like a package replaces it."""
    installed = {name for name in metadata.packages_distributions() if not name.startswith("_")}
    scripts = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests/support").glob("*.py")]
    assert [str(file) for file in scripts if file.stem in installed] == []
