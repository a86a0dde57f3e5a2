"""A grid says what is measured: every mistake in it is named, and cells keep their keys."""

from __future__ import annotations

import re

import pytest
import yaml

from specedu.sweep import grid

GOOD = """
backends: {here: {kind: specedu, model: toy}}
methods: {n-gram: {method: ngram}, self: {method: draft_model, model: self}}
sweeps:
  - {kappa: [3], kind: [copy, story], concurrency: [4, 1]}
  - {kappa: [1, 3], kind: [copy], concurrency: [1]}
"""
SERVED = """
backends:
  far:
    kind: openai
    model: m
    servers: {plain: {url: "http://h:1/v1"}, a: {url: "http://h:2{kappa}", command: x}}
methods: {a: {method: eagle3, draft_cost: 0.1}}
sweeps: [{methods: [a], concurrency: [1, 2]}]
"""


def changed(text: str, path: str, value: object) -> str:
    """Return a grid with one entry set; ``path`` is like ``sweeps.0.kappa``."""
    content = yaml.safe_load(text)
    *way, last = path.split(".")
    holder = content
    for step in way:
        holder = holder[int(step) if isinstance(holder, list) else step]
    holder[int(last) if isinstance(holder, list) else last] = value
    return yaml.safe_dump(content)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nonsense", 1, "GRID: 'nonsense', expected one of name, crossing"),
        ("name", "a/b", "name: 'a/b', expected a word without /"),
        ("crossing", "yes!", "crossing: 'yes!', expected True or False"),
        ("price_per_hour", -1, "price_per_hour: -1, expected a number in [0, "),
        ("backends", {}, "backends: {}, expected at least one"),
        ("sweeps", [], "sweeps: [], expected at least one"),
        ("backends.here.kind", "jax", "backends.here.kind: 'jax', expected one of specedu, "),
        ("backends.here.model", 3, "backends.here.model: 3, expected a model's name"),
        ("backends.here.dtype", "int8", "backends.here.dtype: 'int8', expected one of float32"),
        ("backends.here.url", "http://h", "backends.here: 'url', expected one of model, kind"),
        ("backends.here.timeout", 3, "backends.here.timeout: 3, expected none with kind 'spec"),
        ("methods.plain", {"method": "ngram"}, "methods: 'plain', expected another name"),
        ("methods.n-gram", {}, "methods.n-gram.method: None, expected the name of a method"),
        ("methods.n-gram.method", "eagle9", "method: 'eagle9', expected one of ngram, "),
        ("methods.n-gram.num_speculative_tokens", 3, "expected none: kappa of the sweeps sets"),
        ("methods.n-gram.draft_cost", -1, "methods.n-gram.draft_cost: -1, expected a number in"),
        ("methods.n-gram.quantization", "int4", "quantization: 'int4', expected none with meth"),
        ("sweeps.0.kapa", [3], "sweeps[0]: 'kapa', expected one of backends, methods, kappa"),
        ("sweeps.0.kappa", 3, "sweeps[0].kappa: 3, expected a list with at least one entry"),
        ("sweeps.0.kappa", [0], "sweeps[0].kappa: 0, expected an int in [1, 64]"),
        ("sweeps.0.temperature", [0.001], "temperature: 0.001, expected 0 (greedy) or at least"),
        ("sweeps.0.kind", ["poem"], "sweeps[0].kind: 'poem', expected one of chat, code"),
        ("sweeps.0.concurrency", [0], "sweeps[0].concurrency: 0, expected an int in [1, 4096]"),
        ("sweeps.0.methods", ["x"], "sweeps[0].methods: 'x', expected one of n-gram, self"),
        ("sweeps.0.backends", ["x"], "sweeps[0].backends: 'x', expected one of here"),
        ("sweeps.0.tokens", 1, "sweeps[0].tokens: 1, expected an int in [2, "),
        ("repeats", 0, "repeats: 0, expected an int in [1, 1000]"),
        ("prompts", 7, "prompts: 7, expected an int in [1, 6]"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_is_legal(
    path: str, value: object, message: str
) -> None:
    with pytest.raises(grid.GridError, match=re.escape(message)):
        grid.parse(changed(GOOD, path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("backends.far.servers.plain.url", "h:1", "servers.plain.url: 'h:1', expected http://"),
        ("backends.far.servers", {"a": {"url": "http://h"}}, "expected plain among them"),
        ("backends.far.servers.b", {}, "backends.far.servers: 'b', expected one of plain, a"),
        ("backends.far.engine", "tgi", "backends.far.engine: 'tgi', expected one of vllm"),
        ("backends.far.timeout", 0, "backends.far.timeout: 0, expected a number in (0, "),
        ("backends.far.extra", 1, "backends.far.extra: 1, expected a mapping"),
        ("methods.b", {"method": "ngram"}, None),
    ],
)
def test_a_servers_mistake_is_named(path: str, value: object, message: str | None) -> None:
    text = changed(SERVED, path, value)
    if message is None:  # a method without a server: only asking for it is a mistake
        text, message = changed(text, "sweeps.0.methods", ["b"]), "expected one of its servers: "
    with pytest.raises(grid.GridError, match=re.escape(message)):
        grid.parse(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "early_exit"}, "expected one of ngram, draft_model"),
        (
            {"method": "ngram", "prompt_lookup_min": 2},
            "prompt_lookup_min on transformers: 2, expected 1",
        ),
    ],
)
def test_what_transformers_cannot_do_is_refused(settings: dict, message: str) -> None:
    text = changed(changed(GOOD, "backends.here.kind", "transformers"), "methods.n-gram", settings)
    with pytest.raises(grid.GridError, match=re.escape(message)):
        grid.parse(text)


@pytest.mark.parametrize("text", ["a: [", "[1, 2]", ""])
def test_what_is_no_mapping_is_no_grid(text: str) -> None:
    with pytest.raises(grid.GridError, match="GRID: "):
        grid.parse(text)


def test_a_name_that_is_neither_file_nor_preset_is_refused(tmp_path) -> None:
    with pytest.raises(grid.GridError, match="expected a YAML file or one of cpu, cpu-5min, h100"):
        grid.load(str(tmp_path / "none.yaml"))
    with pytest.raises(grid.GridError, match="cannot be read"):
        grid.load(str(tmp_path))


def test_every_speculative_cell_stands_behind_its_plain_one_and_concurrency_rises() -> None:
    cells = grid.parse(GOOD).cells
    plain: set[tuple] = set()
    for cell in cells:
        if cell.plain:
            plain.add(cell.group)
        assert cell.group in plain
    by_line: dict[tuple, list[int]] = {}
    for cell in cells:
        by_line.setdefault(cell.line, []).append(cell.concurrency)
    assert all(batches == sorted(set(batches)) for batches in by_line.values())
    ways = [cell.method for cell in cells[:5]]
    assert ways == ["plain", "n-gram", "self", "n-gram", "self"]  # both sweeps', kappa 3, then 1


def test_two_sweeps_share_their_cells() -> None:
    cells = grid.parse(GOOD).cells
    assert len(cells) == len({cell.key for cell in cells}) == 4 * 3 + 2


def test_a_key_depends_on_the_settings_alone() -> None:
    cells, again = grid.parse(GOOD).cells, grid.parse(GOOD, "other").cells
    assert [cell.key for cell in cells] == [cell.key for cell in again]
    other = grid.parse(changed(GOOD, "methods.n-gram.prompt_lookup_max", 4)).cells
    same = {cell.key for cell in cells} & {cell.key for cell in other}
    assert len(same) == sum(cell.method != "n-gram" for cell in cells)


def test_servers_that_are_started_come_one_after_the_other() -> None:
    found = grid.parse(SERVED)
    assert [cell.method for cell in found.cells] == ["plain", "plain", "a", "a"]
    assert found.backends["far"].servers["plain"].url == "http://h:1"
    assert found.methods["a"].draft_cost == 0.1


@pytest.mark.parametrize("name", grid.presets())
def test_the_presets_are_legal(name: str) -> None:
    found = grid.load(name)
    assert found.name == name and all(cell.kappa <= 5 for cell in found.cells)


def test_the_same_prompts_are_served_at_every_concurrency() -> None:
    from specedu.sweep.backends import texts_of

    for cell in grid.load("cpu").cells:
        texts = texts_of(cell)
        assert len(texts) % cell.concurrency == 0
        assert {texts.count(text) for text in texts} == {len(texts) // 4}
