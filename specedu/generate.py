"""``specedu generate``: a prompt's answer as it comes, every token marked by how it was decided.

An accepted draft is plain green; a token that replaced a refused draft is yellow behind ``~``; a
token that was drawn without a draft at its place, the bonus included, is cyan behind ``+``. The
marks tell them apart where there is no colour.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .config import SamplingParams
from .llm import LLM
from .metrics import SpecDecodeStats

ACCEPTED, REPLACED, DRAWN = "accepted", "replaced", "drawn"
STYLES = {ACCEPTED: ("green", ""), REPLACED: ("yellow", "~"), DRAWN: ("cyan", "+")}


@dataclass(frozen=True)
class Timed:
    """One generation: its tokens with how each was decided, its counters, its seconds."""

    tokens: list[tuple[int, str]]
    stats: SpecDecodeStats
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second, the prompt's pass included."""
        return len(self.tokens) / self.seconds


def decided(llm: LLM, token_ids: list[int], params: SamplingParams) -> Iterator[tuple[int, str]]:
    """Yield each token with how it was decided; ``llm`` keeps records and runs nothing else."""
    for part in llm.stream(token_ids, params):
        if not part.token_ids:
            continue
        (verify,) = llm.engine.records[-1].verifies
        full = verify.num_accepted == len(verify.draft_token_ids)
        for i, token in enumerate(part.token_ids):
            yield token, ACCEPTED if i < verify.num_accepted else DRAWN if full else REPLACED
        llm.engine.records.clear()


def run(
    llm: LLM,
    token_ids: list[int],
    params: SamplingParams,
    show: Callable[[int, str], None] = lambda token, how: None,
) -> Timed:
    """Generate in an engine that has not run before, showing each token as it comes."""
    start, tokens = time.perf_counter(), []
    for token, how in decided(llm, token_ids, params):
        tokens.append((token, how))
        show(token, how)
    return Timed(tokens, llm.metrics, time.perf_counter() - start)


def printer(console: Console, llm: LLM) -> Callable[[int, str], None]:
    """Return what prints a token in the colour and with the mark of how it was decided."""
    decode = llm.tokenizer.decoder()

    def show(token: int, how: str) -> None:
        style, mark = STYLES[how]
        console.print(Text(marked(decode([token]), mark), style=style), end="", soft_wrap=True)

    return show


def marked(text: str, mark: str) -> str:
    """Return the text with the mark at its first visible character; a text without one stays.

    Example:
        >>> marked(" fox", "+"), marked("", "+")
        (' +fox', '')
    """
    visible = text.lstrip()
    return text[: len(text) - len(visible)] + mark + visible if visible else text


def as_html(llm: LLM, prompt: str, params: SamplingParams) -> str:
    """Return the answer to a prompt as HTML, every token marked by how it was decided.

    Args:
        llm: made with ``record=True``; runs nothing else meanwhile.
        prompt: what a user says; it goes through the model's chat template.
        params: one output, ``n=1``.
    """
    decode = llm.tokenizer.decoder()
    ids = llm.tokenizer.chat([{"role": "user", "content": prompt}])
    spans = [
        f'<span class="token-{how}">{html.escape(marked(decode([token]), STYLES[how][1]))}</span>'
        for token, how in decided(llm, ids, params)
    ]
    return f'<pre class="trace">{"".join(spans)}</pre>'


def legend() -> Text:
    """Return one line that says what the colours and marks mean."""
    parts = [(f"{mark}{how}", style) for how, (style, mark) in STYLES.items()]
    return Text("  ").join(Text(words, style=style) for words, style in parts)


def table(drafted: Timed, plain: Timed | None, kappa: int) -> Table:
    """Return the closing table: what speculation did, and how fast it was."""
    stats = drafted.stats
    rows: list[tuple[str, str]] = [
        ("tokens", str(len(drafted.tokens))),
        ("verifies with drafts", str(stats.num_drafts)),
        ("mean acceptance length", f"{stats.mean_acceptance_length:.2f} of {kappa + 1}"),
        ("acceptance rate by place", shown(stats.acceptance_rates)),
        ("the same, of those tested", shown(stats.conditional_acceptance_rates)),
        ("tokens per second", f"{drafted.rate:.1f}"),
    ]
    if plain is not None:
        rows += [
            ("plain decoding of the same prompt", f"{plain.rate:.1f}"),
            ("speed-up in this one run", f"{drafted.rate / plain.rate:.2f}"),
        ]
    grid = Table(box=SIMPLE_HEAD, show_header=False)
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def shown(rates: Sequence[float | None]) -> str:
    """Return rates as one short line.

    Example:
        >>> shown([0.5, None])
        '.50 -'
    """
    return " ".join("-" if r is None else f"{r:.2f}".removeprefix("0") for r in rates) or "-"
