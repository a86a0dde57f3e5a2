"""One page of HTML with everything that a sweep found: figures inside it, nothing from the net.

Measured and predicted are told apart by word and by dash. Every figure has its numbers in a table.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from specedu.theory.rates import expected_tokens

from .gains import ALL, Line, fitted, lines
from .recorder import DONE, FAILED, SKIPPED, Record, latest, now
from .samples import PARTS
from .words import NOTHING, RANGE, alpha_words, best_kappa, verdicts

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto; }
th, td { border: 1px solid #c8c8c8; padding: .15rem .6rem; text-align: left; }
td.number { text-align: right; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption { color: #444; } .verdict { border-left: .3rem solid #1f5fa8; padding-left: 1rem; }
"""
COLOURS = ("#1f5fa8", "#b3500f", "#2d7a3e", "#8a2f7c", "#6b6b6b", "#a01c2c", "#0b7c85", "#7a6a00")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


class ReportError(Exception):
    """No report can be made; the message says why."""


def write(path: Path, records: Iterable[Record], title: str, costs: Mapping[str, float]) -> None:
    """Write the report of records to a file.

    Args:
        path: the page.
        records: of one file or of many; of each cell the last counts.
        title: of the page.
        costs: one draft pass over one plain step, by method, where no part was timed.

    Raises:
        ReportError: matplotlib is not installed.
        OSError: the page cannot be written.
    """
    found = list(latest(records).values())
    other = path.with_name(path.name + ".part")
    other.write_text(page(found, title, costs), encoding="utf-8")
    other.replace(path)  # an old report stays whole until the new one is


def page(records: Sequence[Record], title: str, costs: Mapping[str, float]) -> str:
    """Return the page."""
    found = lines(records, costs)
    counts = {state: sum(r.state == state for r in records) for state in (DONE, FAILED, SKIPPED)}
    body = [
        f"<h1>{esc(title)}</h1>",
        f"<p>{counts[DONE]} cells measured, {counts[FAILED]} failed, {counts[SKIPPED]} not run. "
        f"Written {esc(now())}.</p>",
        "<h2>Verdict</h2>",
        '<div class="verdict">',
        *(f"<p>{esc(words)}</p>" for words in (*verdicts(found), *best_kappa(found))),
        f"<p>{esc(RANGE if found else NOTHING)}</p>",
        "</div>",
        *_speeds(records),
        *_speedups(found),
        *_rates(found),
        *_lengths(found),
        *_parts(found),
        *_problems(records),
        *_origins(records),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


# --- sections -------------------------------------------------------------------------------------


def _groups(found: Sequence[Line]) -> dict[tuple, list[Line]]:
    groups = defaultdict(list)
    for line in found:
        groups[line.backend, line.model, line.temperature].append(line)
    return groups


def _name(group: tuple) -> str:
    backend, model, temperature = group
    return f"{backend}, {model}, temperature {temperature:g}"


def _speeds(records: Sequence[Record]) -> Iterable[str]:
    """Tokens a second, backends below each other."""
    rates: dict[tuple, dict[tuple, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        cell = record.cell
        if record.state != DONE or not record.samples:
            continue
        how = cell.method if cell.plain else f"{cell.method}, kappa {cell.kappa}"
        row = cell.kind, how, cell.backend, cell.dtype
        rates[cell.model, cell.temperature, cell.tokens][row][cell.concurrency] = median(
            sample.rate for sample in record.samples
        )
    if rates:
        yield "<h2>Tokens a second</h2>"
        yield ("<p>Of all requests together, behind their first tokens: the median of the repeats, "
               "by requests at once.</p>")  # fmt: skip
    for (model, temperature, tokens), rows in rates.items():
        batches = sorted({batch for by_batch in rows.values() for batch in by_batch})
        yield f"<p>{esc(model)}, temperature {temperature:g}, {tokens} tokens of each request</p>"
        yield table(
            f"{model}, temperature {temperature:g}: tokens a second",
            ["prompts", "method", "backend", "dtype", *(f"B = {batch}" for batch in batches)],
            [[*row, *(f"{by[batch]:.1f}" if batch in by else "" for batch in batches)]
             for row, by in sorted(rows.items(), key=lambda one: one[0][:2])],
        )  # fmt: skip


def _speedups(found: Sequence[Line]) -> Iterable[str]:
    """Speed-up against concurrency, measured and predicted."""
    if found:
        yield "<h2>Speed-up against concurrency</h2>"
        yield (
            "<p>Measured: tokens a second of all requests together behind their first tokens, over "
            "plain decoding's; the range holds 90 % of draws over the repeats. Predicted: E of the "
            "fitted alpha times a plain step, over a speculative step's parts. Where a step was "
            "timed from inside the parts are its own, so that only the model of acceptance is put "
            "to the test; elsewhere a verify's time is read off plain steps as well.</p>"
        )
    for group, of in _groups(found).items():
        long = [line for line in of if len(line.points) > 1]
        for kind in dict.fromkeys(line.kind for line in long):
            drawn = [line for line in long if line.kind == kind]
            yield figure(
                f"speedup {group} {kind}",
                f"{_name(group)}: {kind}",
                "Speed-up over plain decoding against requests at once. "
                + " ".join(map(_speedups_in_words, drawn)),
                lambda axes, drawn=drawn: _draw_speedups(axes, drawn),
            )
        rows = [
            [f"{line}, {line.kind}", p.batch, p.gain, _predicted(p),
             _number(p.acceptance, "tokens"), p.predicted.how]
            for line in of for p in line.points
        ]  # fmt: skip
        yield table(f"{_name(group)}: every number",
                    ["method, prompts", "B", "measured", "predicted", "E", "prediction"],
                    rows)  # fmt: skip


def _speedups_in_words(line: Line) -> str:
    return f"{line}: " + ", ".join(f"{p.gain.middle:.2f} at {p.batch}" for p in line.points) + "."


def _draw_speedups(axes: Any, drawn: Sequence[Line]) -> None:
    from matplotlib.ticker import NullLocator

    for i, line in enumerate(drawn):
        colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
        batches = [p.batch for p in line.points]
        middles = [p.gain.middle for p in line.points]
        errors = [[p.gain.middle - p.gain.low for p in line.points],
                  [p.gain.high - p.gain.middle for p in line.points]]  # fmt: skip
        axes.errorbar(batches, middles, errors, color=colour, marker=mark, capsize=3,
                      label=f"{line}, measured")  # fmt: skip
        known = [(p.batch, p.predicted.gain) for p in line.points if p.predicted.gain is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, linestyle="--",
                      label=f"{line}, predicted")  # fmt: skip
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted({p.batch for line in drawn for p in line.points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests at once, B")
    axes.set_ylabel("times plain decoding's speed")
    axes.legend(fontsize=8)


def _rates(found: Sequence[Line]) -> Iterable[str]:
    """Acceptance by place against one alpha's powers."""
    known = [line for line in found if line.points[0].acceptance and line.kind != ALL]
    if not known:
        return
    yield "<h2>Acceptance by place</h2>"
    yield ("<p>r<sub>i</sub>: share of steps whose first i drafts were all accepted, steps without "
           "a draft included, at the least concurrency. Beside it the powers of the fitted alpha, "
           "which r<sub>i</sub> would be if every draft were accepted alike.</p>")  # fmt: skip
    for group, of in _groups(known).items():
        longest: dict[tuple, Line] = {}
        for line in of:
            if line.points[0].acceptance.rates:
                key = line.method, line.kind
                longest[key] = max(longest.get(key, line), line, key=lambda one: one.kappa)
        if drawn := tuple(longest.values()):
            yield figure(
                f"rates {group}",
                f"{_name(group)}: r_i, measured, and alpha to the i, dashed",
                " ".join(
                    f"{line}, {line.kind}: "
                    + ", ".join(f"{rate:.2f}" for rate in line.points[0].acceptance.rates) + "."
                    for line in drawn
                ),
                lambda axes, drawn=drawn: _draw_rates(axes, drawn),
            )  # fmt: skip
        rows = []
        for line in of:
            accepted, alpha = line.points[0].acceptance, fitted(line.points[0].acceptance)
            rates = " ".join(f"{rate:.2f}" for rate in accepted.rates) or "not told by the backend"
            powers = "" if alpha is None else " ".join(
                f"{alpha**i:.2f}" for i in range(1, line.kappa + 1))  # fmt: skip
            steps = f"{accepted.verifies:.0f}" if accepted.verifies else "not told"
            rows.append([f"{line}, {line.kind}", rates, alpha_words(line), powers, steps])
        yield table(f"{_name(group)}: acceptance",
                    ["method, prompts", "r_i", "alpha", "alpha^i", "steps"], rows)  # fmt: skip


def _draw_rates(axes: Any, drawn: Sequence[Line]) -> None:
    for i, line in enumerate(drawn):
        colour, accepted = COLOURS[i % len(COLOURS)], line.points[0].acceptance
        places, alpha = range(1, len(accepted.rates) + 1), fitted(accepted)
        axes.plot(places, accepted.rates, color=colour, marker=MARKS[i % len(MARKS)],
                  label=f"{line}, {line.kind}")  # fmt: skip
        axes.plot(places, [alpha**place for place in places], color=colour, linestyle="--")
    axes.set_xticks(sorted({i for line in drawn for i in range(1, line.kappa + 1)}))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("place of the draft, i")
    axes.set_ylabel("share accepted up to there")
    axes.legend(fontsize=8)


def _lengths(found: Sequence[Line]) -> Iterable[str]:
    """E against kappa."""
    known = [line for line in found if line.points[0].acceptance and line.kind != ALL]
    drawn_any = False
    for group, of in _groups(known).items():
        by_method: dict[tuple[str, str], dict[int, Line]] = defaultdict(dict)
        for line in of:
            by_method[line.method, line.kind].setdefault(line.kappa, line)
        several = {key: by for key, by in by_method.items() if len(by) > 1}
        if not several:
            continue
        if not drawn_any:
            yield "<h2>Tokens of a step against the draft length</h2>"
            drawn_any = True
        yield figure(
            f"length {group}",
            f"{_name(group)}: E against kappa; dashed, of the longest drafts' alpha",
            " ".join(
                f"{method}, {kind}: " + ", ".join(
                    f"{by[k].points[0].acceptance.tokens:.2f} with {k}" for k in sorted(by)) + "."
                for (method, kind), by in several.items()
            ),
            lambda axes, several=several: _draw_lengths(axes, several),
        )  # fmt: skip
        yield table(
            f"{_name(group)}: E and speed-up by draft length, at the least concurrency",
            ["method, prompts", "kappa", "B", "E", "measured speed-up"],
            [[f"{method}, {kind}", k, by[k].points[0].batch,
              _number(by[k].points[0].acceptance, "tokens"), by[k].points[0].gain]
             for (method, kind), by in several.items() for k in sorted(by)],
        )  # fmt: skip


def _draw_lengths(axes: Any, several: Mapping[tuple[str, str], Mapping[int, Line]]) -> None:
    for i, ((method, kind), by) in enumerate(several.items()):
        colour, lengths = COLOURS[i % len(COLOURS)], sorted(by)
        axes.plot(lengths, [by[k].points[0].acceptance.tokens for k in lengths], color=colour,
                  marker=MARKS[i % len(MARKS)], label=f"{method}, {kind}")  # fmt: skip
        alpha = fitted(by[lengths[-1]].points[0].acceptance)
        if alpha is not None:
            axes.plot(lengths, [expected_tokens(alpha, k) for k in lengths], color=colour,
                      linestyle="--")  # fmt: skip
    axes.set_xticks(sorted({k for by in several.values() for k in by}))
    axes.set_ylim(bottom=1)
    axes.set_xlabel("drafts a step, kappa")
    axes.set_ylabel("tokens a step, E")
    axes.legend(fontsize=8)


def _parts(found: Sequence[Line]) -> Iterable[str]:
    """Draft, forward, verify and host time of a step, apart."""
    known = [line for line in found if line.points[0].parts and line.kind != ALL]
    for i, (group, of) in enumerate(_groups(known).items()):
        if not i:
            yield "<h2>Where a step's time goes</h2>"
            yield (
                "<p>draft: all draft passes; forward: the target's pass over B (kappa + 1) "
                "positions; verify: acceptance and sampling; host: everything else.</p>"
            )
        for line in of:
            if len(line.points) > 1:
                yield figure(
                    f"parts {group} {line} {line.kind}",
                    f"{_name(group)}: {line}, {line.kind}",
                    " ".join(
                        f"B = {p.batch}: " + ", ".join(
                            f"{part} {1e3 * p.parts[part]:.1f} ms" for part in PARTS) + "."
                        for p in line.points
                    ),
                    lambda axes, line=line: _draw_parts(axes, line),
                )  # fmt: skip
        yield table(
            f"{_name(group)}: milliseconds of a step",
            ["method, prompts", "B", *PARTS],
            [[f"{line}, {line.kind}", p.batch, *(f"{1e3 * p.parts[part]:.2f}" for part in PARTS)]
             for line in of for p in line.points],
        )  # fmt: skip


def _draw_parts(axes: Any, line: Line) -> None:
    bottom = [0.0] * len(line.points)
    names = [str(p.batch) for p in line.points]
    for part, colour, hatch in zip(PARTS, COLOURS, ("", "//", "..", "xx"), strict=False):
        taken = [1e3 * p.parts[part] for p in line.points]
        axes.bar(names, taken, bottom=bottom, color=colour, hatch=hatch, edgecolor="white",
                 label=part)  # fmt: skip
        bottom = [a + b for a, b in zip(bottom, taken, strict=True)]
    axes.set_xlabel("requests at once, B")
    axes.set_ylabel("milliseconds a step")
    axes.legend(fontsize=8)


def _problems(records: Sequence[Record]) -> Iterable[str]:
    """What failed, was not run, or was odd."""
    for state, heading in ((FAILED, "Cells that failed"), (SKIPPED, "Cells that were not run")):
        of = [record for record in records if record.state == state]
        if of:
            yield f"<h2>{heading}</h2>"
            yield table(heading, ["cell", "reason"], [[r.cell, r.reason] for r in of])
    noted = [
        [record.cell, note]
        for record in records
        for note in dict.fromkeys(note for sample in record.samples for note in sample.notes)
    ]
    if noted:
        yield "<h2>Notes of the backends</h2>"
        yield table("Notes", ["cell", "note"], noted)


def _origins(records: Sequence[Record]) -> Iterable[str]:
    """Device, versions, dates."""
    seen: dict[tuple, list[Record]] = defaultdict(list)
    for record in records:
        if record.state == DONE:
            # a load average differs from cell to cell: it is no other device
            device = {k: v for k, v in record.device.items() if k != "load_average"}
            seen[record.cell.backend, record.cell.model, record.cell.dtype, _pairs(device),
                 _pairs(record.versions), record.model_hash].append(record)  # fmt: skip
    if not seen:
        return
    yield "<h2>Device and versions</h2>"
    rows = []
    for (*what, device, versions, digest), of in seen.items():
        loads = [r.device["load_average"] for r in of if r.device.get("load_average") is not None]
        load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not known"
        dates = sorted(record.date for record in of)
        rows.append([", ".join(what), device, load, versions, digest, f"{dates[0]} to {dates[-1]}",
                     len(of)])  # fmt: skip
    yield table("Device and versions",
                ["backend, model, dtype", "device", "load average", "versions", "model", "dates",
                 "cells"], rows)  # fmt: skip


def check() -> None:
    """Ask for what figures need; called before anything is measured too.

    Raises:
        ReportError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ReportError(
            "the report needs matplotlib: pip install 'specedu[figures]'; what was measured before "
            "is kept"
        ) from error


# --- pieces ---------------------------------------------------------------------------------------


def figure(name: str, caption: str, alt: str, draw: Any) -> str:
    """Return a figure as inline SVG with a text for those who do not see it."""
    check()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        drawn = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = drawn.add_subplot()
        axes.grid(alpha=0.3)
        draw(axes)
        buffer = io.StringIO()
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    own = "f" + hashlib.sha256(name.encode()).hexdigest()[:8]  # ids must differ between figures
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}-", svg)
    svg = svg[svg.index("<svg") :].replace(
        "<svg", f'<svg role="img" aria-label="{esc(caption)}. {esc(alt)}"', 1
    )
    return f"<figure>{svg}<figcaption>{esc(caption)}</figcaption></figure>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table."""
    head = "".join(f'<th scope="col">{esc(word)}</th>' for word in headings)
    body = "".join(
        "<tr>" + f'<th scope="row">{esc(first)}</th>'
        + "".join(f"<td{_numeric(cell)}>{esc(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )  # fmt: skip
    return (f'<table aria-label="{esc(caption)}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>")  # fmt: skip


def _numeric(value: object) -> str:
    """Return the class of a cell that holds a number, perhaps with its range."""
    return ' class="number"' if re.fullmatch(r"-?[\d.]+( \(.*\))?", str(value)) else ""


def esc(value: object) -> str:
    """Return a value's text, safe inside HTML and its attributes."""
    return html.escape(str(value))


def _pairs(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in content.items() if value is not None)


def _predicted(point: Any) -> str:
    return "" if point.predicted.gain is None else f"{point.predicted.gain:.2f}"


def _number(holder: Any, name: str) -> str:
    return "" if holder is None else f"{getattr(holder, name):.2f}"
