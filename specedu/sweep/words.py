"""The verdict of a sweep, in sentences, each with its uncertainty and its condition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .gains import ALL, Line, crossing, fitted

RANGE = "In brackets: where 90 % of draws over the repeats lie."
NOTHING = "No speed-up is known: no method was measured beside its plain cell."


def verdicts(found: Sequence[Line]) -> list[str]:
    """Return a sentence or two for each line; of several kinds the one over all comes first.

    A line with one concurrency is told of only where no longer one has the same method.
    """
    long = {(o.backend, o.model, o.method, o.temperature) for o in found if len(o.points) > 1}
    told = [
        line
        for line in found
        if len(line.points) > 1
        or (line.backend, line.model, line.method, line.temperature) not in long
    ]
    return [verdict(line) for line in sorted(told, key=lambda o: (_of(o), o.kind != ALL, o.kind))]


def _of(line: Line) -> tuple:
    return line.backend, line.model, line.temperature, line.method, line.kappa


def verdict(line: Line) -> str:
    """Return what a line says: its largest gain, and where it crosses 1 or why it does not."""
    where = (f"{line.backend}, {line.model}, temperature {line.temperature:g}, {line.kind}: "
             f"{line}")  # fmt: skip
    best = max(line.points, key=lambda point: point.gain.middle)
    gain = best.gain
    if gain.low > 1:
        words = [f"{where} gains most at {requests(best.batch)}, {gain} times plain decoding."]
    elif gain.middle > 1:
        words = [f"{where} shows no clear gain: at best {gain} at {requests(best.batch)}."]
    else:
        words = [f"{where} gains nowhere: at best {gain} at {requests(best.batch)}."]
    return " ".join([*words, crossing_words(line)])


def crossing_words(line: Line) -> str:
    """Return where a line crosses 1, or why no crossing was found."""
    first, last = line.points[0].batch, line.points[-1].batch
    at = crossing(line)
    if at is None:
        return f"No crossing: only {requests(first)} was measured."
    if at.at is not None:
        high = f"{at.high:.1f}" if math.isfinite(at.high) else f"beyond {last}"
        return f"It crosses 1 at {at.at:.1f} requests at once ({at.low:.1f} to {high})."
    if at.above:
        return f"No crossing: it still gains at {requests(last)}, the most that was measured."
    return f"No crossing to tell: it is below 1 already at {requests(first)}."


def best_kappa(found: Sequence[Line]) -> list[str]:
    """Return for each method at its least concurrency which number of drafts gained most."""
    by_method: dict[tuple, list[Line]] = {}
    for line in found:
        key = (line.backend, line.model, line.temperature, line.kind, line.method,
               line.points[0].batch)  # fmt: skip
        by_method.setdefault(key, []).append(line)
    words = []
    for (backend, model, temperature, kind, method, batch), of in by_method.items():
        if len({line.kappa for line in of}) < 2:
            continue
        ordered = sorted(of, key=lambda line: line.points[0].gain.middle)
        best, gain = ordered[-1], ordered[-1].points[0].gain
        clear = gain.low > ordered[-2].points[0].gain.high
        verb = "is best" if clear else "is best, not clearly,"
        words.append(
            f"{backend}, {model}, temperature {temperature:g}, {kind}: {method} with kappa "
            f"{best.kappa} {verb} of {', '.join(map(str, sorted(line.kappa for line in of)))} at "
            f"{requests(batch)}: {gain}."
        )
    return words


def requests(count: int) -> str:
    """Return a number of requests in words.

    Example:
        >>> requests(1), requests(8)
        ('1 request', '8 requests')
    """
    return f"{count} request{'s' * (count != 1)}"


def alpha_words(line: Line) -> str:
    """Return the fitted alpha of a line's first point, or why there is none."""
    alpha = fitted(line.points[0].acceptance)
    return "not known" if alpha is None else f"{alpha:.2f}"
