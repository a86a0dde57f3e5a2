"""The project's own Llama on the paged cache: weights of a transformers checkpoint, flat batches.

One forward pass serves plain decoding, verification and prompt chunks alike: tokens of all requests
lie behind each other, each is written to its slot, and each request's rows attend to its own
blocks. The three projections of attention and the two of the MLP are fused into one product each.

A step of one token is bound by reading the weights, so that all else has to be little. Entries of a
head are paired at loading, and turning them by their position is one complex product. A token's
keys and values lie side by side in the cache, and one call writes both. Where a request's blocks
lie behind each other, attention reads them in place. What layers add up is float32, with a column
more, so that a norm takes three calls (``Residual``).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .base import ForwardBatch
from .linear import (
    ROWS,
    Apply,
    Either,
    Product,
    apply_either,
    apply_packed,
    faster_order,
    fastest,
    int4_products,
    products,
    rows_agree,
    to_int8,
)

Weights = Mapping[str, torch.Tensor]
CACHED = 2**24  # a model of fewer weights stays in a processor's cache: rows cost what they compute


class Layer(NamedTuple):
    """One layer's weights: of norms as ``Residual`` takes them, the others as the products do."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    def matrices(self) -> list[torch.Tensor]:
        """Return the weights of products, in the order of the pass."""
        return [self.qkv, self.output, self.gate_up, self.down]

    def with_matrices(self, weights: Sequence[torch.Tensor]) -> Layer:
        """Return the layer with other weights of products, in the order of ``matrices``."""
        qkv, output, gate_up, down = weights
        return self._replace(qkv=qkv, output=output, gate_up=gate_up, down=down)


class LlamaModel:
    """A Llama checkpoint on the paged cache.

    Args:
        config: of the checkpoint.
        weights: its tensors by name.
        dtype: of weights and products; attention is computed in float32.
        packed: whether products use oneDNN's layout; None lets a probe and the clock decide.
        quantized: whether products stream their weights in four bits.

    Attributes:
        vocab_size: ids lie below it.
        max_model_len: the context it was trained for.
        eos_token_id: the id that ends a text, a tuple of several; None without.
        batch_invariant: whether a row has the same bits in whatever company, see ``invariant``.
        cache_by_layers: True: its cache is a tensor whose first axis are the layers.
        min_rows: passes of fewer rows are padded to it; 1 in four bits, which more rows only slow.
    """

    def __init__(
        self,
        config: object,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        packed: bool | None = None,
        quantized: bool = False,
    ) -> None:
        self.config = config
        self.cache_by_layers = True
        self.read_weights: Callable[[], Weights] = lambda: weights
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings
        ends = config.eos_token_id
        self.eos_token_id = tuple(ends) if isinstance(ends, list) else ends
        self.dtype = dtype
        self.batch_invariant = False
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.eps = config.rms_norm_eps
        prepare, self._linear = int4_products() if quantized else products(dtype, packed)
        weight = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.embedding = weight["model.embed_tokens.weight"]
        self.final_norm = Residual.weight(weight["model.norm.weight"])
        # Absent where it is tied: the embedding is gathered from, and streamed as the head.
        head = weight.get("lm_head.weight", self.embedding)
        self.head = to_int8(head) if quantized else prepare(head)
        fused = [self._fused(weight, i) for i in range(config.num_hidden_layers)]
        self.layers = [layer.with_matrices(list(map(prepare, layer.matrices()))) for layer in fused]
        self.turns = rotary_turns(config, self.head_dim)
        self.min_rows = 1
        large = sum(tensor.numel() for tensor in weight.values()) > CACHED
        if large and self._linear is apply_packed:
            self._take_fastest(fused, head, may_be_plain=packed is None)

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
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        check_config(config)
        model = cls(config, read_safetensors(folder), dtype, packed)
        # The products hold copies in their own layout; should another be wanted, it is read again.
        model.read_weights = functools.partial(read_safetensors, folder)
        return model

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

    def invariant(self) -> LlamaModel:
        """Return the model, with the same weights, so that company never changes a row's bits.

        A row's logits are then the same alone and in a verify, in any batch and chunk. Rows attend
        one at a time, in products of a shape of their own, and passes are padded to ``ROWS``: from
        there on the products must round alike at every number of rows, which is tried.

        Raises:
            ValueError: the bits of a product depend on its number of rows here.
        """
        same = copy.copy(self)
        if self._linear is apply_either:  # one layout for every number of rows
            same.layers = [
                layer.with_matrices([weight.packed for weight in layer.matrices()])
                for layer in self.layers
            ]
            same.head, same._linear = self.head.packed, apply_packed
        head = functools.partial(same._linear, weight=same.head), self.config.hidden_size
        # All layers are of the same shapes. Logits are asked for fewer rows than a prompt may have.
        tried = [(product, 2048) for product in same._products(same.layers[0])] + [(head, 256)]
        for product, most in tried:
            if not rows_agree(product, self.dtype, most):
                raise ValueError(
                    f"batch_invariant: True, expected False: the bits of a {self.dtype} product "
                    "depend on its number of rows here"
                )
        same.batch_invariant, same.min_rows = True, ROWS
        return same

    def quantized(self) -> LlamaModel:
        """Return the model with its products' weights in four bits, its head's in eight.

        Made from the same weights. SmolLM2's come out of a four-bit file, so that little is lost:
        as a draft of its float32 self it flatters the acceptance rate.

        Raises:
            ValueError: torch's four-bit products do not run here.
        """
        return LlamaModel(self.config, self.read_weights(), torch.bfloat16, quantized=True)

    def _fused(self, weight: Weights, i: int) -> Layer:
        def of(name: str) -> torch.Tensor:
            return weight[f"model.layers.{i}.{name}.weight"]

        q, k, v = (of(f"self_attn.{name}_proj") for name in ("q", "k", "v"))
        qkv = torch.cat([paired(q, self.head_dim), paired(k, self.head_dim), v])
        return Layer(
            Residual.weight(of("input_layernorm")),
            qkv,
            of("self_attn.o_proj"),
            Residual.weight(of("post_attention_layernorm")),
            torch.cat([of("mlp.gate_proj"), of("mlp.up_proj")]),
            of("mlp.down_proj"),
        )

    def _take_fastest(self, fused: list[Layer], head: torch.Tensor, may_be_plain: bool) -> None:
        """Time packed products against plain ones; keep both where plain ones are faster.

        Args:
            fused: the layers with plain weights.
            head: the plain head.
            may_be_plain: whether plain products may be chosen at all.
        """
        packed = [(functools.partial(apply_packed, weight=self.head), self.config.hidden_size)]
        packed += [product for layer in self.layers for product in self._products(layer)]
        plain = [(functools.partial(F.linear, weight=head), self.config.hidden_size)]
        plain += [product for layer in fused for product in self._products(layer, F.linear)]
        few, self.min_rows = fastest(packed, plain if may_be_plain else [], self.dtype)
        if not few:
            return
        # All weights of a kind lie by rows or by columns, whichever streams faster.
        (head,) = faster_order([head])
        kinds = map(faster_order, zip(*(layer.matrices() for layer in fused), strict=True))
        self.head = Either(head, self.head, few)
        self.layers = [
            layer.with_matrices(list(map(Either, theirs, layer.matrices(), [few] * 4)))
            for theirs, layer in zip(zip(*kinds, strict=True), self.layers, strict=True)
        ]
        self._linear = apply_either

    def _products(self, layer: Layer, linear: Apply | None = None) -> list[Product]:
        """Return a layer's products with the length of the rows that they take."""
        width, inner = self.config.hidden_size, self.config.intermediate_size
        lengths = [width, self.heads * self.head_dim, width, inner]
        linear = linear or self._linear
        applied = [functools.partial(linear, weight=weight) for weight in layer.matrices()]
        return list(zip(applied, lengths, strict=True))

    def make_cache(self, num_blocks: int, block_size: int) -> torch.Tensor:
        """Return float32 ``[layers, num_blocks, block_size, 2 * kv_heads, head_dim]``, zeros.

        A slot holds its keys, then its values. The cache is float32 whatever the weights are:
        attention is computed in it.
        """
        shape = (len(self.layers), num_blocks, block_size, 2 * self.kv_heads, self.head_dim)
        return torch.zeros(shape)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: torch.Tensor) -> torch.Tensor:
        """Write the batch's keys and values, and return logits, float32 ``[rows, vocab_size]``."""
        tokens = len(batch.input_ids)
        residual = Residual(self.embedding[pad_rows(batch.input_ids, self.min_rows)], self.eps)
        turns = self._turns(batch.positions)
        # What attention gives; the rows of padding stay 0.
        attended = torch.zeros(len(residual.x), self.heads * self.head_dim, dtype=self.dtype)
        slots = cache.flatten(1, 2)
        spans = self._spans(batch, slots, cache.shape[2], attended)
        written = run_of(batch.slot_mapping.tolist())
        places = slots[:, written].unbind() if written else None
        for i, (layer, entries) in enumerate(zip(self.layers, slots.unbind(), strict=True)):
            normed = residual.normed(layer.attention_norm, self.dtype)
            heads = self._linear(normed, layer.qkv)[:tokens].float()
            torch.view_as_complex(heads.view(*turns.shape, 2)).mul_(turns)
            heads = heads.view(tokens, -1, self.head_dim)
            queries, added = heads.split_with_sizes((self.heads, 2 * self.kv_heads), dim=1)
            if places:
                places[i].copy_(added)
            else:
                entries.index_copy_(0, batch.slot_mapping, added)
            for span in spans:
                self._attend(span, i, queries[span.rows], entries)
            residual.x.add_(self._linear(attended, layer.output))
            normed = residual.normed(layer.mlp_norm, self.dtype)
            gate, up = self._linear(normed, layer.gate_up).view(len(normed), 2, -1).unbind(1)
            residual.x.add_(self._linear(F.silu(gate).mul_(up), layer.down))
        wanted = pad_rows(residual.x[batch.logits_indices], self.min_rows)
        normed = Residual(wanted, self.eps).normed(self.final_norm, self.dtype)
        return self._linear(normed, self.head)[: len(batch.logits_indices)].float()

    def _turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Return by what the pairs of each head are multiplied, ``[tokens, heads, head_dim / 2]``.

        Queries and keys are turned by their position. Queries are scaled by 1 / sqrt(head_dim) too,
        and values by 1: here that costs no call a layer.
        """
        turns = self.turns[positions][:, None]
        queries = (turns / math.sqrt(self.head_dim)).expand(-1, self.heads, -1)
        keys = turns.expand(-1, self.kv_heads, -1)
        return torch.cat([queries, keys, torch.ones_like(keys)], dim=1)

    # --- attention --------------------------------------------------------------------------------

    def _attend(self, span: Span, i: int, queries: torch.Tensor, entries: torch.Tensor) -> None:
        """Let a request's rows attend to its text in layer i, up to and including themselves.

        Args:
            span: the request.
            i: the layer.
            queries: ``[rows, heads, head_dim]``, turned and scaled.
            entries: the layer's cache, ``[slots, 2 * kv_heads, head_dim]``.
        """
        if span.keys is not None:
            keys, values = span.keys[i], span.values[i]
        else:
            keys, values = (kind[0] for kind in split(entries[span.slots][None], self.kv_heads))
        if not self.batch_invariant:
            span.out.copy_(self._mix(queries, keys, values, span.mask))
            return
        for row in range(len(queries)):  # each in products of a shape of its own
            length = keys.shape[2] - (len(queries) - 1 - row)
            alone = slice(row, row + 1)
            mixed = self._mix(queries[alone], keys[:, :, :length], values[:, :length], None)
            span.out[alone].copy_(mixed)

    def _mix(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return each row's mixture of the values, ``[rows, kv_heads, group, head_dim]``.

        Args:
            queries: ``[rows, heads, head_dim]``.
            keys: ``[kv_heads, head_dim, length]``.
            values: ``[kv_heads, length, head_dim]``.
            mask: ``[kv_heads, group * rows, length]``, added to the scores; None for a single row.
        """
        rows, group = len(queries), self.heads // self.kv_heads
        if rows == 1:  # lies in the right order already
            queries = queries.view(self.kv_heads, group, self.head_dim)
            return torch.bmm(torch.bmm(queries, keys).softmax(dim=2), values)[None]
        queries = queries.view(rows, self.kv_heads, group, self.head_dim).permute(1, 2, 0, 3)
        queries = queries.reshape(self.kv_heads, group * rows, self.head_dim)
        scores = torch.baddbmm(mask, queries, keys)
        mixed = torch.bmm(scores.softmax(dim=2), values)
        return mixed.view(self.kv_heads, group, rows, self.head_dim).permute(2, 0, 1, 3)

    def _spans(
        self, batch: ForwardBatch, slots: torch.Tensor, block_size: int, attended: torch.Tensor
    ) -> list[Span]:
        """Return the batch's requests as attention sees them; one without tokens is left out."""
        starts, lengths = batch.ragged.query_start_loc.tolist(), batch.ragged.seq_lens.tolist()
        out = attended.view(len(attended), self.kv_heads, -1, self.head_dim)
        spans = []
        for r, length in enumerate(lengths):
            rows = slice(starts[r], starts[r + 1])
            if rows.start == rows.stop:
                continue
            where = slots_of(batch.block_tables[r], length, block_size)
            mask = causal_mask(rows.stop - rows.start, length)
            if mask is not None:
                group = self.heads // self.kv_heads
                mask = mask.repeat(group, 1).expand(self.kv_heads, -1, -1)
            keys = values = None
            if isinstance(where, slice):
                keys, values = (kind.unbind() for kind in split(slots[:, where], self.kv_heads))
            spans.append(Span(rows, where, mask, out[rows], keys, values))
        return spans


class Residual:
    """What the layers add up, float32, and its norm in few calls.

    A root mean square wants the sum of squares plus ``width * eps``. That is what a row's length
    gives where the row has one entry more, the root of ``width * eps``. Three calls, where torch's
    ``rms_norm`` takes nine on a CPU.

    Args:
        x: ``[rows, width]``, the embedded tokens; copied.
        eps: of the norm.

    Attributes:
        x: float32 ``[rows, width]``, to be added to in place.

    Example:
        >>> Residual(torch.tensor([[3.0, 4.0]]), 0.0).normed(Residual.weight(torch.ones(2)))
        tensor([[0.8485, 1.1314]])
    """

    def __init__(self, x: torch.Tensor, eps: float) -> None:
        rows, width = x.shape
        self._with_eps = torch.full((rows, width + 1), math.sqrt(width * eps))
        self.x = self._with_eps[:, :width]
        self.x.copy_(x)

    @staticmethod
    def weight(weight: torch.Tensor) -> torch.Tensor:
        """Return a norm's weight as ``normed`` takes it, float32: times the root of its length."""
        return weight.float() * math.sqrt(len(weight))

    def normed(self, weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return each row over the root of its mean square, times ``weight``."""
        length = torch.linalg.vector_norm(self._with_eps, dim=1, keepdim=True)
        return torch.div(self.x, length).mul_(weight).to(dtype)


class Span(NamedTuple):
    """One request's rows and what they attend to.

    Attributes:
        rows: its rows in the batch.
        slots: where its text lies; a slice where its blocks lie behind each other.
        mask: ``[kv_heads, group * rows, length]``; None for a single row, which sees all.
        out: where its mixtures go, ``[rows, kv_heads, group, head_dim]``, the same in each layer.
        keys: a view of each layer's, ``[kv_heads, head_dim, length]``, where ``slots`` is a slice.
        values: the same, ``[kv_heads, length, head_dim]``.
    """

    rows: slice
    slots: slice | torch.Tensor
    mask: torch.Tensor | None
    out: torch.Tensor
    keys: Sequence[torch.Tensor] | None
    values: Sequence[torch.Tensor] | None


def slots_of(blocks: Sequence[int], length: int, block_size: int) -> slice | torch.Tensor:
    """Return where a text lies: a slice where its blocks' ids run upwards without a gap.

    Example:
        >>> slots_of([4, 5], 3, 2), slots_of([6, 4], 3, 2)
        (slice(8, 11, None), tensor([12, 13,  8]))
    """
    if run := run_of(blocks):
        return slice(run.start * block_size, run.start * block_size + length)
    starts = torch.tensor(blocks)[:, None] * block_size
    return (starts + torch.arange(block_size)).flatten()[:length]


def run_of(ids: Sequence[int]) -> slice | None:
    """Return ids that run upwards without a gap as a slice, None where they do not.

    Example:
        >>> run_of([4, 5, 6]), run_of([4, 6])
        (slice(4, 7, None), None)
    """
    if ids and list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return slice(ids[0], ids[0] + len(ids))
    return None


def split(entries: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of ``[layers, length, 2 * kv_heads, head_dim]`` as attention reads them.

    Keys are ``[layers, kv_heads, head_dim, length]``, values ``[layers, kv_heads, length,
    head_dim]``.
    """
    return entries[:, :, :kv_heads].permute(0, 2, 3, 1), entries[:, :, kv_heads:].transpose(1, 2)


def causal_mask(rows: int, length: int) -> torch.Tensor | None:
    """Return ``[rows, length]`` with -inf behind each row's own place; None for one row.

    Example:
        >>> causal_mask(2, 3).tolist()
        [[0.0, 0.0, -inf], [0.0, 0.0, 0.0]]
    """
    if rows == 1:
        return None
    return torch.full((rows, length), -torch.inf).triu_(length - rows + 1)


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``x`` with rows of zeros behind it, so that it has ``rows`` at least.

    Example:
        >>> pad_rows(torch.tensor([[5], [6]]), 3).tolist()
        [[5], [6], [0]]
    """
    missing = rows - len(x)
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing > 0 else x


# --- positions and weights ------------------------------------------------------------------------


def rotary_turns(config: object, head_dim: int) -> torch.Tensor:
    """Return by how much each position turns each pair, complex64 ``[max_len, head_dim / 2]``."""
    theta = config.rope_parameters["rope_theta"]
    frequency = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(config.max_position_embeddings).float(), frequency)
    return torch.polar(torch.ones_like(angle), angle)


def paired(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return a projection whose rows i and i + head_dim/2 of each head lie side by side.

    Those are the pairs that a position turns. Queries and keys are reordered alike, so that their
    products stay.

    Example:
        >>> paired(torch.arange(4)[:, None], 4).flatten().tolist()
        [0, 2, 1, 3]
    """
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint's folder by name."""
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


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
