"""specedu: speculative decoding as a book, and the engine that the book runs on."""

from . import kernels  # first: it sets TRITON_INTERPRET before anything else imports triton
from .config import SamplingParams, SpeculativeConfig
from .llm import LLM

__all__ = ["LLM", "REPOSITORY", "SamplingParams", "SpeculativeConfig", "kernels"]
__version__ = "0.1.0"

REPOSITORY = "https://github.com/specedu/specedu"
