"""The public face: prompts in, texts out, many at a time, each with its own settings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .config import (
    CacheConfig,
    SamplingParams,
    SchedulerConfig,
    SpeculativeConfig,
    check_choice,
    check_flag,
    check_int,
    refuse,
)
from .draft.base import Proposer
from .draft.draft_model import DraftModelProposer, check_vocabularies
from .draft.ngram import NgramProposer
from .engine import Engine
from .metrics import SpecDecodeStats
from .models.base import Model
from .models.loading import DEFAULT, load_model, resolve
from .request import Request
from .rule import Rule
from .runner import Runner
from .sampling.coins import CoinSource, PhiloxCoins
from .tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class CompletionOutput:
    """One output of a request.

    Attributes:
        index: which of the request's ``n`` outputs.
        text: the text, stop strings and the end-of-text id cut; empty without a tokenizer.
        token_ids: the ids, the one that stopped the output included.
        finish_reason: ``stop``, ``length`` or ``abort``; None while it grows.
        stop_reason: the stop id or string; None for the end-of-text id.
        draft_length_varied: whether load shortened a draft: the law is the same then, the sample
            need not be (with ``match`` it is).
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    draft_length_varied: bool


@dataclass(frozen=True)
class RequestOutput:
    """A prompt with its outputs, and what speculation did for them.

    Attributes:
        request_id: its name.
        prompt: as it was given.
        prompt_token_ids: its ids.
        outputs: ``n`` of them.
        finished: whether all have ended.
        metrics: counters over all outputs.
    """

    request_id: str
    prompt: Prompt
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: SpecDecodeStats


@dataclass(frozen=True)
class StreamOutput:
    """What one step added to one output.

    Attributes:
        request_id: whose.
        index: which of its ``n`` outputs.
        text: the new text; what may be the beginning of a stop string is held back.
        token_ids: the new ids.
        finish_reason: as in :class:`CompletionOutput`.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None


class LLM:
    """A language model that decodes speculatively.

    Args:
        model: an embedded model's name (``smollm2-135m``), a checkpoint's folder, a hub id, a GGUF
            file, or a model object.
        speculative_config: a SpeculativeConfig or a mapping of its settings; None decodes plainly.
        block_size: slots of a cache block.
        num_blocks: blocks of the cache.
        max_num_seqs: running requests at most.
        max_num_batched_tokens: token budget of a step.
        max_model_len: tokens of a request at most; unless given the model's limit, but no more
            than 2048.
        dtype: of a checkpoint's weights, ``float32`` or ``bfloat16``; a model object has its own.
        batch_invariant: let the model give each row the same bits alone, in a verify, and in any
            batch and chunk. With ``rejection_sample_method="match"`` a seed then gives the text of
            plain decoding, whatever is drafted and whoever runs along. It costs speed.
        tokenizer: an object with ``encode`` and ``decoder``; a checkpoint brings its own, and a
            model object's ``encode`` and ``decode`` serve where it has them.
        seed: seeds of requests without one are drawn from it and from the request's id.
        coins: where every coin comes from; Philox unless given.
        backend: of the acceptance rule; None picks by device.
        audit: check every invariant after every step.
        poison: overwrite what must never be read, after every step (toys only).
        record: keep a record of every step in ``llm.engine.records``.

    Raises:
        ValueError: a setting is illegal, or two do not fit together.
        LoadingError: a model cannot be had, read or served, or has no tokenizer.

    Example:
        >>> from specedu.models.toy import ContextModel
        >>> llm = LLM(ContextModel(4), {"method": "ngram", "num_speculative_tokens": 3})
        >>> [output] = llm.generate([[0, 1, 2]], SamplingParams(max_tokens=4, seed=1))
        >>> len(output.outputs[0].token_ids), output.outputs[0].finish_reason
        (4, 'length')
    """

    def __init__(
        self,
        model: Model | str | Path = DEFAULT,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        *,
        block_size: int = 16,
        num_blocks: int = 256,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        dtype: str = "float32",
        batch_invariant: bool = False,
        tokenizer: Any = None,
        seed: int = 0,
        coins: CoinSource | None = None,
        backend: str | None = None,
        audit: bool = False,
        poison: bool = False,
        record: bool = False,
    ) -> None:
        check_int("seed", seed, -(2**63), 2**63 - 1)
        check_choice("dtype", dtype, list(DTYPES))
        if isinstance(model, str | Path):
            folder = resolve(model)
            tokenizer = Tokenizer(folder) if tokenizer is None else tokenizer
            model = load_model(folder, DTYPES[dtype])
        if not hasattr(model, "forward"):
            refuse("model", model, "a model's name, a folder, or an object with forward")
        check_flag("batch_invariant", batch_invariant)
        if batch_invariant and not hasattr(model, "invariant"):
            refuse("batch_invariant", True, "False: the model's rows depend on their company")
        if tokenizer is None and hasattr(model, "encode"):
            tokenizer = Pieces(model)
        longest = min(model.max_model_len, 2048) if max_model_len is None else max_model_len
        check_int("max_model_len", longest, 2, model.max_model_len)
        cache = CacheConfig(block_size, num_blocks)
        if num_blocks * block_size < longest:
            least = -(-longest // block_size)
            refuse("num_blocks", num_blocks, f"at least {least} to hold max_model_len = {longest}")
        self.tokenizer = tokenizer
        self.seed = seed
        self.speculative_config = SpeculativeConfig.of(speculative_config)
        proposer = make_proposer(self.speculative_config, model, cache)  # drafts need no invariance
        self.model = model = model.invariant() if batch_invariant else model
        kappa = self.speculative_config.num_speculative_tokens if proposer else 0
        rule = Rule.of(self.speculative_config)
        self.engine = Engine(
            Runner(
                model,
                num_blocks,
                block_size,
                coins or PhiloxCoins(),
                proposer,
                kappa,
                backend,
                rule,
                self.speculative_config.draft_length if proposer else None,
            ),
            cache,
            SchedulerConfig(
                max_num_seqs,
                max_num_batched_tokens,
                longest,
                proposer.draft_slots if proposer else 0,
                proposer.num_lookahead_tokens if proposer else 0,
            ),
            decoder=tokenizer.decoder if tokenizer else None,
            audited=audit,
            poisoned=poison,
            recorded=record,
        )
        self._count = 0
        logger.info("%s", self.capacity)

    @property
    def capacity(self) -> str:
        """What the cache holds, in words; logged when the engine starts.

        Example:
            >>> from specedu.models.toy import ContextModel
            >>> LLM(ContextModel(4), {"method": "ngram", "num_speculative_tokens": 3}).capacity
            'cache of 4096 tokens: 16.0 requests of 256 at once; a decode reserves 4 slots a step'
        """
        engine, config = self.engine, self.engine.scheduler.config
        blocks = -(-config.max_model_len // engine.block_size)
        slots = 1 + engine.runner.kappa + config.num_lookahead_tokens
        return (
            f"cache of {engine.pool.num_blocks * engine.block_size} tokens: "
            f"{engine.pool.num_blocks / blocks:.1f} requests of {config.max_model_len} at once; "
            f"a decode reserves {slots} slots a step"
        )

    # --- generating -------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts, and return the outputs in the order of the prompts.

        Every prompt is checked before any begins; requests that run already go on.

        Raises:
            ValueError: a prompt is illegal, or the settings are not as many as the prompts.
        """
        groups = [self._add(*asked) for asked in self._checked(prompts, sampling_params)]
        try:
            while any(not request.finished for group in groups for request in group.requests):
                self.engine.step()
        finally:
            self._cancel(groups)  # an error or an interrupt leaves nothing behind
        return [group.output() for group in groups]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling_params: SamplingParams | None = None,
    ) -> RequestOutput:
        """Generate the answer to a conversation of ``{"role": ..., "content": ...}`` messages.

        Raises:
            ValueError: the tokenizer has no chat template.
        """
        if not hasattr(self.tokenizer, "chat"):
            refuse("messages", messages, "none: the tokenizer has no chat template")
        return self.generate(self.tokenizer.chat(messages), sampling_params)[0]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamOutput]:
        """Yield what each step adds, in the order in which it comes.

        Requests begin with the first ``next``; closing the iterator early cancels what is left.
        Several streams may take turns on one engine: each yields all of its own tokens.

        Raises:
            ValueError: as :meth:`generate`, at once.
        """
        return self._stream(self._checked(prompts, sampling_params))

    def cancel(self, request_id: str) -> None:
        """End a request and all of its outputs; an unknown or ended one changes nothing."""
        for name in list(self.engine.requests):
            if name == request_id or name.startswith(f"{request_id}-"):
                self.engine.cancel(name)

    @property
    def metrics(self) -> SpecDecodeStats:
        """Counters of every request that has ended."""
        return self.engine.stats

    # --- requests ---------------------------------------------------------------------------------

    def _checked(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[tuple[Prompt, list[int], SamplingParams]]:
        single = isinstance(prompts, str) or (prompts and isinstance(prompts[0], int))
        prompts = [prompts] if single else list(prompts)
        settings = sampling_params or SamplingParams()
        if isinstance(settings, SamplingParams):
            settings = [settings] * len(prompts)
        if len(settings) != len(prompts):
            legal = f"{len(prompts)}, one a prompt"
            refuse("sampling_params", settings, legal, f"{len(settings)} settings")
        ids = [self._encode(prompt) for prompt in prompts]
        for token_ids, params in zip(ids, settings, strict=True):
            self.engine.check_request(token_ids, params)
        return list(zip(prompts, ids, settings, strict=True))

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            refuse("prompt", prompt, "token ids: there is no tokenizer")
        return self.tokenizer.encode(prompt)

    def _add(self, prompt: Prompt, token_ids: list[int], params: SamplingParams) -> Group:
        request_id = str(self._count)
        self._count += 1
        base = mixed_seed(self.seed, request_id) if params.seed is None else params.seed
        requests = [
            self.engine.add_request(
                f"{request_id}-{i}", token_ids, params, mixed_seed(base, i) if i else base
            )
            for i in range(params.n)
        ]
        return Group(request_id, prompt, token_ids, requests)

    def _stream(
        self, asked: Sequence[tuple[Prompt, list[int], SamplingParams]]
    ) -> Iterator[StreamOutput]:
        groups = [self._add(*one) for one in asked]
        left = [
            Sent(group.request_id, i, r) for group in groups for i, r in enumerate(group.requests)
        ]
        try:
            while left:
                for sent in left:
                    # Steps may have been taken elsewhere: what counts is what was not sent yet.
                    if sent.request.num_output_tokens > sent.tokens or sent.request.finished:
                        yield sent.output()
                left = [sent for sent in left if not sent.ended]
                if left:
                    self.engine.step()
        finally:
            self._cancel(groups)

    def _cancel(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.cancel(group.request_id)


class Pieces:
    """The pieces of a toy, as a tokenizer."""

    def __init__(self, model: Any) -> None:
        self.encode = model.encode
        self.decoder = lambda: model.decode


@dataclass
class Sent:
    """How much of one output a stream has yielded."""

    request_id: str
    index: int
    request: Request
    tokens: int = 0
    characters: int = 0
    ended: bool = False

    def output(self) -> StreamOutput:
        """Return what is new, and count it as sent."""
        request = self.request
        safe = max(self.characters, len(request.text) - held_back(request))
        text, ids = request.text[self.characters : safe], request.output_token_ids[self.tokens :]
        self.tokens, self.characters = self.tokens + len(ids), safe
        self.ended = request.finished
        return StreamOutput(self.request_id, self.index, text, ids, request.finish_reason)


@dataclass
class Group:
    """The engine requests of one prompt."""

    request_id: str
    prompt: Prompt
    prompt_token_ids: list[int]
    requests: list[Request]

    def output(self) -> RequestOutput:
        """Return what they came to."""
        total = SpecDecodeStats()
        for request in self.requests:
            total.add(request.stats)
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            [
                CompletionOutput(
                    i,
                    request.text,
                    request.output_token_ids,
                    request.finish_reason,
                    request.stop_reason,
                    request.draft_length_varied,
                )
                for i, request in enumerate(self.requests)
            ],
            all(request.finished for request in self.requests),
            total,
        )


def held_back(request: Request) -> int:
    """Return how many last characters may be the beginning of a stop string; 0 once it has ended.

    Example:
        >>> from specedu.cache.block_pool import BlockPool
        >>> from specedu.cache.block_table import BlockTable
        >>> table = BlockTable(BlockPool(1), 1)
        >>> request = Request("a", [1], SamplingParams(stop="xyz"), 0, table)
        >>> request.text = "abxy"
        >>> held_back(request)
        2
    """
    if request.finished:
        return 0
    ends = (
        n
        for word in request.params.stop
        for n in range(1, len(word))
        if request.text.endswith(word[:n])
    )
    return max(ends, default=0)


def mixed_seed(seed: int, label: int | str) -> int:
    """Return an int64 seed made of a seed and a label, the same on every machine.

    Example:
        >>> mixed_seed(0, "7") != mixed_seed(0, "8")
        True
    """
    digest = hashlib.blake2b(f"{seed}/{label}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def make_proposer(
    config: SpeculativeConfig | None, model: Model, cache: CacheConfig
) -> Proposer | None:
    """Return the proposer that a configuration asks for; None without one.

    Raises:
        ValueError: the draft's vocabulary does not fit, or the setting cannot be served yet.
    """
    if config is None:
        return None
    if config.method == "ngram":
        return NgramProposer(
            config.prompt_lookup_min, config.prompt_lookup_max, config.prompt_lookup_latest
        )
    if config.method == "custom":
        return config.proposer
    draft = draft_of(config, model)
    return DraftModelProposer(
        draft,
        config.num_speculative_tokens,
        model.vocab_size,
        cache.num_blocks,
        cache.block_size,
        config.draft_sample_method,
        # Early exit's layers are the target's: they are no other queue.
        draft_slots=0 if config.method == "early_exit" else 1,
        reads_target_cache=own_layers(config, model),
    )


def own_layers(config: SpeculativeConfig, model: Model) -> bool:
    """Return whether a draft is made of the target's layers, and their cache can be read by layer.

    Layers of the same weights alone hold the same keys and values, or nearly.
    """
    of_target = config.method == "early_exit" or config.model == "self"
    return of_target and getattr(model, "cache_by_layers", False)


def draft_of(config: SpeculativeConfig, model: Model) -> Model:
    """Return the draft model of a configuration, checked against the target.

    Raises:
        ValueError: it is no model, knows other tokens, or has a shorter context.
        LoadingError: it cannot be had.
    """
    if config.method == "early_exit":
        if not hasattr(model, "first_layers"):
            refuse("method", "early_exit", "another: the target has no layers to leave early")
        return model.first_layers(config.early_exit_layers)
    draft = model if config.model == "self" else config.model
    if isinstance(draft, str | Path):
        draft = load_model(resolve(draft), getattr(model, "dtype", torch.float32))
    if not hasattr(draft, "forward"):
        refuse("speculative_config model", draft, "a model object, a name, a folder, or 'self'")
    check_vocabularies(model, draft)
    if draft.max_model_len < model.max_model_len:
        least = f"at least the target's {model.max_model_len}"
        refuse("max_model_len of the draft model", draft.max_model_len, least)
    if config.quantization:
        if not hasattr(draft, "quantized"):
            refuse("quantization", config.quantization, "None: the draft model has no such weights")
        draft = draft.quantized()
    return draft
