"""What the labs check: one function an exercise, one printed line a property.

A lab's notebook imports its checks from here, so that it needs nothing beside the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BLANK = "not filled in yet"


class NotYet(AssertionError):
    """A check of a lab did not pass; its lines were printed."""


def report(properties: Iterable[tuple[str, bool, str]]) -> None:
    """Print a line a property, and raise if one does not hold.

    Args:
        properties: (what must hold, whether it does, what was seen where it does not).

    Raises:
        NotYet: names the first property that does not hold.

    Example:
        >>> report([("one and one is two", 1 + 1 == 2, "")])
        ok      one and one is two
    """
    failed = ""
    for words, holds, seen in properties:
        mark = "ok    " if holds else "FAILED"
        seen = BLANK if seen == repr(...) else seen
        print(f"{mark}  {words}{'' if holds or not seen else f': {seen}'}")
        failed = failed or ("" if holds else words)
    if failed:
        raise NotYet(failed)


def filled(value: Any, words: str) -> Any:
    """Return what a student's code gave, refused where that is nothing.

    Raises:
        NotYet: it is None or an ellipsis.

    Example:
        >>> filled(3, "a number")
        3
    """
    if value is None or value is ...:
        report([(words, False, BLANK)])
    return value
