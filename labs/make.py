"""Make the labs' notebooks from their sources: ``labs/labNN.py`` in the percent format.

python labs/make.py            write labs/labNN.ipynb and labs/solutions/labNN.ipynb
python labs/make.py --check    say which are stale, and fail if any is

In a source, what lies between ``# BEGIN SOLUTION`` and ``# END SOLUTION`` is the solution; the
student's notebook has the lines behind ``# STUB`` in its place, or a line that raises. A notebook
is generated from its source alone, byte for byte the same each time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext

from specedu.notebook import stable_notebook

LABS = Path(__file__).resolve().parent
YOURS = 'raise NotImplementedError("your turn")'
COLAB = {"accelerator": "GPU", "colab": {"gpuType": "T4"}}


def split(source: str, *, student: bool) -> str:
    r"""Return the student's copy of a source, or the one with its solutions.

    Raises:
        ValueError: a marker is missing or stands inside another.

    Example:
        >>> text = "# BEGIN SOLUTION\nx = 1\n# STUB x = ...\n# END SOLUTION\n"
        >>> split(text, student=True), split(text, student=False)
        ('x = ...\n', 'x = 1\n')
    """
    lines: list[str] = []
    stubs: list[str] | None = None  # of the solution that the line is in
    indent = ""
    for number, line in enumerate(source.splitlines(), 1):
        marker = re.match(r"(\s*)# (BEGIN SOLUTION|END SOLUTION|STUB) ?(.*)$", line)
        if marker is None:
            if stubs is None or not student:
                lines.append(line)
            continue
        begins = marker[2] == "BEGIN SOLUTION"
        if begins == (stubs is not None):
            raise ValueError(f"line {number}: {marker[2]}, expected the other marker before it")
        if begins:
            stubs, indent = [], marker[1]
        elif marker[2] == "STUB":
            stubs.append(indent + marker[3])
        else:
            lines += (stubs or [indent + YOURS]) if student else []
            stubs = None
    if stubs is not None:
        raise ValueError("the last line: END SOLUTION missing")
    return "\n".join(lines) + "\n"


def notebook(source: Path, *, student: bool) -> str:
    """Return a lab's notebook as text."""
    text = source.read_text(encoding="utf-8")
    cells = jupytext.reads(split(text, student=student), fmt="py:percent").cells
    return stable_notebook(cells, COLAB if "GPU only" in text else {})


def sources() -> list[Path]:
    """Return the labs' sources in their order."""
    return sorted(LABS.glob("lab[0-9][0-9].py"))


def made() -> dict[Path, str]:
    """Return every notebook's path with its text."""
    return {
        folder / f"{source.stem}.ipynb": notebook(source, student=student)
        for source in sources()
        for folder, student in ((LABS, True), (LABS / "solutions", False))
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the notebooks, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    arguments = parser.parse_args(argv)
    stale = [
        path
        for path, text in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in [] if arguments.check else stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made()[path], encoding="utf-8")
    if stale:
        names = (str(path.relative_to(LABS)) for path in stale)
        print("stale:" if arguments.check else "written:", *names)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
