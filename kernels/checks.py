"""Checks of a rule's arguments: each refusal names the argument, the row, the value and the range.

Shapes, dtypes, devices and strides are always checked. Values are checked on CPU tensors by
default; on a GPU only when asked, because reading them makes the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .contract import PROBABILITY_DTYPES, Verified, spans


def checks_values(check: bool | None, device: torch.device) -> bool:
    """Return whether values are checked: as asked, else on CPU only.

    Example:
        >>> checks_values(None, torch.device("cpu")), checks_values(False, torch.device("cpu"))
        (True, False)
    """
    return device.type == "cpu" if check is None else check


def expect(
    name: str,
    tensor: torch.Tensor,
    dtypes: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[int],
    device: torch.device,
    shape_words: str,
) -> None:
    """Refuse a tensor of another kind, dtype, shape, device, or with gaps along its last axis."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name}: {type(tensor).__name__}, expected a torch.Tensor")
    if tensor.dtype not in allowed:
        words = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ValueError(f"{name}: dtype {tensor.dtype}, expected {words}")
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)}, expected {shape_words} = {tuple(shape)}"
        )
    if tensor.device != device:
        raise ValueError(f"{name}: on {tensor.device}, expected {device} like draft_token_ids")
    if tensor.numel() > 1 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: stride {tensor.stride(-1)} along the last axis, expected 1; "
            "rows may lie at any distance, entries of a row may not"
        )


def expect_drafts(
    draft_token_ids: torch.Tensor, cu_num_draft_tokens: torch.Tensor, max_spec_len: int
) -> tuple[int, int]:
    """Check the ragged layout that every rule shares and return (batch, num_draft)."""
    if isinstance(max_spec_len, bool) or not isinstance(max_spec_len, int) or max_spec_len < 0:
        raise ValueError(f"max_spec_len: {max_spec_len!r}, expected an int of at least 0")
    for name, tensor in (
        ("draft_token_ids", draft_token_ids),
        ("cu_num_draft_tokens", cu_num_draft_tokens),
    ):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 1:
            found = (
                tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            )
            raise ValueError(f"{name}: {found}, expected a 1-D torch.Tensor")
    num_draft, batch = len(draft_token_ids), len(cu_num_draft_tokens)
    device = draft_token_ids.device
    expect("draft_token_ids", draft_token_ids, torch.int32, (num_draft,), device, "(num_draft,)")
    expect("cu_num_draft_tokens", cu_num_draft_tokens, torch.int32, (batch,), device, "(batch,)")
    return batch, num_draft


def expect_probabilities(
    name: str,
    probabilities: torch.Tensor,
    rows: int,
    row_words: str,
    vocab: int | None,
    device: torch.device,
) -> int:
    """Check a table of probability rows and return its vocabulary size."""
    if not isinstance(probabilities, torch.Tensor) or probabilities.dim() != 2:
        raise ValueError(f"{name}: expected a 2-D torch.Tensor ({row_words}, vocab)")
    width = probabilities.shape[1] if vocab is None else vocab
    if width < 1:
        raise ValueError(f"{name}: vocabulary of {width} ids, expected at least 1")
    expect(name, probabilities, PROBABILITY_DTYPES, (rows, width), device, f"({row_words}, vocab)")
    return width


def refuse(name: str, tensor: torch.Tensor, wrong: torch.Tensor, legal: str) -> None:
    """Raise for the first entry of ``tensor`` that is marked in ``wrong``; both are 1-D.

    Raises:
        ValueError: at least one entry is marked.
    """
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(f"{name}[{row}]: {tensor[row].item()}, expected {legal}")


def check_draft_values(
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    max_spec_len: int,
    vocab: int | None,
) -> None:
    """Refuse draft ids outside the vocabulary and a prefix sum that is none."""
    ids, cu = draft_token_ids, cu_num_draft_tokens
    if vocab is None:
        refuse("draft_token_ids", ids, ids < -1, "-1 (nothing to accept) or an id")
    else:
        refuse("draft_token_ids", ids, (ids < -1) | (ids >= vocab), f"an id in [-1, {vocab})")
    counts = torch.diff(cu, prepend=cu.new_zeros(1))
    refuse("cu_num_draft_tokens", cu, counts < 0, "a prefix sum that never decreases, from 0")
    refuse(
        "cu_num_draft_tokens",
        cu,
        counts > max_spec_len,
        f"at most max_spec_len = {max_spec_len} drafts more than the entry before",
    )
    if len(cu):
        ends_elsewhere = torch.zeros_like(cu, dtype=torch.bool)
        ends_elsewhere[-1] = cu[-1] != len(ids)
        refuse(
            "cu_num_draft_tokens", cu, ends_elsewhere, f"the sum to end at num_draft = {len(ids)}"
        )
    elif len(ids):
        raise ValueError(
            f"cu_num_draft_tokens: no request, expected one that owns {len(ids)} drafts"
        )


def check_mass(
    name: str,
    table: torch.Tensor,
    rows: torch.Tensor,
    emitted: torch.Tensor,
    nothing: float = 0.0,
) -> None:
    """Refuse a row of ``nothing`` that an id came from: only there has the emitted id none."""
    empty = ~(table[rows, emitted] > nothing)
    if bool(empty.any()):
        row = int(rows[empty][0])
        largest = table[row].max().item()
        raise ValueError(
            f"{name}[{row}]: largest entry {largest}, expected an entry above {nothing:g} in a row "
            "that a token is drawn from"
        )


def check_final_mass(
    name: str,
    table: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    max_spec_len: int,
    result: Verified,
    nothing: float = 0.0,
) -> None:
    """Refuse a row of ``nothing`` that a request's final token came from."""
    batch = len(cu_num_draft_tokens)
    starts, _ = spans(cu_num_draft_tokens, len(table) - batch, max_spec_len)
    request = torch.arange(batch, device=table.device)
    accepted = result.num_accepted.long()
    final = result.token_ids[request, accepted]
    check_mass(name, table, starts + request + accepted, final, nothing)


def check_coins(name: str, coins: torch.Tensor) -> None:
    """Refuse coins outside [0, 1); a NaN is outside."""
    refuse(name, coins, ~((coins >= 0) & (coins < 1)), "a coin in [0, 1)")


def checked_run(
    run: Callable[..., Verified],
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    accept_coins: torch.Tensor,
    final_coins: torch.Tensor | None,
    max_spec_len: int,
    greedy: torch.Tensor | None,
    onehot: torch.Tensor | None,
    check: bool | None,
    **more: torch.Tensor,
) -> Verified:
    """Check the arguments of a rule of ``verify_chain``'s signature, run it, check what it drew.

    ``more`` is handed on to ``run`` as it is; ``final_coins`` is None where a rule has none.
    """
    batch, num_draft = expect_drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len)
    device = draft_token_ids.device
    vocab = expect_probabilities(
        "target_probs", target_probs, num_draft + batch, "num_draft + batch", None, device
    )
    if draft_probs is not None:
        expect_probabilities("draft_probs", draft_probs, num_draft, "num_draft", vocab, device)
    expect("accept_coins", accept_coins, torch.float64, (num_draft,), device, "(num_draft,)")
    if final_coins is not None:
        expect("final_coins", final_coins, torch.float64, (batch,), device, "(batch,)")
    for name, flags in (("greedy", greedy), ("onehot", onehot)):
        if flags is not None:
            expect(name, flags, torch.bool, (batch,), device, "(batch,)")

    checked = checks_values(check, device)
    if checked:
        check_draft_values(draft_token_ids, cu_num_draft_tokens, max_spec_len, vocab)
        check_coins("accept_coins", accept_coins)
        if final_coins is not None:
            check_coins("final_coins", final_coins)
    result = run(
        target_probs,
        draft_probs,
        draft_token_ids,
        cu_num_draft_tokens,
        accept_coins,
        final_coins,
        max_spec_len,
        greedy,
        onehot,
        **more,
    )
    if checked:
        check_final_mass("target_probs", target_probs, cu_num_draft_tokens, max_spec_len, result)
    return result
