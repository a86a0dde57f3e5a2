"""The exact law through ``LLM``: deviation 0 as a fraction, coins handed in by the law."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from engine_cases import atlas

from specedu.config import SamplingParams
from specedu.draft.base import Draft
from specedu.kernels import verify_threshold
from specedu.law import EngineAsker, looked_up
from specedu.llm import LLM
from specedu.models.toy import ProbingModel
from specedu.sampling.coins import CoinKey
from specedu.single import generate_single
from specedu.theory.cells import Path, Point, block_cuts, match_cuts
from specedu.theory.exact import JointLaw, joint_laws, laws_of, product_law
from specedu.theory.gtest import g_test
from specedu.theory.reference import Text, sample, spec_step
from specedu.theory.settings import PAIRS, Setting, fixed, law_of, turning


def assert_exact(laws: list[JointLaw]) -> None:
    for law in laws:
        assert law.deviation == 0, (law.setting, law.law, law.target)
        assert law.bound == 0, law.setting


def at_argmax(setting: Setting) -> Setting:
    """The draft takes the argmax of its law: q is one-hot there, and told to be."""

    def draft(text: Text) -> tuple[Fraction, ...]:
        q = setting.draft(text)
        return tuple(Fraction(int(x == q.index(max(q)))) for x in range(setting.vocab))

    return replace(setting, draft=draft, onehot=True)


# Drafts handed in: everything that the contract allows, side by side.
MIXED = [
    turning(*PAIRS[3][0], 2),
    turning(*PAIRS[3][1], 0),
    turning(*PAIRS[3][2], 1, onehot=True),
    turning(*PAIRS[3][3], 2, greedy=True),
    fixed(*PAIRS[3][1], 1, withdraw=lambda text, x: x == 2),
]


@pytest.mark.parametrize("rule_backend", ["torch", "triton"])
def test_handed_in_drafts_in_mixed_batches(rule_backend: str) -> None:
    settings = MIXED if rule_backend == "torch" else [turning(*PAIRS[2][1], 1)]
    assert_exact(laws_of(EngineAsker(settings, backend=rule_backend), settings))


@pytest.mark.parametrize("kappa", [1, 2, 3])
def test_handed_in_drafts_of_every_length(kappa: int) -> None:
    settings = [turning(p, q, kappa) for p, q in PAIRS[2]]
    assert_exact(laws_of(EngineAsker(settings), settings))


@pytest.mark.parametrize("kappa", [1, 2])
def test_drafts_sampled_from_a_draft_model(kappa: int) -> None:
    settings = [turning(*PAIRS[3][i], kappa) for i in (0, 1, 4)]
    asker = EngineAsker(settings, method="draft_model", draft_sample_method="probabilistic")
    assert_exact(laws_of(asker, settings))


@pytest.mark.parametrize("kappa", [1, 2])
def test_drafts_at_the_argmax_of_a_draft_model(kappa: int) -> None:
    settings = [at_argmax(turning(*PAIRS[3][i], kappa)) for i in (0, 1, 4)]
    asker = EngineAsker(settings, method="draft_model", draft_sample_method="greedy")
    assert_exact(laws_of(asker, settings))


def test_greedy_requests_beside_sampled_ones_on_a_draft_model() -> None:
    settings = [at_argmax(turning(*PAIRS[3][0], 2)),
                replace(at_argmax(turning(*PAIRS[3][3], 2)), greedy=True)]  # fmt: skip
    asker = EngineAsker(settings, method="draft_model", draft_sample_method="greedy")
    assert_exact(laws_of(asker, settings))


def test_drafts_looked_up_in_the_prompt() -> None:
    settings = [
        looked_up(turning(*PAIRS[3][0], 2), [1, 2]),
        looked_up(turning(*PAIRS[3][4], 2), [0, 0]),
        looked_up(turning(*PAIRS[3][1], 2, greedy=True), [1, 0]),
    ]
    assert_exact(laws_of(EngineAsker(settings, method="ngram"), settings))


def test_a_tight_engine_has_the_same_law() -> None:
    """Blocks of two tokens, few seats, a budget that cuts prompts into chunks, preemptions."""
    settings = [turning(*PAIRS[2][i], kappa) for i in range(2) for kappa in (0, 1, 2)]
    asker = EngineAsker(
        settings, block_size=2, num_blocks=128, max_num_seqs=4, max_num_batched_tokens=7
    )
    assert_exact(laws_of(asker, settings))


# --- sample-and-match -----------------------------------------------------------------------------


def match_laws(settings: list[Setting], **options: object) -> list[JointLaw]:
    asker = EngineAsker(settings, rejection_sample_method="match", **options)
    return laws_of(asker, settings, cuts=match_cuts)


@pytest.mark.parametrize("rule_backend", ["torch", "triton"])
def test_match_with_handed_in_drafts_in_mixed_batches(rule_backend: str) -> None:
    settings = MIXED if rule_backend == "torch" else [turning(*PAIRS[2][1], 1)]
    assert_exact(match_laws(settings, backend=rule_backend))


@pytest.mark.parametrize("kappa", [1, 2])
def test_match_with_drafts_sampled_from_a_draft_model(kappa: int) -> None:
    settings = [turning(*PAIRS[3][i], kappa) for i in (0, 1, 4)]
    assert_exact(match_laws(settings, method="draft_model"))


def test_match_with_drafts_at_the_argmax_of_a_draft_model() -> None:
    settings = [at_argmax(turning(*PAIRS[3][0], 2)),
                replace(at_argmax(turning(*PAIRS[3][3], 2)), greedy=True)]  # fmt: skip
    assert_exact(match_laws(settings, method="draft_model", draft_sample_method="greedy"))


def test_match_with_drafts_looked_up_in_the_prompt() -> None:
    settings = [
        looked_up(turning(*PAIRS[3][0], 2), [1, 2]),
        looked_up(turning(*PAIRS[3][4], 2), [0, 0]),
        looked_up(turning(*PAIRS[3][1], 2, greedy=True), [1, 0]),
    ]
    assert_exact(match_laws(settings, method="ngram"))


def test_match_in_a_tight_engine_has_the_same_law() -> None:
    settings = [turning(*PAIRS[2][i], kappa) for i in range(2) for kappa in (0, 1, 2)]
    tight = {"block_size": 2, "num_blocks": 128, "max_num_seqs": 4, "max_num_batched_tokens": 7}
    assert_exact(match_laws(settings, **tight))


# --- the alarm must sound -------------------------------------------------------------------------


def test_a_proposer_that_drops_unlikely_drafts_is_biased() -> None:
    """The rule of the Proposer protocol, broken: (11/50, 9/20, 33/100) instead of the target."""
    p, q = law_of("1/5 1/2 3/10"), law_of("3/5 1/10 3/10")
    setting = fixed(p, q, 1, withdraw=lambda text, x: x == 1)
    asker = EngineAsker([setting])
    propose = asker.llm.engine.runner.proposer.propose

    def drop(tasks, coins):
        return [
            draft if -1 not in draft.token_ids else Draft([-1], draft.probs * 0)
            for draft in propose(tasks, coins)
        ]

    asker.llm.engine.runner.proposer.propose = drop
    law = laws_of(asker, [setting])[0]
    wanted = law_of("11/50 9/20 33/100")
    assert max(abs(a - b) for a, b in zip(law.first(), wanted, strict=True)) < Fraction(1, 10**6)


def test_a_missed_rollback_shows_in_the_law() -> None:
    settings = [turning(*PAIRS[2][0], 2)]
    asker = EngineAsker(settings, audit=False, poison=False)
    scheduler = asker.llm.engine.scheduler
    update = scheduler.update

    def forgetful(plan, num_accepted, deliveries):
        update(plan, [part.num_drafts for part in plan.sampled], deliveries)

    scheduler.update = forgetful
    # The next step would read on behind a rejected draft; the law of one step cannot see it, the
    # audit does.
    assert_exact(laws_of(asker, settings))
    strict = EngineAsker(settings, audit=True, poison=False)
    strict_update = strict.llm.engine.scheduler.update
    strict.llm.engine.scheduler.update = lambda plan, accepted, deliveries: strict_update(
        plan, [part.num_drafts for part in plan.sampled], deliveries
    )
    with pytest.raises(AssertionError):
        laws_of(strict, settings)


# --- the ladder: a step, a loop, the engine -------------------------------------------------------


class StepAsker:
    """The lowest rung: ``spec_step`` in fractions."""

    def ask(self, requests: list[tuple[Path, Point]]) -> list[Text]:
        runs = []
        for path, point in requests:
            drawn, setting = [], path.setting
            for i, x in enumerate(path.ids):  # the middle of the drafted id's bucket
                q = setting.draft(tuple(path.ids[:i]))
                drawn.append(sum(q[:x], Fraction(0)) + q[x] / 2)
                assert sample(q, drawn[-1]) == x
            coins = iter([*drawn, *map(Fraction, point)])
            draw = functools.partial(next, coins)
            run = spec_step((), setting.target, setting.draft, setting.kappa, draw)
            runs.append(tuple(run))
        return runs


class LoopAsker:
    """The middle rung: one request, a real cache, rollback."""

    class Done(Exception):
        """The text behind the step that is asked."""

    def ask(self, requests: list[tuple[Path, Point]]) -> list[Text]:
        return [self._ask(path, point) for path, point in requests]

    def _ask(self, path: Path, point: Point) -> Text:
        setting = path.setting
        first = tuple(Fraction(int(t == 0)) for t in range(setting.vocab))
        model = ProbingModel(
            lambda text: first if len(text) == 1 else setting.target(text[2:]), setting.vocab,
            max_model_len=16,
        )  # fmt: skip

        class Coins:
            def coins(self, keys: list[CoinKey], purpose: int) -> torch.Tensor:
                final = purpose == 2
                values = [
                    0.5 if key.step == 0 else point[-1] if final else point[key.position - 2]
                    for key in keys
                ]
                return torch.tensor(values, dtype=torch.float64)

        def propose(text: list[int], step: int) -> Draft:
            if step == 2:
                raise self.Done(tuple(text[2:]))
            rows = [[float(mass) for mass in q] for q in path.qs]
            return Draft(list(path.ids), torch.tensor(rows) if rows else None)

        params = SamplingParams(max_tokens=setting.kappa + 3)
        try:
            generate_single(model, [0], params, propose, coins=Coins(), block_size=2)
        except self.Done as done:
            return done.args[0]
        raise AssertionError("the loop ended before a third step")


@pytest.mark.parametrize("rung", [StepAsker, LoopAsker, EngineAsker])
def test_every_rung_of_the_ladder_has_the_target_law(rung: type) -> None:
    settings = [turning(*PAIRS[2][1], 2), turning(*PAIRS[2][0], 1)]
    asker = rung(settings) if rung is EngineAsker else rung()
    assert_exact(laws_of(asker, settings))


# --- the other rules ------------------------------------------------------------------------------


def block_laws(settings: list[Setting], **options: object) -> list[JointLaw]:
    asker = EngineAsker(settings, rejection_sample_method="block", **options)
    return laws_of(asker, settings, cuts=block_cuts)


@pytest.mark.parametrize("rule_backend", ["torch", "triton"])
def test_block_with_handed_in_drafts_in_mixed_batches(rule_backend: str) -> None:
    settings = MIXED if rule_backend == "torch" else [turning(*PAIRS[2][1], 2)]
    assert_exact(block_laws(settings, backend=rule_backend))


@pytest.mark.parametrize("kappa", [1, 2, 3])
def test_block_with_drafts_of_every_length(kappa: int) -> None:
    assert_exact(block_laws([turning(p, q, kappa) for p, q in PAIRS[2]]))


def test_block_with_drafts_sampled_from_a_draft_model() -> None:
    assert_exact(block_laws([turning(*PAIRS[3][0], 2)], method="draft_model"))


def test_block_accepts_more_through_the_engine_too() -> None:
    settings = [turning(*PAIRS[2][0], 2)]
    (token_rule,) = laws_of(EngineAsker(settings), settings)
    (block_rule,) = block_laws(settings)
    assert block_rule.emitted > token_rule.emitted


@pytest.mark.filterwarnings("ignore:accept_threshold_single")
def test_a_threshold_is_as_biased_through_the_engine_as_alone() -> None:
    settings = [turning(*PAIRS[3][0], 1)]
    acc = {"accept_threshold_acc": 0.5}
    asker = EngineAsker(settings, speculative=acc)
    (through,) = laws_of(asker, settings)
    (alone,) = joint_laws(functools.partial(verify_threshold, **acc), settings)
    assert through.law == alone.law
    assert through.total_variation > 0


def test_synthetic_rates_are_met_through_the_engine() -> None:
    settings = [turning(*PAIRS[3][0], 2)]
    rates = {"synthetic_acceptance_rates": [0.75, 0.375]}
    asker = EngineAsker(settings, rejection_sample_method="synthetic", speculative=rates)
    (law,) = laws_of(asker, settings)
    assert abs(law.emitted - (1 + Fraction(3, 4) + Fraction(3, 8))) <= 3 * law.bound


class SideBySide:
    """Puts each question to the chain rule, the race and the log-space rule, in three engines.

    The answer is the chain rule's, whose law can be cut. The other two must accept the same drafts
    at every point, and emit the same run as each other: the race has a last token of its own.
    """

    def __init__(self, settings: list[Setting], **options: object) -> None:
        self.askers = [
            EngineAsker(settings, speculative={"sampler": sampler}, **options)
            for sampler in ("chain", "race", "logspace")
        ]

    def ask(self, requests: list[tuple[Path, Point]]) -> list[Text]:
        chain, race, logspace = (asker.ask(requests) for asker in self.askers)
        assert logspace == race
        for (path, _), one, other in zip(requests, chain, logspace, strict=True):
            assert len(one) == len(other)
            assert one[:-1] == other[:-1]
            assert one == other or not path.setting.greedy
        return chain


@pytest.mark.parametrize("rule_backend", ["torch", "triton"])
def test_logspace_accepts_what_the_chain_rule_does_and_ends_as_the_race(rule_backend: str) -> None:
    settings = [turning(*PAIRS[2][1], 1)]
    if rule_backend == "torch":
        settings = [turning(*PAIRS[3][0], 1), *MIXED[1:]]
    assert_exact(laws_of(SideBySide(settings, backend=rule_backend), settings))


def test_logspace_with_drafts_sampled_from_a_draft_model() -> None:
    settings = [turning(*PAIRS[2][0], 2)]
    assert_exact(laws_of(SideBySide(settings, method="draft_model"), settings))


def test_logspace_with_drafts_looked_up_in_the_prompt() -> None:
    settings = [
        looked_up(turning(*PAIRS[3][0], 2), [1, 2]),
        looked_up(turning(*PAIRS[3][1], 2, greedy=True), [1, 0]),
    ]
    assert_exact(laws_of(SideBySide(settings, method="ngram"), settings))


@pytest.mark.parametrize("sampler", ["race", "logspace"])
def test_a_race_through_the_engine_has_the_chain_rules_law(sampler: str) -> None:
    """Texts of two tokens of 8 000 seeds, against the target's law; false alarm 1e-9."""
    setting = turning(*PAIRS[3][0], 1)
    law = product_law(setting, 2)
    model = ProbingModel(lambda text: setting.target(text[1:]), 3)
    draft = ProbingModel(lambda text: setting.draft(text[1:]), 3)
    llm = LLM(
        model,
        {"method": "draft_model", "model": draft, "num_speculative_tokens": 1,
         "draft_sample_method": "probabilistic", "sampler": sampler},
        num_blocks=1024,
    )  # fmt: skip
    n = 8_000
    params = [SamplingParams(max_tokens=2, seed=seed) for seed in range(n)]
    outputs = llm.generate([[0]] * n, params)
    counts = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    assert g_test(counts, law).p_value > 1e-9
    assert llm.metrics.num_drafts > 0


@atlas("B30")
@pytest.mark.parametrize("sampler", ["race", "logspace"])
def test_requests_without_a_seed_race_as_those_with_one(sampler: str, atlas_row: str) -> None:
    """Two thousand first tokens each, at nine to one; false alarm below 1e-8 (six sigma)."""
    laws = {3: law_of("1/10 9/10 0"), 4: law_of("9/10 1/10 0")}
    model = ProbingModel(lambda text: laws[text[0]] + (Fraction(0),) * 2, 5)
    llm = LLM(
        model, {"method": "ngram", "num_speculative_tokens": 1, "sampler": sampler}, num_blocks=1024
    )
    n = 2_000
    params = [SamplingParams(max_tokens=1, seed=i if i % 2 else None) for i in range(2 * n)]
    outputs = llm.generate([[3 + i % 2] for i in range(2 * n)], params)
    first = [output.outputs[0].token_ids[0] for output in outputs]
    assert abs(sum(first[0::2]) / n - 0.9) < 0.04  # id 1, behind prompt 3, unseeded
    assert abs(sum(first[1::2]) / n - 0.1) < 0.04
