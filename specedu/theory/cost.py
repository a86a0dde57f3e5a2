"""What a step moves and computes: bytes, FLOPs and the roofline's seconds, from a model's shape.

Every number here is derived from shapes and data sheets, none is measured. Weights are counted as
matrices: norm vectors (4 parts in 100 000 of Llama-3-8B) are left out unless asked for. Sizes are
bf16 unless said: two bytes a weight and a cache entry. Where an argument says "or an array", arrays
of one shape give an array.

Sources: the shapes are those of the published checkpoints; the roofline is Williams, Waterman and
Patterson's (CACM 52:4, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .hardware import Hardware

BF16, FLOAT32 = 2, 4  # bytes
Amount = float | np.ndarray


@dataclass(frozen=True)
class TransformerShape:
    """The shape of a Llama: grouped attention, a gated MLP of three matrices, no biases.

    Attributes:
        name: of the model.
        layers: how many.
        width: of the residual stream.
        heads: of the queries.
        kv_heads: of the keys, and as many of the values.
        head_dim: entries of one head.
        ffn: width of the MLP.
        vocab: ids, which are rows of embedding and head.
        tied: whether the head is the embedding.

    Raises:
        ValueError: a size is below 1, or kv_heads does not divide heads.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool

    def __post_init__(self) -> None:
        """Refuse what is no shape."""
        for field in fields(self)[1:-1]:
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name}: {getattr(self, field.name)}, expected at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}, expected a divisor of {self.heads} heads")

    @classmethod
    def of(cls, config: Any, name: str = "checkpoint") -> TransformerShape:
        """Return the shape that a checkpoint's configuration states (transformers' names)."""
        heads = config.num_attention_heads
        return cls(
            name=name,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            ffn=config.intermediate_size,
            vocab=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )


LLAMA_3_8B = TransformerShape(
    "Llama-3-8B", layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
    vocab=128256, tied=False,
)  # fmt: skip
LLAMA_3_2_1B = TransformerShape(
    "Llama-3.2-1B", layers=16, width=2048, heads=32, kv_heads=8, head_dim=64, ffn=8192,
    vocab=128256, tied=True,
)  # fmt: skip
SMOLLM2_135M = TransformerShape(
    "SmolLM2-135M", layers=30, width=576, heads=9, kv_heads=3, head_dim=64, ffn=1536,
    vocab=49152, tied=True,
)  # fmt: skip
SHAPES = {shape.name: shape for shape in (LLAMA_3_8B, LLAMA_3_2_1B, SMOLLM2_135M)}


# --- parameters -----------------------------------------------------------------------------------


def layer_params(shape: TransformerShape) -> int:
    """Return the weights of one layer's seven matrices; its two norms are left out.

    Example:
        >>> layer_params(LLAMA_3_2_1B)
        60817408

    Book: eq-layer-params.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.width * (2 * queries + 2 * keys + 3 * shape.ffn)


def norm_params(shape: TransformerShape) -> int:
    """Return the weights of all norms: two a layer, and the last one."""
    return (2 * shape.layers + 1) * shape.width


def streamed_params(shape: TransformerShape, norms: bool = False) -> int:
    """Return the weights that a step reads in full, whatever tokens it is fed.

    The head always is: its product needs every row. The embedding never is: of it, a step gathers
    one row a position. Where both are one tensor, that tensor is streamed, as the head.

    Args:
        shape: of the model.
        norms: whether the norms' vectors count.

    Example:
        >>> streamed_params(LLAMA_3_8B), streamed_params(LLAMA_3_2_1B)
        (7504658432, 1235746816)

    Book: eq-streamed.
    """
    count = shape.layers * layer_params(shape) + shape.vocab * shape.width
    return count + norm_params(shape) if norms else count


def stored_params(shape: TransformerShape) -> int:
    """Return all weights of the checkpoint, norms included; a tied table counts once.

    Example:
        >>> stored_params(LLAMA_3_8B)
        8030261248
    """
    gathered = 0 if shape.tied else shape.vocab * shape.width
    return streamed_params(shape, norms=True) + gathered


# --- bytes ----------------------------------------------------------------------------------------


def weight_bytes(shape: TransformerShape, bytes_per_param: float = BF16) -> float:
    """Return the bytes of weights that a step streams.

    Example:
        >>> round(weight_bytes(LLAMA_3_8B) / 1e9, 2)
        15.01

    Book: eq-weight-bytes.
    """
    return streamed_params(shape) * bytes_per_param


def kv_bytes_per_token(shape: TransformerShape, bytes_per_entry: float = BF16) -> float:
    """Return the bytes of one token's keys and values over all layers.

    Example:
        >>> kv_bytes_per_token(LLAMA_3_8B) / 1024
        128.0

    Book: eq-kv-bytes.
    """
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * bytes_per_entry


def activation_bytes_per_position(shape: TransformerShape) -> float:
    """Return the bytes that a position's activations move through memory, bf16.

    Counted as if each of a layer's four products (fused qkv, output, fused gate and up, down) and
    its attention read their input and wrote their output once, with everything elementwise fused
    into them. What stays in a cache moves less, an unfused layer more.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    read = shape.width + queries + queries + shape.width + shape.ffn
    written = (queries + 2 * keys) + queries + shape.width + 2 * shape.ffn + shape.width
    return (shape.layers * (read + written) + shape.width) * BF16  # one gathered embedding row


def logit_bytes_per_position(shape: TransformerShape) -> float:
    """Return the bytes of a position's float32 logits: written by the head, read by the sampler."""
    return 2 * shape.vocab * FLOAT32


@dataclass(frozen=True)
class StepBytes:
    """The bytes of one target step, by what they are.

    Attributes:
        weights: every streamed matrix, once.
        kv_read: keys and values of the tokens before this step.
        kv_written: those of the step's own positions.
        activations: between the products.
        logits: one row a position.
    """

    weights: Amount
    kv_read: Amount
    kv_written: Amount
    activations: Amount
    logits: Amount

    @property
    def total(self) -> Amount:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))


def decode_bytes(
    shape: TransformerShape,
    context: Amount = 0,
    positions: Amount = 1,
    requests: Amount = 1,
    *,
    bytes_per_param: float = BF16,
    kv_reads: Amount = 1,
) -> StepBytes:
    """Return what a step moves, if every byte were moved no more often than it has to be.

    Args:
        shape: of the model.
        context: tokens of a request in the cache, or an array.
        positions: the step's positions of a request, or an array: 1 decodes, kappa + 1 verifies.
        requests: of the batch, each with that context and those positions, or an array.
        bytes_per_param: of the weights.
        kv_reads: how often a request's cache is read: 1 if its positions share one reading, as many
            as positions if each reads it again.

    Example:
        >>> step = decode_bytes(LLAMA_3_8B, context=8192, positions=4)
        >>> round(step.kv_read / step.weights, 3)
        0.072

    Book: eq-step-bytes.
    """
    kv, rows = kv_bytes_per_token(shape), requests * positions
    return StepBytes(
        weights=weight_bytes(shape, bytes_per_param),
        kv_read=kv_reads * requests * context * kv,
        kv_written=rows * kv,
        activations=rows * activation_bytes_per_position(shape),
        logits=rows * logit_bytes_per_position(shape),
    )


def weight_share(shape: TransformerShape, context: Amount, requests: Amount = 1) -> Amount:
    """Return the weights' part of what plain decoding reads: weights, and each request's cache.

    Activations, logits and the cache entries that are written are left out.

    Example:
        >>> round(weight_share(LLAMA_3_8B, 8192), 3)
        0.933

    Book: eq-weight-share.
    """
    weights = weight_bytes(shape)
    return weights / (weights + requests * context * kv_bytes_per_token(shape))


def context_of_share(shape: TransformerShape, share: Amount, requests: Amount = 1) -> Amount:
    """Return the context at which weights are that part of what is read, in tokens.

    Raises:
        ValueError: share is not in (0, 1].

    Example:
        >>> round(context_of_share(LLAMA_3_8B, 0.98))
        2337

    Book: eq-share-context.
    """
    if not np.all((0 < np.asarray(share)) & (np.asarray(share) <= 1)):
        raise ValueError(f"share: {share}, expected above 0 and at most 1")
    return weight_bytes(shape) * (1 / share - 1) / (requests * kv_bytes_per_token(shape))


def floor_seconds(moved: Amount, hardware: Hardware) -> Amount:
    """Return the least time in which so many bytes come from memory, seconds.

    Example:
        >>> from specedu.theory.hardware import hardware
        >>> round(floor_seconds(weight_bytes(LLAMA_3_8B), hardware("H100 SXM")) * 1e3, 2)
        4.48

    Book: eq-floor.
    """
    return moved / hardware.bandwidth


# --- FLOPs and the roofline -----------------------------------------------------------------------


def attention_flops(shape: TransformerShape) -> int:
    """Return the FLOPs of one position per token that it attends to: scores, then the mixture."""
    return 4 * shape.layers * shape.heads * shape.head_dim


def flops_per_token(shape: TransformerShape, attended: Amount = 0) -> Amount:
    """Return the FLOPs of one position; a multiply-add is two.

    Args:
        shape: of the model.
        attended: tokens that the position attends to, itself included; 0 leaves attention out.

    Example:
        >>> round(flops_per_token(LLAMA_3_8B) / 1e9, 2)
        15.01

    Book: eq-flops.
    """
    return 2 * streamed_params(shape) + attended * attention_flops(shape)


def decode_flops(
    shape: TransformerShape, context: Amount = 0, positions: Amount = 1, requests: Amount = 1
) -> Amount:
    """Return the FLOPs of a step; the arguments are those of :func:`decode_bytes`.

    Position i of a request attends to its context, to the positions before it, and to itself.
    """
    attended = context + (positions + 1) / 2  # on average over a request's positions
    return requests * positions * flops_per_token(shape, attended)


def intensity(positions: Amount, bytes_per_param: float = BF16) -> Amount:
    """Return the FLOPs per byte of a step that moves its weights once and nothing else.

    A position costs two FLOPs a weight, and the weight costs its bytes once: ``2 T / bytes``. With
    bf16's two bytes the number is T itself, in FLOP/byte.

    Example:
        >>> intensity(4), intensity(4, bytes_per_param=0.5)
        (4.0, 16.0)

    Book: eq-intensity.
    """
    return 2 * positions / bytes_per_param


def T_star(hardware: Hardware, bytes_per_param: float = BF16) -> float:
    """Return the ridge in token positions: where the weight-only step turns to arithmetic.

    Arithmetic runs at the bf16 peak whatever the weights are stored in.

    Example:
        >>> from specedu.theory.hardware import hardware
        >>> round(T_star(hardware("H100 SXM")), 1)
        295.3

    Book: eq-t-star.
    """
    return hardware.ridge * bytes_per_param / 2


def step_seconds(
    shape: TransformerShape,
    hardware: Hardware,
    positions: Amount = 1,
    context: Amount = 0,
    requests: Amount = 1,
    *,
    weights_only: bool = False,
    kv_reads: Amount = 1,
) -> Amount:
    """Return the roofline's time of a step: the longer of moving and computing, seconds.

    Args:
        shape: of the model.
        hardware: its two peaks.
        positions: as of :func:`decode_bytes`.
        context: as of :func:`decode_bytes`.
        requests: as of :func:`decode_bytes`.
        weights_only: count the weights alone: neither cache, activations and logits, nor the
            arithmetic of attention.
        kv_reads: as of :func:`decode_bytes`.

    Example:
        >>> from specedu.theory.hardware import hardware
        >>> h100 = hardware("H100 SXM")
        >>> round(step_seconds(LLAMA_3_8B, h100, weights_only=True) * 1e3, 2)
        4.48

    Book: eq-roofline.
    """
    if weights_only:
        moved, computed = weight_bytes(shape), requests * positions * flops_per_token(shape)
    else:
        moved = decode_bytes(shape, context, positions, requests, kv_reads=kv_reads).total
        computed = decode_flops(shape, context, positions, requests)
    seconds = np.maximum(moved / hardware.bandwidth, computed / hardware.peak_flops)
    return seconds if np.ndim(seconds) else float(seconds)


# --- a speculative step ---------------------------------------------------------------------------


def draft_ratio(draft: TransformerShape, target: TransformerShape) -> float:
    """Return c = t_D / t_T where both are bound by streaming their weights.

    Example:
        >>> round(draft_ratio(LLAMA_3_2_1B, LLAMA_3_8B), 3)
        0.165

    Book: eq-draft-ratio.
    """
    return weight_bytes(draft) / weight_bytes(target)


def speculative_step_seconds(target_seconds: Amount, kappa: int, c: Amount) -> Amount:
    """Return the time of kappa draft passes and a verify that costs no more than a decode.

    Args:
        target_seconds: t_T, of one target step, or an array.
        kappa: drafts a step, at least 0.
        c: one draft pass over one target step, at least 0, or an array.

    Raises:
        ValueError: kappa or c is below 0.

    Example:
        >>> round(speculative_step_seconds(4.48, 3, 0.165), 2)
        6.7

    Book: eq-speculative-step.
    """
    if kappa < 0:
        raise ValueError(f"kappa: {kappa}, expected at least 0")
    if np.any(np.asarray(c) < 0):
        raise ValueError(f"c: {c}, expected at least 0")
    return target_seconds * (1 + kappa * c)
