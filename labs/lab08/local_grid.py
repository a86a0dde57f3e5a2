"""Write a grid as this machine can serve it: backends that fit, and a command for each server.

``run.sh`` calls it before a sweep. Commands make the sweep start one server after the other, so the
device never holds two. They are no part of a cell: records of servers that ran already go on.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from specedu.sweep.grid import PLAIN, GridError, load, parse, presets

RUN = Path(__file__).resolve().parent / "run.sh"
GATED = ("meta-llama/",)  # fetched with a token alone, after their licence was accepted
HERE = ("127.0.0.1", "localhost", "::1")


def text_of(grid: str) -> str:
    """Return the YAML of a preset's name, or of a file."""
    if grid in presets():
        return (resources.files("specedu.sweep") / "presets" / f"{grid}.yaml").read_text("utf-8")
    return Path(grid).read_text("utf-8")


def localise(
    grid: str,
    engines: Sequence[str],
    backends: Sequence[str] = (),
    start: bool = True,
    token: bool = False,
) -> tuple[str, list[str]]:
    """Return a grid's YAML for this machine, and a sentence for each backend that was left out.

    Args:
        grid: a preset's name, or a YAML file.
        engines: that can be started here.
        backends: to keep; none keeps those that can be served.
        start: whether servers are started here; they run already otherwise.
        token: whether gated models can be fetched.

    Raises:
        GridError: the grid is illegal, nothing of it is left, or a server cannot be started.
    """
    name = load(grid).name  # refuses an illegal grid
    content = yaml.safe_load(text_of(grid))
    for word in backends:
        if word not in content["backends"]:
            raise GridError(
                f"BACKENDS: {word!r}, expected some of {', '.join(content['backends'])}"
            )
    kept: dict[str, Any] = {}
    left: list[str] = []
    for word, backend in content["backends"].items():
        why = "" if backends else unservable(word, content, engines, start, token)
        if backends and word not in backends:
            why = "not among BACKENDS"
        if why:
            left.append(f"{word} is left out: {why}")
        else:
            kept[word] = with_commands(word, content, engines) if start else backend
    sweeps = []
    for sweep in content["sweeps"]:
        named = [word for word in sweep.get("backends", kept) if word in kept]
        if named:
            sweeps.append({**sweep, "backends": named})
    if not sweeps:
        raise GridError("; ".join([f"GRID: {grid!r}, nothing of it can be served here", *left]))
    text = yaml.safe_dump({**content, "name": name, "backends": kept, "sweeps": sweeps},
                          sort_keys=False, width=1000)  # fmt: skip
    parse(text)
    return text, left


def unservable(
    name: str, content: Mapping[str, Any], engines: Sequence[str], start: bool, token: bool
) -> str:
    """Return why a backend cannot be served here; empty where it can."""
    backend = content["backends"][name]
    if backend["kind"] != "openai" or not start:
        return ""
    to_start = list(without_command(backend))
    if to_start and backend.get("engine") not in engines:
        return f"its engine {backend.get('engine')} is not among ENGINES"
    models = backend["model"] if isinstance(backend["model"], list) else [backend["model"]]
    drafts = [draft_of(method, name, content) for method in to_start if method != PLAIN]
    gated = [model for model in (*models, *drafts) if model and model.startswith(GATED)]
    if to_start and gated and not token:
        return f"{gated[0]} is gated and HF_TOKEN is not set; BACKENDS names it where it is here"
    return ""


def without_command(backend: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the servers that are to run here and that nothing starts."""
    for name, server in backend.get("servers", {}).items():
        if not server.get("command") and urlsplit(server["url"]).hostname in HERE:
            yield name


def with_commands(name: str, content: Mapping[str, Any], engines: Sequence[str]) -> dict[str, Any]:
    """Return a backend with a command for each server that lacks one."""
    backend = content["backends"][name]
    servers = {word: dict(server) for word, server in backend.get("servers", {}).items()}
    for word in without_command(backend):
        if backend.get("engine") not in engines:
            raise GridError(f"backends.{name}.engine: {backend.get('engine')!r}, expected one of "
                            f"ENGINES: {' '.join(engines) or 'none'}; or give command:")  # fmt: skip
        words = ["bash", str(RUN), "serve", backend["engine"], "{model}", "{port}",
                 str(most_requests(name, content))]  # fmt: skip
        if word != PLAIN:
            words += draft_words(word, name, content)
        servers[word]["command"] = shlex.join(words)
    return {**backend, **({"servers": servers} if servers else {})}


def sweeps_of(name: str, content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the sweeps that a backend takes part in."""
    return [s for s in content["sweeps"] if name in s.get("backends", content["backends"])]


def most_requests(name: str, content: Mapping[str, Any]) -> int:
    """Return how many requests at once a backend meets: its servers must take them all."""
    return max((max(s.get("concurrency", [1])) for s in sweeps_of(name, content)), default=1)


def draft_of(method: str, name: str, content: Mapping[str, Any]) -> str | None:
    """Return a method's draft model, or that of a method beside it where it names none."""
    methods = content["methods"]
    beside = [m for s in sweeps_of(name, content) for m in s.get("methods", methods)]
    return next((methods[m]["model"] for m in (method, *beside) if "model" in methods[m]), None)


def draft_words(method: str, name: str, content: Mapping[str, Any]) -> list[str]:
    """Return what ``run.sh serve`` is told of a draft.

    Raises:
        GridError: it is told of draft models alone, with real or synthetic acceptance.
    """
    settings = content["methods"][method]
    known = {"method", "model", "draft_cost", "rejection_sample_method",
             "synthetic_acceptance_length"}  # fmt: skip
    draft = draft_of(method, name, content)
    rule = settings.get("rejection_sample_method", "synthetic")
    if settings["method"] != "draft_model" or set(settings) - known or rule != "synthetic":
        raise GridError(f"methods.{method}: {dict(settings)}, expected draft_model, with its model "
                        f"or synthetic acceptance; or give backends.{name} a command:")  # fmt: skip
    if draft is None:
        raise GridError(f"methods.{method}.model: none, expected the draft's name")
    words = [draft, "{kappa}"]
    if "rejection_sample_method" in settings:
        in_name = re.search(r"\d+(\.\d+)?$", method)
        length = settings.get("synthetic_acceptance_length", in_name and in_name[0])
        if length is None:
            raise GridError(f"methods.{method}.synthetic_acceptance_length: none, expected tokens "
                            "a step, here or at the end of the name")  # fmt: skip
        words.append(str(length))
    return words


def main() -> int:
    """Write the grid; 2 where a setting is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--servers", choices=["start", "running"], default="start")
    parser.add_argument("--engines", nargs="*", default=[])
    parser.add_argument("--backends", nargs="*", default=[])
    given = parser.parse_args()
    try:
        text, left = localise(given.grid, given.engines, given.backends,
                              given.servers == "start", bool(environ.get("HF_TOKEN")))  # fmt: skip
    except GridError as error:
        print(f"local_grid.py: {error}", file=sys.stderr)
        return 2
    for words in left:
        print(words)
    given.out.write_text(text, "utf-8")
    print(f"grid: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
