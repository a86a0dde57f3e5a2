"""A look at a submission's text before it runs: what no acceptance rule has a use for.

This is the second line. The first is the process without rights that the file runs in, which holds
nothing worth taking: whoever gets past the words below has gained no point.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

# Roots that a rule may import; specedu's helpers come on top, exercise by exercise.
ROOTS = frozenset(
    "__future__ abc array bisect cmath collections contextlib copy dataclasses decimal enum "
    "fractions functools heapq itertools math numbers numpy operator random statistics string "
    "textwrap torch triton types typing typing_extensions warnings".split()
)
# Doors out of those roots.
DOORS = ("numpy.ctypeslib", "torch.distributed", "torch.hub", "torch.multiprocessing",
         "torch.ops", "torch.utils.cpp_extension", "torch.utils.data")  # fmt: skip

CALLS = frozenset(
    "__import__ breakpoint compile delattr eval exec exit globals input locals open quit setattr "
    "vars".split()
)
ATTRIBUTES = frozenset(
    "__base__ __bases__ __builtins__ __closure__ __code__ __dict__ __getattribute__ __globals__ "
    "__loader__ __mro__ __reduce__ __reduce_ex__ __self__ __spec__ __subclasses__ __wrapped__ "
    "_getframe ag_frame cr_frame ctypes f_back f_builtins f_code f_globals f_locals gi_frame "
    "modules tb_frame tb_next".split()
)


def refusals(source: str, helpers: Collection[str]) -> list[str]:
    """Return what is refused in a text, a line each; empty where nothing is.

    Args:
        source: the submission.
        helpers: modules of ``specedu.kernels`` that this exercise may import.

    Raises:
        SyntaxError, ValueError: the text is no Python.

    Example:
        >>> refusals("import os", ())
        ['line 1: import of os']
        >>> refusals("from specedu.kernels.ratio import ratio_run", ("ratio",))
        []
    """
    tree = ast.parse(source, filename="the file")
    modules = set()  # names that stand for a module in this file
    found = []
    for node in ast.walk(tree):
        for name, bound in _imports(node):
            modules.add(bound)
            if not _allowed(name, helpers):
                found.append((node.lineno, f"import of {name}"))
    for node in ast.walk(tree):
        words = _word(node, modules)
        if words:
            found.append((node.lineno, words))
    return [f"line {line}: {words}" for line, words in sorted(set(found))]


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Return (what is imported, the name it is given) of one statement."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:  # beside the file lie the kernels
            up = {1: "specedu.kernels", 2: "specedu"}.get(node.level, "..")
            base = f"{up}.{base}" if base else up
        for alias in node.names:
            # From the package come modules; from a module come names.
            whole = base in ("specedu", "specedu.kernels") or f"{base}.{alias.name}" in DOORS
            yield f"{base}.{alias.name}" if whole else base, alias.asname or alias.name


def _allowed(name: str, helpers: Collection[str]) -> bool:
    parts = name.split(".")
    if parts[0] == "specedu":
        inside = parts[:2] == ["specedu", "kernels"] and len(parts) == 3
        return inside and (parts[2] in helpers or parts[2] == "Verified")
    if any(name == door or name.startswith(door + ".") for door in DOORS):
        return False
    return parts[0] in ROOTS


def _word(node: ast.AST, modules: Collection[str]) -> str:
    """Return what is wrong with one node of the tree, or nothing."""
    if isinstance(node, ast.Name) and (node.id in CALLS or node.id in ATTRIBUTES):
        return f"use of {node.id}"
    if isinstance(node, ast.Attribute):
        if node.attr in ATTRIBUTES:
            return f"use of .{node.attr}"
        if _dotted(node) in DOORS:
            return f"use of {_dotted(node)}"
        if not isinstance(node.ctx, ast.Load) and _dotted(node).partition(".")[0] in modules:
            return f"assignment to {_dotted(node)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            return "getattr of a computed name"
        if name.value in ATTRIBUTES:
            return f"use of .{name.value}"
    return ""


def _dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of a chain of attributes; empty where it does not begin with a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
