"""Where a request's drafts lie, for the kernels: the device twin of ``contract.spans``."""

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
