"""Measure a model with its draft on this machine, and say what speculation brings at which load.

Three things are measured: what a step yields, on the user's prompts, each decoded plainly and with
the most drafts; where a step's time goes there; and passes of B requests with T tokens each, alone.
What fewer drafts, or more requests, would bring is computed from these. Uncertainty is that of the
prompts and of the timings: both are drawn anew many times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from specedu.config import SamplingParams
from specedu.llm import LLM
from specedu.models.base import ForwardBatch
from specedu.ragged import RaggedBatch
from specedu.runner import num_real
from specedu.theory.speedup import measured_speedup
from specedu.timing import PartTimer

BATCHES = (1, 4, 16)
CONTEXT, BLOCK = 256, 16  # behind which passes are timed
DRAWS = 400  # of the uncertainty


@dataclass(frozen=True)
class Steps:
    """One prompt, decoded plainly and with drafts; steps behind the first token.

    Attributes:
        accepted: drafts that each speculative step accepted; 0 where it had none.
        drafted: drafts that it had.
        plain: seconds of a plain step: (forward, everything else).
        speculative: seconds of a speculative step: (draft, forward, everything else).
    """

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    plain: tuple[float, float]
    speculative: tuple[float, float, float]


@dataclass(frozen=True)
class Gain:
    """Speed over plain decoding's: the middle, and where 90 % of the draws lie."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        """Return the middle and the range."""
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Measured:
    """What was measured of a pair.

    Attributes:
        kappa: the most drafts.
        steps: of every prompt.
        passes: seconds of passes by (requests, tokens each), several timings.
        model_draft: whether drafting is passes of a model, whose cost grows as the target's with
            the number of requests; otherwise it grows as the requests do.
    """

    kappa: int
    steps: tuple[Steps, ...]
    passes: Mapping[tuple[int, int], tuple[float, ...]]
    model_draft: bool

    def gain(self, batch: int, kappa: int) -> Gain:
        """Return what ``kappa`` drafts bring with so many requests at once, predicted."""
        return spread([self._one_gain(draw, batch, kappa) for draw in self._draws()])

    def best(self, batch: int) -> tuple[int, Gain]:
        """Return the number of drafts, at least 1, with the largest gain, and the gain."""
        gains = {kappa: self.gain(batch, kappa) for kappa in range(1, self.kappa + 1)}
        kappa = max(gains, key=lambda k: gains[k].middle)
        return kappa, gains[kappa]

    def crossing(self, kappa: int) -> float | None:
        """Return the requests at which ``kappa`` drafts stop gaining, between two measured loads.

        None where they gain at the largest load measured, or lose at the smallest.
        """
        gains = [self.gain(batch, kappa).middle for batch in BATCHES]
        for (a, gain), (b, less) in zip(
            zip(BATCHES, gains, strict=True), zip(BATCHES[1:], gains[1:], strict=True), strict=False
        ):
            if gain > 1 >= less:
                return a + (b - a) * (gain - 1) / (gain - less)
        return None

    @property
    def rates(self) -> list[float]:
        """r_i over all steps, those without a draft included."""
        every = [n for steps in self.steps for n in steps.accepted]
        return [sum(n >= i for n in every) / len(every) for i in range(1, self.kappa + 1)]

    @property
    def draft_cost(self) -> float:
        """c: one draft pass over one plain step, for one request."""
        drafts = median(steps.speculative[0] for steps in self.steps) / self.kappa
        return drafts / median(sum(steps.plain) for steps in self.steps)

    def _draws(self) -> list[_Draw]:
        chance = random.Random(0)
        draws = []
        for _ in range(DRAWS):
            steps = chance.choices(self.steps, k=len(self.steps))
            passes = {shape: chance.choice(taken) for shape, taken in self.passes.items()}
            draws.append(_Draw(steps, passes))
        return draws

    def _one_gain(self, draw: _Draw, batch: int, kappa: int) -> float:
        accepted = [n for steps in draw.steps for n in steps.accepted]
        tokens = 1 + sum(min(n, kappa) for n in accepted) / len(accepted)
        widths = [1 + min(n, kappa) for steps in draw.steps for n in steps.drafted]
        plain = draw.median(lambda s: s.plain[1])
        draft = kappa * draw.median(lambda s: s.speculative[0]) / self.kappa
        other = draw.median(lambda s: s.speculative[2])
        one, more = draw.passes[batch, 1], draw.verify(batch, widths)
        scale = one / draw.passes[1, 1] if self.model_draft else batch
        return measured_speedup(tokens, one + batch * plain, more, scale * draft, batch * other)


@dataclass(frozen=True)
class _Draw:
    steps: Sequence[Steps]
    passes: Mapping[tuple[int, int], float]

    def median(self, of: Callable[[Steps], float]) -> float:
        return median(of(steps) for steps in self.steps)

    def verify(self, batch: int, widths: Sequence[int]) -> float:
        """Return the mean seconds of a verify, whose requests have such numbers of tokens.

        One request's passes are averaged, those without drafts being as cheap as plain ones. Of
        several at once the pass is taken that has as many positions on average, between two.
        """
        if batch == 1:
            return sum(self.passes[1, width] for width in widths) / len(widths)
        mean = sum(widths) / len(widths)
        low = int(mean)
        share = mean - low
        below, above = (self.passes[batch, width] for width in (low, low + (share > 0)))
        return below + share * (above - below)


def spread(gains: Sequence[float]) -> Gain:
    """Return the middle of the draws and the range without the outer twentieths.

    Example:
        >>> spread(range(101))
        Gain(low=5, middle=50, high=95)
    """
    ordered = sorted(gains)
    cut = len(ordered) // 20
    return Gain(ordered[cut], median(ordered), ordered[-1 - cut])


# --- measuring ------------------------------------------------------------------------------------


def measure(
    llm: LLM,
    speculative_config: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    progress: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a pair on the user's prompts.

    Args:
        llm: gives the model and its tokenizer; it is left alone.
        speculative_config: with the most drafts that are of interest.
        prompts: ids.
        params: of the answers; their ``max_tokens`` is how far each prompt is decoded, twice.
        progress: called after each of the ``units(kappa, prompts)`` units of work.

    Raises:
        ValueError: there is no prompt, or an engine refuses the setting.
    """
    if not prompts:
        raise ValueError("prompts: none, expected at least one")
    kappa = speculative_config["num_speculative_tokens"]
    blocks = -(-llm.engine.scheduler.config.max_model_len // BLOCK) + len(prompts)
    engines = [
        LLM(llm.model, config, tokenizer=llm.tokenizer, num_blocks=blocks, record=True)
        for config in (None, speculative_config)
    ]
    timers = [PartTimer(engine) for engine in engines]
    warm = SamplingParams(temperature=params.temperature, max_tokens=4, ignore_eos=True)
    for engine, timer in zip(engines, timers, strict=True):
        _decode(engine, timer, prompts[0], warm)
    found = []
    for ids in prompts:
        (plain, *_), (spec, accepted, drafted) = (
            _decode(engine, timer, ids, params)
            for engine, timer in zip(engines, timers, strict=True)
        )
        progress()
        if accepted:  # an answer of one token has no step behind it
            found.append(Steps(
                accepted,
                drafted,
                (plain["forward"], plain["verify"] + plain["host"]),
                (spec["draft"], spec["forward"], spec["verify"] + spec["host"]),
            ))  # fmt: skip
    if not found:
        raise ValueError("prompts: every answer ended with its first token, expected longer ones")
    passes: dict[tuple[int, int], tuple[float, ...]] = {}
    for batch in BATCHES:
        for width in range(1, kappa + 2):
            passes[batch, width] = pass_seconds(llm, batch, width)
            progress()
    model_draft = speculative_config["method"] != "ngram"
    return Measured(kappa, tuple(found), passes, model_draft)


def units(kappa: int, prompts: int) -> int:
    """Return how often ``measure`` reports progress."""
    return prompts + len(BATCHES) * (kappa + 1)


def _decode(
    llm: LLM, timer: PartTimer, ids: Sequence[int], params: SamplingParams
) -> tuple[dict[str, float], tuple[int, ...], tuple[int, ...]]:
    """Return the parts of a step behind the first token, what each accepted, and what it had."""
    llm.engine.records.clear()
    start = None
    for _ in llm.stream(list(ids), params):
        if start is None:  # the prompt's pass is over
            timer.reset()
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    verifies = [part for step in llm.engine.records for part in step.verifies][1:]
    accepted = tuple(part.num_accepted for part in verifies)
    drafted = tuple(num_real(part.draft_token_ids) for part in verifies)
    parts = timer.parts(seconds)
    return {part: s / max(1, len(verifies)) for part, s in parts.items()}, accepted, drafted


def pass_seconds(llm: LLM, batch: int, width: int, repeats: int = 3) -> tuple[float, ...]:
    """Time passes of ``batch`` requests with ``width`` tokens each behind a context."""
    each = -(-(CONTEXT + width) // BLOCK)
    cache = llm.model.make_cache(batch * each, BLOCK)
    asked = pass_of(batch, width, each, llm.model.vocab_size)
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        llm.model.forward(asked, cache)
        taken.append(time.perf_counter() - start)
    return tuple(taken[1:])  # the first warms up


def pass_of(requests: int, width: int, each: int, vocab_size: int = 1000) -> ForwardBatch:
    """Return a verify's batch: requests with ``width`` tokens behind ``CONTEXT``.

    Args:
        requests: how many.
        width: tokens of each.
        each: blocks of each.
        vocab_size: the ids lie below it.
    """
    tables = [list(range(r * each, (r + 1) * each)) for r in range(requests)]
    positions = torch.arange(CONTEXT, CONTEXT + width)
    return ForwardBatch(
        input_ids=torch.arange(requests * width) % vocab_size,
        positions=positions.repeat(requests),
        slot_mapping=torch.cat([table[0] * BLOCK + positions for table in tables]),
        block_tables=tables,
        ragged=RaggedBatch.from_counts([CONTEXT] * requests, [width] * requests),
        logits_indices=torch.arange(requests * width),
    )


def check(
    llm: LLM,
    speculative_config: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batch: int,
    progress: Callable[[], None] = lambda: None,
) -> float:
    """Run the advice: return speed over plain decoding's behind the first token, prompts in turn.

    Groups of ``batch`` prompts are served at once; the median over groups is returned.
    """
    blocks = batch * -(-llm.engine.scheduler.config.max_model_len // BLOCK)
    engines = [
        LLM(llm.model, config, tokenizer=llm.tokenizer, num_blocks=blocks)
        for config in (None, speculative_config)
    ]
    ratios = []
    for at in range(0, max(1, len(prompts) - batch + 1), batch):
        group = [prompts[(at + i) % len(prompts)] for i in range(batch)]
        plain, other = (_rate(engine, group, params) for engine in engines)
        ratios.append(other / plain)
        progress()
    return median(ratios)


def _rate(llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> float:
    """Return tokens a second of requests served at once, from when all prompts are computed."""
    engine = llm.engine
    requests = [
        engine.add_request(f"check-{i}", list(ids), params, i) for i, ids in enumerate(prompts)
    ]
    while not all(request.decoding or request.finished for request in requests):
        engine.step()
    start, tokens = time.perf_counter(), 0
    while engine.has_unfinished():
        tokens += sum(len(part.new_token_ids) for part in engine.step())
    return tokens / (time.perf_counter() - start)


# --- in words -------------------------------------------------------------------------------------


def verdict(measured: Measured) -> list[str]:
    """Return what follows from the measurement, a sentence each; the first is the advice."""
    alone, gain = measured.best(1)
    if gain.low <= 1:
        worst = gain.high < 1
        words = "DO NOT SPECULATE" if worst else "NO CLEAR GAIN"
        return [
            f"{words}: the best number of drafts, {alone}, gives {gain} of plain decoding's speed."
        ]
    words = [f"SPECULATE with {alone} drafts at one request: {gain} times plain decoding's speed."]
    at = measured.crossing(alone)
    if at is not None:
        words.append(f"These {alone} drafts stop gaining near {at:.0f} requests at once.")
    schedule = {batch: measured.best(batch) for batch in BATCHES[1:]}
    for batch, (kappa, more) in schedule.items():
        if more.middle <= 1:
            words.append(f"At {batch} requests no number of drafts gains.")
        else:
            words.append(f"At {batch} requests the best number is {kappa}: {more}.")
    return words
