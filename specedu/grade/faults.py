"""Planted faults: one-place changes of the real source, each with the test that must catch it.

A fault is a small named transformation: it replaces one piece of one file, which must stand there
exactly once, so that a fault whose place has moved is noticed at once. Most of them really happened
in public engines; their bug-atlas ids are given. ``python -m specedu.grade.matrix`` plants them one
by one and shows the matrix of faults and tests.
"""

from __future__ import annotations

from dataclasses import dataclass

CHAIN = "tests/kernels/test_chain.py"
GREEDY = "tests/kernels/test_greedy.py"
MATCH = "tests/kernels/test_match.py"
BLOCK = "tests/kernels/test_block.py"
RACE = "tests/kernels/test_race.py"
LOGSPACE = "tests/kernels/test_logspace.py"
LOSSY = "tests/kernels/test_lossy.py"
COINS = "tests/kernels/test_coins.py"
RAGGED = "tests/test_ragged.py"
RUNNER = "tests/test_runner.py"


@dataclass(frozen=True)
class Fault:
    """One change of one place.

    Attributes:
        name: a few words joined by hyphens; the name ends in ``-kernel`` where the Triton kernel is
            changed, else the twin or shared code is.
        file: the changed file, from the root of the repository.
        right: the piece as it stands, found exactly once in the file.
        wrong: what stands there instead.
        symptom: what a user of the broken rule would see.
        caught_by: the test that must fail, as ``file::function``.
        backend: the version that the test must fail for; None where it has no such parameter.
    """

    name: str
    file: str
    right: str
    wrong: str
    symptom: str
    caught_by: str
    backend: str | None = "torch"


def plant(fault: Fault, source: str) -> str:
    """Return ``source`` with the fault in it.

    Raises:
        ValueError: the right piece does not stand in the source exactly once.

    Example:
        >>> fault = Fault("up-is-down", "a.py", "up", "down", "falls", "tests/a.py::test_a")
        >>> plant(fault, "which way is up?")
        'which way is down?'
    """
    count = source.count(fault.right)
    if count != 1:
        raise ValueError(
            f"{fault.name}: its place stands {count} times in {fault.file}, expected 1"
        )
    return source.replace(fault.right, fault.wrong)


def _twin(name: str, file: str, right: str, wrong: str, symptom: str, caught_by: str) -> Fault:
    return Fault(name, f"kernels/{file}", right, wrong, symptom, caught_by, "torch")


def _kernel(name: str, file: str, right: str, wrong: str, symptom: str, caught_by: str) -> Fault:
    return Fault(f"{name}-kernel", f"kernels/{file}", right, wrong, symptom, caught_by, "triton")


FAULTS: tuple[Fault, ...] = (
    # --- the acceptance test ----------------------------------------------------------------------
    _twin(
        "wrong-row", "chain.py",
        "        index + request,\n        index,\n",
        "        index,\n        index,\n",
        "a request is tested against the rows of the one before it",
        f"{CHAIN}::test_mixed_requests_in_one_launch",
    ),
    _twin(
        "threshold-on-p", "ratio.py",
        "legal & (coins * q < p)", "legal & (coins < p)",
        "drafts that q proposes rarely are refused too often",
        f"{CHAIN}::test_the_ratio_decides_and_not_the_target_alone",
    ),
    _twin(
        "top-k-membership", "ratio.py",
        "legal & (coins * q < p)",
        "legal & ((target_probs[rows] > p[:, None]).sum(1) < 2)",
        "every draft among the target's two likeliest ids is kept",
        f"{CHAIN}::test_the_ratio_decides_and_not_the_target_alone",
    ),
    _twin(
        "inclusive-test", "ratio.py",
        "legal & (coins * q < p)", "legal & (coins * q <= p)",
        "a coin of 0 accepts an id without probability (atlas B06)",
        f"{CHAIN}::test_a_coin_of_zero_accepts_nothing_without_probability",
    ),
    _kernel(
        "inclusive-test", "ratio.py",
        "if coin * q < p:", "if coin * q <= p:",
        "a coin of 0 accepts an id without probability (atlas B06)",
        f"{CHAIN}::test_a_coin_of_zero_accepts_nothing_without_probability",
    ),
    _kernel(
        "ratio-in-float32", "ratio.py",
        "if coin * q < p:", "if (coin * q).to(tl.float32) < p.to(tl.float32):",
        "coins near the border fall on the wrong side of it",
        f"{CHAIN}::test_the_comparison_is_made_in_float64",
    ),
    _twin(
        "accepts-counted-behind-a-refusal", "contract.py",
        '    return counts.scatter_reduce(0, request, first_refusal, "amin")',
        "    return torch.zeros_like(counts).scatter_add(0, request, accepted.long())",
        "every accepted flag counts, also behind the first refusal (atlas B01, B140)",
        f"{CHAIN}::test_only_the_leading_run_of_accepted_drafts_counts",
    ),
    _kernel(
        "tail-not-discarded", "ratio.py",
        "            accepted += 1\n        else:\n            refused = 1\n",
        "        else:\n            refused = 1\n        accepted += 1\n",
        "the refused draft is counted, and the draw comes from the row behind it (atlas B04)",
        f"{CHAIN}::test_nothing_behind_a_refusal_is_read",
    ),
    # --- drafts of -1 -----------------------------------------------------------------------------
    _twin(
        "placeholder-as-index", "ratio.py",
        "legal = (drafts >= 0) & (drafts < target_probs.shape[1])",
        "legal = drafts < target_probs.shape[1]",
        "-1 reads the last id and is emitted (atlas B17)",
        f"{CHAIN}::test_a_placeholder_beside_a_q_row_is_no_index",
    ),
    _kernel(
        "placeholder-as-index", "ratio.py",
        "legal = (draft >= 0) & (draft < vocab)", "legal = draft < vocab",
        "-1 reads the memory before the row and may be emitted (atlas B17)",
        f"{CHAIN}::test_mixed_requests_in_one_launch",
    ),
    _twin(
        "placeholder-drawn-from-p", "finish.py",
        "torch.where(refused & ~onehot, refused_index, -1)",
        "torch.where(refused & ~onehot & (refused_draft >= 0), refused_index, -1)",
        "a withdrawn sampled draft is replaced from p: (5/16, 11/16, 0) for (1/4, 3/4, 0)",
        f"{CHAIN}::test_a_withdrawn_draft_is_replaced_from_its_own_residual",
    ),
    _kernel(
        "placeholder-drawn-from-p", "finish.py",
        "q_ids = tl.where((refused == 1) & (is_onehot == 0), vocab, 0)",
        "q_ids = tl.where((refused == 1) & (is_onehot == 0) & (draft >= 0), vocab, 0)",
        "a withdrawn sampled draft is replaced from p: (5/16, 11/16, 0) for (1/4, 3/4, 0)",
        f"{CHAIN}::test_a_withdrawn_draft_is_replaced_from_its_own_residual",
    ),
    # --- the final draw ---------------------------------------------------------------------------
    _twin(
        "p-instead-of-residual", "finish.py",
        "torch.where(refused & ~onehot, refused_index, -1)", "torch.full_like(rows, -1)",
        "after a refusal the token is drawn from p (atlas B02)",
        f"{CHAIN}::test_after_a_refusal_only_the_residual_is_drawn_from",
    ),
    _kernel(
        "p-instead-of-residual", "draw.py",
        "tl.where(ids == excluded, 0.0, positive(p * scale - q))",
        "tl.where(ids == excluded, 0.0, p)",
        "after a refusal the token is drawn from p (atlas B02)",
        f"{CHAIN}::test_after_a_refusal_only_the_residual_is_drawn_from",
    ),
    _kernel(
        "residual-by-absolute-value", "draw.py",
        "tl.where(ids == excluded, 0.0, positive(p * scale - q))",
        "tl.where(ids == excluded, 0.0, tl.abs(p - q))",
        "ids that q overrates are drawn after a refusal",
        f"{CHAIN}::test_after_a_refusal_only_the_residual_is_drawn_from",
    ),
    _twin(
        "one-hot-draft-not-masked", "finish.py",
        "torch.where(refused & onehot, refused_draft, -1)", "torch.full_like(rows, -1)",
        "a refused deterministic draft is drawn again",
        f"{CHAIN}::test_a_deterministic_draft_is_tested_as_one_hot",
    ),
    _twin(
        "reused-coin", "chain.py",
        "q_rows, excluded, final_coins, greedy)\n",
        "q_rows, excluded,\n        torch.where(\n            num_accepted < counts,\n"
        "            torch.cat([accept_coins, final_coins])[starts + num_accepted],\n"
        "            final_coins,\n        ),\n        greedy)\n",
        "the coin that refused the draft also draws its replacement (atlas B05)",
        f"{CHAIN}::test_the_final_draw_has_a_coin_of_its_own",
    ),
    _kernel(
        "reused-coin", "chain.py",
        "coin = tl.load(final_coins + request)",
        "coin = tl.load(accept_coins + start + accepted, mask=refused == 1, other=0.5)",
        "the coin that refused the draft also draws its replacement (atlas B05)",
        f"{CHAIN}::test_the_final_draw_has_a_coin_of_its_own",
    ),
    _twin(
        "bonus-row-after-a-refusal", "finish.py",
        "rows = starts + torch.arange(len(starts), device=starts.device) + num_accepted",
        "rows = starts + torch.arange(len(starts), device=starts.device) + counts",
        "after a refusal the token comes from a text that did not happen (atlas B04)",
        f"{CHAIN}::test_nothing_behind_a_refusal_is_read",
    ),
    _kernel(
        "row-behind-the-refusal", "chain.py",
        "p_row = p_rows + row * p_stride", "p_row = p_rows + (row + refused) * p_stride",
        "after a refusal the token comes from the row behind it (atlas B04)",
        f"{CHAIN}::test_a_last_draft_that_is_refused_grows_the_text_by_one",
    ),
    _kernel(
        "unmasked-vocabulary-tail", "draw.py",
        "p = positive(tl.load(p_row + ids, mask=ids < vocab, other=0.0))\n    q =",
        "p = positive(tl.load(p_row + ids))\n    q =",
        "ids behind the vocabulary are drawn",
        f"{CHAIN}::test_a_padded_vocabulary_tail_is_never_drawn",
    ),
    _twin(
        "border-takes-the-id-before", "draw.py",
        "hit = has_mass & (running > goal)", "hit = has_mass & (running >= goal)",
        "a coin on a border draws the id below it (atlas B06)",
        f"{CHAIN}::test_a_final_coin_on_a_border_takes_the_next_id",
    ),
    _kernel(
        "border-takes-the-id-before", "draw.py",
        "(before + tl.cumsum(weights, 0) > goal)", "(before + tl.cumsum(weights, 0) >= goal)",
        "a coin on a border draws the id below it (atlas B06)",
        f"{CHAIN}::test_a_final_coin_on_a_border_takes_the_next_id",
    ),
    _twin(
        "no-fallback-to-p", "draw.py",
        "fall_back = (total == 0) & ((q_rows >= 0) | (excluded >= 0))",
        "fall_back = torch.zeros_like(total, dtype=torch.bool)",
        "a residual that rounds to nothing emits id 0 (atlas B18)",
        f"{CHAIN}::test_a_residual_without_mass_falls_back_to_p",
    ),
    _kernel(
        "no-fallback-to-p", "finish.py",
        "if total == 0.0:", "if total < 0.0:",
        "a residual that rounds to nothing emits id 0 (atlas B18)",
        f"{CHAIN}::test_a_residual_without_mass_falls_back_to_p",
    ),
    _kernel(
        "nan-is-kept", "draw.py",
        "return tl.where(wide > 0.0, wide, 0.0)", "return tl.where(wide < 0.0, 0.0, wide)",
        "one NaN in q spoils the whole residual (atlas B165)",
        f"{CHAIN}::test_nan_in_q_counts_as_zero",
    ),
    # --- the layout -------------------------------------------------------------------------------
    _twin(
        "prefix-sum-off-by-one", "contract.py",
        "starts = torch.nn.functional.pad(ends[:-1], (1, 0)) if len(ends) else ends",
        "starts = ends",
        "every request begins where it ends, and drafts nothing",
        f"{CHAIN}::test_mixed_requests_in_one_launch",
    ),
    _kernel(
        "prefix-sum-off-by-one", "span.py",
        "start = tl.load(cu + request - 1, mask=request > 0, other=0)",
        "start = tl.load(cu + request)",
        "every request begins where it ends, and drafts nothing",
        f"{CHAIN}::test_mixed_requests_in_one_launch",
    ),
    _kernel(
        "reads-before-the-prefix-sum", "span.py",
        "start = tl.load(cu + request - 1, mask=request > 0, other=0)",
        "start = tl.load(cu + request - 1)",
        "the first request begins wherever the memory before the buffer says (atlas B59)",
        f"{CHAIN}::test_nothing_outside_the_buffers_is_read_or_written",
    ),
    _kernel(
        "32-bit-offsets", "chain.py",
        "p_rows = target_probs + (start + request).to(tl.int64) * p_stride",
        "p_rows = target_probs + ((start + request).to(tl.int64) * p_stride).to(tl.int32)",
        "rows behind two billion entries are read from elsewhere",
        f"{CHAIN}::test_row_offsets_beyond_32_bits",
    ),
    Fault(
        "draft-ids-not-shifted", "specedu/ragged.py",
        "input_ids[logits_indices[target_logits_indices + 1]]",
        "input_ids[logits_indices[target_logits_indices]]",
        "each row tests the token it was fed, not the one it predicts",
        f"{RAGGED}::test_every_field_agrees_with_the_obvious_loop",
        None,
    ),
    # --- greedy -----------------------------------------------------------------------------------
    _kernel(
        "ties-take-the-last-tile", "draw.py",
        "if highest > best:", "if highest >= best:",
        "among equal maxima the highest tile wins (atlas B19)",
        f"{CHAIN}::test_the_argmax_is_the_lowest_id_across_tiles",
    ),
    _twin(
        "placeholder-meets-placeholder", "greedy.py",
        "accepted = (drafts >= 0) & (drafts == wanted)", "accepted = drafts == wanted",
        "a -1 draft is accepted where the argmax is -1 too",
        f"{GREEDY}::test_an_id_that_is_none_is_never_accepted",
    ),
    _kernel(
        "every-draft-is-the-argmax", "greedy.py",
        "if (draft >= 0) & (draft == token):", "if draft >= 0:",
        "accepted drafts are counted past the first mismatch (atlas B140)",
        f"{GREEDY}::test_only_the_leading_run_counts",
    ),
    # --- sample-and-match -------------------------------------------------------------------------
    _twin(
        "one-coin-for-every-row", "match.py",
        "none, none, row_coins[drawn])", "none, none, row_coins[(rows - place)[~greedy[request]]])",
        "a request's tokens hang together: all of them high, or all low",
        f"{MATCH}::test_every_row_has_a_coin_of_its_own",
    ),
    _kernel(
        "one-coin-for-every-row", "match.py",
        "tl.load(row_coins + first_row + accepted)", "tl.load(row_coins + first_row)",
        "a request's tokens hang together: all of them high, or all low",
        f"{MATCH}::test_every_row_has_a_coin_of_its_own",
    ),
    _kernel(
        "row-coins-in-the-order-of-drafts", "match.py",
        "tl.load(row_coins + first_row + accepted)", "tl.load(row_coins + start + accepted)",
        "every request but the first draws with its neighbour's coins",
        f"{MATCH}::test_mixed_requests_in_one_launch",
    ),
    Fault(
        "row-coins-keyed-by-the-verify", "specedu/runner.py",
        "    step, position = request.num_output_tokens + i, request.num_tokens + i\n",
        "    step, position = request.step, request.num_tokens + i\n",
        "the law stands, but the text is no longer that of plain decoding",
        f"{RUNNER}::test_match_asks_for_the_coins_of_plain_decoding",
        None,
    ),
    # --- block verification -----------------------------------------------------------------------
    _twin(
        "block-row-of-the-draft-itself", "block.py",
        "threshold = behind.where(last, h.roll(-1))", "threshold = behind.where(last, h)",
        "a run is weighed by the residual of its own last row, not of the row behind it",
        f"{BLOCK}::test_published_runs",
    ),
    _twin(
        "block-scale-forgotten", "block.py",
        "scales[request[refused]] = before[refused]", "scales[request[refused]] = 1.0",
        "behind a run that was lucky to stand, too much is drawn from p",
        f"{BLOCK}::test_the_residual_behind_an_accepted_run_is_scaled",
    ),
    _kernel(
        "block-scale-forgotten", "block.py",
        "scale = tl.where(refused == 1, kept, one)", "scale = one",
        "behind a run that was lucky to stand, too much is drawn from p",
        f"{BLOCK}::test_the_residual_behind_an_accepted_run_is_scaled",
    ),
    _kernel(
        "block-product-of-coins", "block.py",
        "if tl.load(accept_coins + start + i - 1) < h:",
        "if tl.load(accept_coins + start) * tl.load(accept_coins + start + i - 1) < h:",
        "acceptance looks better than ever, and the text is biased (as in vllm-ascend at 182b75ea)",
        f"{BLOCK}::test_published_runs",
    ),
    # --- the race, in probabilities and in logarithms ---------------------------------------------
    _twin(
        "race-noise-multiplied", "race.py",
        "scores = weights / noise\n", "scores = weights * noise\n",
        "the slowest wins",
        f"{RACE}::test_the_bonus_row_races_with_the_same_noise",
    ),
    _kernel(
        "race-noise-multiplied", "race.py",
        "scores = tl.where(e > 0.0, tl.div_rn(weights, e), 0.0)", "scores = weights * e",
        "the slowest wins",
        f"{RACE}::test_the_bonus_row_races_with_the_same_noise",
    ),
    _twin(
        "temperature-not-applied-to-q", "logspace.py",
        "Normalised.of(q_rows[i], temperature)", "Normalised.of(q_rows[i], torch.ones(()))",
        "drafts are tested with another law than the one they were drawn from (atlas B12)",
        f"{LOGSPACE}::test_it_emits_what_the_race_does_on_the_softmax",
    ),
    _kernel(
        "noise-of-another-purpose", "logspace.py",
        "NOISE=int(Purpose.NOISE),", "NOISE=int(Purpose.FINAL),",
        "the race inside the kernel is not the one its keys give",
        f"{LOGSPACE}::test_coins_made_inside_are_those_of_their_keys",
    ),
    # --- rules that give the law up ---------------------------------------------------------------
    _twin(
        "threshold-on-the-wrong-side", "lossy.py",
        "accept_coins[index] * q * acc < p", "accept_coins[index] * q < p * acc",
        "a lower threshold accepts less",
        f"{LOSSY}::test_acceptance_is_raised_by_the_inverse",
    ),
    _kernel(
        "synthetic-accepts-placeholders", "lossy.py",
        "kept = legal & (coin < tl.load(settings + accepted))",
        "kept = coin < tl.load(settings + accepted)",
        "a draft that is none is accepted, and emitted as -1",
        f"{LOSSY}::test_a_placeholder_is_never_accepted",
    ),
    # --- coins ------------------------------------------------------------------------------------
    Fault(
        "coin-rounds-to-one", "kernels/coins.py",
        "return ((a >> 5) * 2**26 + (b >> 6)).double() * 2.0**-53",
        "return ((a >> 5) * 2**26 + (b >> 6)).float().double() * 2.0**-53",
        "the largest coins are 1.0 and walk past the last id (atlas B161)",
        f"{COINS}::test_no_coin_is_one",
        None,
    ),
    _twin(
        "seed-of-32-bits", "coins.py",
        "key0, key1 = seeds & _WORD, (seeds >> 32) & _WORD",
        "key0, key1 = seeds & _WORD, (seeds >> 32) & 0",
        "seeds that differ in the high word give the same coins (atlas B32)",
        f"{COINS}::test_every_coordinate_of_the_key_matters",
    ),
    _kernel(
        "purposes-share-a-counter", "coins.py",
        "k, _, _, _ = tl.philox(seed, zero + step, zero + position, zero + purpose, ids)",
        "k, _, _, _ = tl.philox(seed, zero + step, zero + position, zero, ids)",
        "draft and recovery noise are the same vector (atlas B31)",
        f"{COINS}::test_draft_and_final_noise_share_no_value",
    ),
    _kernel(
        "noise-may-be-zero", "coins.py",
        "half_open = 1.0 - (k.to(tl.float64) + 0.5) * 2.3283064365386963e-10",
        "half_open = 1.0 - k.to(tl.float64) * 2.3283064365386963e-10",
        "a word of 0 gives noise 0, and its id wins every race (atlas B07)",
        f"{COINS}::test_exponential_is_the_plain_python_noise",
    ),
)  # fmt: skip
