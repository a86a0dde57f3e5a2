"""What the metrics page of a running vLLM or SGLang says of its speculation.

vLLM counts: drafts (verifies that had one), drafted and accepted tokens, accepted tokens by place.
SGLang shows gauges: the mean acceptance length and rate of its last rounds. The length counts the
bonus token in both. Two readings of counters give the time between them; one gives the time since
the server's start.

Sources: ``vllm/v1/spec_decode/metrics.py`` in vLLM; ``docs/references/production_metrics.md`` in
SGLang. Names of this engine's own page are vLLM's.
"""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from specedu.theory.rates import expected_tokens, fitted_alpha, tokens_of_rates
from specedu.theory.speedup import break_even_c, crossing, speedup

VLLM, SGLANG = "vllm:", "sglang:"
COUNTERS = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens",
            "spec_decode_num_accepted_tokens")  # fmt: skip
PER_POS = "spec_decode_num_accepted_tokens_per_pos"
SWITCH_ON = {VLLM: "--speculative-config", SGLANG: "--speculative-algorithm"}


class PageError(ValueError):
    """A page cannot be had, or lacks what is asked of it; the message names what."""


@dataclass(frozen=True)
class Page:
    """One reading.

    Attributes:
        engine: ``vllm:`` or ``sglang:``, as its names begin.
        counts: vLLM's three counters, summed over engines.
        accepted_per_pos: vLLM's accepted tokens by place.
        length: SGLang's mean acceptance length, the bonus token included.
        running: requests that run now; None where the page does not say.
        notes: what was missing or odd.
    """

    engine: str
    counts: dict[str, float] = field(default_factory=dict)
    accepted_per_pos: tuple[float, ...] = ()
    length: float | None = None
    running: float | None = None
    notes: tuple[str, ...] = ()


def fetch(address: str, timeout: float = 10.0) -> str:
    """Return a page's text, from http(s) or a file; ``/metrics`` is added to a bare server.

    Raises:
        PageError: there is no answer, or no such file.
    """
    if not address.startswith(("http://", "https://")):
        try:
            return Path(address).read_text()
        except OSError as error:
            raise PageError(f"--metrics: {address!r}, expected a URL or a file: {error}") from error
    if address.rstrip("/").count("/") == 2:
        address = address.rstrip("/") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError, UnicodeDecodeError) as error:
        raise PageError(f"--metrics: {address!r} gives no page: {error}") from error


def read(text: str) -> Page:
    """Return what a page says of speculation.

    Raises:
        PageError: it is neither engine's page, or a counter is missing; it is named.

    Example:
        >>> from specedu.metrics import SpecDecodeStats
        >>> read(SpecDecodeStats().prometheus()).counts["spec_decode_num_drafts"]
        0
    """
    try:
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
    except ValueError as error:
        raise PageError(f"page: not in Prometheus' text format: {error}") from error
    for engine, reader in ((VLLM, _read_vllm), (SGLANG, _read_sglang)):
        found = [sample for sample in samples if sample.name.startswith(engine)]
        if found:
            return reader(found)
    raise PageError(f"page: no name begins with {VLLM} or {SGLANG}, expected one engine's page")


def _read_vllm(samples: Sequence) -> Page:
    def total(name: str) -> float | None:
        values = [s.value for s in samples if s.name in (VLLM + name, VLLM + name + "_total")]
        return sum(values) if values else None

    counts = {name: total(name) for name in COUNTERS}
    missing = [f"{VLLM}{name}_total" for name, value in counts.items() if value is None]
    if missing:
        raise PageError(
            f"page: {', '.join(missing)} missing, expected where the server speculates "
            f"(it was started without {SWITCH_ON[VLLM]}?)"
        )
    places: dict[int, float] = {}
    for sample in samples:
        if sample.name in (VLLM + PER_POS, VLLM + PER_POS + "_total"):
            place = int(sample.labels["position"])
            places[place] = places.get(place, 0.0) + sample.value
    notes = () if places else (f"{VLLM}{PER_POS}_total is missing: rates by place are not known",)
    per_pos = tuple(places.get(i, 0.0) for i in range(max(places, default=-1) + 1))
    return Page(VLLM, counts, per_pos, running=total("num_requests_running"), notes=notes)


def _read_sglang(samples: Sequence) -> Page:
    def mean(name: str) -> float | None:
        values = [s.value for s in samples if s.name == SGLANG + name]
        return sum(values) / len(values) if values else None

    length = mean("spec_accept_length")
    if length is None:
        raise PageError(
            f"page: {SGLANG}spec_accept_length missing, expected where the server speculates "
            f"(it was started without {SWITCH_ON[SGLANG]}?)"
        )
    notes = ["a gauge of the last rounds: no counts, so no uncertainty and no rates by place"]
    if length == 0:
        raise PageError(
            f"page: {SGLANG}spec_accept_length is 0, expected at least 1: nothing was verified yet"
        )
    running = [s.value for s in samples if s.name == SGLANG + "num_running_reqs"]
    if not running:
        notes.append(f"{SGLANG}num_running_reqs is missing: the load is not known")
    return Page(SGLANG, length=length, running=sum(running) if running else None,
                notes=tuple(notes))  # fmt: skip


def between(before: Page, after: Page) -> Page:
    """Return the later page with what was counted between the two.

    Where a counter fell, the server began anew: what it counted since is all that is known.

    Raises:
        PageError: the pages are of two engines.
    """
    if before.engine != after.engine:
        raise PageError(f"page: {after.engine} after {before.engine}, expected the same engine")
    if after.engine == SGLANG:
        return after
    fell = [name for name, count in after.counts.items() if count < before.counts[name]]
    if fell:
        note = f"{VLLM}{fell[0]}_total fell between the readings: the server was restarted"
        return Page(after.engine, after.counts, after.accepted_per_pos, None, after.running,
                    (*after.notes, note))  # fmt: skip
    padded = (*before.accepted_per_pos, *[0.0] * len(after.accepted_per_pos))
    return Page(
        after.engine,
        {name: count - before.counts[name] for name, count in after.counts.items()},
        tuple(a - b for a, b in zip(after.accepted_per_pos, padded, strict=False)),
        None,
        after.running,
        after.notes,
    )


@dataclass(frozen=True)
class Reading:
    """What a page says, in the book's terms.

    Attributes:
        tokens: E, a step's tokens, and its standard error (0 where it is not known).
        kappa: drafts of a step, the mean where they differ.
        rates: r_i by place; of one alpha where the page has none.
        alpha: fitted.
        measured: whether ``rates`` were on the page.
        running: requests that run now.
        notes: what was missing or odd.
    """

    tokens: tuple[float, float]
    kappa: float
    rates: tuple[float, ...]
    alpha: float
    measured: bool
    running: float | None
    notes: tuple[str, ...]


def interpret(page: Page, kappa: int | None = None) -> Reading:
    """Put a page into the book's terms.

    Args:
        page: one reading, or what lies between two.
        kappa: drafts of a step, for pages that do not tell; from ``--num-spec-tokens``.

    Raises:
        PageError: nothing was drafted; or ``kappa`` is needed and is not given, or too small.
    """
    if page.engine == SGLANG:
        if kappa is None:
            raise PageError(
                "--num-spec-tokens: missing, expected the server's speculative_num_steps: "
                "SGLang's page does not tell it"
            )
        if not 1 <= page.length <= kappa + 1:
            raise PageError(
                f"--num-spec-tokens: {kappa}, expected at least {math.ceil(page.length) - 1}: "
                f"the page's acceptance length is {page.length}"
            )
        alpha = alpha_of_length(page.length, kappa)
        rates = tuple(alpha**i for i in range(1, kappa + 1))
        return Reading((page.length, 0.0), kappa, rates, alpha, False, page.running, page.notes)
    drafts, drafted, accepted = (page.counts[name] for name in COUNTERS)
    if not drafts:
        raise PageError(f"page: {VLLM}{COUNTERS[0]}_total is 0, expected drafts in this time")
    notes, mean = list(page.notes), drafted / drafts
    if page.accepted_per_pos:
        rates = tuple(count / drafts for count in page.accepted_per_pos)
        alpha, measured = fitted_alpha(rates), True
    else:
        places = max(1, math.ceil(mean))
        alpha, measured = alpha_of_length(1 + accepted / drafts, places), False
        rates = tuple(alpha**i for i in range(1, places + 1))
    if abs(mean - len(rates)) > 0.01:
        notes.append(f"{mean:.2f} drafts a verify on average, of {len(rates)}")
    variance = sum((2 * i - 1) * r for i, r in enumerate(rates, 1)) - sum(rates) ** 2
    error = math.sqrt(max(0.0, variance) / drafts)
    return Reading((1 + accepted / drafts, error), mean, rates, alpha, measured, page.running,
                   tuple(notes))  # fmt: skip


def alpha_of_length(length: float, kappa: int) -> float:
    """Return the alpha whose E is ``length``.

    Raises:
        ValueError: the length is outside [1, kappa + 1].

    Example:
        >>> round(alpha_of_length(2.533, 3), 6)
        0.7
    """
    if not 1 <= length <= kappa + 1:
        raise ValueError(f"length: {length}, expected 1 to {kappa + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):  # halves the interval below the last bit of a double near 1
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, kappa) < length else (low, middle)
    return high


def verdict(reading: Reading, c: float | None = None, T_star: float | None = None) -> list[str]:
    """Return what follows, a sentence each.

    Args:
        reading: of the page.
        c: one draft pass over one target step; None where it is not known.
        T_star: ridge of target and machine in positions; None where it is not known.
    """
    tokens, error = reading.tokens
    kappa = max(1, round(reading.kappa))
    bound = break_even_c(reading.alpha, kappa)
    words = [f"A verify yields {tokens:.2f} tokens"
             + (f" (standard error {error:.2f})" if error else "")
             + f"; {reading.kappa:.2f} drafts each, alpha {reading.alpha:.2f}."]  # fmt: skip
    if c is None:
        words.append(
            f"With few requests it gains as long as one draft pass costs less than {bound:.2f} of "
            "a target step (give it as --draft-cost for a verdict)."
        )
        return words
    spread = 2 * error / (1 + kappa * c)
    gain = tokens / (1 + reading.kappa * c)
    best = max(
        range(len(reading.rates) + 1),
        key=lambda k: tokens_of_rates(reading.rates[:k]) / (1 + k * c),
    )
    if gain - spread > 1:
        words.append(
            f"KEEP IT at low load: {gain:.2f} times plain decoding (modelled, one request)."
        )
    elif gain + spread < 1:
        words.append(
            f"SWITCH IT OFF: {gain:.2f} times plain decoding even for one request (modelled)."
        )
    else:
        words.append(
            f"NO CLEAR GAIN: {gain:.2f} times plain decoding, within the uncertainty (modelled)."
        )
    if best == 0:
        words.append("No number of drafts gains at these rates.")
    elif best != kappa:
        better = tokens_of_rates(reading.rates[:best]) / (1 + best * c)
        words.append(f"{best} drafts would gain {better:.2f}.")
    elif best == len(reading.rates):
        longer = speedup(reading.alpha, kappa + 1, c)
        if longer > speedup(reading.alpha, kappa, c):
            words.append("More drafts may gain more: the last place still pays.")
    if T_star is not None:
        at = crossing(reading.alpha, kappa, c, T_star)
        if at is not None:
            words.append(f"Above {at:.0f} requests at once it loses (modelled).")
            if reading.running is not None:
                side = "below" if reading.running < at else "ABOVE"
                words.append(f"{reading.running:.0f} run now: {side} that.")
    return words
