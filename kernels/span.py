"""What a kernel asks about its request: where its drafts lie, and how they are to be treated.

The device twins of ``contract.spans`` and ``finish.flags_or_none``.
"""

from __future__ import annotations

from .backend import jit, tl


@jit
def request_span(cu, request, num_draft, max_spec_len):
    """Return the first draft of ``request`` and its number of drafts.

    Nothing is read before the prefix sum begins, and a sum that was not checked is clamped to the
    drafts that exist, so that every address made from the two lies inside the tensors.
    """
    end = tl.load(cu + request)
    start = tl.load(cu + request - 1, mask=request > 0, other=0)
    end = tl.minimum(tl.maximum(end, 0), num_draft)
    start = tl.minimum(tl.maximum(start, 0), num_draft)
    count = tl.minimum(tl.maximum(end - start, 0), max_spec_len)
    return start, count


@jit
def greedy_flag(greedy, request, HAS_GREEDY: tl.constexpr):
    """Return 1 if the request takes the argmax; nobody does where there are no flags."""
    is_greedy = tl.full((), 0, tl.int32)
    if HAS_GREEDY:
        is_greedy = tl.load(greedy + request).to(tl.int32)
    return is_greedy


@jit
def onehot_flag(onehot, request, HAS_Q: tl.constexpr, HAS_ONEHOT: tl.constexpr):
    """Return 1 if the request's q rows are not to be read; where there are none, everyone's."""
    is_onehot = tl.full((), 1, tl.int32)
    if HAS_Q:
        is_onehot = tl.full((), 0, tl.int32)
        if HAS_ONEHOT:
            is_onehot = tl.load(onehot + request).to(tl.int32)
    return is_onehot
