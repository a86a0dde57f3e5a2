"""Sample-and-match: every row draws its own token, and a draft is kept while it equals that token.

What is emitted never depends on a draft: row i emits the inverse CDF of its own p row at its own
coin, and a draft only decides whether the row behind it was conditioned on the right text. So the
law is the target's whatever was drafted; and where a row's coin is keyed by the position of its
token alone, the text is the very one that plain decoding gives with the same coins.

The price is acceptance: a draft sampled from q is kept with probability ``Σ p·q``, where the ratio
test keeps ``Σ min(p, q)``. A one-hot draft is kept with probability p(x) by both.

Source: llama.cpp verifies so (``common_sampler_sample_and_accept_n`` in common/sampling.cpp).
"""

from __future__ import annotations

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .contract import Verified
from .draw import argmax_id, argmax_ids, draw_id, draw_ids, total_mass
from .greedy import verify_greedy
from .span import greedy_flag, request_span


def verify_match(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    row_coins: torch.Tensor,
    *,
    max_spec_len: int,
    greedy: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Draw each row's token, and accept a request's drafts while they equal their rows' tokens.

    The token of a row with coin w is the smallest id t with ``cum(t) > w·Z``, sums and product in
    float64; NaN and negative entries count as 0. A p row without positive mass yields id 0. The
    first row whose draft is another id, or is -1, or that has none, ends the run with its token;
    nothing behind it matters.

    Args:
        target_probs: ``[num_draft + batch, vocab]``, float32, float16 or bfloat16, rows at any
            distance; request r owns ``n_r + 1`` consecutive rows, its bonus row last.
        draft_token_ids: int32 ``[num_draft]``; -1 is never accepted.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum of the requests' draft counts.
        row_coins: float64 ``[num_draft + batch]`` in [0, 1), w of each row.
        max_spec_len: width of the result minus 1; no device value is read for it.
        greedy: bool ``[batch]`` or None; such a request takes the argmax of each row, lowest id
            first among equals, and its coins are not read.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal,
            or (where checked) a token was to be drawn from a p row without positive mass.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> draft, cu = (torch.tensor([1], dtype=torch.int32) for _ in range(2))
        >>> coins = lambda *w: torch.tensor(w, dtype=torch.float64)
        >>> verify_match(p, draft, cu, coins(0.5, 0.0), max_spec_len=1).token_ids
        tensor([[1, 0]])
        >>> verify_match(p, draft, cu, coins(0.0, 0.0), max_spec_len=1).token_ids
        tensor([[ 0, -1]])

    Book: eq-match.
    """
    batch, num_draft = checks.expect_drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len)
    device, rows = draft_token_ids.device, num_draft + batch
    vocab = checks.expect_probabilities(
        "target_probs", target_probs, rows, "num_draft + batch", None, device
    )
    checks.expect("row_coins", row_coins, torch.float64, (rows,), device, "(num_draft + batch,)")
    if greedy is not None:
        checks.expect("greedy", greedy, torch.bool, (batch,), device, "(batch,)")

    checked = checks.checks_values(check, device)
    if checked:
        checks.check_draft_values(draft_token_ids, cu_num_draft_tokens, max_spec_len, vocab)
        checks.check_coins("row_coins", row_coins)
    run = {"torch": _verify_torch, "triton": _verify_triton}[pick(backend, device)]
    result = run(
        target_probs, draft_token_ids, cu_num_draft_tokens, row_coins, max_spec_len, greedy
    )
    if checked:
        # Every emitted id was drawn, the accepted ones too.
        starts, _ = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
        request, place = contract.draft_places(starts, result.num_accepted.long() + 1)
        emitted = result.token_ids[request, place]
        checks.check_mass("target_probs", target_probs, starts[request] + request + place, emitted)
    return result


# --- the twin -------------------------------------------------------------------------------------


def _verify_torch(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    row_coins: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None,
) -> Verified:
    """Draw a token for every row at once, then verify as if the tokens were the rows' argmax."""
    num_draft, batch = len(draft_token_ids), len(cu_num_draft_tokens)
    if greedy is None:
        greedy = torch.zeros(batch, dtype=torch.bool, device=target_probs.device)
    starts, counts = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
    request, place = contract.draft_places(starts, counts + 1)  # of every row
    rows = starts[request] + request + place
    drawn, best = rows[~greedy[request]], rows[greedy[request]]
    none = torch.full_like(drawn, -1)

    tokens = torch.zeros(num_draft + batch, dtype=torch.int64, device=target_probs.device)
    tokens[drawn] = draw_ids(target_probs, None, drawn, none, none, row_coins[drawn])
    tokens[best] = argmax_ids(target_probs, best)
    return verify_greedy(
        tokens,
        draft_token_ids,
        cu_num_draft_tokens,
        max_spec_len=max_spec_len,
        backend="torch",
        check=False,
    )


# --- the kernel -----------------------------------------------------------------------------------


def _verify_triton(
    target_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    row_coins: torch.Tensor,
    max_spec_len: int,
    greedy: torch.Tensor | None,
) -> Verified:
    batch, vocab = len(cu_num_draft_tokens), target_probs.shape[1]
    result = contract.blank(batch, max_spec_len, target_probs.device)
    if batch:
        _verify_match_kernel[(batch,)](
            result.token_ids,
            result.num_accepted,
            target_probs,
            draft_token_ids,
            cu_num_draft_tokens,
            row_coins,
            cu_num_draft_tokens if greedy is None else greedy,
            len(draft_token_ids),
            max_spec_len,
            vocab,
            target_probs.stride(0),
            HAS_GREEDY=greedy is not None,
            TILE=tile_width(vocab),
            num_warps=8,
            enable_fp_fusion=False,
        )
    return result


@jit
def _verify_match_kernel(
    token_ids,
    num_accepted,
    target_probs,
    draft_token_ids,
    cu,
    row_coins,
    greedy,
    num_draft,
    max_spec_len,
    vocab,
    p_stride,
    HAS_GREEDY: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a request: draw row after row, and stop behind the first that its draft misses.

    The walk reads no row behind a mismatch: where Σ p·q is small those are most of them.
    """
    request = tl.program_id(0)
    start, count = request_span(cu, request, num_draft, max_spec_len)
    first_row = (start + request).to(tl.int64)
    out = token_ids + request.to(tl.int64) * (max_spec_len + 1)
    is_greedy = greedy_flag(greedy, request, HAS_GREEDY)

    accepted = 0
    matching = 1
    while matching == 1:
        p_row = target_probs + (first_row + accepted) * p_stride
        token = 0
        if is_greedy != 0:
            token = argmax_id(p_row, vocab, TILE)
        else:
            total = total_mass(p_row, p_row, 0, -1, 1.0, vocab, TILE)  # p as it is
            goal = tl.load(row_coins + first_row + accepted) * total
            token = draw_id(p_row, p_row, 0, -1, 1.0, goal, vocab, TILE)
        tl.store(out + accepted, token.to(tl.int64))  # the accepted draft, the correction or bonus
        matching = 0
        if accepted < count:
            if tl.load(draft_token_ids + start + accepted) == token:  # -1 equals no token
                accepted += 1
                matching = 1
    tl.store(num_accepted + request, accepted)
