"""Prompt lookup: what followed the last time that the text ended like this."""

from __future__ import annotations

from collections.abc import Sequence

from specedu.sampling.coins import CoinSource

from .base import Draft, DraftTask, StatelessProposer


class NgramProposer(StatelessProposer):
    """Looks the text's longest suffix up in the text itself; q is one-hot.

    Args:
        prompt_lookup_min: the shortest suffix that counts.
        prompt_lookup_max: the longest.
        latest: of several occurrences of one suffix take the latest instead of the earliest.

    Source: vLLM's ``ngram`` method (vllm/v1/spec_decode/ngram_proposer.py at 2f41c894e320).
    """

    def __init__(
        self, prompt_lookup_min: int = 5, prompt_lookup_max: int = 5, latest: bool = False
    ) -> None:
        self.prompt_lookup_min = prompt_lookup_min
        self.prompt_lookup_max = prompt_lookup_max
        self.latest = latest

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Return what followed each text's longest repeated suffix."""
        return [
            Draft(
                lookup(
                    task.token_ids,
                    self.prompt_lookup_min,
                    self.prompt_lookup_max,
                    task.limit,
                    self.latest,
                )
            )
            for task in tasks
        ]


def lookup(
    token_ids: Sequence[int], shortest: int, longest: int, count: int, latest: bool = False
) -> list[int]:
    """Return up to ``count`` ids that followed an earlier occurrence of the text's suffix.

    The longest suffix of ``shortest .. longest`` tokens that occurs before, with at least one token
    behind it, decides; among its occurrences the earliest (or the latest). An occurrence may
    overlap the suffix. The work is linear in the text, whatever the range of lengths: one pass of
    the prefix function over the reversed text gives the length of the match that ends at each place
    (Knuth, Morris and Pratt 1977).

    Example:
        >>> lookup([1, 2, 3, 1, 2, 4, 1, 2], 2, 2, 2)
        [3, 1]
        >>> lookup([1, 2, 3, 1, 2, 4, 1, 2], 2, 2, 2, latest=True)
        [4, 1]
        >>> lookup([5, 5, 5], 2, 2, 2)
        [5]
    """
    n = len(token_ids)
    backwards = token_ids[::-1]
    matched = [0] * n
    length = 0
    best, place = 0, 0
    for i in range(1, n):
        while length and (length == longest or backwards[i] != backwards[length]):
            length = matched[length - 1]
        if backwards[i] == backwards[length]:
            length += 1
        matched[i] = length
        # The occurrence found here begins at n - 1 - i and is `length` long; what follows it starts
        # at n - 1 - i + length, inside the text. Going on means going to earlier occurrences.
        if length >= shortest and (length > best or (length == best and not latest)):
            best, place = length, n - 1 - i + length
    return list(token_ids[place : place + count]) if best else []
