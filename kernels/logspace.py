"""Chain verification from logits: no softmax is stored, and coins are made where they are used.

A row's law is known by two numbers, the largest logit and the sum of exponentials over it, both
from one pass over tiles. The ratio test compares logarithms; the final token is the winner of a
race, in a second pass over the last row alone. Coins and noise come from Philox inside the kernel.

Against ``chain`` and ``race``: neither p nor q nor noise is a table in memory, so that besides the
logits nothing of ``batch x vocab`` is read or written; a row's logits are read once if its draft is
accepted, and the last row's twice; the comparison is strict and u = 0 counts as 2**-54, so that a
coin of 0 accepts nothing that has no probability; a residual without mass shows as a best score of
0, and p takes its place. Logarithms and exponentials round: near a border the verdict may differ
from ``chain``'s.

Source: vLLM's second sampler (``rejection_sampler_utils.py`` in ``vllm/v1/worker/gpu/spec_decode``
at 2f41c894e320), which keys its coins by seed and position; here the step is in the key as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import checks, contract
from .backend import jit, pick, tile_width, tl
from .coins import Purpose, exponential, philox_coin, philox_noise, uniform
from .contract import Verified
from .finish import flags_or_none
from .race import winner
from .span import onehot_flag, request_span

SMALLEST_COIN = 2.0**-54  # what u = 0 counts as: below every other coin, with a finite logarithm


def verify_logspace(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    *,
    max_spec_len: int,
    accept_coins: torch.Tensor | None = None,
    noise: torch.Tensor | None = None,
    onehot: torch.Tensor | None = None,
    backend: str | None = None,
    check: bool | None = None,
) -> Verified:
    """Accept each request's drafts by ``log u + log q(x) < log p(x)`` and race for its last token.

    p and q are the softmax of the request's logits over its temperature, in float32 with sums and
    logarithms in float64. The final token is the argmax of mass over noise, as ``verify_race``'s.
    NaN logits count as minus infinity; a row of minus infinities has no probability, and as a
    target's row yields id 0.

    Args:
        target_logits: ``[num_draft + batch, vocab]``, float32, float16 or bfloat16, laid out as the
            p rows of :func:`~specedu.kernels.verify_chain`.
        draft_logits: ``[num_draft, vocab]``, what each draft was drawn from, at the same
            temperature; None: every draft is deterministic.
        draft_token_ids: int32 ``[num_draft]``; -1 where there is nothing to accept.
        cu_num_draft_tokens: int32 ``[batch]``, inclusive prefix sum.
        temperature: float32 ``[batch]``; 0 takes each row's argmax, and no coin.
        seeds: int64 ``[batch]``, Philox keys.
        steps: int32 ``[batch]``, the number of the request's verify.
        positions: int32 ``[batch]``, the place of the first undecided token: draft i's coin is
            keyed i places behind it, the noise at it.
        max_spec_len: width of the result minus 1.
        accept_coins: float64 ``[num_draft]`` instead of the keyed coins.
        noise: float32 ``[batch, vocab]`` instead of the keyed noise.
        onehot: bool ``[batch]``; such a request's q rows are not read.
        backend: None picks Triton for CUDA tensors and the torch twin otherwise.
        check: whether values are checked; None means on CPU only.

    Returns:
        Verified: new tensors; the arguments are not written.

    Raises:
        ValueError: an argument's shape, dtype, device, stride or (where checked) value is illegal,
            or (where checked) a token was to be drawn from a row of minus infinities.
        RuntimeError: ``backend="triton"`` cannot run here.

    Example:
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> int32 = lambda i: torch.tensor([i], dtype=torch.int32)
        >>> one = torch.ones(1)
        >>> verify_logspace(logits, None, int32(1), int32(1), 0 * one, torch.tensor([7]), int32(0),
        ...                 int32(12), max_spec_len=1).token_ids
        tensor([[1, 0]])

    Book: eq-logspace.
    """
    batch, num_draft = checks.expect_drafts(draft_token_ids, cu_num_draft_tokens, max_spec_len)
    device = draft_token_ids.device
    vocab = checks.expect_probabilities(
        "target_logits", target_logits, num_draft + batch, "num_draft + batch", None, device
    )
    if draft_logits is not None:
        checks.expect_probabilities(
            "draft_logits", draft_logits, num_draft, "num_draft", vocab, device
        )
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("seeds", seeds, torch.int64),
        ("steps", steps, torch.int32),
        ("positions", positions, torch.int32),
    ):
        checks.expect(name, tensor, dtype, (batch,), device, "(batch,)")
    if accept_coins is not None:
        shape = "(num_draft,)"
        checks.expect("accept_coins", accept_coins, torch.float64, (num_draft,), device, shape)
    if noise is not None:
        checks.expect("noise", noise, torch.float32, (batch, vocab), device, "(batch, vocab)")
    if onehot is not None:
        checks.expect("onehot", onehot, torch.bool, (batch,), device, "(batch,)")
    checked = checks.checks_values(check, device)
    if checked:
        checks.check_draft_values(draft_token_ids, cu_num_draft_tokens, max_spec_len, vocab)
        legal = (temperature >= 0) & temperature.isfinite()
        checks.refuse("temperature", temperature, ~legal, "0 or a finite number above it")
        checks.refuse("steps", steps, steps < 0, "at least 0")
        checks.refuse("positions", positions, positions < 0, "at least 0")
        if accept_coins is not None:
            checks.check_coins("accept_coins", accept_coins)
        if noise is not None and noise.numel():
            wrong = ~((noise > 0) & noise.isfinite()).all(1) & (temperature > 0)
            checks.refuse("noise", noise.min(1).values, wrong, "every entry finite and above 0")
    run = {"torch": _verify_torch, "triton": _verify_triton}[pick(backend, device)]
    result = run(
        target_logits,
        draft_logits,
        draft_token_ids,
        cu_num_draft_tokens,
        temperature,
        seeds,
        steps,
        positions,
        max_spec_len,
        accept_coins,
        noise,
        onehot,
    )
    if checked:
        checks.check_final_mass(
            "target_logits", target_logits, cu_num_draft_tokens, max_spec_len, result, -torch.inf
        )
    return result


# --- the twin -------------------------------------------------------------------------------------


def _verify_torch(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    accept_coins: torch.Tensor | None,
    noise: torch.Tensor | None,
    onehot: torch.Tensor | None,
) -> Verified:
    """Walk request by request and row by row, as the kernel does: no copy of the whole table."""
    num_draft, batch = len(draft_token_ids), len(cu_num_draft_tokens)
    result = contract.blank(batch, max_spec_len, target_logits.device)
    if batch == 0:
        return result
    _, onehot = flags_or_none(None, onehot, draft_logits, batch, target_logits.device)
    starts, counts = contract.spans(cu_num_draft_tokens, num_draft, max_spec_len)
    if accept_coins is None:
        request, place = contract.draft_places(starts, counts)
        keys = seeds[request], steps[request], positions[request] + place.int()
        accept_coins = torch.zeros(num_draft, dtype=torch.float64, device=seeds.device)
        accept_coins[starts[request] + place] = uniform(
            *keys, Purpose.ACCEPT, backend="torch", check=False
        )
    log_u = accept_coins.clamp_min(SMALLEST_COIN).log()

    num_accepted, final = torch.zeros_like(counts), torch.zeros_like(counts)
    for r in range(batch):
        start, heat = int(starts[r]), temperature[r]
        drafts = draft_token_ids[start : start + int(counts[r])].tolist()
        rows = target_logits[start + r : start + r + len(drafts) + 1]
        if heat == 0:
            num_accepted[r], final[r] = argmax_walk(rows, drafts)
            continue
        q_rows = None if onehot[r] else draft_logits[start : start + len(drafts)]
        accepted, p, q, excluded = log_walk(rows, q_rows, drafts, log_u[start:], heat)
        if noise is None:
            key = seeds[r : r + 1], steps[r : r + 1], positions[r : r + 1]
            drawn = exponential(*key, rows.shape[1], backend="torch", check=False)[0]
        else:
            drawn = noise[r]
        num_accepted[r] = accepted
        final[r] = winner(p.law(), None if q is None else q.law(), excluded, drawn)
    contract.write_run(result, draft_token_ids, starts, num_accepted, final)
    return result


def argmax_walk(rows: torch.Tensor, drafts: Sequence[int]) -> tuple[int, int]:
    """Return how many leading drafts are their row's argmax, and the argmax behind them."""
    for i, row in enumerate(rows):
        best = int(clean(row).argmax())
        if i == len(drafts) or drafts[i] != best:
            break
    return i, best


def log_walk(
    rows: torch.Tensor,
    q_rows: torch.Tensor | None,
    drafts: Sequence[int],
    log_u: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[int, Normalised, Normalised | None, int]:
    """Test a request's drafts up to the first refusal; every row is normalised once.

    Returns how many were accepted, the row behind them, the q row to subtract there (None: none),
    and the id to mask (-1: none).
    """
    for i, draft in enumerate(drafts):
        p = Normalised.of(rows[i], temperature)
        q = None if q_rows is None else Normalised.of(q_rows[i], temperature)
        legal = 0 <= draft < rows.shape[1]
        if not legal or not log_u[i] + (0.0 if q is None else q.log(draft)) < p.log(draft):
            return i, p, q, draft if q is None and legal else -1
    return len(drafts), Normalised.of(rows[len(drafts)], temperature), None, -1


def clean(logits: torch.Tensor) -> torch.Tensor:
    """Widen a row to float32; NaN becomes minus infinity."""
    return logits.float().nan_to_num(-torch.inf, posinf=torch.inf, neginf=-torch.inf)


class Normalised(NamedTuple):
    """A row known by its scores over the largest, and the sum of their exponentials.

    Attributes:
        scores: float32 ``[vocab]``, at most 0; minus infinity where an id has no probability.
        masses: their exponentials, float32.
        total: the masses' sum, float64.
    """

    scores: torch.Tensor
    masses: torch.Tensor
    total: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, temperature: torch.Tensor) -> Normalised:
        """Normalise one row of logits."""
        row = clean(logits)
        scores = ((row - row.max()) / temperature).nan_to_num(-torch.inf, neginf=-torch.inf)
        masses = scores.exp()
        return cls(scores, masses, masses.double().sum())

    def log(self, token: int) -> torch.Tensor:
        """Return the logarithm of an id's probability, float64; minus infinity without one."""
        own = self.scores[token].double()
        return own - self.total.log() if self.total > 0 else own

    def law(self) -> torch.Tensor:
        """Return the probabilities, float32; a row of nothing stays one."""
        return self.masses / self.total.float() if self.total > 0 else self.masses


# --- the kernel -----------------------------------------------------------------------------------


def _verify_triton(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_token_ids: torch.Tensor,
    cu_num_draft_tokens: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    steps: torch.Tensor,
    positions: torch.Tensor,
    max_spec_len: int,
    accept_coins: torch.Tensor | None,
    noise: torch.Tensor | None,
    onehot: torch.Tensor | None,
) -> Verified:
    batch, vocab = len(cu_num_draft_tokens), target_logits.shape[1]
    result = contract.blank(batch, max_spec_len, target_logits.device)
    if batch:
        q = target_logits if draft_logits is None else draft_logits
        _verify_logspace_kernel[(batch,)](
            result.token_ids,
            result.num_accepted,
            target_logits,
            q,
            draft_token_ids,
            cu_num_draft_tokens,
            temperature,
            seeds,
            steps,
            positions,
            temperature if accept_coins is None else accept_coins,
            temperature if noise is None else noise,
            cu_num_draft_tokens if onehot is None else onehot,
            len(draft_token_ids),
            max_spec_len,
            vocab,
            target_logits.stride(0),
            q.stride(0),
            HAS_Q=draft_logits is not None,
            HAS_ONEHOT=onehot is not None,
            HAS_COINS=accept_coins is not None,
            HAS_NOISE=noise is not None,
            ACCEPT=int(Purpose.ACCEPT),
            NOISE=int(Purpose.NOISE),
            TILE=tile_width(vocab, 2048),  # 4096 spilled on sm_80
            num_warps=8,
            enable_fp_fusion=False,
        )
    return result


@jit
def _logit_tile(row, ids, vocab):
    """Return a tile of logits as float32; NaN and what lies behind the row are minus infinity."""
    entries = tl.load(row + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    return tl.where(entries == entries, entries, float("-inf"))


@jit
def argmax_logit(row, vocab, TILE: tl.constexpr):
    """Return the lowest id of the largest logit, and that logit."""
    best = tl.full((), float("-inf"), tl.float32)
    best_id = 0
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        entries = _logit_tile(row, ids, vocab)
        highest = tl.max(entries, 0)
        if highest > best:
            best = highest
            best_id = tl.min(tl.where(entries == highest, ids, vocab), 0)
    return best_id, best


@jit
def _masses(row, ids, largest, temperature, vocab):
    """Return exp of a tile's logits over the largest; 0 where a logit is minus infinity."""
    entries = _logit_tile(row, ids, vocab)
    return tl.where(entries > float("-inf"), tl.exp((entries - largest) / temperature), 0.0)


@jit
def row_normaliser(row, temperature, vocab, TILE: tl.constexpr):
    """Return a row's largest logit and the sum of exponentials over it, float64.

    One pass: where a tile brings a larger logit, the sum so far is scaled down to it.
    """
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float64)
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        highest = tl.max(_logit_tile(row, ids, vocab), 0)
        if highest > largest:
            if largest > float("-inf"):
                total = total * tl.exp((largest - highest) / temperature).to(tl.float64)
            largest = highest
        total += tl.sum(_masses(row, ids, largest, temperature, vocab).to(tl.float64), 0)
    return largest, total


@jit
def _log_mass(row, token, legal, largest, total, temperature):
    """Return the logarithm of a token's probability, float64."""
    own = tl.load(row + token, mask=legal, other=float("-inf")).to(tl.float32)
    own = tl.where(own == own, own, float("-inf"))
    return ((own - largest) / temperature).to(tl.float64) - tl.log(total)


@jit
def _race_logits(
    p_row, p_largest, p_total, q_row, q_largest, q_total, q_ids, excluded, noise_row, temperature,
    seed, step, position, vocab, HAS_NOISE: tl.constexpr, NOISE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return the best score of the race and its lowest id; q is subtracted where q_ids > 0."""
    p_sum = tl.where(p_total > 0.0, p_total, 1.0).to(tl.float32)  # a row of nothing stays one
    q_sum = tl.where(q_total > 0.0, q_total, 1.0).to(tl.float32)
    best = tl.full((), 0.0, tl.float32)
    best_id = 0
    for first in range(0, vocab, TILE):
        ids = first + tl.arange(0, TILE)
        weights = _masses(p_row, ids, p_largest, temperature, vocab) / p_sum
        if q_ids > 0:
            q = _masses(q_row, ids, q_largest, temperature, vocab) / q_sum
            weights = tl.maximum(weights - q, 0.0)
        weights = tl.where((ids == excluded) | (ids >= vocab), 0.0, weights)
        if HAS_NOISE:
            e = tl.load(noise_row + ids, mask=ids < vocab, other=1.0)
        else:
            e = philox_noise(seed, step, position, NOISE, ids)
        scores = tl.where(e > 0.0, tl.div_rn(weights, e), 0.0)  # unchecked noise of 0 would win
        highest = tl.max(scores, 0)
        if highest > best:
            best = highest
            best_id = tl.min(tl.where(scores == highest, ids, vocab), 0)
    return best, best_id


@jit
def _verify_logspace_kernel(
    token_ids,
    num_accepted,
    target_logits,
    draft_logits,
    draft_token_ids,
    cu,
    temperatures,
    seeds,
    steps,
    positions,
    accept_coins,
    noise,
    onehot,
    num_draft,
    max_spec_len,
    vocab,
    p_stride,
    q_stride,
    HAS_Q: tl.constexpr,
    HAS_ONEHOT: tl.constexpr,
    HAS_COINS: tl.constexpr,
    HAS_NOISE: tl.constexpr,
    ACCEPT: tl.constexpr,
    NOISE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a request: normalise and test row after row, then race on the last one."""
    request = tl.program_id(0)
    start, count = request_span(cu, request, num_draft, max_spec_len)
    p_rows = target_logits + (start + request).to(tl.int64) * p_stride
    q_rows = draft_logits + start.to(tl.int64) * q_stride
    out = token_ids + request.to(tl.int64) * (max_spec_len + 1)
    temperature = tl.load(temperatures + request)
    seed = tl.load(seeds + request)
    step = tl.load(steps + request)
    position = tl.load(positions + request)
    is_onehot = onehot_flag(onehot, request, HAS_Q, HAS_ONEHOT)

    accepted = 0
    refused = 0
    draft = -1
    p_largest = tl.full((), 0.0, tl.float32)
    p_total = tl.full((), 0.0, tl.float64)
    q_largest = p_largest
    q_total = p_total
    while (refused == 0) & (accepted < count):
        draft = tl.load(draft_token_ids + start + accepted)
        legal = (draft >= 0) & (draft < vocab)
        row = accepted.to(tl.int64)
        kept = 0
        if temperature == 0.0:
            best_id, _ = argmax_logit(p_rows + row * p_stride, vocab, TILE)
            kept = tl.where(draft == best_id, 1, 0)
        else:
            if HAS_COINS:
                coin = tl.load(accept_coins + start + accepted)
            else:
                coin = philox_coin(seed, step, position + accepted, ACCEPT)
            coin = tl.maximum(coin, 5.551115123125783e-17)  # 2**-54
            p_row = p_rows + row * p_stride
            p_largest, p_total = row_normaliser(p_row, temperature, vocab, TILE)
            log_p = _log_mass(p_row, draft, legal, p_largest, p_total, temperature)
            log_q = tl.full((), 0.0, tl.float64)
            if is_onehot == 0:
                q_row = q_rows + row * q_stride
                q_largest, q_total = row_normaliser(q_row, temperature, vocab, TILE)
                log_q = _log_mass(q_row, draft, legal, q_largest, q_total, temperature)
            kept = tl.where(legal & (tl.log(coin) + log_q < log_p), 1, 0)
        if kept == 1:
            tl.store(out + accepted, draft.to(tl.int64))
            accepted += 1
        else:
            refused = 1

    row = accepted.to(tl.int64)
    p_row = p_rows + row * p_stride
    final = 0
    if temperature == 0.0:
        final, _ = argmax_logit(p_row, vocab, TILE)
    else:
        if refused == 0:  # else the test has just normalised the row
            p_largest, p_total = row_normaliser(p_row, temperature, vocab, TILE)
        q_row = q_rows + row * q_stride
        noise_row = noise + request.to(tl.int64) * vocab
        q_ids = tl.where((refused == 1) & (is_onehot == 0), vocab, 0)
        excluded = tl.where((refused == 1) & (is_onehot == 1), draft, -1)
        best, final = _race_logits(
            p_row, p_largest, p_total, q_row, q_largest, q_total, q_ids, excluded, noise_row,
            temperature, seed, step, position, vocab, HAS_NOISE, NOISE, TILE,
        )  # fmt: skip
        if best == 0.0:
            best, final = _race_logits(
                p_row, p_largest, p_total, q_row, q_largest, q_total, q_ids * 0, -1, noise_row,
                temperature, seed, step, position, vocab, HAS_NOISE, NOISE, TILE,
            )  # fmt: skip
    tl.store(out + accepted, final.to(tl.int64))
    tl.store(num_accepted + request, accepted)
