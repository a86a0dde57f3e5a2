"""Notebooks made from text, byte for byte the same each time: the book's pages' and the labs'."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from specedu import REPOSITORY

INSTALL = f"""\
# Installs specedu where it is missing, and leaves torch and what belongs to it as they are.
import importlib.util
import pathlib
import subprocess
import sys
from importlib.metadata import distributions

if importlib.util.find_spec("specedu") is None:
    keep = pathlib.Path("/tmp/keep.txt")
    held = ("torch", "triton", "numpy", "nvidia-")
    here = [(d.name.lower(), d.version) for d in distributions()]
    keep.write_text("\\n".join(sorted(f"{{n}}=={{v}}" for n, v in here if n.startswith(held))))
    source = "specedu[triton,figures] @ git+{REPOSITORY}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "-c", str(keep), source]
    subprocess.check_call(pip)"""


def stable_notebook(
    cells: Sequence[Any], metadata: Mapping[str, Any] = {}, *, install: bool = True
) -> str:
    """Return a notebook as text, with ids that its cells' texts alone decide.

    Args:
        cells: of nbformat; outputs and their metadata but tags are dropped.
        metadata: of the notebook, besides its kernel.
        install: whether the install cell stands on top.

    Example:
        >>> from nbformat.v4 import new_code_cell
        >>> stable_notebook([new_code_cell("1 + 1")]) == stable_notebook([new_code_cell("1 + 1")])
        True
    """
    import nbformat

    made = [nbformat.v4.new_code_cell(INSTALL)] if install else []
    for cell in cells:
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
        made.append(new[cell.cell_type](cell.source))
        if tags := cell.metadata.get("tags"):
            made[-1].metadata["tags"] = list(tags)
    for i, cell in enumerate(made):
        cell["id"] = hashlib.sha256(f"{i} {cell.source}".encode()).hexdigest()[:8]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel, **metadata})
    nbformat.validate(notebook)
    return nbformat.writes(notebook, indent=1, sort_keys=True) + "\n"
