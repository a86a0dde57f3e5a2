"""What grading leaves behind: a table for the instructor, one page a student."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from .exercises import find
from .properties import INPUTS, properties

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem; border-top: 1px solid #ccc }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font-size: .85rem }
.failed { color: #a40000; font-weight: 600 } .held { color: #205c20 } .note { color: #555 }
"""

HELD_OUT = (
    "These are held-out checks: the laws, requests and coins were drawn for this grading and are "
    "not those of `specedu exercise check`. A file that passes the public checks may fail here."
)


def write(out: Path, graded: Sequence[dict[str, Any]], over: Sequence[str]) -> None:
    """Write ``results.csv``, ``students.csv``, ``results.json`` and ``students/*.html``.

    Args:
        out: the folder.
        graded: the lines of :func:`grader.grade`.
        over: what was passed over, in words.
    """
    students = sorted({line["student"] for line in graded})
    pages = {student: f"students/{page_name(student)}" for student in students}
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["student", "exercise", "points", "of", "held", "checks", "error", "page"])
        for line in graded:
            held = sum(result["passed"] for result in line["results"])
            rows.writerow(map(_cell, (
                line["student"], line["exercise"], line["points"], line["of"], held,
                len(_claims(line["exercise"])), line["error"], pages[line["student"]],
            )))  # fmt: skip
    totals = {
        student: {
            "points": sum(line["points"] for line in graded if line["student"] == student),
            "of": sum(line["of"] for line in graded if line["student"] == student),
        }
        for student in students
    }
    with (out / "students.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["student", "points", "of", "page"])
        for student, total in totals.items():
            rows.writerow(map(_cell, (student, total["points"], total["of"], pages[student])))
    report = {"students": totals, "submissions": list(graded), "passed_over": list(over)}
    (out / "results.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (out / "students").mkdir(exist_ok=True)
    for student in students:
        lines = [line for line in graded if line["student"] == student]
        (out / pages[student]).write_text(page(student, lines), encoding="utf-8")


def page_name(student: str) -> str:
    """Return a file name for a student's page that any system takes, one a student.

    Example:
        >>> page_name("ada"), page_name("../ada")
        ('ada.html', 'ada-60088279.html')
    """
    plain = re.sub(r"[^a-z0-9_-]+", "-", student.lower()).strip("-")[:60]
    if plain != student:
        plain = f"{plain or 'student'}-{hashlib.sha256(student.encode()).hexdigest()[:8]}"
    return plain + ".html"


def page(student: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return one student's page as HTML: static, and every foreign word escaped."""
    given, of = sum(line["points"] for line in lines), sum(line["of"] for line in lines)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">",
        f"<title>{escape(student)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(student)}</h1><p><b>{given} of {of} points.</b> {escape(HELD_OUT)}</p>",
    ]
    for line in lines:
        parts += _exercise(line)
    return "\n".join([*parts, "</body></html>\n"])


def _exercise(line: dict[str, Any]) -> list[str]:
    exercise = find(line["exercise"])
    results = {result["name"]: result for result in line["results"]}
    parts = [
        f"<h2>{escape(exercise.name)}: {line['points']} of {line['of']}</h2>",
        f"<p>{escape(exercise.title)}</p>",
    ]
    if line["error"]:
        parts.append(f'<p class="failed">{escape(line["error"])}</p>')
    if line["mistake"]:
        parts.append(f"<p>What its law looks like: {escape(line['mistake'])}</p>")
    parts.append("<table><tr><th>held-out check</th><th></th><th>counter-example</th></tr>")
    for name, claim in _claims(exercise.name).items():
        result = results.get(name)
        state, words = "not asked", ""
        if result:
            state, words = "holds" if result["passed"] else "FAILS", result["counter_example"]
        kind = {"holds": "held", "FAILS": "failed"}.get(state, "note")
        public = "; public, by its own process's word" if name == INPUTS else ""
        parts.append(
            f'<tr><td>{escape(name)}<br><span class="note">{escape(claim)}{public}</span></td>'
            f'<td class="{kind}">{state}</td><td>{_block(words)}</td></tr>'
        )
    parts.append("</table>")
    if line["output"]:
        parts.append(f"<p>What it printed:</p>{_block(line['output'][:4000])}")
    return parts


def _claims(exercise: str) -> dict[str, str]:
    return {each.name: each.claim for each in properties(find(exercise).function, 0)}


def _block(words: str) -> str:
    return f"<pre>{escape(words[:4000])}</pre>" if words else ""


def _cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    words = str(value)
    return "'" + words if isinstance(value, str) and words[:1] in tuple("=+-@\t\r") else value
