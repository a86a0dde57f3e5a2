"""What an acceptance rule must do, one property at a time, each with its smallest counter-example.

A property asks nothing but a callable with the signature of ``verify_chain``, ``verify_greedy``,
``verify_match``, ``verify_block``, ``verify_threshold`` or ``verify_synthetic``: the rule may be a
function of this process or stand for one that runs elsewhere. Options like ``backend`` are the
caller's; no property passes them.

With a seed the laws, the requests and the coins are drawn anew, so that a rule which knows the
built-in cases by heart does not pass; the properties and their names stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from specedu.kernels import Verified, contract
from specedu.theory import reference
from specedu.theory.adapters import by_request
from specedu.theory.cells import (
    Asker,
    Path,
    Point,
    Rule,
    block_cuts,
    chain_cuts,
    match_cuts,
    read_runs,
)
from specedu.theory.exact import JointLaw, composed_law, joint_laws
from specedu.theory.reference import Law, Text
from specedu.theory.settings import PAIRS, Setting, fixed, law_of, show, turning
from specedu.theory.verdict import (
    Contract,
    CounterExample,
    contract_run,
    endpoints,
    parting,
)

TWO_IDS = "two ids"
THREE_IDS = "three ids, two drafts"
CERTAIN = "deterministic drafts"
STEPS = "steps compose"
ENDS = "coin endpoints"
CLOSE = "coins close to a border"
PLACEHOLDERS = "drafts of -1"
BATCH = "a mixed batch"
NO_DRAFTS = "no drafts"
GREEDY = "greedy requests"
ODD = "NaN, negative and empty rows"
LARGE = "a large vocabulary"
STORAGE = "how rows are stored"
INPUTS = "inputs stay as they are"
FORM = "shape and dtype"
TEXT = "the text of plain decoding"
THRESHOLD = "the law under a threshold"
RATES = "the law under rates"


@dataclass(frozen=True)
class PropertyResult:
    """Whether one property holds.

    Attributes:
        name: of the property.
        passed: whether it holds.
        counter_example: where it does not, in words; empty if it holds.
    """

    name: str
    passed: bool
    counter_example: str = ""


@dataclass(frozen=True)
class Property:
    """One claim on a rule.

    Attributes:
        name: a few words; results and exercises refer to it.
        claim: the claim as a sentence.
        search: looks for a counter-example and returns it in words, or an empty string.
    """

    name: str
    claim: str
    search: Callable[[Rule], str]

    def check(self, rule: Rule) -> PropertyResult:
        """Return whether the rule has the property; a rule that raises has not."""
        try:
            words = self.search(rule)
        except Exception as error:  # of somebody else's rule: anything may come
            words = f"the rule raised {type(error).__name__}: {error}"
        return PropertyResult(self.name, not words, words)


@dataclass(frozen=True)
class Kind:
    """How one public function is asked by the exact law.

    Attributes:
        as_chain: puts a rule of the function's signature behind that of ``verify_chain``.
        contract: what the rule must emit, over fractions.
        cuts: where the theory expects it to change.
        greedy: whether the rule knows nothing but the argmax.
        ratio: whether drafts are tested by the ratio, so that the ends of the coins are its own.
    """

    as_chain: Callable[[Rule], Rule]
    contract: Contract
    cuts: Callable[[Path], list[set[Fraction]]]
    greedy: bool = False
    ratio: bool = True


@dataclass(frozen=True)
class Plan:
    """What is asked: the pairs of laws, and how thoroughly.

    Attributes:
        kind: of the function.
        seed: None for the built-in cases.
        quick: fewer and smaller cases, for a rule that takes milliseconds a request.
    """

    kind: Kind
    seed: int | None
    quick: bool

    @property
    def options(self) -> dict[str, Any]:
        """Options of ``joint_laws``."""
        options = {"cuts": self.kind.cuts, "seed": self.seed or 0}
        # A few cuts are enough to see that a rule changes where it must not.
        few = {"random_points": 2, "max_found_cuts": 0}
        return options | (few if self.quick else {"random_points": 16, "max_found_cuts": 1})

    def dice(self, name: str) -> random.Random:
        """Return the random numbers of one property, the same at every call."""
        return random.Random(f"{name} {self.seed}")

    def pairs(self, vocab: int) -> list[tuple[Law, Law]]:
        """Return the pairs of laws of one vocabulary, drawn if there is a seed."""
        count = 1 if self.quick else 3
        if self.seed is None:
            return [QUICK_PAIRS[vocab]] if self.quick else PAIRS[vocab][:count]
        dice = self.dice(f"pairs {vocab}")
        return [(dyadic(vocab, dice), dyadic(vocab, dice)) for _ in range(count)]


# Residuals of two ids where three can have them: or a coin that is used twice hides. The q of three
# ids leaves one out: four tuples of drafts instead of nine.
QUICK_PAIRS = {
    2: (law_of("1/4 3/4"), law_of("3/4 1/4")),
    3: (law_of("1/8 3/8 1/2"), law_of("3/4 1/4 0")),
}


def properties(function: str, seed: int | None = None, *, quick: bool = False) -> list[Property]:
    """Return the properties that a rule with the name ``function`` must have.

    Args:
        function: a public function of ``specedu.kernels``, see :data:`KINDS`.
        seed: draws laws, requests and coins; None: the built-in ones.
        quick: fewer cases, and one step only: for Triton's interpreter.

    Raises:
        ValueError: the function is none of those.

    Example:
        >>> from specedu.kernels import verify_greedy
        >>> all(each.check(verify_greedy).passed for each in properties("verify_greedy"))
        True
    """
    if function not in KINDS:
        raise ValueError(f"function: {function!r}, expected one of {', '.join(KINDS)}")
    kind = KINDS[function]
    plan = Plan(kind, seed, quick)

    def asked(search: Callable[[Plan, Rule], str]) -> Callable[[Rule], str]:
        return lambda rule: search(plan, kind.as_chain(rule))

    if function == "verify_synthetic":
        laws = [Property(RATES, "the i-th draft is kept at the i-th rate, and a refused one is "
                         "replaced from its residual", partial(_rates, plan))]  # fmt: skip
    else:
        laws = [
            Property(TWO_IDS, "one draft: the law is the target's", asked(_two_ids)),
            Property(THREE_IDS, "the joint law of two drafts is the target's", asked(_three_ids)),
        ]
    if function not in ("verify_greedy", "verify_match", "verify_synthetic"):
        laws.append(
            Property(CERTAIN, "deterministic drafts: the law is the target's", asked(_certain))
        )
    if function == "verify_match":
        laws.append(Property(TEXT, "drafts decide how many tokens come, never which", asked(_text)))
    if function == "verify_threshold":
        laws.append(
            Property(THRESHOLD, "u·q(x)·acc < p(x) or p(x) >= single", partial(_threshold, plan))
        )
    if not quick and not kind.greedy and function != "verify_synthetic":
        laws.append(Property(STEPS, "the joint law of two steps is the target's", asked(_steps)))
    if kind.ratio:
        laws.append(Property(ENDS, "coins of 0, on a border, and just below 1", asked(_endpoints)))
    if not kind.greedy and kind.ratio:
        laws.append(Property(CLOSE, "2**-40 from a border, on both sides", asked(_close)))
    if not kind.greedy:
        laws.append(Property(ODD, "NaN and negative entries count as 0, a residual without mass "
                             "falls back to p", asked(_odd)))  # fmt: skip
    form = [
        Property(FORM, "int64 ids [batch, max_spec_len + 1], int32 counts", asked(_form)),
        Property(INPUTS, "no argument is written", asked(_inputs)),
        Property(NO_DRAFTS, "a request without drafts gets one token", asked(_no_drafts)),
        Property(BATCH, "a request emits in a batch what it emits alone", asked(_batch)),
    ]
    rest = [
        Property(PLACEHOLDERS, "-1 ends the run, and its own row decides", asked(_placeholders)),
        Property(GREEDY, "the argmax, the lowest id among equals", asked(_greedy)),
        Property(LARGE, "several tiles of ids", asked(_large)),
        Property(STORAGE, "16-bit rows, and rows at a distance", asked(_storage)),
    ]
    if function == "verify_synthetic":
        rest = [each for each in rest if each.name != GREEDY]
    return form + laws + rest


# --- signatures -----------------------------------------------------------------------------------


def _greedy_rule(rule: Rule) -> Rule:
    def chain(p: Any, q: Any, ids: Any, cu: Any, u: Any, w: Any, *, max_spec_len: int, **_: Any):
        return rule(p.float().nan_to_num(0.0).argmax(1), ids, cu, max_spec_len=max_spec_len)

    return chain


def _match_rule(rule: Rule) -> Rule:
    def chain(
        p: Any, q: Any, ids: Any, cu: Any, u: Any, w: Any, *, max_spec_len: int, **options: Any
    ) -> Verified:
        options.pop("onehot", None)
        starts, counts = contract.spans(cu, len(ids), max_spec_len)
        request, place = contract.draft_places(starts, counts)
        coins = w.new_empty(len(p))
        coins[starts[request] + request + place] = u
        coins[starts + torch.arange(len(starts), device=starts.device) + counts] = w
        return rule(p, ids, cu, coins, max_spec_len=max_spec_len, **options)

    return chain


SYNTHETIC_RATES = (Fraction(3, 4), Fraction(1, 2), Fraction(7, 8), Fraction(1, 4), Fraction(1, 2))


def _synthetic_rule(rule: Rule) -> Rule:
    def chain(*arguments: Any, max_spec_len: int, **options: Any) -> Verified:
        rates = torch.tensor(SYNTHETIC_RATES[:max_spec_len], dtype=torch.float64)
        return rule(
            *arguments,
            max_spec_len=max_spec_len,
            conditional_rates=rates.to(arguments[0].device),
            **options,
        )

    return chain


def _block_run(path: Path, coins: Sequence[Fraction]) -> Text:
    if path.setting.greedy:
        return contract_run(path, coins)
    return tuple(reference.block(path.ps, _qs(path), path.ids, coins[:-1], coins[-1]))


def _match_run(path: Path, coins: Sequence[Fraction]) -> Text:
    if path.setting.greedy:
        return contract_run(path, coins)
    return tuple(reference.match(path.ps, path.ids, coins))


def _synthetic_run(path: Path, coins: Sequence[Fraction]) -> Text:
    return tuple(_by_decree(path.ps, _qs(path), path.ids, coins[:-1], coins[-1]))


def _by_decree(ps: Any, qs: Any, drafts: Any, accept_coins: Any, final_coin: Any) -> list[int]:
    def kept(i: int, u: Fraction, p: Law, q: Law, x: int) -> bool:
        return u < SYNTHETIC_RATES[i]

    return _walk(kept, ps, qs, drafts, accept_coins, final_coin)


def _by_threshold(single: Fraction, acc: Fraction) -> Callable[..., list[int]]:
    def kept(i: int, u: Fraction, p: Law, q: Law, x: int) -> bool:
        return u * q[x] * acc < p[x] or p[x] >= single

    return partial(_walk, kept)


def _walk(kept: Any, ps: Any, qs: Any, drafts: Any, coins: Any, final_coin: Any) -> list[int]:
    for i, (x, u) in enumerate(zip(drafts, coins, strict=True)):
        if x == -1 or not kept(i, u, ps[i], qs[i], x):
            behind = reference.residual(ps[i], qs[i])
            return [*drafts[:i], reference.sample(behind, final_coin)]
    return [*drafts, reference.sample(ps[len(drafts)], final_coin)]


def _qs(path: Path) -> tuple[Law, ...]:
    if not path.setting.onehot:
        return path.qs
    ids = range(path.setting.vocab)
    return tuple(tuple(Fraction(int(t == x)) for t in ids) for x in path.ids)


def _more_cuts(change: Callable[[int, Fraction, Fraction], Fraction]) -> Callable[[Path], Any]:
    """Return the cuts of a rule that keeps draft i below ``change(i, p(x), q(x))``."""

    def cuts(path: Path) -> list[set[Fraction]]:
        *_, final = chain_cuts(path)
        accept = []
        for i, (p, q, x) in enumerate(zip(path.ps, _qs(path), path.ids, strict=False)):
            accept.append({min(change(i, p[x], q[x]), Fraction(1))} if x >= 0 else set())
        return [*accept, final]

    return cuts


def _itself(rule: Rule) -> Rule:
    return rule


# The functions whose rules can be checked.
KINDS: dict[str, Kind] = {
    "verify_chain": Kind(_itself, contract_run, chain_cuts),
    "verify_greedy": Kind(_greedy_rule, contract_run, chain_cuts, greedy=True, ratio=False),
    "verify_match": Kind(_match_rule, _match_run, match_cuts, ratio=False),
    "verify_block": Kind(_itself, _block_run, block_cuts),
    "verify_threshold": Kind(_itself, contract_run, chain_cuts),
    "verify_synthetic": Kind(
        _synthetic_rule,
        _synthetic_run,
        _more_cuts(lambda i, p, q: SYNTHETIC_RATES[i]),
        ratio=False,
    ),
}  # fmt: skip


# --- laws -----------------------------------------------------------------------------------------


def _two_ids(plan: Plan, rule: Rule) -> str:
    makes = (fixed,) if plan.quick else (fixed, turning)
    settings = [make(*pair, 1, greedy=plan.kind.greedy) for pair in plan.pairs(2) for make in makes]
    return _laws(plan, rule, settings)


def _three_ids(plan: Plan, rule: Rule) -> str:
    greedy = plan.kind.greedy
    settings = [turning(*pair, 2, greedy=greedy) for pair in plan.pairs(3)]
    if not plan.quick:
        # Laws that belong to their text alone: a row's residual has nothing of the row before.
        settings += [wandering(3, 2, f"{plan.seed} {i}", greedy=greedy) for i in range(8)]
    return _laws(plan, rule, settings)


def _certain(plan: Plan, rule: Rule) -> str:
    kappa, vocab = (1, 2) if plan.quick else (2, 3)
    pairs = plan.pairs(vocab)[:2]
    return _laws(plan, rule, [turning(*pair, kappa, onehot=True) for pair in pairs])


def _steps(plan: Plan, rule: Rule) -> str:
    p, q = plan.pairs(2)[0]
    law = composed_law(rule, turning(p, q, 1), (2, 1), **plan.options)
    return "" if law.exact else f"{_off(law)}, in steps of 2 and 1 drafts"


def _placeholders(plan: Plan, rule: Rule) -> str:
    if plan.kind.greedy:
        return _asked(plan, rule, _greedy_requests(plan.dice(PLACEHOLDERS), 8, placeholder=0.5))
    p, q = law_of("1/4 3/4 0"), law_of("1/2 1/4 1/4")
    nothing = (Fraction(0),) * 3
    kappas = (1,) if plan.quick else (1, 2)
    settings = [fixed(p, q, kappa, withdraw=lambda text, x: x == 2) for kappa in kappas]
    last = law_of("1/4 1/4 1/2")  # row[-1] is its likeliest id
    settings += [fixed(last, nothing, kappa) for kappa in kappas]
    if plan.seed is not None:
        settings += [fixed(dyadic(3, plan.dice(PLACEHOLDERS)), nothing, 1)]
    if plan.kind.as_chain is _synthetic_rule:
        return _contract_laws(plan, rule, settings, _by_decree, plan.options["cuts"])
    certain = [fixed(last, nothing, 1, onehot=True)]
    return _laws(plan, rule, settings) or _laws(plan, rule, certain)


def _threshold(plan: Plan, rule: Rule) -> str:
    make = fixed if plan.quick else turning
    for single, acc in ((Fraction(1), Fraction(1, 2)), (Fraction(3, 8), Fraction(1))):
        settings = [make(*pair, 1) for vocab in (2, 3) for pair in plan.pairs(vocab)[:1]]
        loose = partial(
            rule, accept_threshold_single=float(single), accept_threshold_acc=float(acc)
        )

        def until(i: int, p: Fraction, q: Fraction, s: Any = single, a: Any = acc) -> Fraction:
            return Fraction(1) if p >= s or not q else p / (q * a)

        for setting in settings:
            words = _contract_laws(
                plan, loose, [setting], _by_threshold(single, acc), _more_cuts(until)
            )
            if words:
                return f"accept_threshold_single = {single}, accept_threshold_acc = {acc}: {words}"
    return ""


def _rates(plan: Plan, rule: Rule) -> str:
    chain = plan.kind.as_chain(rule)
    kappa = 1 if plan.quick else 2
    for vocab in (3,) if plan.quick else (2, 3):
        settings = [turning(*pair, kappa) for pair in plan.pairs(vocab)[:1]]
        if words := _contract_laws(plan, chain, settings, _by_decree, plan.options["cuts"]):
            return f"rates {', '.join(map(str, SYNTHETIC_RATES[:kappa]))}: {words}"
    return ""


def _laws(plan: Plan, rule: Rule, settings: Sequence[Setting]) -> str:
    """Return the simplest place at which one of the laws is not the target's."""
    laws = joint_laws(rule, settings, **plan.options)
    wrong = [law for law in laws if not law.exact]
    if not wrong:
        return ""
    example = parting(rule, wrong[0], plan.kind.contract)
    return _off(wrong[0]) + (f"\n{request_words(example)}" if example else "")


def _contract_laws(
    plan: Plan, rule: Rule, settings: Sequence[Setting], function: Any, cuts: Any
) -> str:
    """Return where one of the laws is not that of ``function``, a rule over fractions."""
    options = plan.options | {"cuts": cuts, "random_points": 8, "max_found_cuts": 0}
    found = joint_laws(rule, settings, **options)
    expected = joint_laws(by_request(function), settings, **options)
    for law, right in zip(found, expected, strict=True):
        if law.law != right.law or law.bound:
            example = parting(
                rule, law, lambda path, coins: tuple(
                    function(path.ps, _qs(path), path.ids, coins[:-1], coins[-1])
                )
            )  # fmt: skip
            off = f"{law.setting.name}, kappa = {law.setting.kappa}: the law is not the formula's"
            return off + (f"\n{request_words(example)}" if example else "")
    return ""


def _off(law: JointLaw) -> str:
    """Return in words where a law is farthest from the target's."""
    none = Fraction(0)
    texts = sorted(law.law.keys() | law.target.keys())
    worst = max(texts, key=lambda text: abs(law.law.get(text, none) - law.target.get(text, none)))
    found, target = law.law.get(worst, none), law.target.get(worst, none)
    words = f"{law.setting.name}, kappa = {law.setting.kappa}"
    if found == target:
        return f"{words}: the rule changes inside a cell where it must not"
    about = "about " if law.bound else ""
    return (
        f"{words}: text {list(worst)} has probability {about}{_short(found)}, expected "
        f"{_short(target)}"
    )


def _short(value: Fraction) -> str:
    return str(value) if value.denominator < 10**6 else f"{float(value):.6g}"


# --- single requests ------------------------------------------------------------------------------

Asked = tuple[Path, Point]


def _endpoints(plan: Plan, rule: Rule) -> str:
    for end in endpoints(rule):
        if not end.right:
            return f"{end.question}: {end.verdict}"
    return ""


def _close(plan: Plan, rule: Rule) -> str:
    tiny = Fraction(1, 2**40)
    p, q, half = law_of("1/4 1/2 1/4"), law_of("1/2 1/4 1/4"), Fraction(1, 2)
    requests = []
    for side in (-tiny, tiny):
        requests.append(_request([p, p], [q], [0], [half + side], Fraction(1, 8)))
        requests.append(_request([p], [], [], [], Fraction(1, 4) + side))
    return _asked(plan, rule, requests)


def _odd(plan: Plan, rule: Rule) -> str:
    nan = float("nan")
    if plan.kind.ratio is False and plan.kind.as_chain is _match_rule:
        cases = [
            ("p = (NaN, 1/4, 3/4)", [[nan, 0.25, 0.75]] * 2, 1, [[0.0] * 3], 0.0, 0.0, (1, 1)),
            ("p = (-1, 1/4, 3/4)", [[-1.0, 0.25, 0.75]] * 2, 2, [[0.0] * 3], 0.0, 0.0, (1,)),
        ]
    else:
        p = [[0.25, 0.75], [0.0, 1.0]]
        high = 0.96875  # above every rate too
        cases = [
            ("q = (1, NaN)", p, 0, [[1.0, nan]], high, 0.0, (1,)),
            ("q = (1, -1)", p, 0, [[1.0, -1.0]], high, 0.5, (1,)),
            ("p = (NaN, 1/2)", [[nan, 0.5], [0.0, 1.0]], 0, [[0.5, 0.5]], high, 0.5, (1,)),
            ("p = (1/4, 3/4), q = (1, 1): nothing is left of p", p, 0, [[1.0, 1.0]], high, 0.5,
             (1,)),
            ("p = (1/4, 3/4), q = (1, 1): nothing is left of p", p, 0, [[1.0, 1.0]], high, 0.125,
             (0,)),
        ]  # fmt: skip
    for words, ps, draft, qs, u, w, expected in cases:
        arguments = {
            "p": torch.tensor(ps),
            "q": torch.tensor(qs),
            "ids": torch.tensor([draft], dtype=torch.int32),
            "cu": torch.tensor([1], dtype=torch.int32),
            "u": torch.tensor([u], dtype=torch.float64),
            "w": torch.tensor([w], dtype=torch.float64),
        }
        (run,) = read_runs(rule(*arguments.values(), max_spec_len=1), [1])
        if run != expected:
            return f"{words}, draft {draft}, u = {u}, w = {w}: {_emits(run, expected)}"
    return ""


def _text(plan: Plan, rule: Rule) -> str:
    """Ask with drafts of every kind: the tokens are a beginning of the rows' own."""
    requests = _requests(plan, TEXT, 12 if plan.quick else 60, placeholder=0.1, flags=False)
    for (path, coins), run in zip(requests, Asker(rule, _settings(requests)).ask(requests),
                                  strict=True):  # fmt: skip
        plain = tuple(reference.sample(p, Fraction(c)) for p, c in zip(path.ps, coins, strict=True))
        if run != plain[: len(run)]:
            return f"{_given(path, coins)}\n  emitted {list(run)}, plain decoding {list(plain)}"
    return ""


def _batch(plan: Plan, rule: Rule) -> str:
    requests = _requests(plan, BATCH, 10 if plan.quick else 30, placeholder=0.1)
    together = _answers(rule, requests)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = _answers(rule, [request])
        if answer != alone:
            words = f"among {len(requests)} requests {list(answer)}, alone {list(alone)}"
            return f"{_given(*request)}\n  emitted {words}"
    return ""


def _answers(rule: Rule, requests: Sequence[Asked]) -> list[Text]:
    """Return what each request emits in one launch, whether that is a run or not."""
    counts, (p, q, *rest) = _lay_out(requests)
    flags = {}
    for name in ("greedy", "onehot"):
        asked_for = [getattr(path.setting, name) for path, _ in requests]
        if any(asked_for):
            flags[name] = torch.tensor(asked_for)
    if "onehot" in flags and bool(flags["onehot"].all()):
        del flags["onehot"]
        q = None
    token_ids, num_accepted = rule(p, q, *rest, max_spec_len=3, **flags)
    rows = zip(token_ids.tolist(), num_accepted.tolist(), strict=True)
    return [tuple(row[: accepted + 1]) for row, accepted in rows]


def _no_drafts(plan: Plan, rule: Rule) -> str:
    requests = _requests(plan, NO_DRAFTS, 6, longest=0, flags=False)
    return _asked(plan, rule, requests)


def _greedy(plan: Plan, rule: Rule) -> str:
    return _asked(plan, rule, _greedy_requests(plan.dice(GREEDY), 8 if plan.quick else 40))


def _large(plan: Plan, rule: Rule) -> str:
    """More ids than the twin's block of 512, or than the kernel's tile of 4096."""
    vocab, dice = (5000 if plan.quick else 1100), plan.dice(LARGE)
    requests = []
    here, there = vocab // 2, vocab // 3
    for n in (0, 1, 2):
        ps = [_spread(vocab, here, dice) for _ in range(n + 1)]
        qs = [_spread(vocab, here if i == 0 else there, dice) for i in range(n)]
        ids = [here, there][:n]  # the first is kept, the second refused
        coins = [Fraction(1, 16), Fraction(31, 32)][:n]
        final = Fraction(dice.randrange(2**20), 2**20)
        requests.append(_request(ps, qs, ids, coins, final, greedy=plan.kind.greedy))
    first, last = 3, vocab - 1
    tied = tuple(Fraction(int(t in (first, last)), 2) for t in range(vocab))
    if plan.kind.as_chain is not _synthetic_rule:
        requests.append(_request([tied] * 2, [tied], [first], [], Fraction(0), greedy=True))
    return _asked(plan, rule, requests)


def _storage(plan: Plan, rule: Rule) -> str:
    requests = _requests(plan, STORAGE, 8, flags=False)
    counts, arguments = _lay_out(requests)
    longest = max(counts)
    plain = read_runs(rule(*arguments, max_spec_len=longest), counts)
    p, q, *rest = arguments

    def padded(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, 3), value=float("nan"))[:, : rows.shape[1]]

    ways = [
        ("float16 rows", p.half(), q.half()),
        ("bfloat16 rows", p.bfloat16(), q.bfloat16()),
        ("rows at a distance of vocab + 3", padded(p), padded(q)),
    ]
    for words, ps, qs in ways:
        runs = read_runs(rule(ps, qs, *rest, max_spec_len=longest), counts)
        for (path, coins), run, expected in zip(requests, runs, plain, strict=True):
            if run != expected:
                return f"{_given(path, coins)}\n  {words}: {_emits(run, expected)}"
    return ""


def _inputs(plan: Plan, rule: Rule) -> str:
    counts, arguments = _lay_out(_requests(plan, INPUTS, 6, flags=False))
    before = [tensor.clone() for tensor in arguments]
    rule(*arguments, max_spec_len=max(counts))
    names = ("target_probs", "draft_probs", "draft_token_ids", "cu_num_draft_tokens",
             "accept_coins", "final_coins")  # fmt: skip
    for name, tensor, was in zip(names, arguments, before, strict=True):
        if not torch.equal(tensor, was):
            return f"{name} has changed"
    return ""


def _form(plan: Plan, rule: Rule) -> str:
    counts, arguments = _lay_out(_requests(plan, FORM, 5, flags=False))
    width = max(counts) + 2  # wider than any request: the caller's width counts
    token_ids, num_accepted = result = rule(*arguments, max_spec_len=width)
    for name, tensor, dtype, shape in (
        ("token_ids", token_ids, torch.int64, (len(counts), width + 1)),
        ("num_accepted", num_accepted, torch.int32, (len(counts),)),
    ):
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            found = f"{tensor.dtype} {tuple(tensor.shape)}"
            return f"{name} is {found}, expected {dtype} {shape}"
    read_runs(result, counts)
    return ""


# --- making requests ------------------------------------------------------------------------------


def dyadic(vocab: int, dice: random.Random, units: int = 16) -> Law:
    """Draw a law whose entries are multiples of ``1/units``; float32 holds it exactly.

    Example:
        >>> sum(dyadic(3, random.Random(0)))
        Fraction(1, 1)
    """
    borders = sorted(dice.randrange(units + 1) for _ in range(vocab - 1))
    pairs = zip([0, *borders], [*borders, units], strict=True)
    return tuple(Fraction(high - low, units) for low, high in pairs)


def wandering(vocab: int, kappa: int, seed: str, **changes: bool) -> Setting:
    """Return a setting that draws the laws behind each text anew.

    Example:
        >>> setting = wandering(3, 2, "0")
        >>> setting.target((1,)) == setting.target((1,)) != setting.target((2,))
        True
    """

    def target(text: Text) -> Law:
        return dyadic(vocab, random.Random(f"{seed} p {text}"))

    def draft(text: Text) -> Law:
        return dyadic(vocab, random.Random(f"{seed} q {text}"))

    name = f"laws drawn for every text, {vocab} ids"
    return Setting(name, target, draft, kappa, vocab, **changes)


def _spread(vocab: int, likeliest: int, dice: random.Random) -> Law:
    counts = [0] * vocab
    for token in dice.choices(range(vocab), k=4096):
        counts[token] += 1
    counts[likeliest] += 4096
    return tuple(Fraction(count, 8192) for count in counts)


def _request(
    ps: Sequence[Law],
    qs: Sequence[Law],
    ids: Sequence[int],
    coins: Sequence[Fraction],
    final: Fraction,
    **flags: bool,
) -> Asked:
    setting = replace(fixed(ps[0], ps[0], len(ids)), **flags)
    coins = [*coins, *[Fraction(1, 2)] * (len(ids) - len(coins)), final]
    path = Path(setting, tuple(ids), tuple(ps), tuple(qs), Fraction(1))
    return path, tuple(float(coin) for coin in coins)


def _requests(
    plan: Plan,
    name: str,
    count: int,
    *,
    longest: int = 3,
    placeholder: float = 0.0,
    flags: bool = True,
) -> list[Asked]:
    """Draw requests of 0 to ``longest`` drafts over four ids; coins lie on no border."""
    dice, requests = plan.dice(name), []
    for i in range(count):
        n = (longest, *range(longest + 1))[i % (longest + 2)]
        kind = dice.choice(("full", "onehot", "greedy")) if flags else "full"
        ps = [dyadic(4, dice) for _ in range(n + 1)]
        qs = [dyadic(4, dice) for _ in range(n)]
        ids = [dice.choices(range(4), [float(mass) for mass in q])[0] for q in qs]
        for j in range(n):
            if dice.random() < placeholder:
                ids[j], qs[j] = -1, (Fraction(0),) * 4
        coins = [Fraction(2 * dice.randrange(2**20) + 1, 2**21) for _ in range(n + 1)]
        greedy = kind == "greedy" or plan.kind.greedy
        if plan.kind.as_chain is _synthetic_rule:
            greedy = False
        onehot = kind == "onehot"
        requests.append(_request(ps, qs, ids, coins[:-1], coins[-1], greedy=greedy, onehot=onehot))
    return requests


def _greedy_requests(dice: random.Random, count: int, placeholder: float = 0.0) -> list[Asked]:
    """Draw greedy requests with ties; most drafts are the argmax."""
    requests = []
    for i in range(count):
        n = i % 4
        ps = [dyadic(5, dice, units=4) for _ in range(n + 1)]
        ids = [p.index(max(p)) if dice.random() < 0.7 else dice.randrange(5) for p in ps[:-1]]
        ids = [-1 if dice.random() < placeholder else x for x in ids]
        requests.append(_request(ps, ps[:-1], ids, [], Fraction(dice.randrange(8), 8), greedy=True))
    return requests


def _settings(requests: Sequence[Asked]) -> list[Setting]:
    return [path.setting for path, _ in requests]


def _asked(plan: Plan, rule: Rule, requests: Sequence[Asked]) -> str:
    """Return the first request, the shortest first, whose run is not the contract's."""
    runs = Asker(rule, _settings(requests)).ask(requests)
    answers = sorted(zip(requests, runs, strict=True), key=lambda answer: len(answer[0][0].ids))
    for (path, coins), run in answers:
        expected = plan.kind.contract(path, [Fraction(coin) for coin in coins])
        if run != expected:
            return f"{_given(path, coins)}\n  {_emits(run, expected)}"
    return ""


def _lay_out(requests: Sequence[Asked]) -> tuple[list[int], list[torch.Tensor]]:
    """Return the draft counts and ``verify_chain``'s positional arguments."""
    vocab = requests[0][0].setting.vocab

    def rows(laws: list[Law]) -> torch.Tensor:
        return torch.tensor([[float(entry) for entry in law] for law in laws]).view(-1, vocab)

    counts = [len(path.ids) for path, _ in requests]
    return counts, [
        rows([p for path, _ in requests for p in path.ps]),
        rows([q for path, _ in requests for q in path.qs]),
        torch.tensor([x for path, _ in requests for x in path.ids], dtype=torch.int32),
        torch.tensor(counts).cumsum(0).int(),
        torch.tensor([u for _, coins in requests for u in coins[:-1]], dtype=torch.float64),
        torch.tensor([coins[-1] for _, coins in requests], dtype=torch.float64),
    ]


# --- words ----------------------------------------------------------------------------------------


def request_words(example: CounterExample) -> str:
    """Return a counter-example as a few lines."""
    given = _given(example.path, example.coins)
    return f"{given}\n  {_emits(example.emitted, example.contract)}"


def _given(path: Path, coins: Sequence[Fraction | float]) -> str:
    lines = []
    for i, p in enumerate(path.ps):
        words = "bonus"
        if i < len(path.ids):
            q = "one-hot" if path.setting.onehot else _law_words(path.qs[i])
            words = f"q = {q}   draft {path.ids[i]}   u = {coins[i]}"
        lines.append(f"  row {i}   p = {_law_words(p)}   {words}")
    flags = "   greedy" if path.setting.greedy else ""
    return "\n".join([*lines, f"  w = {coins[-1]}{flags}"])


def _law_words(law: Law) -> str:
    return show(law) if len(law) <= 8 else f"({len(law)} ids)"


def _emits(run: Text, expected: Text) -> str:
    return f"emitted {list(run)}, expected {list(expected)}"
