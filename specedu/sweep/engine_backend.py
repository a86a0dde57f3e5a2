"""This engine, in this process: the only backend whose step is seen from inside.

The prompts of a group of requests are computed first. Then steps are timed until the group has the
tokens that were asked for, together; no request ends on the way, so that all of them run in every
step that is timed. Groups follow each other until every prompt had its turn.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from specedu.config import SamplingParams
from specedu.llm import LLM, mixed_seed
from specedu.models.loading import EMBEDDED, LoadingError, cache_folder, resolve
from specedu.models.toy import ContextModel
from specedu.timing import PartTimer

from .backends import BackendError, check_fits, texts_of, this_machine, versions_of
from .grid import Backend, Cell
from .samples import Sample, acceptance_of

TOY = "toy"  # an exact model of 16 ids, to try a grid out without weights
BLOCK = 16
LONGEST_PROMPT = 512  # tokens, above every one of the project's own prompts
LOADING = 2  # times the weights: products have a copy in a layout of their own
OPEN = 3  # engines kept at once: each has a cache, and some a draft


class EngineBackend:
    """The project's own engine.

    Args:
        backend: its settings.
        most: the largest concurrency, for which the cache is made.
    """

    def __init__(self, backend: Backend, most: int) -> None:
        self.backend, self.most = backend, most
        self.bases: dict[str, LLM] = {}
        self.hashes: dict[str, str] = {}
        self.engines: dict[tuple, tuple[LLM, PartTimer]] = {}

    def open(self, cell: Cell) -> None:
        """Load the model, and make an engine with the cell's drafts."""
        key = cell.model, cell.settings, cell.kappa, cell.tokens
        if key in self.engines:
            self.engines[key] = self.engines.pop(key)  # the latest used is the last
            return
        while len(self.engines) >= OPEN:
            self.engines.pop(next(iter(self.engines)))
        try:
            self._check_fits(cell)
            base = self._base(cell.model)
            longest = min(base.model.max_model_len, LONGEST_PROMPT + room(cell))
            llm = LLM(
                base.model,
                cell.speculative_config(),
                tokenizer=base.tokenizer,
                block_size=BLOCK,
                num_blocks=(self.most + 1) * -(-(longest + 16) // BLOCK),
                max_num_seqs=max(64, self.most),
                max_num_batched_tokens=max(2048, 2 * self.most),
                max_model_len=longest,
            )
        except (ValueError, LoadingError, MemoryError, RuntimeError, OSError) as error:
            raise BackendError(f"{type(error).__name__}: {error}") from error
        self.engines[key] = llm, PartTimer(llm)

    def run(self, cell: Cell) -> list[Sample]:
        """Measure a cell; a short group runs before, since what is first is slow."""
        llm, timer = self.engines[cell.model, cell.settings, cell.kappa, cell.tokens]
        try:
            prompts = [self._encode(llm, text) for text in texts_of(cell)]
            self._group(llm, timer, cell, prompts[: cell.concurrency], 0, 2 * cell.concurrency)
            return [self._sample(llm, timer, cell, prompts, i) for i in range(cell.repeats)]
        except (ValueError, RuntimeError, MemoryError) as error:
            raise BackendError(f"{type(error).__name__}: {error}") from error

    def describe(self, cell: Cell) -> dict[str, Any]:
        """Return device, versions and the weights' hash."""
        if cell.model not in self.hashes:
            toy = cell.model == TOY
            self.hashes[cell.model] = "none: a toy" if toy else weights_hash(resolve(cell.model))
        return {
            "device": this_machine() | {"threads": torch.get_num_threads()},
            "versions": versions_of("specedu", "torch", "triton"),
            "model_hash": self.hashes[cell.model],
        }

    def close(self) -> None:
        """Let go of engines and weights."""
        self.engines.clear()
        self.bases.clear()

    def _check_fits(self, cell: Cell) -> None:
        """Refuse a cell whose weights and caches would take more memory than is free."""
        size = None if cell.model == TOY else size_of(cell.model)
        if size is None:
            return
        weights = 0 if cell.model in self.bases else LOADING * size.weights
        slots = (self.most + 1) * (LONGEST_PROMPT + room(cell) + 2 * BLOCK)
        check_fits(f"{cell.model} for {self.most} requests at once", weights + slots * size.slot)

    def _base(self, model: str) -> LLM:
        if model not in self.bases:
            loaded = ContextModel(16, max_model_len=4096) if model == TOY else model
            self.bases[model] = LLM(loaded, dtype=self.backend.dtype)
        return self.bases[model]

    def _encode(self, llm: LLM, text: str) -> list[int]:
        if hasattr(llm.tokenizer, "chat"):
            return llm.tokenizer.chat([{"role": "user", "content": text}])
        if isinstance(llm.model, ContextModel):
            return [byte % llm.model.vocab_size for byte in text.encode()[:64]]
        return llm.tokenizer.encode(text)

    def _sample(
        self, llm: LLM, timer: PartTimer, cell: Cell, prompts: list[list[int]], repeat: int
    ) -> Sample:
        start = time.perf_counter()
        groups = [
            self._group(llm, timer, cell, prompts[at : at + cell.concurrency], repeat * 7919 + at,
                        cell.tokens * cell.concurrency)
            for at in range(0, len(prompts), cell.concurrency)
        ]  # fmt: skip
        seconds = time.perf_counter() - start
        emitted = [n for group in groups for n in group["emitted"]]
        steps = sum(group["steps"] for group in groups)
        spent = sum(group["seconds"] for group in groups)
        parts = {part: sum(group["parts"][part] for group in groups) / steps
                 for part in groups[0]["parts"]}  # fmt: skip
        return Sample(
            rate=sum(emitted) / spent,
            tokens=sum(emitted) + len(prompts),
            seconds=seconds,
            first=median(group["first"] for group in groups),
            step=spent / steps,
            parts=parts,
            acceptance=(
                None if cell.plain else acceptance_of([n - 1 for n in emitted], cell.kappa)
            ),
        )

    def _group(
        self,
        llm: LLM,
        timer: PartTimer,
        cell: Cell,
        prompts: list[list[int]],
        seed: int,
        tokens: int,
    ) -> dict[str, Any]:
        """Run requests at once until they have so many tokens together behind their first."""
        engine = llm.engine
        params = SamplingParams(
            temperature=cell.temperature, max_tokens=room(cell), ignore_eos=True
        )
        start = time.perf_counter()
        requests = [
            engine.add_request(f"sweep-{i}", ids, params, mixed_seed(seed, i))
            for i, ids in enumerate(prompts)
        ]
        try:
            while not all(request.decoding for request in requests):
                engine.step()
            first = time.perf_counter()
            timer.reset()
            emitted: list[int] = []
            steps = 0
            while sum(emitted) < tokens and not any(request.finished for request in requests):
                emitted += [len(part.new_token_ids) for part in engine.step()]
                steps += 1
            seconds = time.perf_counter() - first
            parts = timer.parts(seconds)
        finally:
            for request in requests:
                engine.cancel(request.request_id)
        if not steps:
            raise RuntimeError("no step was timed: the requests ended with their prompts")
        return {"emitted": emitted, "steps": steps, "seconds": seconds, "parts": parts,
                "first": first - start}  # fmt: skip


def room(cell: Cell) -> int:
    """Return how far a request may run: lucky ones run ahead of the mean."""
    return 2 * cell.tokens + 2 * (cell.kappa + 1)


def weights_hash(folder: Path) -> str:
    """Return the first 16 digits of the SHA-256 over a checkpoint's weights and configuration."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        digest.update(file.name.encode())
        if file.exists():
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]


def is_here(model: str) -> bool:
    """Return whether a model can be read without fetching anything."""
    known = EMBEDDED.get(model)
    return (cache_folder() / known.name).is_dir() if known else Path(model).expanduser().is_dir()


class Size(NamedTuple):
    """Bytes of a model's weights, and of its cache for one token in float32."""

    weights: int
    slot: int


def size_of(model: str) -> Size | None:
    """Return a model's size as its files tell it, None if they are not here."""
    if not is_here(model):
        return None
    try:
        folder = resolve(model)
        config = json.loads((folder / "config.json").read_text())
    except (LoadingError, OSError, ValueError):
        return None
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config["hidden_size"] // config["num_attention_heads"]
    return Size(weights, 2 * config["num_hidden_layers"] * heads * width * 4)


def estimate_memory(grid_cells: list[Cell]) -> int | None:
    """Return the bytes of weights and caches that the cells need at once, None if not known here.

    Weights in float32 are counted, a draft's copy too, and a cache of the largest concurrency for
    each engine that is kept.
    """
    total = 0
    for model in {cell.model for cell in grid_cells}:
        if model == TOY:
            continue
        size = size_of(model)
        if size is None:
            return None
        of = [cell for cell in grid_cells if cell.model == model]
        longest = max(room(cell) for cell in of) + LONGEST_PROMPT + 16
        caches = OPEN * (max(cell.concurrency for cell in of) + 1) * longest * size.slot
        total += LOADING * size.weights + 2 * caches  # twice: a draft model has its own layers
    return total
