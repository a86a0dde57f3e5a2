"""The project's own Llama on the paged cache: weights of a transformers checkpoint, flat batches.

One forward pass serves plain decoding, verification and prompt chunks alike: tokens of all requests
lie behind each other, each is written to its slot, and each request's rows attend to its own
blocks. The three projections of attention and the two of the MLP are fused into one product each.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .base import ForwardBatch
from .linear import int4_products, products, to_int8


class Layer(NamedTuple):
    """One layer's weights; those of products in whatever layout the products take."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class LlamaModel:
    """A Llama checkpoint on the paged cache.

    Attributes:
        vocab_size: ids lie below it.
        max_model_len: the context it was trained for.
        eos_token_id: the id that ends a text.
    """

    def __init__(
        self,
        config: object,
        weights: dict[str, torch.Tensor],
        dtype: torch.dtype = torch.float32,
        packed: bool | None = None,
        quantized: bool = False,
    ) -> None:
        self.config, self.weights = config, weights
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings
        self.eos_token_id = config.eos_token_id
        self.dtype = dtype
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.eps = config.rms_norm_eps
        self._prepare, self._linear = int4_products() if quantized else products(dtype, packed)
        weight = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.embedding = weight["model.embed_tokens.weight"]
        self.final_norm = weight["model.norm.weight"]
        # Absent where it is tied: the embedding is gathered from, and streamed as the head.
        head = weight.get("lm_head.weight", self.embedding)
        self.head = to_int8(head) if quantized else self._prepare(head)
        self.layers = [self._layer(weight, i) for i in range(config.num_hidden_layers)]
        self.cos, self.sin = rotary_tables(config, self.head_dim)

    @classmethod
    def load(
        cls, folder: Path, dtype: torch.dtype = torch.float32, packed: bool | None = None
    ) -> LlamaModel:
        """Read a checkpoint's folder with ``config.json`` and safetensors.

        Args:
            folder: of the checkpoint.
            dtype: of weights and products.
            packed: whether products use oneDNN's layout; None lets a probe decide.

        Raises:
            ValueError: it is no Llama, or uses a part that this model does not have.
        """
        from safetensors.torch import load_file
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        check_config(config)
        weights: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= load_file(file)
        return cls(config, weights, dtype, packed)

    def first_layers(self, count: int) -> LlamaModel:
        """Return the first ``count`` layers with the same norm and head; weights are shared.

        Raises:
            ValueError: there are fewer layers, or none would be left out.
        """
        if not 1 <= count < len(self.layers):
            legal = f"1 to {len(self.layers) - 1}, one less than the layers"
            raise ValueError(f"early_exit_layers: {count}, expected {legal}")
        shallow = copy.copy(self)
        shallow.layers = self.layers[:count]
        return shallow

    def quantized(self) -> LlamaModel:
        """Return the model with its products' weights in four bits, its head's in eight.

        Made from the same weights. SmolLM2's come out of a four-bit file, so that little is lost:
        as a draft of its float32 self it flatters the acceptance rate.

        Raises:
            ValueError: torch's four-bit products do not run here.
        """
        return LlamaModel(self.config, self.weights, torch.bfloat16, quantized=True)

    def _layer(self, weight: dict[str, torch.Tensor], i: int) -> Layer:
        def of(name: str) -> torch.Tensor:
            return weight[f"model.layers.{i}.{name}.weight"]

        attention = [of(f"self_attn.{name}_proj") for name in ("q", "k", "v")]
        return Layer(
            of("input_layernorm"),
            self._prepare(torch.cat(attention)),
            self._prepare(of("self_attn.o_proj")),
            of("post_attention_layernorm"),
            self._prepare(torch.cat([of("mlp.gate_proj"), of("mlp.up_proj")])),
            self._prepare(of("mlp.down_proj")),
        )

    def make_cache(self, num_blocks: int, block_size: int) -> torch.Tensor:
        """Return float32 ``[layers, 2, num_blocks, block_size, kv_heads, head_dim]``: keys, values.

        The cache is float32 whatever the weights are: attention is computed in it.
        """
        shape = (len(self.layers), 2, num_blocks, block_size, self.kv_heads, self.head_dim)
        return torch.zeros(shape)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Write the batch's keys and values, and return logits, float32 ``[rows, vocab_size]``."""
        x = self.embedding[batch.input_ids]
        cos, sin = self.cos[batch.positions][:, None], self.sin[batch.positions][:, None]
        spans = request_spans(batch)
        for layer, (keys, values) in zip(self.layers, cache.unbind(), strict=True):
            normed = F.rms_norm(x, x.shape[1:], layer.attention_norm, self.eps)
            heads = self._linear(normed, layer.qkv).view(len(x), -1, self.head_dim)
            turned = rotate(heads[:, : self.heads + self.kv_heads].float(), cos, sin)
            keys.flatten(0, 1)[batch.slot_mapping] = turned[:, self.heads :]
            values.flatten(0, 1)[batch.slot_mapping] = heads[
                :, self.heads + self.kv_heads :
            ].float()
            attended = self._attend(turned[:, : self.heads], keys, values, spans)
            x = x + self._linear(attended.to(self.dtype), layer.output)
            normed = F.rms_norm(x, x.shape[1:], layer.mlp_norm, self.eps)
            gate, up = self._linear(normed, layer.gate_up).chunk(2, dim=1)
            x = x + self._linear(F.silu(gate) * up, layer.down)
        rows = F.rms_norm(x[batch.logits_indices], x.shape[1:], self.final_norm, self.eps)
        return self._linear(rows, self.head).float()

    def _attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        spans: list[Span],
    ) -> torch.Tensor:
        """Let each request's rows attend to its own text, up to and including themselves."""
        out = torch.empty(len(queries), self.heads * self.head_dim)
        group = self.heads // self.kv_heads
        for first, last, length, blocks, mask in spans:
            rows = last - first
            k = gather(keys, blocks, length).transpose(0, 1)  # [kv_heads, length, head_dim]
            v = gather(values, blocks, length).transpose(0, 1)
            q = queries[first:last].view(rows, self.kv_heads, group, self.head_dim)
            q = q.permute(1, 2, 0, 3).reshape(self.kv_heads, group * rows, self.head_dim)
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)
            if mask is not None:
                scores = scores.view(self.kv_heads, group, rows, length) + mask
                scores = scores.view(self.kv_heads, group * rows, length)
            mixed = torch.bmm(scores.softmax(dim=2), v)
            mixed = mixed.view(self.kv_heads, group, rows, self.head_dim).permute(2, 0, 1, 3)
            out[first:last] = mixed.reshape(rows, -1)
        return out


class Span(NamedTuple):
    """One request's rows, the length of its text behind them, its blocks, and its causal mask.

    ``blocks`` is a slice where they lie behind each other, so that reading them copies nothing.
    """

    first: int
    last: int
    length: int
    blocks: slice | torch.Tensor
    mask: torch.Tensor | None


def request_spans(batch: ForwardBatch) -> list[Span]:
    """Return the batch's requests as attention sees them; padding rows without tokens are left out.

    A single row sees its whole text and needs no mask.
    """
    starts, lengths = batch.ragged.query_start_loc.tolist(), batch.ragged.seq_lens.tolist()
    spans = []
    for r, length in enumerate(lengths):
        first, last = starts[r], starts[r + 1]
        if first == last:
            continue
        mask = None
        if last - first > 1:
            mask = torch.full((last - first, length), -torch.inf).triu_(length - (last - first) + 1)
        spans.append(Span(first, last, length, block_index(batch.block_tables[r]), mask))
    return spans


def block_index(blocks: list[int]) -> slice | torch.Tensor:
    """Return what indexes the blocks: a slice where their ids run upwards without a gap.

    Example:
        >>> block_index([4, 5, 6]), block_index([4, 6])
        (slice(4, 7, None), tensor([4, 6]))
    """
    if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
        return slice(blocks[0], blocks[0] + len(blocks))
    return torch.tensor(blocks)


def gather(cache: torch.Tensor, blocks: slice | torch.Tensor, length: int) -> torch.Tensor:
    """Return the first ``length`` entries of the blocks, ``[length, kv_heads, head_dim]``."""
    return cache[blocks].flatten(0, 1)[:length]


def rotary_tables(config: object, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and signed sin of every position, ``[max_model_len, head_dim]`` float32."""
    theta = config.rope_parameters["rope_theta"]
    frequency = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(config.max_position_embeddings).float(), frequency)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each head's pairs (i, i + head_dim/2) by its position's angles."""
    return x * cos + torch.roll(x, x.shape[-1] // 2, dims=-1) * sin


def check_config(config: object) -> None:
    """Refuse a checkpoint with parts that this model does not have.

    Raises:
        ValueError: names the part.
    """
    wanted = {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    for name, value in wanted.items():
        if getattr(config, name, value) != value:
            raise ValueError(f"{name}: {getattr(config, name)!r}, expected {value!r}")
    if config.rope_parameters["rope_type"] != "default":
        raise ValueError(f"rope_type: {config.rope_parameters['rope_type']!r}, expected 'default'")
