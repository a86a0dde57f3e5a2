"""What of an emitted run is delivered: stops are applied token by token, inside the run.

A verify emits up to κ + 1 tokens. The first that ends the request ends the run too: the tokens
behind it are discarded, and ids, text, finish reason, usage and cache all end at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .request import Request

Decode = Callable[[Sequence[int]], str]
Ends = int | tuple[int, ...] | None  # a chat model often ends a turn and a text by different ids


def end_ids(eos_token_id: Ends) -> tuple[int, ...]:
    """Return the ids that end a text, of a model that names one, several or none.

    Example:
        >>> end_ids(3), end_ids((3, 5)), end_ids(None)
        ((3,), (3, 5), ())
    """
    if eos_token_id is None:
        return ()
    return (eos_token_id,) if isinstance(eos_token_id, int) else eos_token_id


class Delivery(NamedTuple):
    """What a run came to.

    Attributes:
        kept: how many of its tokens were committed.
        finish_reason: ``stop`` or ``length``; None while the request goes on.
        stop_reason: the stop id or string; None for the end-of-text id and for ``length``.
    """

    kept: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def deliver(
    request: Request,
    run: Sequence[int],
    *,
    eos_token_id: Ends,
    max_model_len: int,
    decode: Decode | None = None,
) -> Delivery:
    """Commit the tokens of ``run`` to the request, up to the one that ends it.

    A token is tested in this order: end-of-text, stop id, stop string, length. So a run that
    reaches both a stop and the limit ends with the one that comes first in it, and a token that is
    both ends with ``stop``.

    Args:
        request: its ``token_ids`` and ``text`` grow, nothing else is written.
        run: the emitted ids.
        eos_token_id: the id that ends a text, several, or None.
        max_model_len: tokens of prompt and output at most.
        decode: gives the text that ids add; without it there is no text and no stop string.
    """
    for kept, token in enumerate(run, start=1):
        request.token_ids.append(token)
        reason = _ends_at(request, token, eos_token_id, decode)
        if reason is not None:
            return Delivery(kept, "stop", reason[0])
        full = request.num_tokens >= max_model_len
        if full or request.num_output_tokens >= request.params.max_tokens:
            return Delivery(kept, "length")
    return Delivery(len(run))


def _ends_at(
    request: Request, token: int, eos_token_id: Ends, decode: Decode | None
) -> tuple[int | str | None] | None:
    """Return (stop reason,) where the request's newest token stops it, else None."""
    params, known = request.params, len(request.text)
    early = request.num_output_tokens < params.min_tokens
    if token in end_ids(eos_token_id) and not params.ignore_eos and not early:
        return (None,)  # it ends the text and is no part of it
    if decode is not None:
        request.text += decode([token])
    if early:
        return None
    if token in params.stop_token_ids:
        return (token,)
    return _stop_string(request, known)


def _stop_string(request: Request, known: int) -> tuple[str] | None:
    """Find a stop string that ends in the newest piece; cut the text at the earliest."""
    found = []
    for word in request.params.stop:
        place = request.text.find(word, max(0, known - len(word) + 1))
        if place >= 0:
            found.append((place, word))
    if not found:
        return None
    place, word = min(found)
    if request.params.include_stop_str_in_output:
        place += len(word)
    request.text = request.text[:place]
    return (word,)


def banned_ids(request: Request, place: int, eos_token_id: Ends) -> list[int]:
    """Return the ids that may not be emitted at ``place`` of the output: the stops, if too early.

    Example:
        >>> from specedu.cache.block_pool import BlockPool
        >>> from specedu.cache.block_table import BlockTable
        >>> from specedu.config import SamplingParams
        >>> params = SamplingParams(min_tokens=2, stop_token_ids=[5])
        >>> request = Request("a", [1], params, 0, BlockTable(BlockPool(1), 1))
        >>> banned_ids(request, 1, eos_token_id=3), banned_ids(request, 2, eos_token_id=3)
        ([5, 3], [])
    """
    if place >= request.params.min_tokens:
        return []
    ids = list(request.params.stop_token_ids)
    return ids if request.params.ignore_eos else [*ids, *end_ids(eos_token_id)]
