"""The tokenizer of a real model: text to ids, and ids back to text as they come.

A token of a byte-level vocabulary may be half a character. A decoder keeps such a half until the
rest has come, so that streamed text is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .models.loading import load_tokenizer


class Tokenizer:
    """A checkpoint's tokenizer as the engine uses it."""

    def __init__(self, folder: Path | str) -> None:
        self.inner: Any = load_tokenizer(folder)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(self.inner(text).input_ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation, with the beginning of the answer behind it."""
        return self.encode(
            self.inner.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        )

    def decoder(self) -> Callable[[Sequence[int]], str]:
        """Return a function that gives the text which new ids add; one a request."""
        from tokenizers.decoders import DecodeStream

        stream, backend = DecodeStream(skip_special_tokens=True), self.inner.backend_tokenizer

        def decode(token_ids: Sequence[int]) -> str:
            return "".join(stream.step(backend, token) or "" for token in token_ids)

        return decode
