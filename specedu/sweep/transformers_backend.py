"""transformers' ``generate``: plain in batches, its own ways to speculate one request alone."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import transformers

from specedu.models.loading import LoadingError, resolve

from .backends import BackendError, check_fits, texts_of, this_machine, versions_of
from .engine_backend import weights_hash
from .grid import Backend, Cell
from .samples import Sample, acceptance_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Rounds(transformers.StoppingCriteria):
    """Notes when each round ended, and how long the text was then; it never stops anything."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Note a round."""
        self.seen.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class TransformersBackend:
    """Models of transformers, loaded once each.

    Args:
        backend: its settings.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.models: dict[str, Any] = {}
        self.tokenizers: dict[str, Any] = {}
        self.hashes: dict[str, str] = {}

    def open(self, cell: Cell) -> None:
        """Load the model, and the draft model where there is one."""
        if not cell.plain and cell.concurrency > 1:
            raise BackendError(
                f"concurrency: {cell.concurrency}, expected 1: transformers' generate speculates "
                "for one request at a time"
            )
        try:
            self._model(cell.model)
            if draft := (cell.speculative_config() or {}).get("model"):
                self._model(draft)
        except (LoadingError, OSError, ValueError, RuntimeError, MemoryError) as error:
            raise BackendError(f"{type(error).__name__}: {error}") from error

    def run(self, cell: Cell) -> list[Sample]:
        """Measure a cell; a short run comes before."""
        try:
            self._generate(cell, texts_of(cell)[: cell.concurrency], 3, 0)
            return [self._sample(cell, repeat) for repeat in range(cell.repeats)]
        except (ValueError, RuntimeError, MemoryError) as error:
            raise BackendError(f"{type(error).__name__}: {error}") from error

    def describe(self, cell: Cell) -> dict[str, Any]:
        """Return device, versions and the weights' hash."""
        if cell.model not in self.hashes:
            self.hashes[cell.model] = weights_hash(resolve(cell.model))
        return {
            "device": this_machine() | {"threads": torch.get_num_threads()},
            "versions": versions_of("specedu", "torch", "transformers"),
            "model_hash": self.hashes[cell.model],
        }

    def close(self) -> None:
        """Let go of the models."""
        self.models.clear()

    def _model(self, name: str) -> Any:
        if name not in self.models:
            folder = resolve(name)
            check_fits(name, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=DTYPES[self.backend.dtype]
            ).eval()
            if torch.cuda.is_available():
                model = model.cuda()
            self.tokenizers[name] = transformers.AutoTokenizer.from_pretrained(folder)
            self.models[name] = model
        return self.models[name]

    def _sample(self, cell: Cell, repeat: int) -> Sample:
        texts = texts_of(cell)
        runs = [
            self._generate(cell, texts[at : at + cell.concurrency], cell.tokens + 1, repeat + at)
            for at in range(0, len(texts), cell.concurrency)
        ]
        emitted = [n for run in runs for n in run["emitted"]]
        spent = sum(run["seconds"] for run in runs)
        return Sample(
            rate=sum(emitted) * cell.concurrency / spent,
            tokens=(sum(emitted) + len(runs)) * cell.concurrency,
            seconds=sum(run["seconds"] + run["first"] for run in runs),
            first=median(run["first"] for run in runs),
            step=spent / len(emitted),
            acceptance=None if cell.plain else acceptance_of([n - 1 for n in emitted], cell.kappa),
        )

    def _generate(self, cell: Cell, texts: list[str], tokens: int, seed: int) -> dict[str, Any]:
        model, tokenizer = self.models[cell.model], self.tokenizers[cell.model]
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            if tokenizer.chat_template
            else text
            for text in texts
        ]
        tokenizer.padding_side = "left"
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        inputs = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs = inputs.to(model.device)
        rounds = Rounds()
        sampled = cell.temperature > 0
        choice = {"temperature": cell.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}
        torch.manual_seed(seed)
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                **inputs,
                max_new_tokens=tokens,
                min_new_tokens=tokens,  # past the end of text
                do_sample=sampled,
                pad_token_id=tokenizer.pad_token_id,
                stopping_criteria=transformers.StoppingCriteriaList([rounds]),
                **choice,
                **self._drafting(cell),
            )
        (first, length), *_ = rounds.seen
        last, _ = rounds.seen[-1]
        ends = [end for _, end in rounds.seen]
        emitted = [b - a for a, b in zip(ends, ends[1:], strict=False)]
        return {"first": first - start, "seconds": last - first, "emitted": emitted,
                "begun": length}  # fmt: skip

    def _drafting(self, cell: Cell) -> dict[str, Any]:
        """Return what ``generate`` is told of the cell's drafts."""
        config = cell.speculative_config()
        if config is None:
            return {}
        if config["method"] == "ngram":
            found = {"prompt_lookup_num_tokens": cell.kappa}
            if longest := config.get("prompt_lookup_max"):
                found["max_matching_ngram_size"] = longest
            return found
        draft = self.models[config["model"]]
        draft.generation_config.num_assistant_tokens = cell.kappa
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        return {"assistant_model": draft}
