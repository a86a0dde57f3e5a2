"""Make each page's notebook, for Colab: what its launch button opens.

python book/notebooks.py            write book/*.ipynb
python book/notebooks.py --check    say which are stale, and fail if any is

A notebook is generated from its page alone, byte for byte the same each time. Directives become
plain Markdown, since only the book renders them, and an install cell stands on top.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat

from specedu.notebook import stable_notebook

BOOK = Path(__file__).resolve().parent
GLUE = """\
def glue(name, value, display=True):  # in the book this hands the value over to the prose
    print(name, "=", value)
"""

TITLES = {"exercise": "Exercise", "solution": "Solution", "admonition": "", "dropdown": "",
          "prf:theorem": "Theorem", "prf:proof": "Proof", "prf:lemma": "Lemma",
          "prf:corollary": "Corollary", "prf:definition": "Definition", "note": "Note",
          "warning": "Warning", "important": "Important", "tip": "Tip",
          "exercise-start": "Exercise", "solution-start": "Solution"}  # fmt: skip


def plain(markdown: str) -> str:
    r"""Return MyST as Markdown that any notebook shows: directives unfolded, roles as their text.

    Example:
        >>> print(plain(":::{admonition} The claim\n:class: tip\nAll of it.\n:::"))
        **The claim**
        <BLANKLINE>
        All of it.
    """
    lines: list[str] = []
    options = False
    for line in markdown.splitlines():
        opened = re.match(r"\s*(?::{3,}|`{3,})\{([a-z:-]+)\}\s*(.*)$", line)
        if opened and opened[1] not in ("glossary", "bibliography", "math"):
            kind, words = opened[1], opened[2]
            title = TITLES.get(kind, "")
            named = words if kind != "solution" and not kind.endswith("-start") else ""
            head = f"{title} ({named})" if title and named else title or named
            lines += ["", f"**{head}**", ""] if head else [""]
            options = True
        elif options and re.match(r"\s*:[a-z]+:", line):
            continue
        elif re.match(r"\s*(?::{3,}|`{3,})\s*$", line):
            options = False
        elif re.match(r"\([a-z-]+\)=$", line):
            continue
        else:
            options = False
            lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\$\$ \((eq-[a-z-]+)\)", "$$", text)
    text = re.sub(r"\{\{ (derived|modelled|measured|exact) \}\}", r"*(\1)*", text)
    text = re.sub(r"\{glue:text\}`([a-zA-Z0-9_]+)(?::[^`]*)?`", r"`\1`", text)
    text = re.sub(r"\{(?:ref|eq|numref|prf:ref|doc|term|cite:t|cite)\}`([^`]*)`", named_only, text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def named_only(role: re.Match[str]) -> str:
    """Return the words of a reference: its text, or the label where it has none."""
    text = re.sub(r"\s*<[^>]*>$", "", role[1])
    return text.removeprefix("ch-").removeprefix("eq-").replace("-", " ")


def notebook(page: Path) -> str:
    """Return a page's notebook as text."""
    read = jupytext.read(page)
    cells = []
    for cell in read.cells:
        if cell.cell_type == "markdown":
            text = plain(cell.source)
            cells += [nbformat.v4.new_markdown_cell(text)] if text else []
        else:
            source = cell.source.replace("from myst_nb import glue", GLUE)
            cells.append(nbformat.v4.new_code_cell(source))
    return stable_notebook(cells)


def pages() -> list[Path]:
    """Return the pages that have cells."""
    found = sorted(BOOK.glob("*.md"))
    return [page for page in found if page.read_text(encoding="utf-8").startswith("---\njupytext:")]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the notebooks, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    arguments = parser.parse_args(argv)
    stale = []
    for page in pages():
        made, path = notebook(page), page.with_suffix(".ipynb")
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            stale.append(path.name)
            if not arguments.check:
                path.write_text(made, encoding="utf-8")
    if stale:
        print("stale:" if arguments.check else "written:", *stale)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
