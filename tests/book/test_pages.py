"""What must hold for every page: numbers from cells, formulas both ways, fresh notebooks."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
import pytest
import yaml
from nbclient import NotebookClient

import specedu

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"]] + [page["file"] for part in TOC["parts"] for page in part["chapters"]]
CHAPTERS = [
    "number", "one_pass", "algorithm", "proof", "greedy", "joint", "tokens", "cost", "loses",
]  # fmt: skip

# A number and a unit in the prose comes out of a cell, with these exceptions.
UNITS = (
    r"(?:[munµ]s|seconds?|minutes?|[KMGT]i?B(?:/s)?|bytes?|[GT]?FLOPs?(?:/s)?|tokens?/s"
    r"|tokens per second|billion|million|%|percent|times (?:faster|slower)|positions)"
)
BARE = re.compile(rf"(?<![\w.`$^{{])(?<!\+ )\d[\d,.]*\s?{UNITS}(?![\w`])")
ALLOWED: dict[tuple[str, str], str] = {
    ("book/errata", "98 %"): "what the source says, which the cell below it examines",
    ("book/errata", "20 µs"): "the same",
    ("book/errata", "64 MB"): "the source's words, whose unit is examined",
    ("book/errata", "8 MB"): "the same",
    ("book/number", "98 percent"): "what is often said, which the page examines",
    ("book/number", "295\npositions"): "what an exercise starts from",
    ("book/one_pass", "70\npercent"): "what the claim assumes, and the timeline starts from",
}


def text_of(page: str) -> str:
    return (ROOT / f"{page}.md").read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """Return a page without its cells, code and mathematics."""
    text = text_of(page)
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = re.sub(r"```\{code-cell\}.*?\n```", "", text, flags=re.S)
    text = re.sub(r"```(?:python|text|sh|bibtex)?\n.*?\n```", "", text, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.S)
    text = re.sub(r"\{glue:text\}`[^`]*`", "GLUED", text)
    return re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "CODE", text)


def notebooks_module():
    spec = importlib.util.spec_from_file_location("book_notebooks", BOOK / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_a_number_with_a_unit_comes_out_of_a_cell(page):
    found = {match[0] for match in BARE.finditer(prose_of(page))}
    assert not {number for number in found if (page, number) not in ALLOWED}


def test_every_exception_is_still_needed():
    for page, number in ALLOWED:
        assert number in prose_of(page)


def test_the_search_for_bare_numbers_finds_them():
    for bare in [
        "a step of 4.48 ms",
        "moves 15.01 GB",
        "98 % of it",
        "223 tokens/s",
        "7.5 billion",
    ]:
        assert BARE.search(bare)
    for fine in ["GLUED ms", "chapter 4", "at batch 1", "SmolLM2-135M", "float32"]:
        assert not BARE.search(fine)


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_glued_on_their_own_page(page):
    text = text_of(page)
    names = set(re.findall(r"\{glue:text\}`([^`:]+)", text))
    cells = "\n".join(re.findall(r"```\{code-cell\}.*?\n```", text, flags=re.S))
    assert "glue(" in cells or not names  # that each name is glued, the build itself checks


# --- formulas -------------------------------------------------------------------------------------


def index_rows() -> list[tuple[str, str, str]]:
    """Return (label, function, test) of every row of the formulas page."""
    row = r"^\| \{eq\}`(eq-[a-z-]+)` \|.*\| `([\w.]+)` \| `([\w/.]+::\w+)` \|$"
    return re.findall(row, text_of("book/formulas"), flags=re.M)


def stated() -> Counter[str]:
    """Return how often each label stands at an equation of the book."""
    labels = [re.findall(r"\$\$ \((eq-[a-z-]+)\)", text_of(page)) for page in PAGES]
    labels += [re.findall(r"^:label: (eq-[a-z-]+)$", text_of(page), flags=re.M) for page in PAGES]
    return Counter(label for found in labels for label in found)


def named_in_code() -> set[str]:
    files = [*ROOT.glob("specedu/**/*.py"), *ROOT.glob("kernels/*.py")]
    lines = "\n".join(re.findall(r"Book: .*", "\n".join(f.read_text("utf-8") for f in files)))
    return set(re.findall(r"eq-[a-z-]+", lines))


def resolve(dotted: str):
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def test_every_equation_has_one_place_and_one_row_at_least():
    once = {label for label, count in stated().items() if count == 1}
    assert once == set(stated())
    assert once == {label for label, _, _ in index_rows()}


@pytest.mark.parametrize(("label", "function", "test"), index_rows(), ids=lambda value: value)
def test_an_indexed_formula_names_a_function_that_names_it(label, function, test):
    named = re.findall(r"Book: (.*)\.", resolve(function).__doc__)
    assert label in ", ".join(named)
    path, name = test.split("::")
    functions = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    assert name in {f.name for f in functions if isinstance(f, ast.FunctionDef)}


def test_every_formula_that_code_names_is_in_the_index():
    assert named_in_code() == {label for label, _, _ in index_rows()}


# --- exercises ------------------------------------------------------------------------------------


def exercises(page: str) -> set[str]:
    label = r"\{exercise(?:-start)?\}[^\n]*\n(?::[^\n]*\n)*?:label: (ex-[\w-]+)"
    return set(re.findall(label, text_of(page)))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_has_a_folded_solution(chapter):
    page = f"book/{chapter}"
    found = exercises(page)
    solution = r"\{solution(?:-start)?\} (ex-[\w-]+)\n(?::label:[^\n]*\n)?:class: dropdown"
    assert len(found) >= 4
    assert found == set(re.findall(solution, text_of(page)))


def test_there_are_enough_exercises():
    assert sum(len(exercises(f"book/{chapter}")) for chapter in CHAPTERS) >= 40


# --- files ----------------------------------------------------------------------------------------


def test_the_books_repository_is_the_packages():
    assert CONFIG["repository"]["url"] == specedu.REPOSITORY


def test_every_page_of_the_table_of_contents_is_there_and_no_other():
    assert sorted(PAGES) == sorted(f"book/{page.stem}" for page in BOOK.glob("*.md"))


def test_the_vendored_mathjax_is_the_one_named():
    folder = ROOT / "web" / "vendor" / "mathjax"
    digest = hashlib.sha256((folder / "tex-svg-full.js").read_bytes()).hexdigest()
    assert f"sha256 {digest}" in (folder / "SOURCE.txt").read_text(encoding="utf-8")


def test_every_page_with_cells_has_a_fresh_notebook():
    assert notebooks_module().main(["--check"]) == 0


def test_a_notebook_has_the_cells_of_its_page_behind_the_install_cell():
    module = notebooks_module()
    page = BOOK / "playground.md"
    cells = [c.source for c in jupytext.read(page).cells if c.cell_type == "code"]
    made = jupytext.reads(module.notebook(page), fmt="ipynb")
    install, *rest = [c.source for c in made.cells if c.cell_type == "code"]
    assert specedu.REPOSITORY in install
    assert rest == cells


@pytest.mark.parametrize("page", [page for page in CHAPTERS if (BOOK / f"{page}.md").exists()])
def test_a_notebook_shows_no_directive(page):
    made = jupytext.reads((BOOK / f"{page}.ipynb").read_text(encoding="utf-8"), fmt="ipynb")
    words = "\n".join(c.source for c in made.cells if c.cell_type == "markdown")
    assert not re.search(r"^:{3,}|\{(?:glue:text|ref|eq|cite|prf:ref)\}`|\{\{", words, flags=re.M)


@pytest.mark.parametrize("page", ["errata", "playground"])
def test_a_notebook_runs_by_itself(page, monkeypatch):
    """From the first cell to the last, as in Colab where specedu is installed."""
    monkeypatch.delenv("SPECEDU_STATIC", raising=False)
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    made = nbformat.read(BOOK / f"{page}.ipynb", as_version=4)
    NotebookClient(made, timeout=120, kernel_name="python3").execute()
    assert any(cell.get("outputs") for cell in made.cells)
