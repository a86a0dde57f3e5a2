"""What the exact law says of a rule, in words: how far it is off, where, and at which coins.

A rule whose law is not the target's parts from the contract's rule somewhere; the counter-example
is the simplest place where it does. The ends of the coins' interval have no volume, so the law
cannot see them: they are asked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import torch

from .cells import Asker, Path, Rule, read_runs, simplest_between
from .exact import JointLaw
from .reference import Text, verify


@dataclass(frozen=True)
class CounterExample:
    """One request at which a rule with a wrong law parts from the contract's.

    Attributes:
        path: the drafts and their rows.
        coins: the accept coins, then the final coin.
        emitted: what the rule emits.
        contract: what the contract's rule emits, the chain rule unless another was given.
    """

    path: Path
    coins: tuple[Fraction, ...]
    emitted: Text
    contract: Text


def contract_run(path: Path, coins: Sequence[Fraction]) -> Text:
    """Return what the contract's chain rule emits, by the reference over fractions.

    Example:
        >>> from specedu.theory.cells import enumerate_paths
        >>> from specedu.theory.settings import fixed, law_of
        >>> path = enumerate_paths(fixed(law_of("1/4 3/4"), law_of("1 0"), 1))[0]
        >>> contract_run(path, [Fraction(1, 2), Fraction(0)])
        (1,)
    """
    setting, ps, qs = path.setting, path.ps, path.qs
    ids = range(setting.vocab)
    if setting.greedy:
        bests = [p.index(max(p)) for p in ps]
        ps = tuple(tuple(Fraction(int(t == best)) for t in ids) for best in bests)
    if setting.greedy or setting.onehot:
        qs = tuple(tuple(Fraction(int(t == x)) for t in ids) for x in path.ids)
    return tuple(verify(ps, qs, path.ids, coins[:-1], coins[-1]))


def is_wrong(law: JointLaw) -> bool:
    """Return whether a law differs from the target's by more than its bound can explain."""
    return law.deviation > law.bound


def size(law: JointLaw) -> tuple[int, int]:
    """Order laws by their drafts, then by their ids: the smallest wrong one is looked at first."""
    return law.setting.kappa, law.setting.vocab


Contract = Callable[[Path, Sequence[Fraction]], Text]


def counter_example(
    rule: Rule, laws: Sequence[JointLaw], contract: Contract = contract_run
) -> CounterExample | None:
    """Return the smallest counter-example of the laws that are wrong; None if all are right.

    The smallest has the fewest drafts, then the fewest ids, then the coins with the smallest
    denominators. ``contract`` is what the rule should emit, for a rule that is not the chain rule.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import fixed, law_of
        >>> law = joint_law(verify_chain, fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 1))
        >>> counter_example(verify_chain, [law]) is None
        True
    """
    for law in sorted(filter(is_wrong, laws), key=size):
        if found := parting(rule, law, contract):
            return found
    return None


def parting(rule: Rule, law: JointLaw, contract: Contract = contract_run) -> CounterExample | None:
    """Return the simplest coins at which a rule parts from the contract's; None if none is found.

    Every cell of the law is asked once; one in which the rule changes, also in both halves.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> from specedu.theory.exact import joint_law
        >>> from specedu.theory.settings import fixed, law_of
        >>> law = joint_law(verify_chain, fixed(law_of("1/4 3/4"), law_of("3/4 1/4"), 1))
        >>> parting(verify_chain, law) is None
        True
    """
    asker = Asker(rule, [law.setting])
    found = []
    for cell in law.cells:
        for coins in product(*(_simple_coins(*side, cell.constant) for side in cell.sides)):
            found.append((sum(coin.denominator for coin in coins), len(found), cell.path, coins))
    for _, _, path, coins in sorted(found, key=lambda entry: entry[:2]):
        expected = contract(path, coins)
        (emitted,) = asker.ask([(path, tuple(map(float, coins)))])
        if emitted != expected:
            return CounterExample(path, coins, emitted, expected)
    return None


def _simple_coins(low: Fraction, high: Fraction, constant: bool) -> set[Fraction]:
    coins = {simplest_between(low, high)}
    if not constant:
        middle = (low + high) / 2
        coins |= {simplest_between(low, middle), simplest_between(middle, high)}
    return coins


@dataclass(frozen=True)
class Endpoint:
    """One request at an end of the coins' interval, and what the rule made of it.

    Attributes:
        question: the place in words.
        ps: the p row and the bonus row.
        emitted: what the rule emitted.
        expected: what the contract says.
    """

    question: str
    ps: tuple[tuple[float, ...], ...]
    emitted: Text
    expected: Text

    @property
    def right(self) -> bool:
        """Whether the rule did as the contract says."""
        return self.emitted == self.expected

    @property
    def verdict(self) -> str:
        """What the rule did, in words."""
        if self.right:
            return "right"
        without = [
            x for p, x in zip(self.ps, self.emitted, strict=False) if not p[x : x + 1] > (0,)
        ]
        fault = f": id {without[0]} has no probability" if without else ""
        return f"emits {list(self.emitted)}, expected {list(self.expected)}{fault}"


LARGEST_COIN = 1 - 2**-53

# (question, p row, q row, bonus row, u, w, expected run); the draft is id 0 everywhere
_ENDPOINTS = [
    ("u = 0 at a draft with p(x) = 0",
     (0, 0.5, 0.5), (0.5, 0.25, 0.25), (0, 1, 0), 0.0, 0.75, (2,)),
    ("u·q(x) = p(x) exactly",
     (0.25, 0.5, 0.25), (0.5, 0.25, 0.25), (0, 1, 0), 0.5, 0.0, (1,)),
    ("u = 1 - 2**-53 at p(x) = q(x)",
     (0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (0, 1, 0), LARGEST_COIN, 0.0, (0, 1)),
    ("w = 0 where the residual begins with 0",
     (0.25, 0.5, 0.25), (0.75, 0.25, 0), (0, 1, 0), 0.75, 0.0, (1,)),
    ("w = 0 where the bonus row begins with 0",
     (1, 0, 0), (1, 0, 0), (0, 0.5, 0.5), 0.0, 0.0, (0, 1)),
    ("w on the border of two ids",
     (1, 0, 0), (1, 0, 0), (0.25, 0.25, 0.5), 0.0, 0.25, (0, 1)),
    ("w = 1 - 2**-53 where the row ends with 0",
     (1, 0, 0), (1, 0, 0), (0.5, 0.5, 0), 0.0, LARGEST_COIN, (0, 1)),
]  # fmt: skip


def endpoints(rule: Rule, device: str = "cpu") -> list[Endpoint]:
    """Ask the rule at the ends of the coins' interval, one request a launch.

    Example:
        >>> from specedu.kernels import verify_chain
        >>> all(endpoint.right for endpoint in endpoints(verify_chain))
        True

    Book: eq-coin-endpoints.
    """
    asked = []
    for question, p, q, bonus, u, w, expected in _ENDPOINTS:
        result = rule(
            torch.tensor([p, bonus], dtype=torch.float32, device=device),
            torch.tensor([q], dtype=torch.float32, device=device),
            torch.tensor([0], dtype=torch.int32, device=device),
            torch.tensor([1], dtype=torch.int32, device=device),
            torch.tensor([u], dtype=torch.float64, device=device),
            torch.tensor([w], dtype=torch.float64, device=device),
            max_spec_len=1,
        )
        asked.append(Endpoint(question, (p, bonus), read_runs(result, [1])[0], expected))
    return asked
