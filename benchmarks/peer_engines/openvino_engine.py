"""OpenVINO GenAI, on an export of our checkpoint (see benchmarks/peers.py).

Plain decoding and prompt lookup run on the same backend with the same settings. The prefix cache is
off: the same prompts come again in every repeat.
"""

from __future__ import annotations

from pathlib import Path

import openvino
import openvino_genai
from loop import Generate, Settings, serve


def load(settings: Settings) -> Generate:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.enable_prefix_caching = False
    folder = Path(settings.model)
    pipeline = openvino_genai.LLMPipeline(
        folder.parent / f"{folder.name}-openvino",
        "CPU",
        scheduler_config=scheduler,
        prompt_lookup=settings.kappa > 0,
        INFERENCE_PRECISION_HINT="bf16",
        INFERENCE_NUM_THREADS=settings.threads,
    )

    def generate(token_ids: list[int], max_tokens: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.ignore_eos = True
        if settings.kappa:
            config.num_assistant_tokens = settings.kappa
            config.max_ngram_size = settings.lookup[1]
        prompt = openvino.Tensor([token_ids])
        return list(pipeline.generate(prompt, config).tokens[0])

    return generate


if __name__ == "__main__":
    serve(load, "openvino-genai", "openvino")
