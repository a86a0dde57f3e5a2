"""Checks of Lab 07: the cost model and the crossing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specedu.theory.rates import expected_tokens
from specedu.theory.speedup import batch_speedup
from specedu.theory.speedup import crossing as crossing_of

from . import report

POINTS = [(1, 0.7, 3, 0.165, 295.0), (100, 0.7, 3, 0.165, 295.0), (400, 0.5, 2, 0.1, 295.0),
          (40, 0.9, 7, 0.0, 100.0)]  # fmt: skip


def check_guess(guess: object) -> None:
    """Check that a number of requests was guessed."""
    number = isinstance(guess, int | float) and not isinstance(guess, bool)
    report([("the guess is a number above 0", number and guess > 0, repr(guess))])


def check_speedup(speedup: Callable[[float, float, int, float, float], float]) -> None:
    """Check the speed-up in its three regimes, and that it never rises with the load."""
    names = ("bound by memory", "a verify bound by arithmetic", "all bound by arithmetic",
             "free drafts")  # fmt: skip
    rows = []
    for name, (batch, alpha, kappa, c, T_star) in zip(names, POINTS, strict=True):
        found = speedup(batch, expected_tokens(alpha, kappa), kappa, c, T_star)
        expected = batch_speedup(batch, alpha, kappa, c, T_star)
        seen = f"{found:.4f}, expected {expected:.4f}"
        rows.append((f"{name}, B = {batch}", abs(found - expected) < 1e-9, seen))
    gains = [speedup(batch, 2.5, 3, 0.1, 100.0) for batch in range(1, 250)]
    falls = all(a >= b - 1e-12 for a, b in zip(gains, gains[1:], strict=False))
    rows.append(("it never rises with the load", falls, "it does"))
    report(rows)


def check_crossing(crossing: Callable[[float, int, float, float], float]) -> None:
    """Check the crossing against the closed form, and where there is none."""
    rows = []
    for alpha, kappa, c, T_star in (
        (0.7, 3, 0.165, 295.0),
        (0.8, 5, 0.02, 295.0),
        (0.9, 1, 0.3, 50.0),
    ):
        found = crossing(expected_tokens(alpha, kappa), kappa, c, T_star)
        expected = crossing_of(alpha, kappa, c, T_star)
        seen = f"{found:.2f}, expected {expected:.2f}"
        words = f"alpha {alpha}, {kappa} drafts, c = {c}, T* = {T_star:.0f}"
        rows.append((words, abs(found - expected) < 1e-6 * T_star, seen))
    never = crossing(expected_tokens(0.2, 3), 3, 0.165, 295.0)
    rows.append(("0 where it loses from the start", never == 0, repr(never)))
    report(rows)


def check_prediction(
    predicted: Mapping[int, float],
    tokens: object,
    plain: Mapping[int, float],
    verify: Mapping[int, float],
) -> None:
    """Check that the prediction follows from the times and the chosen E."""
    number = isinstance(tokens, int | float) and 1 <= tokens <= 4
    rows = [("E lies between 1 and 4", number, repr(tokens))]
    for batch in plain:
        found = predicted.get(batch)
        holds = (
            number
            and isinstance(found, float)
            and abs(found * verify[batch] - tokens * plain[batch]) < 1e-9
        )
        rows.append((f"B = {batch}: E tokens for one verify", holds, repr(found)))
    report(rows)


def check_loads(
    loses_predicted: int | None,
    loses_measured: int | None,
    predicted: Mapping[int, float],
    measured: Mapping[int, float],
) -> None:
    """Check the first load without a gain, predicted and measured."""

    def first(gains: Mapping[int, float]) -> int | None:
        return next((batch for batch in sorted(gains) if gains[batch] <= 1), None)

    report(
        [
            ("by prediction", loses_predicted == first(predicted), repr(loses_predicted)),
            ("by measurement", loses_measured == first(measured), repr(loses_measured)),
        ]
    )
