"""Checks of Lab 00: the first speculative generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specedu.llm import RequestOutput

from . import report

ALMOST = 1e-9


def check_guess(guess: object) -> None:
    """Check that a number of tokens a step was guessed."""
    number = isinstance(guess, int | float) and not isinstance(guess, bool)
    report(
        [
            ("the guess is a number", number, repr(guess)),
            ("it lies between 1 and 4", number and 1 <= guess <= 4, repr(guess)),
        ]
    )


def check_length(
    length: Callable[[list[int]], float], accepted: Sequence[int], output: RequestOutput
) -> None:
    """Check the mean acceptance length on cases, and against the engine's own."""
    cases = [([0, 0], 1.0), ([3, 3], 4.0), ([0, 1, 3], 7 / 3)]
    found = [length(list(steps)) for steps, _ in cases]
    own = output.metrics.mean_acceptance_length
    engine = length(list(accepted))
    report(
        [
            (
                "steps that accept nothing emit one token",
                abs(found[0] - 1) < ALMOST,
                f"{found[0]} for [0, 0]",
            ),
            (
                "steps that accept all three emit four",
                abs(found[1] - 4) < ALMOST,
                f"{found[1]} for [3, 3]",
            ),
            (
                "mixed steps give their mean",
                abs(found[2] - 7 / 3) < ALMOST,
                f"{found[2]} for [0, 1, 3]",
            ),
            (
                "it is the engine's own number",
                abs(engine - own) < ALMOST,
                f"{engine}, the engine has {own}",
            ),
        ]
    )


def check_rates(
    rates: Callable[[list[int], int], tuple[list[float], list[float]]],
    accepted: Sequence[int],
    output: RequestOutput,
) -> None:
    """Check both kinds of rates on a case, and against the engine's own."""
    unconditional, conditional = rates([0, 1, 1, 3], 3)
    own = output.metrics.acceptance_rates
    engine, _ = rates(list(accepted), 3)
    report(
        [
            (
                "unconditional rates of [0, 1, 1, 3]",
                close(unconditional, [0.75, 0.25, 0.25]),
                f"{unconditional}, expected [0.75, 0.25, 0.25]",
            ),
            (
                "conditional rates of the same",
                close(conditional, [0.75, 1 / 3, 1.0]),
                f"{conditional}, expected [0.75, 0.33, 1.0]",
            ),
            ("they are the engine's own", close(engine, own), f"{engine}, the engine has {own}"),
        ]
    )


def check_sameness(speculative: RequestOutput, plain: object) -> None:
    """Check that an output without speculation was made, and has the same ids."""
    made = isinstance(plain, RequestOutput)
    ours = speculative.outputs[0].token_ids
    theirs = plain.outputs[0].token_ids if made else []
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    report(
        [
            ("there is a plain output", made, repr(plain)),
            ("it came without drafts", made and plain.metrics.num_drafts == 0, "it has drafts"),
            ("it is as long", len(ours) == len(theirs), f"{len(theirs)} tokens, not {len(ours)}"),
            ("every id is the same", made and same is None, f"they part at token {same}"),
        ]
    )


def close(found: Sequence[float], expected: Sequence[float]) -> bool:
    """Return whether two lists hold the same numbers."""
    return len(found) == len(expected) and all(
        abs(a - b) < ALMOST for a, b in zip(found, expected, strict=True)
    )
