"""Boxes of coins, and asking a rule in each of them.

A run is a deterministic function of drafts and coins. This module enumerates the drafts, cuts each
coin's interval where the theory says that the run may change, asks the rule at several points of
every cell, and searches for further cuts where the answers of one cell differ.

The rule is asked in a cell's middle and 2**-20 inside both ends, and at 64 random points a tuple
of drafts. Rows are handed over in float32: laws that float32 does not hold exactly move the rule's
cuts by less than that margin.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Protocol

import torch

from .reference import Law, Text, block_weights, residual
from .settings import Setting

MARGIN = Fraction(1, 2**20)  # from a cut of the theory to the nearest probe
COIN_STEP = Fraction(1, 2**53)  # of float64 coins
RESOLUTION = Fraction(1, 2**40)  # how closely a cut that the theory does not know is searched
RANDOM_POINTS = 64  # a tuple of drafts
MAX_FOUND_CUTS = 24  # a tuple of drafts; a rule with curved borders stops here and says so
LAUNCH = 4096  # requests a launch

Rule = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Point = tuple[float, ...]  # the accept coins of a request, then its final coin
Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Path:
    """One tuple of drafts of a setting, with the rows that belong to it.

    Attributes:
        setting: where it comes from.
        ids: the drafts as the rule is given them, -1 where one was withdrawn or none was made.
        ps: the target's rows, one more than there are drafts.
        qs: the draft's rows.
        weight: the probability that the draft proposes just this tuple.
    """

    setting: Setting
    ids: Text
    ps: tuple[Law, ...]
    qs: tuple[Law, ...]
    weight: Fraction


@dataclass(frozen=True)
class Cell:
    """A box of coins in which the rule emits one run, as far as it was asked.

    Attributes:
        path: the drafts.
        sides: one interval a coin, the final coin's last.
        run: the emitted ids.
        constant: False where the rule was seen to change inside and the search gave up.
    """

    path: Path
    sides: tuple[Interval, ...]
    run: Text
    constant: bool = True

    @property
    def volume(self) -> Fraction:
        """The probability of the drafts and of a point in the box."""
        return self.path.weight * prod(high - low for low, high in self.sides)

    def scaled(self, chance: Fraction) -> Cell:
        """Return the cell of a step that is reached with probability ``chance``."""
        return replace(self, path=replace(self.path, weight=chance * self.path.weight))


# --- drafts, and where the theory cuts ------------------------------------------------------------


def enumerate_paths(setting: Setting) -> list[Path]:
    """Return every tuple of drafts that has a chance to be proposed.

    Behind a draft of -1 the rows follow the id that was drawn before it was withdrawn, or id 0
    where none was: a rule must not read them.

    Example:
        >>> from specedu.theory.settings import fixed, law_of
        >>> [path.ids for path in enumerate_paths(fixed(law_of("1/2 1/2"), law_of("1 0"), 2))]
        [(0, 0)]
    """
    paths = []

    def grow(drawn: Text, ids: Text, qs: tuple[Law, ...], weight: Fraction) -> None:
        if len(drawn) == setting.kappa:
            ps = tuple(setting.target(drawn[:i]) for i in range(setting.kappa + 1))
            paths.append(Path(setting, ids, ps, qs, weight))
            return
        q = setting.draft(drawn)
        if not any(q):
            grow((*drawn, 0), (*ids, -1), (*qs, q), weight)
            return
        for x in range(setting.vocab):
            if q[x]:
                withdrawn = setting.withdraw is not None and setting.withdraw(drawn, x)
                grow((*drawn, x), (*ids, -1 if withdrawn else x), (*qs, q), weight * q[x])

    grow((), (), (), Fraction(1))
    return paths


def chain_cuts(path: Path) -> list[set[Fraction]]:
    """Return where a chain rule may change its mind: one set a coin, the final coin's last.

    An accept coin changes at the ratio p(x)/q(x); the final coin at the running sums of each row
    that the final token may be drawn from.
    """
    setting, n = path.setting, len(path.ids)
    if setting.greedy:
        return [set() for _ in range(n + 1)]
    accept, final = [], set(running_sums(path.ps[n]))
    for p, q, x in zip(path.ps, path.qs, path.ids, strict=False):
        if setting.onehot:
            q = tuple(Fraction(int(token == x)) for token in range(setting.vocab))
        accept.append({p[x] / q[x]} if x >= 0 and p[x] < q[x] else set())
        final |= set(running_sums(residual(p, q)))
    return [*accept, final]


def block_cuts(path: Path) -> list[set[Fraction]]:
    """Return where block verification may change its mind, as :func:`chain_cuts` does.

    The coin of draft i changes at h_i; the final coin at the running sums of every scaled residual.
    """
    setting, n = path.setting, len(path.ids)
    if setting.greedy:
        return [set() for _ in range(n + 1)]
    qs = path.qs
    if setting.onehot:
        ids = range(setting.vocab)
        qs = tuple(tuple(Fraction(int(token == x)) for token in ids) for x in path.ids)
    rs, hs = block_weights(path.ps, qs, path.ids)
    final = set(running_sums(path.ps[n]))
    for r, p, q in zip(rs, path.ps, qs, strict=False):
        scaled = tuple(r * mass for mass in p)
        final |= set(running_sums(residual(scaled, q)))
    return [*({h} for h in hs[1:]), final]


def match_cuts(path: Path) -> list[set[Fraction]]:
    """Return where sample-and-match may change its mind: at the running sums of each coin's row.

    The coins are one a row, the bonus row's last.
    """
    if path.setting.greedy:
        return [set() for _ in path.ps]
    return [set(running_sums(p)) for p in path.ps]


def running_sums(weights: Law) -> list[Fraction]:
    """Return the normalised running sums of a row.

    Example:
        >>> running_sums((Fraction(1, 8), Fraction(3, 8)))
        [Fraction(1, 4), Fraction(1, 1)]
    """
    total = sum(weights)
    return [sum(weights[: t + 1], Fraction(0)) / total for t in range(len(weights)) if total]


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the smallest denominator in the open interval (low, high).

    Raises:
        ValueError: low is negative or not below high.

    Example:
        >>> simplest_between(Fraction(1, 4), Fraction(5, 6))
        Fraction(1, 2)
        >>> simplest_between(Fraction(0), Fraction(1, 3))
        Fraction(1, 4)
    """
    if not 0 <= low < high:
        raise ValueError(f"low, high: {low}, {high}, expected 0 <= low < high")
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:
        return whole + Fraction(1, 1 // (high - whole) + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole))


# --- asking the rule ------------------------------------------------------------------------------


class Asks(Protocol):
    """What answers the law's questions: a rule behind :class:`Asker`, or a whole engine."""

    def ask(self, requests: Sequence[tuple[Path, Point]]) -> list[Text]:
        """Return the run that each request emits."""
        ...


class MalformedRun(ValueError):
    """The rule returned something that is no run: another form, a gap, or a wrong count."""


class Asker:
    """Puts (path, point) pairs to the rule, many requests a launch, in a shuffled order.

    Requests of different settings stand side by side in a launch, so that a rule which reads its
    neighbour's rows is seen to change inside a cell. One-hot requests get rows of NaN for q: they
    must not be read.
    """

    def __init__(
        self,
        rule: Rule,
        settings: Sequence[Setting],
        device: str = "cpu",
        seed: int = 0,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        vocabs = {setting.vocab for setting in settings}
        if len(vocabs) != 1:
            raise ValueError(f"settings: vocabularies {sorted(vocabs)}, expected one size a call")
        self.rule, self.device, self.vocab = rule, device, vocabs.pop()
        self.random = random.Random(seed)
        self.on_progress, self.asked, self.total = on_progress, 0, 0
        nan = (float("nan"),) * self.vocab
        self.rows: dict[tuple, int] = {nan: 0}
        self.places: dict[int, tuple[list[int], list[int]]] = {}
        self.table = torch.empty(0)

    def ask(self, requests: Sequence[tuple[Path, Point]]) -> list[Text]:
        """Return the run that each request emits."""
        self.total = max(self.total, self.asked + len(requests))
        order = list(range(len(requests)))
        self.random.shuffle(order)
        runs: list[Text] = [()] * len(requests)
        for first in range(0, len(order), LAUNCH):
            chosen = order[first : first + LAUNCH]
            for i, run in zip(chosen, self._launch([requests[i] for i in chosen]), strict=True):
                runs[i] = run
            self.asked += len(chosen)
            self.on_progress(self.asked, self.total)
        return runs

    def _place(self, path: Path) -> tuple[list[int], list[int]]:
        """Return where the path's p rows and q rows stand in the table of all rows."""
        if id(path) not in self.places:
            ps = [self.rows.setdefault(p, len(self.rows)) for p in path.ps]
            qs = [0] * len(path.qs)
            if not path.setting.onehot:
                qs = [self.rows.setdefault(q, len(self.rows)) for q in path.qs]
            self.places[id(path)] = ps, qs
        return self.places[id(path)]

    def _launch(self, requests: Sequence[tuple[Path, Point]]) -> list[Text]:
        p_index, q_index, ids, counts, accept_coins = [], [], [], [], []
        for path, point in requests:
            ps, qs = self._place(path)
            p_index += ps
            q_index += qs
            ids += path.ids
            counts.append(len(path.ids))
            accept_coins += point[:-1]
        if len(self.table) != len(self.rows):
            laws = [[float(entry) for entry in law] for law in self.rows]
            self.table = torch.tensor(laws, dtype=torch.float32)

        def tensor(values: Sequence, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        flags = {}
        for name in ("greedy", "onehot"):
            asked_for = [getattr(path.setting, name) for path, _ in requests]
            if any(asked_for):
                flags[name] = tensor(asked_for, torch.bool)
        q_rows = self.table[q_index].to(self.device)
        if "onehot" in flags and bool(flags["onehot"].all()):
            del flags["onehot"]
            q_rows = None
        result = self.rule(
            self.table[p_index].to(self.device),
            q_rows,
            tensor(ids, torch.int32),
            tensor(counts, torch.int32).cumsum(0, dtype=torch.int32),
            tensor(accept_coins, torch.float64),
            tensor([point[-1] for _, point in requests], torch.float64),
            max_spec_len=max(counts),
            **flags,
        )
        return read_runs(result, counts)


def read_runs(result: object, counts: Sequence[int]) -> list[Text]:
    """Return each request's emitted ids from what a rule returned.

    Raises:
        MalformedRun: it is no pair of tensors, or a row is not its ids and then -1.

    Example:
        >>> read_runs((torch.tensor([[4, -1], [4, 5]]), torch.tensor([0, 1])), [1, 1])
        [(4,), (4, 5)]
    """
    try:
        token_ids, num_accepted = result
        rows, accepted = token_ids.tolist(), num_accepted.tolist()
    except (TypeError, ValueError, AttributeError):
        raise MalformedRun(
            f"the rule returned {type(result).__name__}, expected (token_ids, num_accepted)"
        ) from None
    if len(rows) != len(counts) or len(accepted) != len(counts):
        raise MalformedRun(
            f"the rule returned {len(rows)} rows and {len(accepted)} counts, expected "
            f"{len(counts)} of each"
        )
    runs = []
    for row, n, count in zip(rows, accepted, counts, strict=True):
        run = tuple(row[: n + 1])
        tail = row[n + 1 :]
        if not 0 <= n <= count or len(run) != n + 1 or -1 in run or set(tail) - {-1}:
            raise MalformedRun(
                f"the rule returned {row} with num_accepted = {n} for {count} drafts, expected "
                "num_accepted + 1 ids and then -1"
            )
        runs.append(run)
    return runs


# --- the boxes of one tuple of drafts -------------------------------------------------------------


class Box:
    """The unit box of one path's coins, cut into cells until the rule is constant in each."""

    def __init__(
        self,
        path: Path,
        cuts: list[set[Fraction]],
        seed: int,
        random_points: int = RANDOM_POINTS,
    ) -> None:
        self.path = path
        self.random_points = random_points
        self.edges = [
            sorted({Fraction(0), Fraction(1)} | {cut for cut in inner if 0 < cut < 1})
            for inner in cuts
        ]
        self.found: dict[tuple[int, Fraction], Fraction] = {}  # (coin, cut) -> width of its bracket
        self.seed = seed
        self.asked = 0
        self.points: list[Point] = []
        self.owners: list[tuple[int, ...]] = []
        self.runs: dict[tuple[int, ...], list[tuple[Point, Text]]] = {}
        self._lay_points()

    def _lay_points(self) -> None:
        """Lay three probes in every cell, and the random points."""
        probes = []  # per coin and interval: inside the low end, the middle, inside the high end
        for coin, edges in enumerate(self.edges):
            row = []
            for low, high in zip(edges, edges[1:], strict=False):
                quarter = (high - low) / 4
                below, above = (
                    min(quarter, 2 * self.found[coin, e] if self.found.get((coin, e)) else MARGIN)
                    for e in (low, high)
                )
                row.append([float(low + below), float((low + high) / 2), float(high - above)])
            probes.append(row)
        self.points, self.owners = [], []
        for owner in product(*(range(len(row)) for row in probes)):
            sides = [row[i] for row, i in zip(probes, owner, strict=True)]
            self.points += zip(*sides, strict=True)
            self.owners += [owner] * 3
        edges = [[float(edge) for edge in row] for row in self.edges]
        dice = random.Random(self.seed)
        for _ in range(self.random_points):
            point, owner = [], []
            for coin in range(len(edges)):
                u = dice.random()
                i = bisect_right(edges[coin], u) - 1
                low, _, high = probes[coin][i]
                point.append(min(max(u, low), high))
                owner.append(i)
            self.points.append(tuple(point))
            self.owners.append(tuple(owner))

    def settle(self, runs: list[Text], asker: Asks, max_found_cuts: int = MAX_FOUND_CUTS) -> None:
        """Cut where the rule is seen to change, until no cell disagrees or the cuts run out."""
        while True:
            self.asked += len(runs)
            self.runs = defaultdict(list)
            for owner, point, run in zip(self.owners, self.points, runs, strict=True):
                self.runs[owner].append((point, run))
            torn = [owner for owner, seen in self.runs.items() if len({run for _, run in seen}) > 1]
            if not torn or len(self.found) >= max_found_cuts:
                return
            largest = max(torn, key=self._volume)
            (a, run_a), *others = self.runs[largest]
            b = next(point for point, run in others if run != run_a)
            coin, cut, width = self._search(a, b, asker)
            low, high = self._sides(largest)[coin]
            if min(cut - low, high - cut) < (high - low) / 32:
                # A curved border leaves a cell near a corner: halving gets on, following does not.
                sides = [high - low for low, high in self._sides(largest)]
                coin = sides.index(max(sides))
                cut, width = sum(self._sides(largest)[coin]) / 2, Fraction(0)
            self.found[coin, cut] = width
            self.edges[coin] = sorted({*self.edges[coin], cut})
            self._lay_points()
            runs = asker.ask([(self.path, point) for point in self.points])

    def _search(self, a: Point, b: Point, asker: Asks) -> tuple[int, Fraction, Fraction]:
        """Return where the rule changes on the way from a to b: the coin, the cut, its bracket."""
        way = [b[:i] + a[i:] for i in range(len(a) + 1)]
        runs = asker.ask([(self.path, point) for point in way])
        self.asked += len(way)
        coin = next((i for i in range(len(a)) if runs[i] != runs[i + 1]), None)
        if coin is None:
            raise MalformedRun(
                f"the rule answers drafts {list(self.path.ids)} with coins {list(a)} differently "
                "when it is asked again: it is no function of drafts and coins"
            )
        point, left = way[coin], runs[coin]
        low, high = Fraction(a[coin]), Fraction(b[coin])
        while abs(high - low) > RESOLUTION:
            steps = [low + (high - low) * i / 32 for i in range(1, 32)]
            asked = [
                (self.path, point[:coin] + (float(step),) + point[coin + 1 :]) for step in steps
            ]
            self.asked += len(asked)
            changed = [run != left for run in asker.ask(asked)] + [True]
            first = changed.index(True)
            bracket = [low, *steps, high]
            low, high = bracket[first], bracket[first + 1]
        # What was asked are doubles, half a step off at most; and the cut may be an end itself.
        low, high = min(low, high) - COIN_STEP, max(low, high) + COIN_STEP
        return coin, simplest_between(low, high), high - low

    def _sides(self, owner: tuple[int, ...]) -> tuple[Interval, ...]:
        return tuple((edges[i], edges[i + 1]) for edges, i in zip(self.edges, owner, strict=True))

    def _volume(self, owner: tuple[int, ...]) -> Fraction:
        return prod(high - low for low, high in self._sides(owner))

    def cells(self) -> list[Cell]:
        """Return the cells; the run of a cell is what its middle emits."""
        return [
            Cell(self.path, self._sides(owner), seen[1][1], len({run for _, run in seen}) == 1)
            for owner, seen in self.runs.items()
        ]

    def bound(self) -> Fraction:
        """Return how much of the box may stand at the wrong run."""
        torn = (cell for cell in self.cells() if not cell.constant)
        volumes = (prod(high - low for low, high in cell.sides) for cell in torn)
        return min(sum(self.found.values()) + sum(volumes), Fraction(1))
