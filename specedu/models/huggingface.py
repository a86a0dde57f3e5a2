"""Any other causal LM of transformers, run by its own code on the paged cache.

transformers asks a registered function for attention, and hands the arguments of a model's forward
down to it. Ours is told of the flat batch that way. It writes the batch's keys and values to their
slots, and lets each request's rows attend to the blocks of their own text. Everything else, from
the embedding to the head, is the model's.

What cannot be served so is refused when the model is wrapped, never while it runs: first by what it
says of itself, then by trial passes, which must give the logits of transformers' own attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from specedu.config import refuse
from specedu.ragged import RaggedBatch

from .base import ForwardBatch
from .llama import slots_of

NAME = "specedu"  # of our attention among those of transformers
LAYER_TYPES = ("full_attention", "sliding_attention")
CHANGING_ROPE = "longrope"  # turns by the longest text of a pass: company would change a row
KEEPS_STATE = (torch.nn.Conv1d, torch.nn.RNNBase)  # sees neighbours without asking attention
# How far logits of a trial may lie from transformers', over the largest of them. In float32 sums
# are taken in another order; in half precision our attention is the more exact of the two.
NEAR = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}

Cache = list[torch.Tensor]
Shape = tuple[int, int, int]  # kv_heads, key_dim, value_dim


class HuggingFaceModel:
    """A causal LM of transformers on the paged cache.

    A layer's cache is float32 ``[num_blocks, block_size, kv_heads, key_dim + value_dim]``, a head's
    key before its value; layers may differ in shape.

    Args:
        module: the model. It is put into evaluation and onto our attention, and stays so.

    Attributes:
        vocab_size: ids lie below it.
        max_model_len: the context it was trained for.
        eos_token_id: the id that ends a text, a tuple of several; None without.
        dtype: of its weights; attention is computed in float32.
        shapes: ``(kv_heads, key_dim, value_dim)`` of each layer.

    Raises:
        ValueError: it has a state that cannot be trimmed, does not leave attention to us, or does
            not give the logits of its own attention.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
        >>> model = HuggingFaceModel(GPT2LMHeadModel(config))
        >>> model.max_model_len, model.shapes
        (64, [(4, 8, 8), (4, 8, 8)])
    """

    def __init__(self, module: Any) -> None:
        name = type(module).__name__
        check_config(module.config, name)
        check_module(module, name)
        self.module = module.eval()
        config = module.config.get_text_config(decoder=True)
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings
        ends = config.eos_token_id
        self.eos_token_id = tuple(ends) if isinstance(ends, list) else ends
        self.dtype = module.dtype
        self._picks_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        texts = trial_texts(self.vocab_size, self.max_model_len)
        try:
            wanted = own_logits(module, texts)
            module.set_attn_implementation(NAME)
            self.shapes = self._survey(texts[0])
            ours = trial_logits(self, texts)
        except Exception as error:  # whatever a model's own code raises
            refuse_model(name, f"a trial pass fails with {type(error).__name__}: {error}")
        for text, logits, seen in zip(texts, wanted, ours, strict=True):
            bound = NEAR[self.dtype] * logits.abs().max()
            off = (seen - logits).abs().max()
            if not off <= bound:  # nor where one is NaN
                refuse_model(
                    name,
                    f"on the paged cache its logits for a text of {len(text)} tokens are "
                    f"{off:.2g} off its own, where {bound:.2g} are allowed",
                )

    @classmethod
    def load(cls, folder: Path | str, dtype: torch.dtype = torch.float32) -> HuggingFaceModel:
        """Read a checkpoint's folder.

        Raises:
            ValueError: it is no causal LM, lacks tensors, or cannot be served.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        name = (config.architectures or [config.model_type])[0]
        check_config(config, name)  # before what may be gigabytes is read
        module, report = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, which names them
        )  # fmt: skip
        # transformers would go on with random numbers in their place.
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"tensor {missing[0]!r} is missing ({len(missing)} in all)")
        if other := sorted(report["mismatched_keys"]):
            tensor, found, wanted = other[0]
            raise ValueError(
                f"tensor {tensor!r} is {list(found)}, expected {list(wanted)} by its configuration"
            )
        return cls(module)

    def make_cache(self, num_blocks: int, block_size: int) -> Cache:
        """Return an empty cache, one tensor a layer."""
        return [
            torch.zeros(num_blocks, block_size, kv_heads, key_dim + value_dim)
            for kv_heads, key_dim, value_dim in self.shapes
        ]

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, cache: Cache) -> torch.Tensor:
        """Write the batch's keys and values, return float32 logits ``[rows, vocab_size]``."""
        rows = {"logits_to_keep": batch.logits_indices} if self._picks_rows else {}
        logits = self._run(batch, PagedAttention(batch, cache), **rows)
        return (logits if self._picks_rows else logits[batch.logits_indices]).float()

    def _run(self, batch: ForwardBatch, attention: Attention, **more: Any) -> torch.Tensor:
        return self.module(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            specedu_attention=attention,
            **more,
        ).logits[0]

    @torch.no_grad()
    def _survey(self, text: list[int]) -> list[Shape]:
        """Return each layer's shape, found by running a text once.

        Raises:
            ValueError: a layer does not ask for attention exactly once.
        """
        survey = Survey()
        self._run(lay_out([(text, 0, [0])], len(text)), survey)
        layers = range(self.module.config.get_text_config(decoder=True).num_hidden_layers)
        if sorted(survey.asked) != list(layers):
            raise ValueError(
                f"layers {survey.asked} asked for attention, expected each of {len(layers)} once"
            )
        return [survey.shapes[layer] for layer in layers]


# --- attention ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a layer hands to attention.

    Attributes:
        layer: its number.
        queries: ``[heads, tokens, key_dim]``.
        keys: ``[kv_heads, tokens, key_dim]``.
        values: ``[kv_heads, tokens, value_dim]``.
        scaling: queries times keys are multiplied by it.
        window: a row sees the last so many tokens, itself included; None means all.
        softcap: scores are pressed into (-softcap, softcap) by a tanh; None leaves them.
    """

    layer: int
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scaling: float
    window: int | None
    softcap: float | None


class Attention:
    """What is handed through a model's forward, down to each layer's attention."""

    def attend(self, asked: Asked) -> torch.Tensor:
        """Return each row's mixture of values, ``[tokens, heads, value_dim]``."""
        raise NotImplementedError


class Survey(Attention):
    """Notes which layers ask, and the shapes of their keys and values; mixes nothing."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.shapes: dict[int, Shape] = {}

    def attend(self, asked: Asked) -> torch.Tensor:
        """Note the layer, and return zeros."""
        self.asked.append(asked.layer)
        kv_heads, tokens, key_dim = asked.keys.shape
        value_dim = asked.values.shape[2]
        self.shapes[asked.layer] = kv_heads, key_dim, value_dim
        return asked.queries.new_zeros(tokens, len(asked.queries), value_dim)


class PagedAttention(Attention):
    """Attention of one flat batch over the paged cache.

    Args:
        batch: the pass.
        cache: written at the batch's slots, one layer after the other.
    """

    def __init__(self, batch: ForwardBatch, cache: Cache) -> None:
        self.cache, self.slot_mapping = cache, batch.slot_mapping
        self.spans = request_spans(batch, block_size=cache[0].shape[1])

    def attend(self, asked: Asked) -> torch.Tensor:
        """Write the batch's keys and values, then mix each request's own, in float32."""
        entries = self.cache[asked.layer].flatten(0, 1)
        written = torch.cat([asked.keys, asked.values], dim=2).transpose(0, 1)
        entries[self.slot_mapping] = written.float()
        key_dim, value_dim = asked.keys.shape[2], asked.values.shape[2]
        heads, tokens, _ = asked.queries.shape
        queries = asked.queries.float()
        mixed = queries.new_empty(tokens, heads, value_dim)  # models ask for one without gaps
        for span in self.spans:
            keys, values = entries[span.slots].split([key_dim, value_dim], dim=2)
            seen = visible(span.rows.stop - span.rows.start, len(keys), asked.window)
            rows = queries[:, span.rows]
            own = mix(rows, keys, values, seen, asked.scaling, asked.softcap)
            mixed[span.rows] = own.transpose(0, 1)
        return mixed.to(asked.queries.dtype)


class Span(NamedTuple):
    """One request's rows in the batch, and where its text lies in the cache."""

    rows: slice
    slots: slice | torch.Tensor


def request_spans(batch: ForwardBatch, block_size: int) -> list[Span]:
    """Return the spans of a batch's requests; one without tokens is left out.

    Example:
        >>> batch = lay_out([([7, 7], 1, [2, 0])], block_size=2)
        >>> request_spans(batch, 2)
        [Span(rows=slice(0, 2, None), slots=tensor([4, 5, 0]))]
    """
    starts, lengths = batch.ragged.query_start_loc.tolist(), batch.ragged.seq_lens.tolist()
    return [
        Span(slice(starts[r], starts[r + 1]), slots_of(blocks, length, block_size))
        for r, (blocks, length) in enumerate(zip(batch.block_tables, lengths, strict=True))
        if starts[r] < starts[r + 1]
    ]


def visible(rows: int, length: int, window: int | None) -> torch.Tensor:
    """Return which tokens of a text its last rows see, bool ``[rows, length]``.

    Example:
        >>> visible(2, 4, window=2).int().tolist()
        [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    own = torch.arange(length - rows, length)[:, None]
    place = torch.arange(length)
    seen = place <= own
    return seen if window is None else seen & (place > own - window)


def mix(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """Return the rows' mixtures of the values, ``[heads, rows, value_dim]``.

    Args:
        queries: ``[heads, rows, key_dim]``; each group of heads / kv_heads shares its keys.
        keys: ``[length, kv_heads, key_dim]``.
        values: ``[length, kv_heads, value_dim]``.
        seen: bool ``[rows, length]``.
        scaling: of the scores.
        softcap: bound of the scores; None for none.
    """
    heads, rows, key_dim = queries.shape
    kv_heads = keys.shape[1]
    scores = queries.reshape(kv_heads, -1, key_dim) @ keys.permute(1, 2, 0) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(kv_heads, -1, *seen.shape).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(dim=3).view(kv_heads, -1, len(keys))
    return (weights @ values.transpose(0, 1)).view(heads, rows, -1)


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    specedu_attention: Attention | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Hand what a layer asks to the pass; the signature is transformers'.

    Raises:
        ValueError: the model kept our argument, masks by other means, or adds to the scores.
    """
    if specedu_attention is None:
        raise ValueError("arguments of its forward do not reach its attention")
    if attention_mask is None or attention_mask.numel() != 1:
        raise ValueError("its mask is not one that transformers makes of its configuration")
    for name in ("s_aux", "position_bias"):  # sinks, and biases by distance
        if others.get(name) is not None:
            raise ValueError(f"its attention needs {name}")
    asked = Asked(
        module.layer_idx,
        query[0],
        key[0],
        value[0],
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        attention_mask.item() or None,
        softcap,
    )
    return specedu_attention.attend(asked)[None], None


def mask_function(local_size: int | None = None, **others: Any) -> torch.Tensor:
    """Return the window of a layer's mask in place of the mask, ``[1, 1, 1, 1]``; 0 means none.

    Models make one mask for each kind of their layers and hand every layer its own. So the window
    that reaches attention is the one that transformers' own mask would have had.
    """
    return torch.full((1, 1, 1, 1), local_size or 0)


AttentionInterface.register(NAME, attention_function)
AttentionMaskInterface.register(NAME, mask_function)


# --- what is refused ------------------------------------------------------------------------------


def refuse_model(name: str, why: str) -> None:
    """Raise the error of an architecture that cannot be served.

    Raises:
        ValueError: always.
    """
    legal = "a causal LM whose whole state is the keys and values of its tokens"
    refuse("model", name, f"{legal}: {why}", name)


def check_config(config: Any, name: str) -> None:
    """Refuse by its configuration what the paged cache cannot hold.

    Args:
        config: of the checkpoint.
        name: of the architecture.

    Raises:
        ValueError: names the architecture and the part.
    """
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        refuse_model(name, "it is an encoder-decoder")
    if others := {*(getattr(text, "layer_types", None) or ())} - {*LAYER_TYPES}:
        kinds = ", ".join(sorted(others))
        refuse_model(name, f"a rejected draft cannot be taken out of its layers of type {kinds}")
    ropes: Mapping[str, Any] = getattr(text, "rope_parameters", None) or {}
    for rope in [ropes, *(part for part in ropes.values() if isinstance(part, Mapping))]:
        if rope.get("rope_type") == CHANGING_ROPE:
            why = f"its rope_type {CHANGING_ROPE!r} turns by the longest text of a pass"
            refuse_model(name, why)


def check_module(module: Any, name: str) -> None:
    """Refuse by its modules what the paged cache cannot hold.

    Args:
        module: the model.
        name: of the architecture.

    Raises:
        ValueError: names the architecture and the part.
    """
    if module._is_stateful:
        refuse_model(name, "a rejected draft cannot be taken out of its recurrent state")
    for path, part in module.named_modules():
        if isinstance(part, KEEPS_STATE):
            refuse_model(name, f"{path} is a {type(part).__name__}, which keeps a state of its own")
    if not (module._supports_attention_backend and module._can_set_attn_implementation()):
        refuse_model(name, "it does not leave attention to transformers' interface")
    text = module.config.get_text_config(decoder=True)
    if getattr(text, "max_position_embeddings", None) is None:
        refuse_model(name, "its configuration sets no max_position_embeddings")
    if module.dtype not in NEAR:
        refuse_model(name, f"its weights are {module.dtype}, expected one of {[*NEAR]}")


# --- the trial ------------------------------------------------------------------------------------

TRIAL_BLOCK = 4
# (text, from, to) of each pass: a chunk, a verify beside a prompt, a decode beside a chunk.
TRIAL_PASSES = [[(0, 0, 7)], [(0, 7, 11), (1, 0, 6)], [(1, 6, 9), (0, 11, 12)]]
TRIAL_TABLES = [[4, 0, 2], [1, 5, 3]]


def trial_texts(vocab_size: int, longest: int) -> list[list[int]]:
    """Return two texts of 12 and 9 ids, all over the vocabulary.

    Raises:
        ValueError: the context is too short for a trial.
    """
    if longest < 12:
        refuse("max_position_embeddings", longest, "at least 12")
    ids = [i * 7919 % vocab_size for i in range(1, 22)]  # a large prime
    return [ids[:12], ids[12:]]


@torch.no_grad()
def own_logits(module: Any, texts: list[list[int]]) -> list[torch.Tensor]:
    """Return each text's logits by transformers' own attention, ``[length, vocab_size]``."""
    module.set_attn_implementation("eager")
    return [module(torch.tensor([text]), use_cache=False).logits[0].float() for text in texts]


def trial_logits(model: HuggingFaceModel, texts: list[list[int]]) -> list[torch.Tensor]:
    """Return the same logits from passes of every shape on a paged cache."""
    cache = model.make_cache(6, TRIAL_BLOCK)
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    for parts in TRIAL_PASSES:
        fed = [(texts[t][start:stop], start, TRIAL_TABLES[t]) for t, start, stop in parts]
        logits = model.forward(lay_out(fed, TRIAL_BLOCK), cache)
        counts = [stop - start for _, start, stop in parts]
        for (t, _, _), some in zip(parts, logits.split(counts), strict=True):
            rows[t].append(some)
    return [torch.cat(some) for some in rows]


def lay_out(parts: list[tuple[list[int], int, list[int]]], block_size: int) -> ForwardBatch:
    """Return the pass over (ids, tokens before them, blocks) of each request; every row is wanted.

    Example:
        >>> batch = lay_out([([5, 6], 3, [1, 0])], block_size=4)
        >>> batch.positions.tolist(), batch.slot_mapping.tolist()
        ([3, 4], [7, 0])
    """
    places = [(i, blocks) for ids, start, blocks in parts for i in range(start, start + len(ids))]
    slots = [blocks[i // block_size] * block_size + i % block_size for i, blocks in places]
    counts = [len(ids) for ids, _, _ in parts]
    return ForwardBatch(
        input_ids=torch.tensor([token for ids, _, _ in parts for token in ids]),
        positions=torch.tensor([i for i, _ in places]),
        slot_mapping=torch.tensor(slots),
        block_tables=[blocks for _, _, blocks in parts],
        ragged=RaggedBatch.from_counts([start for _, start, _ in parts], counts),
        logits_indices=torch.arange(sum(counts)),
    )
