"""One request, no scheduler: speculative decoding with a real cache and rollback, in one loop.

The middle rung of a ladder. Below it stands ``theory.reference.spec_step``, one step without a
cache; above it the engine. What grew into what:

===============================  ================================================================
here                             in the engine
===============================  ================================================================
``table``, ``computed``          ``cache.block_table``, ``request.Request.num_computed_tokens``
1. draft                         ``draft.*``, kept in ``runner.DraftStore``, for many at a time
2. one target pass               ``scheduler.Scheduler.schedule``, ``runner.Runner._fill``
3. verify                        ``sampling.transforms`` and ``runner.Runner._verify``
4. commit and roll back          ``outputs.deliver`` and ``scheduler.Scheduler.update``
===============================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .cache.block_pool import BlockPool
from .cache.block_table import BlockTable
from .config import SamplingParams
from .draft.base import Draft
from .kernels import Purpose, verify_chain
from .models.base import ForwardBatch, Model
from .outputs import end_ids
from .ragged import RaggedBatch
from .sampling.coins import CoinKey, CoinSource, PhiloxCoins
from .sampling.transforms import probabilities


def generate_single(
    model: Model,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    propose: Callable[[list[int], int], Draft],
    *,
    seed: int = 0,
    coins: CoinSource | None = None,
    block_size: int = 16,
) -> list[int]:
    """Return the output of one request: ``params.max_tokens`` ids, fewer at the end of the text.

    Args:
        model: the target.
        prompt_token_ids: at least one id.
        params: temperature, top-k, top-p, min-p, max_tokens and ignore_eos are used.
        propose: ``propose(text, step)`` gives the drafts behind the committed text; the step number
            is what a sampled draft's coins are keyed by.
        seed: the key of the coins.
        coins: where they come from; Philox unless given.
        block_size: of the cache.

    Example:
        >>> from specedu.models.toy import ContextModel
        >>> repeat = lambda text, step: Draft([text[-1]])
        >>> len(generate_single(ContextModel(4), [0, 1], SamplingParams(max_tokens=5), repeat))
        5
    """
    coins = coins or PhiloxCoins()
    num_blocks = -(-model.max_model_len // block_size)
    cache = model.make_cache(num_blocks, block_size)
    table = BlockTable(BlockPool(num_blocks), block_size)
    text, computed, step = list(prompt_token_ids), 0, 0
    limit = min(len(text) + params.max_tokens, model.max_model_len)

    ends = end_ids(model.eos_token_id)
    while len(text) < limit:
        # 1. Draft. The first step has no drafts: it takes in the prompt.
        room = model.max_model_len - len(text) - 1
        draft = propose(text, step) if step and room > 0 else Draft([])
        ids = draft.token_ids[:room]

        # 2. One target pass over everything that the cache lacks, drafts included.
        fed = text[computed:] + ids
        table.reserve(computed + len(fed))
        ragged = RaggedBatch.from_counts([computed], [len(fed)])
        batch = ForwardBatch(
            input_ids=torch.tensor(fed),
            positions=torch.arange(computed, computed + len(fed)),
            slot_mapping=torch.tensor(table.slots(computed, computed + len(fed))),
            block_tables=[table.blocks],
            ragged=ragged,
            logits_indices=torch.arange(len(fed) - len(ids) - 1, len(fed)),
        )
        p = probabilities(model.forward(batch, cache), [params] * (len(ids) + 1))

        # 3. Verify. Each coin is keyed by this step and by the place of its token.
        places = [CoinKey("single", seed, step, len(text) + i) for i in range(max(len(ids), 1))]
        result = verify_chain(
            p,
            None if draft.probs is None else draft.probs[: len(ids)],
            torch.tensor(ids, dtype=torch.int32),
            torch.tensor([len(ids)], dtype=torch.int32),
            coins.coins(places[: len(ids)], Purpose.ACCEPT),
            coins.coins(places[:1], Purpose.FINAL),
            max_spec_len=len(ids),
            greedy=torch.tensor([params.greedy]),
        )

        # 4. Commit what was emitted; roll back by length: the cache holds all but the last token,
        #    and the slots of rejected drafts behind it will be overwritten, never read.
        accepted = int(result.num_accepted[0])
        for token in result.token_ids[0, : accepted + 1].tolist():
            text.append(token)
            if len(text) == limit or (token in ends and not params.ignore_eos):
                return text[len(prompt_token_ids) :]
        computed, step = len(text) - 1, step + 1
    return text[len(prompt_token_ids) :]
