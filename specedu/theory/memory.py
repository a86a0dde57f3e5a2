"""What speculation takes of the cache: slots that are reserved for drafts, and requests that fit.

Slots are entries of the paged cache, one a token; what a token takes is
:func:`specedu.theory.cost.kv_bytes_per_token`.

Source: the two engines' allocators, named at each policy.
"""

from __future__ import annotations

from .cost import BF16, TransformerShape, kv_bytes_per_token, stored_params

POLICIES = ("plain", "window", "lookahead", "double buffer")


def reserved_slots(kappa: int, policy: str = "lookahead") -> int:
    """Return the slots that a running request holds for one decode step.

    ``plain``: one, the step's token. ``window``: the kappa + 1 positions of a verify; this engine
    and vLLM where drafts are looked up. ``lookahead``: kappa more, behind the window, where the
    drafter writes a cache of its own in the same step; this engine with a draft model or early
    exit, vLLM with a draft model or EAGLE. It is just enough: where all drafts are accepted, the
    last but one of the next drafts is written into slot ``2 kappa + 1``. ``double buffer``: twice
    the window, for an engine that prepares the next step while one runs (SGLang's
    ``get_alloc_reserve_per_decode`` for chains).

    Raises:
        ValueError: kappa is below 0, or the policy unknown.

    Example:
        >>> [reserved_slots(3, policy) for policy in POLICIES]
        [1, 4, 7, 8]

    Book: eq-reserved.
    """
    if kappa < 0:
        raise ValueError(f"kappa: {kappa}, expected at least 0")
    slots = {
        "plain": 1,
        "window": kappa + 1,
        "lookahead": 2 * kappa + 1,
        "double buffer": 2 * (kappa + 1),
    }
    if policy not in slots:
        raise ValueError(f"policy: {policy!r}, expected one of {', '.join(POLICIES)}")
    return slots[policy]


def reserved_bytes(
    shape: TransformerShape, requests: int, kappa: int, policy: str = "lookahead"
) -> float:
    """Return the cache that a step of so many requests reserves, bytes.

    Example:
        >>> from specedu.theory.cost import LLAMA_3_8B
        >>> reserved_bytes(LLAMA_3_8B, 64, 3, "double buffer") / 2**20
        64.0

    Book: eq-reserved-bytes.
    """
    if requests < 0:
        raise ValueError(f"requests: {requests}, expected at least 0")
    return requests * reserved_slots(kappa, policy) * kv_bytes_per_token(shape)


def max_concurrency(
    shape: TransformerShape,
    memory: float,
    length: int,
    kappa: int = 0,
    policy: str = "plain",
    *,
    block_size: int = 1,
    other_weights: float = 0.0,
    other_bytes_per_token: float = 0.0,
) -> int:
    """Return how many requests of a length fit at once, beside the weights.

    Each takes its text and its reserved slots, rounded up to whole blocks.

    Args:
        shape: of the target, in bf16; all its stored weights count, the gathered table included.
        memory: bytes that weights and cache may take.
        length: tokens of a request, prompt and answer.
        kappa: drafts a step.
        policy: see :func:`reserved_slots`.
        block_size: slots of a block.
        other_weights: bytes of a draft model's weights.
        other_bytes_per_token: of a draft model's cache.

    Raises:
        ValueError: a size is below its least, or the weights alone do not fit.

    Example:
        >>> from specedu.theory.cost import LLAMA_3_8B
        >>> max_concurrency(LLAMA_3_8B, 72e9, 512)
        833
        >>> max_concurrency(LLAMA_3_8B, 72e9, 512, 3, "double buffer")
        822

    Book: eq-concurrency.
    """
    for name, size in (("length", length), ("block_size", block_size)):
        if size < 1:
            raise ValueError(f"{name}: {size}, expected at least 1")
    left = memory - BF16 * stored_params(shape) - other_weights
    if left < 0:
        raise ValueError(f"memory: {memory}, expected at least {memory - left:.0f}, the weights")
    blocks = -(-(length + reserved_slots(kappa, policy) - 1) // block_size)
    token = kv_bytes_per_token(shape) + other_bytes_per_token
    return int(left // (blocks * block_size * token))
