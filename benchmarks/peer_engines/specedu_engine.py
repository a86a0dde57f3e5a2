"""specedu itself, measured as its peers are."""

from __future__ import annotations

import torch
from loop import Generate, Settings, serve

from specedu import LLM, SamplingParams


def load(settings: Settings) -> Generate:
    torch.set_num_threads(settings.threads)
    llm = LLM(settings.model, settings.ngram(), dtype="bfloat16")

    def generate(token_ids: list[int], max_tokens: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return llm.generate([token_ids], params)[0].outputs[0].token_ids

    return generate


if __name__ == "__main__":
    serve(load, "specedu", "torch")
