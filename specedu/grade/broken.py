"""The files of the exercises: written from the real source, and loaded as rules that can be asked.

A file that defines the public function itself is loaded alone. One that is a part of it (the ratio
test, the final draw) takes its place in a copy of the package of kernels, as ``plant`` does it.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import itertools
import re
import shutil
import tempfile
import textwrap
from pathlib import Path

import specedu.kernels
from specedu.theory.cells import Rule

from .exercises import Exercise
from .faults import FAULTS, plant
from .loading import load_module

KERNELS = Path(specedu.kernels.__file__).resolve().parent  # of a checkout or of an installation

MARK = "# specedu exercise: "

_numbers = itertools.count()


class Unloadable(Exception):
    """A file that is no module with the function in it; the message says why."""


def broken_source(exercise: Exercise) -> str:
    """Return the text that is handed out: header, then the module with the fault in it.

    Example:
        >>> from specedu.grade.exercises import find
        >>> broken_source(find("rare-words")).splitlines()[0]
        '# specedu exercise: rare-words'
    """
    source = (KERNELS / exercise.source).read_text(encoding="utf-8")
    if exercise.planted:
        source = plant(exercise.planted, source)
    return header(exercise) + absolute(source)


def unbroken_source(exercise: Exercise) -> str:
    """Return the same module without the fault, and without the header."""
    return absolute((KERNELS / exercise.source).read_text(encoding="utf-8"))


def header(exercise: Exercise) -> str:
    """Return the comment above an exercise's file."""
    part = (
        f"It stands for {exercise.source} of specedu.kernels; {exercise.function} is checked with "
        f"its {'Triton kernel' if exercise.backend == 'triton' else 'torch version'}."
    )
    size = (
        f"{exercise.points} points, about {exercise.minutes} minutes, difficulty "
        f"{exercise.difficulty} of 5"
    )
    lines = [MARK + exercise.name, f"# {exercise.title}", f"# {size}", "#"]
    for words in (
        exercise.symptom,
        part + " Change this file until the check passes. Not every report is right: where "
        "nothing is wrong the file stays as it is.",
    ):
        lines += [f"# {line}" for line in textwrap.wrap(words, 96)] + ["#"]
    lines += [f"#     specedu exercise check {exercise.file}",
              f"#     specedu exercise hint {exercise.name}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def absolute(source: str) -> str:
    r"""Return a module of the kernels with its imports made absolute.

    Example:
        >>> absolute("from . import checks\nfrom .draw import mass\n")
        'from specedu.kernels import checks\nfrom specedu.kernels.draw import mass\n'
    """
    return re.sub(
        r"^from \.(\w*) import",
        lambda match: f"from specedu.kernels{match[1] and '.' + match[1]} import",
        source,
        flags=re.MULTILINE,
    )


def exercise_name(text: str) -> str | None:
    """Return the name in the header of a file, None where there is none."""
    for line in text.splitlines():
        if line.startswith(MARK):
            return line.removeprefix(MARK).strip()
    return None


# --- loading --------------------------------------------------------------------------------------


def load_rule(source: str, module: str, function: str, backend: str) -> Rule:
    """Return the public function with ``source`` in the place of one module of the kernels.

    Values are not checked: what a fault emits is to be seen, not refused.

    Args:
        source: a module's text.
        module: its file name among the kernels.
        function: name of the public function.
        backend: ``"torch"`` or ``"triton"``.

    Raises:
        Unloadable: the text is no module, or the function is not there.
    """
    folder = Path(tempfile.mkdtemp(prefix="specedu-exercise-"))
    # Not before: Triton's interpreter reads a kernel's source when it is first launched.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        whole = re.search(rf"^def {function}\(", source, re.MULTILINE) is not None
        if whole:
            path = folder / module
        else:
            package = folder / "kernels"
            shutil.copytree(KERNELS, package, ignore=shutil.ignore_patterns("__pycache__"))
            path = package / module
        path.write_text(source, encoding="utf-8")
        name = f"specedu_exercise_{next(_numbers)}"
        loaded = load_module(name, path if whole else package / "__init__.py")
    except Exception as error:
        raise Unloadable(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    rule = getattr(loaded, function, None)
    if not callable(rule):
        raise Unloadable(f"{module} has no function {function}")
    takes = inspect.signature(rule).parameters
    everything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    options = {"backend": backend, "check": False}
    given = {name: value for name, value in options.items() if name in takes or everything}
    return functools.partial(rule, **given)


@functools.cache
def planted_rule(name: str, function: str = "verify_chain") -> Rule:
    """Return a public function with one fault of the kernels in it, loaded beside the right one.

    A fault of the Triton kernel, whose name ends in ``-kernel``, runs in the interpreter.

    Raises:
        ValueError: no fault of the kernels has that name.
        Unloadable: the function cannot be had with that fault.

    Example:
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import PAIRS, fixed
        >>> joint_law(planted_rule("p-instead-of-residual"), fixed(*PAIRS[2][0], 1)).deviation
        Fraction(3, 32)
    """
    faults = {fault.name: fault for fault in FAULTS if fault.file.startswith("kernels/")}
    if name not in faults:
        raise ValueError(f"name: {name!r}, expected one of {', '.join(sorted(faults))}")
    module = faults[name].file.removeprefix("kernels/")
    source = plant(faults[name], (KERNELS / module).read_text(encoding="utf-8"))
    backend = "triton" if name.endswith("-kernel") else "torch"
    return load_rule(absolute(source), module, function, backend)
