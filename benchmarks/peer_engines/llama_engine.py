"""llama.cpp through xllamacpp's server, which computes in this process and answers on loopback.

Its nearest n-gram drafter is ``ngram-simple``: one length of suffix, and the latest occurrence. It
gets the longest length, which serves it better than shorter ones. (``ngram-mod`` keeps what it has
seen from request to request, and would know each text from the repeat before.)

Told to ignore the end of text, it never says that id; the others say it and go on. So its text is
another behind such a place.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import xllamacpp
from loop import Generate, Settings, serve
from write_gguf import gguf_file


def load(settings: Settings) -> Generate:
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_file(Path(settings.model)))
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.cache_ram_mib = 0
    if settings.kappa:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = settings.lookup[1]
        params.speculative.ngram_simple.size_m = settings.kappa
    server = xllamacpp.Server(params)

    def generate(token_ids: list[int], max_tokens: int) -> list[int]:
        asked = {
            "prompt": token_ids,
            "n_predict": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,  # the same prompts come again in every repeat
            "return_tokens": True,
        }
        url = f"{server.listening_address}/completion"
        with urlopen(Request(url, json.dumps(asked).encode())) as answer:
            return json.load(answer)["tokens"]

    return generate


if __name__ == "__main__":
    serve(load, "xllamacpp")
