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


def parameters(folder: Path, threads: int, kappa: int, suffix: int) -> xllamacpp.CommonParams:
    """Return what a server of a checkpoint is given; no drafts where kappa is 0."""
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf_file(folder))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if kappa:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = suffix
        params.speculative.ngram_simple.size_m = kappa
    return params


def load(settings: Settings) -> Generate:
    params = parameters(Path(settings.model), settings.threads, settings.kappa, settings.lookup[1])
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cache_ram_mib = 0
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
