"""What a sweep measures: a grid of cells, read from YAML and checked before anything runs.

The shipped grids in ``presets/`` show the form: backends and methods by name, and sweeps that name
values for each axis. A cell of plain decoding is added for every backend, model, temperature, kind
and concurrency, and stands beside the speculative ones in the order: a machine's speed drifts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from specedu.config import (
    GREEDY_BELOW,
    SpeculativeConfig,
    check_choice,
    check_flag,
    check_int,
    check_number,
    refuse,
)
from specedu.prompts import KINDS

PLAIN = "plain"
KINDS_OF_BACKEND = ("specedu", "transformers", "openai")
DTYPES = ("float32", "bfloat16")
ENGINES = ("vllm", "sglang", "llama.cpp", "other")
TRANSFORMERS_METHODS = {  # with what it understands of each
    "ngram": ("prompt_lookup_min", "prompt_lookup_max"),
    "draft_model": ("model",),
}
MOST_CONCURRENCY, MOST_TOKENS, MOST_REPEATS = 4096, 100_000, 1000


class GridError(ValueError):
    """A grid cannot be read; the message names the setting, its value and the legal ones."""


@dataclass(frozen=True)
class Server:
    """Where one method of a backend is served.

    Attributes:
        url: without ``/v1``; ``{kappa}`` in it is replaced.
        command: starts it; None where it runs already. ``{kappa}``, ``{model}`` and ``{port}``
            (of the url) in it are replaced.
        metrics: its metrics page; None is the url's ``/metrics``.
    """

    url: str
    command: str | None = None
    metrics: str | None = None


@dataclass(frozen=True)
class Backend:
    """Who generates.

    Attributes:
        name: as the report calls it.
        kind: ``specedu``, ``transformers`` or ``openai``.
        models: names, each swept.
        dtype: of the weights; a server has its own, and this is what the report says.
        engine: of a server: ``vllm``, ``sglang``, ``llama.cpp`` or ``other``.
        device: of a server, for the report; None asks this machine.
        servers: of a server's methods, ``plain`` among them.
        chat: whether prompts go through the server's chat template; base models have none.
        extra: what each request to a server carries besides.
        timeout: seconds that a server may be silent.
        start_timeout: seconds that a server may take to start.
    """

    name: str
    kind: str
    models: tuple[str, ...]
    dtype: str = "float32"
    engine: str = "other"
    device: str | None = None
    servers: Mapping[str, Server] = field(default_factory=dict)
    chat: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 120.0
    start_timeout: float = 900.0

    @property
    def one_at_a_time(self) -> bool:
        """Whether its servers are started here, and so must take turns on the device."""
        return any(server.command for server in self.servers.values())


@dataclass(frozen=True)
class Method:
    """A way to speculate.

    Attributes:
        name: as the report calls it.
        settings: vLLM's names, without ``num_speculative_tokens``.
        draft_cost: one draft pass over one plain step, for the prediction on servers.
    """

    name: str
    settings: Mapping[str, Any]
    draft_cost: float | None = None


@dataclass(frozen=True)
class Cell:
    """One measurement, repeated.

    Attributes:
        backend: its name.
        engine: what kind of backend it is.
        model: its name.
        dtype: of its weights.
        method: its name; ``plain`` does not speculate.
        settings: of the method, as JSON.
        kappa: drafts a step; 0 of plain decoding.
        temperature: of sampling.
        kind: of prompts.
        concurrency: requests at once.
        repeats: samples.
        tokens: of each request, behind the first.
        prompts: different ones.
    """

    backend: str
    engine: str
    model: str
    dtype: str
    method: str
    settings: str
    kappa: int
    temperature: float
    kind: str
    concurrency: int
    repeats: int
    tokens: int
    prompts: int

    @property
    def key(self) -> str:
        """A hash of all settings, the same in every run and on every machine."""
        words = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    @property
    def plain(self) -> bool:
        """Whether it does not speculate."""
        return self.method == PLAIN

    @property
    def group(self) -> tuple:
        """What it shares with its plain cell: all but the method."""
        return (self.backend, self.model, self.dtype, self.temperature, self.kind,
                self.concurrency, self.tokens, self.prompts)  # fmt: skip

    @property
    def line(self) -> tuple:
        """What it shares with the cells of other concurrencies."""
        return (self.backend, self.model, self.dtype, self.method, self.settings, self.kappa,
                self.temperature, self.kind, self.tokens, self.prompts)  # fmt: skip

    @property
    def requests(self) -> int:
        """How many a sample serves: every prompt as often, and never fewer than run at once."""
        rounds = -(-max(self.concurrency, self.prompts) // self.concurrency)
        return rounds * self.concurrency

    def speculative_config(self) -> dict[str, Any] | None:
        """Return what the engine is given; None decodes plainly."""
        if self.plain:
            return None
        return {**json.loads(self.settings), "num_speculative_tokens": self.kappa}

    def __str__(self) -> str:
        """Return it in words."""
        how = self.method if self.plain else f"{self.method} kappa {self.kappa}"
        return (f"{self.backend} {self.model} {how} T={self.temperature:g} {self.kind} "
                f"B={self.concurrency}")  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A sweep.

    Attributes:
        name: of its folder.
        backends: by name.
        methods: by name.
        cells: in the order in which they run.
        crossing: whether concurrency is no longer raised once a method has lost.
        price_per_hour: of the machine; None is not known.
    """

    name: str
    backends: Mapping[str, Backend]
    methods: Mapping[str, Method]
    cells: tuple[Cell, ...]
    crossing: bool = False
    price_per_hour: float | None = None


# --- reading --------------------------------------------------------------------------------------


def presets() -> list[str]:
    """Return the names of the grids that are shipped.

    Example:
        >>> presets()
        ['cpu', 'cpu-5min', 'h100']
    """
    folder = resources.files(__package__) / "presets"
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load(name: str) -> Grid:
    """Return the grid of a preset's name, or of a YAML file.

    Raises:
        GridError: it is neither, or an entry is illegal.
    """
    if name in presets():
        text = (resources.files(__package__) / "presets" / f"{name}.yaml").read_text("utf-8")
        return parse(text, name)
    path = Path(name)
    if not path.exists():
        raise GridError(f"GRID: {name!r}, expected a YAML file or one of {', '.join(presets())}")
    try:
        return parse(path.read_text("utf-8"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise GridError(f"GRID: {name!r} cannot be read: {error}") from error


def parse(text: str, name: str = "sweep") -> Grid:
    """Return the grid that a YAML text describes.

    Raises:
        GridError: names the entry, its value and the legal ones.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise GridError(f"GRID: not YAML: {error}") from error
    try:
        return _grid(content, name)
    except GridError:
        raise
    except ValueError as error:  # of the shared checks
        raise GridError(str(error)) from error


AXES = ("backends", "methods", "kappa", "temperature", "kind", "concurrency")
COUNTS = ("repeats", "tokens", "prompts")
TOP = ("name", "crossing", "price_per_hour", "backends", "methods", "sweeps", *COUNTS)


def _grid(content: object, name: str) -> Grid:
    top = _mapping("GRID", content, TOP)
    for needed in ("backends", "sweeps"):
        if not top.get(needed):
            refuse(needed, top.get(needed), "at least one")
    crossing = top.get("crossing", False)
    check_flag("crossing", crossing)
    price = top.get("price_per_hour")
    if price is not None:
        check_number("price_per_hour", price, 0, 1e6)
    named = top.get("name", name)
    if not isinstance(named, str) or not named or "/" in named:
        refuse("name", named, "a word without /")
    methods = {
        str(word): _method(str(word), entry)
        for word, entry in _mapping("methods", top.get("methods", {})).items()
    }
    backends = {
        str(word): _backend(str(word), entry, methods)
        for word, entry in _mapping("backends", top["backends"]).items()
    }
    cells: dict[str, Cell] = {}
    for i, entry in enumerate(_list("sweeps", top["sweeps"])):
        for cell in _sweep(f"sweeps[{i}]", entry, top, backends, methods):
            cells.setdefault(cell.key, cell)
    ordered = beside_plain(list(cells.values()), backends)
    return Grid(named, backends, methods, ordered, crossing, price)


def beside_plain(cells: list[Cell], backends: Mapping[str, Backend]) -> tuple[Cell, ...]:
    """Return cells of several sweeps with those that share a plain cell together.

    Servers that are started one after the other keep their order.
    """
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        alone = backends[cell.backend].one_at_a_time
        groups.setdefault((cell.line if alone else (), cell.group), []).append(cell)
    return tuple(cell for group in groups.values() for cell in group)


def _method(name: str, entry: object) -> Method:
    where = f"methods.{name}"
    if name == PLAIN:
        refuse("methods", name, "another name: plain decoding is always measured")
    settings = dict(_mapping(where, entry))
    if not isinstance(settings.get("method"), str):
        refuse(f"{where}.method", settings.get("method"), "the name of a method")
    if "num_speculative_tokens" in settings:
        value = settings["num_speculative_tokens"]
        refuse(f"{where}.num_speculative_tokens", value, "none: kappa of the sweeps sets it")
    cost = settings.pop("draft_cost", None)
    if cost is not None:
        check_number(f"{where}.draft_cost", cost, 0, 100)
    return Method(name, settings, cost)


def _backend(name: str, entry: object, methods: Mapping[str, Method]) -> Backend:
    where = f"backends.{name}"
    known = [f.name for f in fields(Backend) if f.name not in ("name", "models")]
    given = dict(_mapping(where, entry, ("model", *known)))
    check_choice(f"{where}.kind", given.get("kind"), KINDS_OF_BACKEND)
    models = given.pop("model", None)
    models = tuple(models) if isinstance(models, list) else (models,)
    for model in models:
        if not isinstance(model, str) or not model:
            refuse(f"{where}.model", model, "a model's name, or a list of names")
    check_choice(f"{where}.dtype", given.get("dtype", "float32"), DTYPES)
    served = given["kind"] == "openai"
    for word in ("engine", "device", "servers", "chat", "extra", "timeout", "start_timeout"):
        if word in given and not served:
            refuse(f"{where}.{word}", given[word], f"none with kind {given['kind']!r}")
    if served:
        check_choice(f"{where}.engine", given.get("engine", "other"), ENGINES)
        check_flag(f"{where}.chat", given.get("chat", True))
        _mapping(f"{where}.extra", given.get("extra", {}))
        for word in ("timeout", "start_timeout"):
            check_number(f"{where}.{word}", given.get(word, 1.0), 0, 1e5, open_low=True)
        given["servers"] = _servers(f"{where}.servers", given.get("servers"), methods)
    return Backend(name, models=models, **given)


def _servers(where: str, entry: object, methods: Mapping[str, Method]) -> dict[str, Server]:
    servers = {}
    for name, one in _mapping(where, entry, (PLAIN, *methods)).items():
        given = _mapping(f"{where}.{name}", one, [f.name for f in fields(Server)])
        for word, value in given.items():
            if not isinstance(value, str) or not value:
                refuse(f"{where}.{name}.{word}", value, "a text")
        if not given.get("url", "").startswith(("http://", "https://")):
            refuse(f"{where}.{name}.url", given.get("url"), "http://HOST:PORT or https://...")
        servers[name] = Server(**{**given, "url": given["url"].rstrip("/").removesuffix("/v1")})
    if PLAIN not in servers:
        refuse(where, list(servers), f"{PLAIN} among them: every speed-up is over it")
    return servers


def _sweep(
    where: str,
    entry: object,
    top: Mapping[str, Any],
    backends: Mapping[str, Backend],
    methods: Mapping[str, Method],
) -> Iterator[Cell]:
    given = _mapping(where, entry, (*AXES, *COUNTS))
    axes = {
        "backends": list(backends), "methods": list(methods), "kappa": [3], "temperature": [0],
        "kind": ["copy"], "concurrency": [1],
    } | {axis: _list(f"{where}.{axis}", given[axis]) for axis in AXES if axis in given}  # fmt: skip
    counts = {"repeats": 2, "tokens": 32, "prompts": 4}
    counts |= {word: source[word] for source in (top, given) for word in COUNTS if word in source}
    check_int(f"{where}.repeats", counts["repeats"], 1, MOST_REPEATS)
    check_int(f"{where}.tokens", counts["tokens"], 2, MOST_TOKENS)
    check_int(f"{where}.prompts", counts["prompts"], 1, min(map(len, KINDS.values())))
    for value in axes["backends"]:
        check_choice(f"{where}.backends", value, list(backends))
    for value in axes["methods"]:
        check_choice(f"{where}.methods", value, list(methods))
    for value in axes["kappa"]:
        check_int(f"{where}.kappa", value, 1, 64)
    for value in axes["temperature"]:
        check_number(f"{where}.temperature", value, 0, 100)
        if 0 < value < GREEDY_BELOW:
            refuse(f"{where}.temperature", value, f"0 (greedy) or at least {GREEDY_BELOW}")
    for value in axes["kind"]:
        check_choice(f"{where}.kind", value, list(KINDS))
    for value in axes["concurrency"]:
        check_int(f"{where}.concurrency", value, 1, MOST_CONCURRENCY)
    for name in axes["backends"]:
        backend = backends[name]
        ways = [(PLAIN, "{}", 0)]
        for method, kappa in itertools.product(axes["methods"], sorted(axes["kappa"])):
            _check_served(f"{where}: methods.{method}", backend, methods[method], kappa)
            ways.append((method, json.dumps(methods[method].settings, sort_keys=True), kappa))
        yield from _ordered(backend, axes, ways, counts)


def _check_served(where: str, backend: Backend, method: Method, kappa: int) -> None:
    """Refuse a method that a backend cannot serve, before anything runs."""
    name = method.settings["method"]
    if backend.kind == "openai":
        if method.name not in backend.servers:
            served = ", ".join(backend.servers)
            refuse(f"{where} on backends.{backend.name}", name, f"one of its servers: {served}")
    elif backend.kind == "transformers":
        check_choice(f"{where}.method on transformers", name, list(TRANSFORMERS_METHODS))
        for word in method.settings:
            if word != "method":
                check_choice(f"{where} on transformers", word, TRANSFORMERS_METHODS[name])
        if method.settings.get("prompt_lookup_min", 1) != 1:  # it goes down to suffixes of one
            value = method.settings["prompt_lookup_min"]
            refuse(f"{where}.prompt_lookup_min on transformers", value, "1")
    else:
        try:
            SpeculativeConfig.of({**method.settings, "num_speculative_tokens": kappa})
        except ValueError as error:
            raise GridError(f"{where}: {error}") from error


def _ordered(
    backend: Backend,
    axes: Mapping[str, Sequence],
    ways: Sequence[tuple[str, str, int]],
    counts: Mapping[str, int],
) -> Iterator[Cell]:
    """Yield the cells of one backend: concurrency rises, ways take turns.

    Where servers are started one after the other each way comes as a whole, plain first.
    """
    rounds = [[way] for way in ways] if backend.one_at_a_time else [list(ways)]
    for model, turn, temperature in itertools.product(backend.models, rounds, axes["temperature"]):
        for concurrency, kind in itertools.product(sorted(axes["concurrency"]), axes["kind"]):
            for method, settings, kappa in turn:
                yield Cell(backend.name, backend.kind, model, backend.dtype, method, settings,
                           kappa, float(temperature), kind, concurrency, **counts)  # fmt: skip


def _mapping(where: str, entry: object, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        refuse(where, entry, "a mapping" + (f" of {', '.join(known)}" if known else ""))
    for name in entry if known is not None else ():
        check_choice(where, name, known)
    return entry


def _list(where: str, entry: object) -> list:
    if not isinstance(entry, list) or not entry:
        refuse(where, entry, "a list with at least one entry")
    return entry
