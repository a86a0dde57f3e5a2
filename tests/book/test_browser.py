"""The built book in a browser without a network: ``make book`` first.

Every figure is moved with the keyboard and read back; no page asks for anything outside, prints an
error, scrolls sideways on a phone, or has what axe-core calls a serious violation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [TOC["root"]] + [page["file"] for part in TOC["parts"] for page in part["chapters"]]
LOCAL = ("file:", "blob:", "data:")


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    if not (BUILT / "index.html").exists():
        if os.environ.get("CI"):
            pytest.fail("the book is not built: make book")
        pytest.skip("the book is not built: make book")


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Return ``opened(page, ...)``: a page that has settled, with what went wrong in ``.wrong``."""
    contexts = []

    def open_(page: str, width: int = 1280, scheme: str = "light", part: str = "") -> Any:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        contexts.append(context)
        tab = context.new_page()
        tab.wrong = []
        tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
        tab.on("console", lambda m: m.type == "error" and tab.wrong.append(m.text))
        tab.on("requestfailed", lambda request: tab.wrong.append(request.url))
        tab.on("request", lambda r: r.url.startswith(LOCAL) or tab.wrong.append(r.url))
        tab.goto((BUILT / f"{page}.html").as_uri() + part)
        tab.wait_for_function(
            "[...document.querySelectorAll('.afm')].every((f) => f.dataset.afm) && "
            "(!window.MathJax?.startup || MathJax.startup.promise.then(() => true))"
        )
        return tab

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize("page", PAGES)
def test_no_table_is_left_as_its_source(page):
    """Cells that give Markdown are rendered with the extensions that their text needs."""
    text = (BUILT / f"{page}.html").read_text(encoding="utf-8")
    assert "<p>| " not in text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_for_nothing_outside_and_prints_no_error(opened, page):
    tab = opened(page)
    assert tab.wrong == []
    states = tab.eval_on_selector_all(".afm", "figures => figures.map((f) => f.dataset.afm)")
    assert set(states) <= {"ready"}


@pytest.mark.parametrize("page", PAGES)
def test_mathematics_is_typeset(opened, page):
    tab = opened(page)
    marked = tab.locator(".math").count()
    assert (marked == 0) == (tab.locator("mjx-container").count() == 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_phone(opened, page, scheme):
    tab = opened(page, width=390, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_serious_violation(opened, page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = opened(page, scheme=scheme)
    found = axe.run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [
        f"{v['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]
    assert serious == []


def moved_by_keys(tab: Any, figure: Any, control: Any) -> bool:
    """Whether the figure's data changes while a control is worked with the keyboard."""
    read = "f => JSON.stringify([f.innerHTML.length, {...f.querySelector('.specfig').dataset}])"
    before = figure.evaluate(read)
    control.focus()
    kind = control.evaluate("c => c.type || c.getAttribute('role') || c.tagName")
    keys = {"range": ["ArrowRight", "ArrowLeft", "Home", "End"], "checkbox": ["Space"],
            "slider": ["ArrowUp", "ArrowDown", "End"], "select-one": ["ArrowDown", "ArrowUp"],
            "button": ["Enter"], "submit": ["Enter"]}.get(kind, ["Enter"])  # fmt: skip
    for key in keys:
        tab.keyboard.press(key)
        if figure.evaluate(read) != before:
            return True
    tab.wait_for_timeout(500)  # what a button does may take a moment, as writing to the clipboard
    return figure.evaluate(read) != before


@pytest.mark.parametrize("page", PAGES)
def test_every_control_of_every_figure_works_by_keyboard(opened, page):
    tab = opened(page)
    for figure in tab.query_selector_all(".afm"):
        name = figure.get_attribute("data-figure")
        controls = figure.query_selector_all(
            "input, select, [role=slider], button:not([disabled]):not([data-no-state])"
        )
        assert controls, name
        stuck = [
            control.evaluate("c => c.dataset.trait || c.getAttribute('aria-label') || c.innerText")
            for control in controls
            if control.is_enabled() and not moved_by_keys(tab, figure, control)
        ]
        assert stuck == [], name
    assert tab.wrong == []


def test_the_playground_reads_its_address_and_writes_it(opened):
    part = "#break-it?p=6.6.4&q=2.2.12&kappa=2&fault=reused-coin"
    tab = opened("book/playground", part=part)
    figure = tab.query_selector(".specfig")
    assert figure.evaluate("f => f.dataset.variation") == "5/32"
    tab.select_option("select[data-trait=fault]", "none")
    assert figure.evaluate("f => f.dataset.variation") == "0"
    assert tab.evaluate("location.hash").endswith("fault=none")


def test_a_puzzle_is_set_by_its_link(opened):
    tab = opened("book/playground")
    tab.click("text=Measure zero")
    figure = tab.query_selector(".specfig")
    assert figure.evaluate("f => f.dataset.variation") == "0"
    assert figure.evaluate("f => f.dataset.example") != ""
    assert tab.input_value("select[data-trait=fault]") == "inclusive-test"


def test_without_scripts_a_figure_is_a_picture_with_words(browser):
    context = browser.new_context(java_script_enabled=False, offline=True)
    tab = context.new_page()
    tab.goto((BUILT / "book" / "playground.html").as_uri())
    picture = tab.query_selector(".afm img")
    assert picture.is_visible()
    assert len(picture.get_attribute("alt")) > 40
    context.close()
