"""Checks of Lab 02: the chain kernel in Triton, step by step.

Numbers are multiples of powers of two wherever an answer must be exact: sums of them do not round.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specedu.kernels import verify_chain
from specedu.theory.cells import MalformedRun, Rule
from specedu.theory.exact import JointLaw, joint_laws
from specedu.theory.settings import PAIRS, Setting, fixed, turning
from specedu.theory.verdict import endpoints

from . import report

NAN = math.nan
LARGEST_COIN = 1 - 2**-53
POISON = 9.0  # between the rows: no entry of a law is as large
Line = tuple[str, bool, str]
Pair = tuple[torch.Tensor, torch.Tensor]


def device() -> str:
    """Return where the lab's kernels run."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def tensor(values: object, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the lab's device."""
    return torch.tensor(values, dtype=dtype, device=device())


# --- step 1 ---------------------------------------------------------------------------------------

RAGGED = {
    "2, 0 and 3 drafts": [2, 0, 3],
    "the first and the last have none": [0, 1, 4, 0],
    "one request": [3],
    "nobody has any": [0, 0, 0],
}


def check_slices(slices: Callable[[torch.Tensor, torch.Tensor, int], Pair]) -> None:
    """Check the slice of every request of ragged batches."""
    rows: list[Line] = []
    for words, counts in RAGGED.items():
        ids = list(range(100, 100 + sum(counts)))
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        cu = tensor([1, *ends], torch.int32)[1:]  # the 1 in front is nobody's end
        found, drafts = slices(tensor(ids, torch.int32), cu, 4)
        expected = [
            [*ids[end - n : end], *[-1] * (4 - n)] for end, n in zip(ends, counts, strict=True)
        ]
        seen = f"{found.tolist()}, expected {counts}"
        rows.append((f"{words}: the numbers of drafts", found.tolist() == counts, seen))
        seen = f"{drafts.tolist()}, expected {expected}"
        rows.append((f"{words}: everyone's own drafts", drafts.tolist() == expected, seen))
    report(rows)


# --- step 2 ---------------------------------------------------------------------------------------

Accept = Callable[..., Pair]
Row = Sequence[float]


@dataclass(frozen=True)
class Request:
    """One request of the accept loop, and how many of its drafts are to be accepted."""

    ps: Sequence[Row]
    drafts: Sequence[int]
    qs: Sequence[Row]
    coins: Sequence[float]
    accepted: int
    onehot: bool = False


HALF, UP, DOWN = (0.5, 0.5, 0), (0.25, 0.5, 0.25), (0.5, 0.25, 0.25)
BONUS = (0, 0, 1)
STEPS = {
    "the first refusal ends the run": [
        Request([HALF] * 4 + [BONUS], [0] * 4, [HALF, (1, 0, 0), HALF, HALF], [0.875] * 4, 1)
    ],
    "every request reads its own rows": [
        Request([UP, BONUS], [1], [DOWN], [0.875], 1),
        Request([BONUS], [], [], [], 0),
        Request([DOWN, UP, BONUS], [0, 2], [UP, DOWN], [0.75, 0.75], 2),
        Request([UP, BONUS], [0], [DOWN], [0.625], 0),
    ],
    "u·q(x) = p(x) is refused": [Request([UP, BONUS], [0], [DOWN], [0.5], 0)],
    "p(x) = 0 is refused with u = 0": [Request([(0, 0.5, 0.5), BONUS], [0], [DOWN], [0.0], 0)],
    "-1 is refused with u = 0": [Request([UP] * 2 + [BONUS], [-1, 1], [DOWN] * 2, [0.0] * 2, 0)],
    "so is an id outside the vocabulary": [
        Request([UP, DOWN, BONUS], [3, 0], [DOWN] * 2, [0.0] * 2, 0)  # p[1][0] lies there
    ],
    "the largest coin accepts where p = q": [
        Request([DOWN, BONUS], [0], [DOWN], [LARGEST_COIN], 1)
    ],
    "a one-hot draft is tested with q(x) = 1": [
        Request([UP] * 2 + [BONUS], [1, 1], [(0, 0.25, 0.75)] * 2, [0.375, 0.75], 1, True)
    ],
    "and its row of q is not read": [Request([UP, BONUS], [1], [(NAN, NAN, NAN)], [0.75], 0, True)],
    "NaN and negative entries of p count as 0": [
        Request([(NAN, 0.5, 0.5), BONUS], [0], [DOWN], [0.0], 0),
        Request([(-0.5, 0.5, 0.5), BONUS], [0], [DOWN], [0.0], 0),
    ],
}


def check_accept(accept: Accept) -> None:
    """Check the accept loop at its borders, on ragged batches and beyond 32 bits."""
    rows = [accepts(words, requests, accept) for words, requests in STEPS.items()]
    half = STEPS["every request reads its own rows"]
    rows.append(accepts("half precision is widened", half, accept, torch.float16))
    if device() == "cpu":
        try:
            rows.append(_beyond_32_bits(accept))
        except (OSError, RuntimeError) as error:
            print(f"left out: no sparse file can be made here ({error})")
    report(rows)


def accepts(
    words: str,
    requests: Sequence[Request],
    accept: Accept,
    dtype: torch.dtype = torch.float32,
    place: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
) -> Line:
    """Run the loop on requests, and say whether it accepts what it must."""
    counts = [len(one.drafts) for one in requests]
    width = max(counts)
    token_ids, num_accepted = accept(
        place(tensor([p for one in requests for p in one.ps], dtype)),
        tensor([q for one in requests for q in one.qs], dtype),
        tensor([x for one in requests for x in one.drafts], torch.int32),
        tensor(counts, torch.int32).cumsum(0, dtype=torch.int32),
        tensor([u for one in requests for u in one.coins], torch.float64),
        tensor([int(one.onehot) for one in requests], torch.int32),
        max_spec_len=width,
    )
    expected = [one.accepted for one in requests]
    kept = [[*one.drafts[: one.accepted], *[-1] * (width - one.accepted)] for one in requests]
    found = num_accepted.tolist()
    if found != expected:
        return words, False, f"accepts {found}, expected {expected}"
    return words, token_ids.tolist() == kept, f"stores {token_ids.tolist()}, expected {kept}"


def _beyond_32_bits(accept: Accept) -> Line:
    """Lay rows 2**30 entries apart, in a sparse file of which a few pages exist.

    The first row lies in its middle, so that an offset which wrapped finds zeros, and no fault.
    """
    stride, middle = 2**30 + 64, 2**31
    requests = [
        Request([DOWN] * 3 + [BONUS], [0] * 3, [DOWN] * 3, [0.5] * 3, 3),
        Request([UP, BONUS], [1], [UP], [0.5], 1),
    ]
    with tempfile.TemporaryDirectory() as folder:

        def far_apart(rows: torch.Tensor) -> torch.Tensor:
            size = middle + len(rows) * stride
            file = str(Path(folder) / "rows")
            memory = torch.from_file(file, shared=True, size=size, dtype=rows.dtype)
            return memory.as_strided(rows.shape, (stride, 1), middle).copy_(rows)

        words = "rows beyond 2**31 entries are found"
        return accepts(words, requests, accept, torch.float16, far_apart)


# --- steps 3 and 4 --------------------------------------------------------------------------------


def check_loads(loads: object) -> None:
    """Check how many entries of p and q a refusal at the first of three drafts costs."""
    number = isinstance(loads, int) and not isinstance(loads, bool)
    test, rows = (loads % 100_000, loads // 100_000) if number else (None, None)
    report(
        [
            ("it is a number of entries", number, repr(loads)),
            ("the accept test loads p(x) and q(x), once each", test == 2, f"{test} of {loads}"),
            ("two rows are read, and no row behind the refusal", rows in (2, 4), f"{rows} rows"),
            ("both are read twice: for Z, and for the id", rows == 4, f"{rows} rows"),
        ]
    )


@dataclass(frozen=True)
class Weights:
    """One row of the final draw.

    Attributes:
        p: the target's row.
        q: the draft's.
        bonus: whether q is not subtracted.
        excluded: the id of a one-hot draft; -1: none.
    """

    p: Sequence[float]
    q: Sequence[float]
    bonus: bool = False
    excluded: int = -1


def lay(rows: Sequence[Weights]) -> tuple[torch.Tensor, ...]:
    """Return p, q, q_ids and excluded of rows of one vocabulary, with poison between the rows."""
    vocab = len(rows[0].p)

    def apart(entries: Sequence[Sequence[float]]) -> torch.Tensor:
        wide = torch.full((len(entries), vocab + 77), POISON, device=device())
        wide[:, :vocab] = tensor([list(row) for row in entries], torch.float32)
        return wide[:, :vocab]

    return (
        apart([row.p for row in rows]),
        apart([row.q for row in rows]),
        tensor([0 if row.bonus else vocab for row in rows], torch.int32),
        tensor([row.excluded for row in rows], torch.int32),
    )


def weights_of(row: Weights) -> list[float]:
    """Return max(0, p - q) of a row: the difference rounded to float32, as the contract has it."""
    p, q = (torch.tensor(list(law)).nan_to_num(0.0).clamp_min(0.0) for law in (row.p, row.q))
    left = (p if row.bonus else (p - q).clamp_min(0.0)).tolist()
    return [0.0 if x == row.excluded else mass for x, mass in enumerate(left)]


def dyadic(vocab: int, seed: int) -> list[float]:
    """Return a row of multiples of 1/1024, a third of them 0."""
    generator = torch.Generator().manual_seed(seed)
    entries = torch.randint(-8, 17, (vocab,), generator=generator).clamp_min(0)
    return (entries / 1024).tolist()


def check_masses(masses: Callable[..., torch.Tensor]) -> None:
    """Check Z of single rows, at the tail of a tile and at the limits of float32."""
    long, other = dyadic(150, 1), dyadic(150, 2)
    small = [1.0, *[2.0**-30] * 149]
    nothing = [0.0] * 150
    cases = {
        "less than a tile": Weights(dyadic(5, 3), dyadic(5, 4)),
        "a whole tile": Weights(dyadic(64, 5), dyadic(64, 6)),
        "three tiles, the last one partly": Weights(long, other),
        "a bonus row: q is not subtracted": Weights(long, other, bonus=True),
        "an excluded id": Weights(long, nothing, excluded=long.index(max(long))),
        "NaN and negative entries count as 0": Weights(
            [NAN, -1.0, *long[2:]], [*other[:2], NAN, -1.0, *other[4:]]
        ),
        "the difference is rounded to float32": Weights([1.0, 0.0], [2.0**-26, 0.0]),
        "the sum is in float64": Weights(small, nothing),
    }
    rows: list[Line] = []
    for words, case in cases.items():
        expected, found = sum(weights_of(case)), masses(*lay([case])).tolist()
        rows.append((words, found == [expected], f"{found}, expected [{expected}]"))
    report(rows)


def check_draws(draws: Callable[..., torch.Tensor]) -> None:
    """Check ids at the borders of the coin, and on rows of several tiles."""
    long, other = Weights(dyadic(150, 7), dyadic(150, 8)), Weights(dyadic(150, 9), dyadic(150, 9))
    gap = [0.0] * 70 + [0.25] + [0.0] * 30 + [0.5, 0.25] + [0.0] * 47
    none = [0.0] * 150
    three = [0.25, 0.25, 0.5]
    cases: dict[str, list[tuple[Weights, float, int]]] = {
        "every id at the middle of its interval": _middles(long),
        "the bonus row": _middles(Weights(long.p, long.q, bonus=True)),
        "an excluded id": _middles(Weights(long.p, none, excluded=_heaviest(long.p))),
        "on the border of two ids the upper one": [
            (Weights(three, [0.0] * 3), 0.25, 1),
            (Weights(three, [0.0] * 3), 0.5, 2),
        ],
        "w = 0 passes over ids without mass": [(Weights(gap, none), 0.0, 70)],
        "a gap of ids without mass": [
            (Weights(gap, none), 0.25, 101),
            (Weights(gap, none), 0.75 - 2**-30, 101),
        ],
        "w = 1 - 2**-53 stops at the last id with mass": [(Weights(gap, none), LARGEST_COIN, 102)],
        "a residual without mass: from p": [(other, w, x) for _, w, x in _middles(other)],
        "nothing left beside the excluded id: from p": [
            (Weights([0.0, 1.0, 0.0], [0.0] * 3, excluded=1), 0.5, 1)
        ],
        "a p row without mass gives id 0": [(Weights(none, none, bonus=True), 0.5, 0)],
    }
    rows: list[Line] = []
    for words, asked in cases.items():
        laid = lay([row for row, _, _ in asked])
        found = draws(*laid, tensor([w for _, w, _ in asked], torch.float64)).tolist()
        wrong = [
            f"id {seen}, expected {x} at w = {w}"
            for (_, w, x), seen in zip(asked, found, strict=True)
            if seen != x
        ]
        rows.append((words, not wrong, "; ".join(wrong[:2])))
    report(rows)


def _heaviest(row: Sequence[float]) -> int:
    return max(range(len(row)), key=lambda x: row[x])


def _middles(row: Weights, most: int = 12) -> list[tuple[Weights, float, int]]:
    """Return (row, coin, id) for up to ``most`` ids with mass, the last ones among them."""
    weights = weights_of(row)
    if not any(weights):
        weights = list(row.p)
    total, ids = sum(weights), [x for x, mass in enumerate(weights) if mass]
    chosen = [*ids[: -most // 2 : max(1, 2 * len(ids) // most)], *ids[-most // 2 :]]
    return [(row, (sum(weights[:x]) + weights[x] / 2) / total, x) for x in chosen]


# --- step 5 ---------------------------------------------------------------------------------------


def settings() -> list[Setting]:
    """Return what the law is computed on: few requests, since each takes the interpreter long."""
    two, three = PAIRS[2][0], PAIRS[3][0]
    return [
        fixed(*two, 1),
        turning(*two, 2),
        turning(*two, 2, onehot=True),
        turning(*three, 1),
        fixed(*PAIRS[3][1], 1, withdraw=lambda text, x: x == 2),  # an id without probability
    ]


def check_chain(verify: Rule) -> None:
    """Ask at the coins' ends, compare with the shipped twin, then compute the exact law."""
    try:
        rows = [(end.question, end.right, end.verdict) for end in endpoints(verify, device())]
    except MalformedRun as error:
        rows = [("a run of ids, and how many were accepted", False, str(error))]
    for vocab, dtype in ((37, torch.float32), (150, torch.bfloat16)):
        rows += _agrees(verify, vocab, dtype)
    report(rows)  # a rule that parts from the twin already needs no law, which takes longest

    by_vocab: dict[int, list[Setting]] = {}
    for setting in settings():
        by_vocab.setdefault(setting.vocab, []).append(setting)
    laws: list[JointLaw] = []
    try:
        for of in by_vocab.values():
            laws += joint_laws(verify, of, device=device(), random_points=4, max_found_cuts=2)
    except MalformedRun as error:
        report([("the exact law", False, str(error))])
    rows = []
    for law in laws:
        kind = "one-hot drafts, " * law.setting.onehot + "a draft withdrawn, " * bool(
            law.setting.withdraw
        )
        words = f"the exact law: {kind}{law.setting.vocab} ids, kappa = {law.setting.kappa}"
        rows.append((words, law.exact, f"off by {law.deviation}, bound {law.bound}"))
    report(rows)


def _agrees(verify: Rule, vocab: int, dtype: torch.dtype) -> list[Line]:
    """Compare on random ragged rows with the twin; sums that round apart are as rare as 1e-10."""
    generator = torch.Generator().manual_seed(vocab)
    counts = torch.tensor([0, *torch.randint(0, 4, (14,), generator=generator).tolist(), 0])
    num_draft, batch = int(counts.sum()), len(counts)

    def probabilities(rows: int) -> torch.Tensor:
        return torch.softmax(torch.randn(rows, vocab, generator=generator) * 2, -1).to(dtype)

    def coins(number: int) -> torch.Tensor:
        return torch.rand(number, dtype=torch.float64, generator=generator)

    p, q = probabilities(num_draft + batch), probabilities(num_draft)
    drafts = torch.multinomial(q.float(), 1, generator=generator).flatten().int()
    drafts[::5] = -1
    arguments = [p, q, drafts, counts.cumsum(0).int(), coins(num_draft), coins(batch)]
    onehot = torch.rand(batch, generator=generator) < 0.3
    rows: list[Line] = []
    for words, given, flags in (
        ("sampled drafts", arguments, {}),
        ("some one-hot", arguments, {"onehot": onehot}),
        ("no q at all", [p, None, *arguments[2:]], {}),
    ):
        options = {"max_spec_len": 3, **flags}
        expected = verify_chain(*given, **options, backend="torch")
        there = [x if x is None else x.to(device()) for x in given]
        moved = {name: flag.to(device()) for name, flag in flags.items()}
        token_ids, num_accepted = verify(*there, max_spec_len=3, **moved)
        same = (token_ids.cpu() == expected.token_ids).all(1)
        same &= num_accepted.cpu() == expected.num_accepted
        first = int(same.int().argmin())
        seen = (
            f"request {first}: {token_ids[first].tolist()}, expected "
            f"{expected.token_ids[first].tolist()}"
        )
        rows.append((f"as the shipped rule: {vocab} ids, {words}", bool(same.all()), seen))
    return rows
