"""The page holds everything that was found, and needs nothing from the net."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import median

import pytest
import sweeping

from specedu.sweep import report
from specedu.sweep.recorder import DONE, FAILED, SKIPPED, Record, Recorder, read
from specedu.sweep.run import run

pytest.importorskip("matplotlib")


def records(tmp_path: Path, kinds: str = "[copy]", **settings) -> list[Record]:
    with Recorder(tmp_path / "r.jsonl") as recorder:
        run(sweeping.grid("[1, 2, 4, 8, 16]", "true", kinds), recorder,
            make_backend=lambda b, g: sweeping.FakeBackend(b, g, **settings))  # fmt: skip
    return read(tmp_path / "r.jsonl")[0]


def test_the_report_of_a_recorded_file_tells_the_crossing(tmp_path: Path) -> None:
    found = records(tmp_path, "[copy, story]")
    report.write(tmp_path / "r.html", found, "A <sweep>", {})
    text = (tmp_path / "r.html").read_text()
    assert "<title>A &lt;sweep&gt;</title>" in text
    assert "It crosses 1 at 3.2 requests at once (3." in text
    assert "gains most at 1 request, 3.00 (" in text
    for heading in ("Verdict", "Speed-up against concurrency", "Acceptance by place",
                    "Where a step", "Cells that were not run", "Device and versions"):  # fmt: skip
        assert f"<h2>{heading}" in text
    assert "crossed at B = 4" in text and "every method has crossed" in text
    assert "from the parts of its own steps" in text
    assert [p.name for p in tmp_path.glob("*.part")] == []


def test_a_report_without_a_crossing_says_why(tmp_path: Path) -> None:
    found = records(tmp_path, gains={1: 2.0, 2: 2.0, 4: 2.0, 8: 2.0, 16: 2.0})
    text = report.page(found, "t", {})
    assert "No crossing: it still gains at 16 requests, the most that was measured." in text
    assert "Cells that were not run" not in text


def test_failed_cells_are_listed_with_their_reason(tmp_path: Path) -> None:
    text = report.page(records(tmp_path, failing=(2,)), "t", {})
    assert "Cells that failed" in text and "the fake fails here" in text


def test_every_figure_has_a_text_and_nothing_comes_from_the_net(tmp_path: Path) -> None:
    text = report.page(records(tmp_path), "t", {})
    figures = re.findall(r'<svg role="img" aria-label="([^"]*)"', text)
    assert len(figures) == text.count("<svg ") >= 3
    assert all(len(words) > 40 and re.search(r"\d", words) for words in figures)
    assert "<script" not in text and "src=" not in text and "@import" not in text
    links = re.findall(r'(?:xlink:)?href="([^"]*)"', text)
    assert all(link.startswith("#") for link in links)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(set(ids)) == len(ids) > 20
    assert {word for word in re.findall(r"url\(#([^)]*)\)", text)} <= set(ids)


def test_tags_are_closed(tmp_path: Path) -> None:
    class Reader(HTMLParser):
        stack: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                self.stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.stack.pop() == tag

    reader = Reader()
    reader.feed(report.page(records(tmp_path), "t", {}))
    assert reader.stack == []


def test_nothing_measured_gives_a_page_that_says_so() -> None:
    cells = sweeping.grid().cells
    text = report.page([Record(cells[0], FAILED, "no"), Record(cells[1], SKIPPED, "x")], "t", {})
    assert "No speed-up is known" in text and "<svg" not in text


def test_files_of_several_backends_are_one_report(tmp_path: Path) -> None:
    from dataclasses import replace

    found = records(tmp_path)
    other = [replace(r, cell=replace(r.cell, backend="other")) for r in found]
    text = report.page([*found, *other], "t", {})
    assert "fake, toy, temperature 0" in text and "other, toy, temperature 0" in text
    assert {r.state for r in found} == {DONE, SKIPPED}
    table = re.search(r'<table aria-label="toy, temperature 0: tokens a second">.*?</table>', text)
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', table[0])
    plain = next(r for r in found if r.cell.plain and r.cell.concurrency == 1)
    rate = f'<td class="number">{median(s.rate for s in plain.samples):.1f}</td>'
    of = [row for row in rows if row.startswith("copy</th><td>plain</td>")]
    assert [re.findall("<td>(.*?)</td>", row)[1] for row in of] == ["fake", "other"]
    assert all(re.search('<td class="number">.*?</td>', row)[0] == rate for row in of)


def test_without_matplotlib_the_way_out_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(report.ReportError, match=r"pip install 'specedu\[figures\]'"):
        report.page(records(tmp_path), "t", {})
