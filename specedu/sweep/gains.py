"""What follows from records: speed-ups with their uncertainty, the crossing, the prediction.

Uncertainty is that of the repeats: both sides' repeats are drawn anew many times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, harmonic_mean, median

import numpy as np

from specedu.advise.page import alpha_of_length
from specedu.advise.pair import Gain, spread
from specedu.theory.rates import expected_tokens, fitted_alpha
from specedu.theory.speedup import fitted_line, measured_speedup

from .recorder import DONE, Record
from .samples import Acceptance, pooled

DRAWS = 400
ALL = "all kinds"


@dataclass(frozen=True)
class Prediction:
    """A speed-up that the book's formula gives.

    Attributes:
        gain: the speed-up; None where it cannot be said.
        how: from what, or why not.
    """

    gain: float | None
    how: str


@dataclass(frozen=True)
class Point:
    """A method at one concurrency.

    Attributes:
        batch: the requests at once.
        draws: speed-ups, one a draw.
        predicted: by the formula.
        acceptance: over all repeats.
        parts: seconds of a step's parts, means; empty where they are not known.
    """

    batch: int
    draws: tuple[float, ...]
    predicted: Prediction
    acceptance: Acceptance | None
    parts: Mapping[str, float]

    @property
    def gain(self) -> Gain:
        """The speed-up over plain decoding."""
        return spread(self.draws)


@dataclass(frozen=True)
class Line:
    """A method against concurrency.

    Attributes:
        backend: its name.
        model: the target's.
        method: its name.
        kappa: drafts a step.
        temperature: of sampling.
        kind: of prompts, or ``all kinds``.
        tokens: of a request.
        points: by rising concurrency.
    """

    backend: str
    model: str
    method: str
    kappa: int
    temperature: float
    kind: str
    tokens: int
    points: tuple[Point, ...]

    def __str__(self) -> str:
        """Return it in words, kind and temperature apart."""
        return f"{self.method}, kappa {self.kappa}"


@dataclass(frozen=True)
class Crossing:
    """Where a line falls below 1.

    Attributes:
        at: requests at once, the middle of the draws; None where most draws have none.
        low: where 90 % of the draws that have one lie, its lower end.
        high: the upper end; infinity where some draws gain at the largest concurrency.
        above: whether most draws gain at the smallest concurrency.
    """

    at: float | None
    low: float
    high: float
    above: bool


def gain_of(record: Record, plain: Record) -> Gain:
    """Return one cell's speed-up over its plain cell."""
    return spread(_draws([(record, plain)], random.Random(0)))


def _draws(pairs: Sequence[tuple[Record, Record]], dice: random.Random) -> tuple[float, ...]:
    """Return speed-ups over several kinds, each kind with as many tokens: the harmonic means'."""

    def rate(record: Record) -> float:
        return fmean(dice.choices([s.rate for s in record.samples], k=len(record.samples)))

    return tuple(
        harmonic_mean([rate(record) for record, _ in pairs])
        / harmonic_mean([rate(plain) for _, plain in pairs])
        for _ in range(DRAWS)
    )


def lines(records: Iterable[Record], costs: Mapping[str, float] | None = None) -> list[Line]:
    """Return every method's line, of each kind and, where there are several, of all.

    Args:
        records: the last of each cell.
        costs: one draft pass over one plain step, by method, where no part was timed.
    """
    done = [record for record in records if record.state == DONE and record.samples]
    plains = {record.cell.group: record for record in done if record.cell.plain}
    by_line: dict[tuple, dict[int, list[tuple[Record, Record]]]] = {}
    for record in done:
        cell = record.cell
        if cell.plain or cell.group not in plains:
            continue
        of = (cell.backend, cell.model, cell.method, cell.kappa, cell.temperature, cell.tokens)
        by_line.setdefault((of, cell.kind), {}).setdefault(cell.concurrency, []).append(
            (record, plains[cell.group])
        )
    for of in dict.fromkeys(of for of, _ in by_line):
        kinds = [kind for other, kind in by_line if other == of]
        if len(kinds) < 2:
            continue
        shared = set.intersection(*(set(by_line[of, kind]) for kind in kinds))
        by_line[of, ALL] = {
            batch: [pair for kind in kinds for pair in by_line[of, kind][batch]]
            for batch in sorted(shared)
        }
    found = []
    for ((backend, model, method, kappa, temperature, tokens), kind), by_batch in by_line.items():
        dice = random.Random(0)
        points = tuple(
            _point(batch, by_batch[batch], by_batch, dice, costs or {})
            for batch in sorted(by_batch)
        )
        found.append(Line(backend, model, method, kappa, temperature, kind, tokens, points))
    return found


def _point(
    batch: int,
    pairs: Sequence[tuple[Record, Record]],
    by_batch: Mapping[int, Sequence[tuple[Record, Record]]],
    dice: random.Random,
    costs: Mapping[str, float],
) -> Point:
    samples = [sample for record, _ in pairs for sample in record.samples]
    accepted = [sample.acceptance for sample in samples if sample.acceptance]
    acceptance = pooled(accepted) if len(accepted) == len(samples) else None
    parts: dict[str, float] = {}
    if all(sample.parts for sample in samples):
        parts = {part: fmean(s.parts[part] for s in samples) for part in samples[0].parts}
    steps = {b: fmean(s) for b, of in by_batch.items() if (s := _steps([p for _, p in of]))}
    predicted = predict(pairs[0][0].cell.method, pairs[0][0].cell.speculative_config() or {},
                        batch, pairs[0][0].cell.kappa, acceptance, parts, steps, costs)  # fmt: skip
    return Point(batch, _draws(pairs, dice), predicted, acceptance, parts)


def _steps(records: Sequence[Record]) -> list[float]:
    return [s.step for record in records for s in record.samples if s.step is not None]


def predict(
    method: str,
    config: Mapping,
    batch: int,
    kappa: int,
    acceptance: Acceptance | None,
    parts: Mapping[str, float],
    plain_steps: Mapping[int, float],
    costs: Mapping[str, float],
) -> Prediction:
    """Return the speed-up of fitted alpha and step times.

    Args:
        method: its name.
        config: its settings.
        batch: requests at once.
        kappa: drafts a step.
        acceptance: measured.
        parts: seconds of a speculative step's parts, where they are known.
        plain_steps: seconds of a plain step, by requests at once.
        costs: one draft pass over one plain step, by method.

    Book: eq-measured-speedup.
    """
    alpha = fitted(acceptance)
    if acceptance is not None and acceptance.kappa <= 0:
        return Prediction(None, "no draft was made")
    if alpha is None:
        return Prediction(None, "acceptance is not known")
    if batch not in plain_steps:
        return Prediction(None, "a plain step's time is not known")
    tokens, plain = expected_tokens(alpha, kappa), plain_steps[batch]
    if parts:
        gain = measured_speedup(
            tokens, plain, parts["forward"], parts["draft"], parts["verify"] + parts["host"]
        )
        return Prediction(gain, "from the parts of its own steps")
    cost = 0.0 if config.get("method") == "ngram" else costs.get(method)
    if cost is None:
        return Prediction(None, "what a draft costs is not known: give draft_cost in the grid")
    verify, how = step_at(batch * (kappa + 1), plain_steps)
    if verify is None:
        return Prediction(None, how)
    return Prediction(measured_speedup(tokens, plain, verify, kappa * cost * plain), how)


def step_at(positions: int, plain_steps: Mapping[int, float]) -> tuple[float | None, str]:
    """Return the time of a step of so many positions, and from what, by plain steps.

    Between two measured numbers of requests it lies on the line between them, above the largest on
    the line fitted to all. A request's context is read once a position there, and once a request
    in a verify: so the truth is rather below.

    Example:
        >>> step_at(3, {2: 10.0, 4: 14.0})
        (12.0, 'from plain steps of as many positions')
    """
    batches = sorted(plain_steps)
    if positions <= batches[-1]:
        at = float(np.interp(positions, batches, [plain_steps[b] for b in batches]))
        return at, "from plain steps of as many positions"
    if len(batches) < 2:
        return None, "plain steps at one concurrency alone: what a verify costs is not known"
    a, b = fitted_line(batches, [plain_steps[b] for b in batches])
    return max(a + b * positions, plain_steps[batches[-1]]), "from the line through plain steps"


def fitted(acceptance: Acceptance | None) -> float | None:
    """Return alpha, from the rates or else from the length; None where neither is known.

    Example:
        >>> fitted(Acceptance(1.5, 1.0, (0.5,), 10)), fitted(None)
        (0.5, None)
    """
    if acceptance is None or acceptance.kappa <= 0:
        return None
    if acceptance.rates:
        return fitted_alpha(acceptance.rates)
    places = max(1, math.ceil(acceptance.kappa), math.ceil(acceptance.tokens - 1))
    return alpha_of_length(max(1.0, acceptance.tokens), places)


def crossing(line: Line) -> Crossing | None:
    """Return where a line falls below 1; None where it has one point alone.

    Between two concurrencies the speed-up is taken to fall evenly with the logarithm of B.
    """
    if len(line.points) < 2:
        return None
    found: list[float] = []
    above = 0
    for gains in zip(*(point.draws for point in line.points), strict=True):
        above += gains[0] > 1
        if gains[0] > 1:
            found.append(_first_below([point.batch for point in line.points], gains))
    crossed = sorted(at for at in found if math.isfinite(at))
    draws = len(line.points[0].draws)
    if len(crossed) < draws / 2:
        return Crossing(None, math.inf, math.inf, above >= draws / 2)
    middle = spread(crossed)
    high = math.inf if len(found) - len(crossed) > draws / 20 else middle.high
    return Crossing(median(crossed), middle.low, high, above >= draws / 2)


def _first_below(batches: Sequence[int], gains: Sequence[float]) -> float:
    for i in range(1, len(batches)):
        if gains[i] < 1 <= gains[i - 1]:
            share = (gains[i - 1] - 1) / (gains[i - 1] - gains[i])
            low, high = math.log(batches[i - 1]), math.log(batches[i])
            return math.exp(low + share * (high - low))
    return math.inf
