"""The exact law of an acceptance rule: computed as fractions, not sampled.

The run that a rule emits is a deterministic function of the drafts and the coins, so its law is a
sum of volumes: for every tuple of drafts, the boxes of coins in which the rule emits one run
(``cells``). A rule that changes where the theory does not expect it is searched down to 2**-40, and
its law carries a bound on what that search may have missed.

Each emitted run is extended to length ``kappa + 1`` by plain sampling from the target, and the
*joint* law of those tokens is compared with the target's product law: marginals can agree where the
joint law does not.

Book: eq-exact-law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod

from specedu.kernels import Purpose

from .cells import (
    MAX_FOUND_CUTS,
    RANDOM_POINTS,
    Asker,
    Asks,
    Box,
    Cell,
    Path,
    Rule,
    chain_cuts,
    enumerate_paths,
)
from .reference import Law, Text
from .settings import Setting


@dataclass(frozen=True)
class JointLaw:
    """The law of the first tokens that a rule emits, beside the target's.

    Attributes:
        setting: what was asked.
        law: probability of every text of ``length`` tokens (a run with an illegal id stands alone).
        target: the target's product law of the same texts.
        cells: the boxes of coins behind it.
        bound: how much of the probability may stand at the wrong text; 0 where every cut was known.
        asked: how often the rule was asked.
    """

    setting: Setting
    law: dict[Text, Fraction]
    target: dict[Text, Fraction]
    cells: tuple[Cell, ...] = field(repr=False)
    bound: Fraction
    asked: int

    @property
    def deviation(self) -> Fraction:
        """The largest difference at one text."""
        return max(self._differences())

    @property
    def total_variation(self) -> Fraction:
        """Half the sum of all differences."""
        return sum(self._differences()) / 2

    def _differences(self) -> list[Fraction]:
        texts = self.law.keys() | self.target.keys()
        none = Fraction(0)
        return [abs(self.law.get(text, none) - self.target.get(text, none)) for text in texts]

    @property
    def exact(self) -> bool:
        """Whether the law is the target's, without any remainder."""
        return self.deviation == 0 and self.bound == 0

    @property
    def emitted(self) -> Fraction:
        """The expected number of emitted tokens, E."""
        return sum(len(cell.run) * cell.volume for cell in self.cells)

    def runs(self) -> dict[Text, Fraction]:
        """Return the law of the emitted run itself, before it is extended."""
        law = defaultdict(Fraction)
        for cell in self.cells:
            law[cell.run] += cell.volume
        return dict(law)

    def first(self) -> Law:
        """Return the law of the first emitted token."""
        marginal = defaultdict(Fraction)
        for text, mass in self.law.items():
            marginal[text[0] if text else -1] += mass
        return tuple(marginal[token] for token in range(self.setting.vocab))


def joint_law(rule: Rule, setting: Setting, **options: object) -> JointLaw:
    """Return the law of one step of ``rule``; see :func:`joint_laws`.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> from specedu.theory.settings import fixed, law_of
        >>> joint_law(verify_chain, fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 2)).deviation
        Fraction(0, 1)
    """
    return joint_laws(rule, [setting], **options)[0]


def joint_laws(
    rule: Rule,
    settings: Sequence[Setting],
    *,
    cuts: Callable[[Path], list[set[Fraction]]] | None = None,
    device: str = "cpu",
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    **thoroughness: int,
) -> list[JointLaw]:
    """Return the law of one step of ``rule`` for each setting, asked in shared ragged launches.

    Args:
        rule: called as ``rule(target_probs, draft_probs, draft_token_ids, cu_num_draft_tokens,
            accept_coins, final_coins, max_spec_len=...)``, with ``onehot=`` and ``greedy=`` only
            where a setting needs them; returns (token_ids, num_accepted).
        settings: all of one vocabulary size.
        cuts: the theory's cuts of every coin of a path; None: :func:`chain_cuts`.
        device: where the tensors lie.
        seed: of the random points and of the order of the requests in a launch.
        on_progress: called with the requests asked so far and those known to come.
        thoroughness: ``random_points`` and ``max_found_cuts`` of a tuple of drafts, where asking is
            slow; 0 cuts leave a cell in which the rule changes as it is, and count it as bound.

    Raises:
        ValueError: the settings differ in vocabulary.
        MalformedRun: the rule returns something that is no run.

    Book: eq-exact-law.
    """
    asker = Asker(rule, settings, device, seed, on_progress)
    return laws_of(asker, settings, cuts=cuts, seed=seed, **thoroughness)


def laws_of(
    asker: Asks,
    settings: Sequence[Setting],
    *,
    cuts: Callable[[Path], list[set[Fraction]]] | None = None,
    seed: int = 0,
    random_points: int = RANDOM_POINTS,
    max_found_cuts: int = MAX_FOUND_CUTS,
) -> list[JointLaw]:
    """Return the law of whatever answers the questions: a rule, or a whole engine.

    See :func:`joint_laws`, which puts a rule behind an Asker.
    """
    paths = [path for setting in settings for path in enumerate_paths(setting)]
    boxes = [
        Box(path, (cuts or chain_cuts)(path), seed + i, random_points)
        for i, path in enumerate(paths)
    ]
    runs = iter(asker.ask([(box.path, point) for box in boxes for point in box.points]))
    for box in boxes:
        box.settle([next(runs) for _ in box.points], asker, max_found_cuts)

    laws = []
    for setting in settings:
        mine = [box for box in boxes if box.path.setting is setting]
        cells = tuple(cell for box in mine for cell in box.cells())
        laws.append(
            JointLaw(
                setting,
                extend([(cell.run, cell.volume) for cell in cells], setting, setting.kappa + 1),
                product_law(setting, setting.kappa + 1),
                cells,
                sum((box.path.weight * box.bound() for box in mine), Fraction(0)),
                sum(box.asked for box in mine),
            )
        )
    return laws


# --- texts and their probabilities ----------------------------------------------------------------


def extend(
    runs: Iterable[tuple[Text, Fraction]], setting: Setting, length: int
) -> dict[Text, Fraction]:
    """Extend emitted runs to ``length`` by plain sampling and add up their probabilities."""
    law: dict[Text, Fraction] = defaultdict(Fraction)
    for run, mass in runs:
        if all(0 <= token < setting.vocab for token in run) and 0 < len(run) <= length:
            for more in product(range(setting.vocab), repeat=length - len(run)):
                text = run + more
                law[text] += mass * prod(
                    setting.law(text[:i])[text[i]] for i in range(len(run), length)
                )
        else:
            law[run] += mass  # no text: it stands for itself and the target gives it nothing
    return {text: mass for text, mass in sorted(law.items()) if mass}


def product_law(setting: Setting, length: int) -> dict[Text, Fraction]:
    """Return the target's law of ``length`` tokens."""
    return extend([((t,), setting.law(())[t]) for t in range(setting.vocab)], setting, length)


# --- several steps --------------------------------------------------------------------------------

Counter = tuple[int, int, int, int]  # step, position, purpose, index: what a coin is made from


def step_counters(step: int, position: int, kappa: int) -> set[Counter]:
    """Return the counters of the coins that one step uses.

    Example:
        >>> sorted(step_counters(step=3, position=7, kappa=1))
        [(3, 7, 0, 0), (3, 7, 1, 0), (3, 7, 2, 0)]

    Book: eq-coin.
    """
    drafted = range(position, position + kappa)
    counters = {(step, i, int(p), 0) for i in drafted for p in (Purpose.DRAFT, Purpose.ACCEPT)}
    return counters | {(step, position, int(Purpose.FINAL), 0)}


def composed_law(
    rule: Rule,
    setting: Setting,
    kappas: Sequence[int],
    *,
    counters: Callable[[int, int, int], set[Counter]] = step_counters,
    **options: object,
) -> JointLaw:
    """Return the law of several steps, each drafting its own number of tokens.

    Every step begins behind the text that the steps before it emitted, with coins of its own. That
    makes the law a product over steps, which holds only if no coin is used twice: on every way that
    the lengths can take, the steps' counters are checked to be disjoint.

    Args:
        rule: as for :func:`joint_laws`.
        setting: the laws; its own ``kappa`` is not used.
        kappas: drafted tokens of each step, 0 for a step without drafts.
        counters: gives the counters of (step, position, kappa).
        options: as for :func:`joint_laws`.

    Raises:
        ValueError: two steps share a counter, or there is no step.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> from specedu.theory.settings import fixed, law_of
        >>> setting = fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 1)
        >>> composed_law(verify_chain, setting, [1, 0, 1]).exact
        True
    """
    if not kappas:
        raise ValueError("kappas: [], expected at least one step")
    asked, bound = 0, Fraction(0)
    cells: list[Cell] = []
    reached: dict[tuple[Text, tuple[int, ...]], Fraction] = {((), ()): Fraction(1)}
    for kappa in kappas:
        texts = sorted({text for text, _ in reached})
        steps = joint_laws(rule, [setting.after(text, kappa) for text in texts], **options)
        laws = dict(zip(texts, steps, strict=True))
        following: dict[tuple[Text, tuple[int, ...]], Fraction] = defaultdict(Fraction)
        for (text, starts), mass in reached.items():
            starts = (*starts, len(text))
            _refuse_shared_coins(starts, kappas, counters)
            bound += mass * laws[text].bound
            for cell in laws[text].cells:
                following[text + cell.run, starts] += mass * cell.volume
        asked += sum(law.asked for law in steps)
        for text, law in laws.items():
            chance = sum(mass for (before, _), mass in reached.items() if before == text)
            cells += [cell.scaled(chance) for cell in law.cells]
        reached = following
    length = sum(kappas) + len(kappas)
    emitted = [(text, mass) for (text, _), mass in reached.items()]
    return JointLaw(
        setting,
        extend(emitted, setting, length),
        product_law(setting, length),
        tuple(cells),
        bound,
        asked,
    )


def _refuse_shared_coins(
    starts: tuple[int, ...],
    kappas: Sequence[int],
    counters: Callable[[int, int, int], set[Counter]],
) -> None:
    *earlier, now = (counters(step, at, kappas[step]) for step, at in enumerate(starts))
    for step, used in enumerate(earlier):
        if shared := used & now:
            raise ValueError(
                f"counters: steps {step} and {len(earlier)}, which begin at positions "
                f"{starts[step]} and {starts[-1]}, share {min(shared)}; their coins are not "
                "independent and the law of several steps is no product"
            )
