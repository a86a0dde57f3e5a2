"""A random load on an engine of toys, and what each of its requests must come to.

Requests arrive, end by every kind of stop, are cancelled, and lose their cache for want of blocks.
Every one is also run alone, in an engine of its own. Its tokens must be the same; after a cancel
they must be a beginning of what it says alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from specedu.config import SamplingParams
from specedu.draft.base import Draft, DraftTask, StatelessProposer
from specedu.llm import LLM
from specedu.models.toy import ContextModel, ProbingModel, hashed_law, mixed_law
from specedu.sampling.coins import CoinSource

VOCAB, CONTEXT = 6, 48


def make_models(kind: str) -> tuple[ProbingModel | ContextModel, ProbingModel]:
    """Return a target and a draft that agrees with it half of the time."""
    settings = {"max_model_len": CONTEXT, "eos_token_id": VOCAB - 1}
    if kind == "probing":
        target = ProbingModel(lambda text: hashed_law(text, VOCAB), VOCAB, **settings)
    else:
        target = ContextModel(VOCAB, **settings)
    return target, ProbingModel(mixed_law(target.law, VOCAB), VOCAB, max_model_len=CONTEXT)


class Guesses(StatelessProposer):
    """Deterministic guesses from the text so far: some right, most wrong, a few of them -1."""

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        return [
            Draft([(11 * sum(task.token_ids) + 5 * i) % (VOCAB + 1) - 1 for i in range(task.limit)])
            for task in tasks
        ]


def make_llm(
    kind: str, method: str, kappa: int = 3, rule: str = "standard", **options: object
) -> LLM:
    """Return an engine that drafts by the method; ``plain`` does not."""
    target, draft = make_models(kind)
    config = {
        "plain": None,
        "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
        "draft_model": {"method": "draft_model", "model": draft},
        "probabilistic": {
            "method": "draft_model",
            "model": draft,
            "draft_sample_method": "probabilistic",
        },
        "self": {"method": "draft_model", "model": "self"},
        "custom": {"method": "custom", "proposer": Guesses()},
    }[method]
    if config is not None:
        config |= {"num_speculative_tokens": kappa, "rejection_sample_method": rule}
    return LLM(target, config, **options)


def random_prompt(dice: random.Random) -> list[int]:
    """Return a short prompt, often one that repeats itself."""
    prompt = [dice.randrange(VOCAB - 1) for _ in range(dice.randint(1, 12))]
    return (prompt * 3)[: dice.randint(1, CONTEXT - 4)] if dice.random() < 0.5 else prompt


def random_params(dice: random.Random) -> SamplingParams:
    """Return settings of every kind, each now and then."""
    max_tokens = dice.randint(1, 24)
    return SamplingParams(
        temperature=dice.choice([0.0, 0.7, 1.0, 1.5]),
        top_k=dice.choice([0, 0, 3]),
        top_p=dice.choice([1.0, 1.0, 0.8]),
        min_p=dice.choice([0.0, 0.0, 0.1]),
        max_tokens=max_tokens,
        min_tokens=dice.choice([0, 0, dice.randint(0, max_tokens)]),
        stop=dice.choice([(), (), "ab", ("cd", "aaa")]),
        stop_token_ids=dice.choice([(), (), (2,)]),
        ignore_eos=dice.random() < 0.2,
        seed=dice.randint(-(2**63), 2**63 - 1),
    )


@dataclass
class Load:
    """What was asked of the loaded engine, and what came of it."""

    prompts: dict[str, list[int]] = field(default_factory=dict)
    params: dict[str, SamplingParams] = field(default_factory=dict)
    ended: dict[str, object] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)


def run_load(llm: LLM, steps: int, seed: int, arrivals: float = 0.5) -> Load:
    """Step an engine ``steps`` times under random arrivals and cancels, then let it run dry."""
    dice, load, engine = random.Random(seed), Load(), llm.engine
    alive = {}
    while engine.num_steps < steps or engine.has_unfinished():
        if engine.num_steps < steps and (dice.random() < arrivals or not alive):
            name = str(len(load.prompts))
            load.prompts[name], load.params[name] = random_prompt(dice), random_params(dice)
            alive[name] = engine.add_request(
                name, load.prompts[name], load.params[name], seed=load.params[name].seed
            )
        if alive and dice.random() < 0.01:
            name = dice.choice(list(alive))
            load.cancelled.add(name)
            engine.cancel(name)
        engine.step()
        for name in [name for name, request in alive.items() if request.finished]:
            load.ended[name] = alive.pop(name)
    return load


def differences(load: Load, alone: LLM, whatever_was_cut: bool = False) -> list[str]:
    """Return a line for every request that came to something else than it does alone.

    A sampled request whose draft was shortened may differ, unless it must be the same whatever
    was cut.
    """
    lines = []
    for name, request in load.ended.items():
        params = load.params[name]
        [output] = alone.generate([load.prompts[name]], params)
        wanted = output.outputs[0]
        ours = (request.output_token_ids, request.text, request.finish_reason, request.stop_reason)
        theirs = (wanted.token_ids, wanted.text, wanted.finish_reason, wanted.stop_reason)
        if name in load.cancelled and request.finish_reason == "abort":
            same = wanted.token_ids[: len(ours[0])] == ours[0]
        else:
            same = ours == theirs
        excused = request.draft_length_varied and not params.greedy and not whatever_was_cut
        if not same and not excused:
            lines.append(f"{name}: {load.prompts[name]} {params}: {ours}, alone {theirs}")
    return lines
