"""The exact law through the engine: whole requests are asked, not rows.

``theory.exact`` computes the law of whatever answers (drafts, coins) with an emitted run. Here a
whole :class:`~specedu.llm.LLM` answers: each question becomes a request with a prompt, whose first
verify with drafts is the one that is asked. The laws come out of toy models that read their text
back from the paged cache, and every coin is handed in. So the scheduler, the cache, the draft
store, the transforms and the rule are all in the law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from .config import SamplingParams
from .draft.base import Draft, DraftTask, StatelessProposer
from .kernels import Purpose, exponential
from .llm import LLM
from .models.toy import ProbingModel
from .sampling.coins import CoinKey, CoinSource, key_columns
from .theory.cells import Path, Point
from .theory.reference import Law, Text
from .theory.settings import Setting

FIRST = 0  # the id that every request emits before the verify that is asked
EVEN = 0.5  # the coins of the steps around it: the first token is certain, what follows unread


class EngineAsker:
    """Puts questions of the exact law to an engine, many requests at a time.

    A request's prompt is the name of its setting, an id behind the settings' vocabulary, and what
    the setting's drafts are looked up from. Its first token is certain; then come the drafts.

    Args:
        settings: all of one vocabulary size. Methods other than ``custom`` draft ``kappa`` tokens
            for every request: the settings must then agree in it.
        method: ``custom`` hands the drafts in, -1 included; ``draft_model`` draws them from a model
            of the setting's draft law; ``ngram`` looks them up, so that a setting's draft law must
            be the one that :func:`looked_up` makes.
        draft_sample_method: of ``draft_model``. ``greedy`` needs draft laws that are one-hot at
            their argmax, told as ``onehot``.
        rejection_sample_method: ``match`` wants ``cuts=match_cuts`` of the law, ``block`` wants
            ``cuts=block_cuts``.
        speculative: more settings of the speculative configuration.
        llm_options: more arguments of :class:`~specedu.llm.LLM`, as small budgets or blocks.

    Example:
        >>> from specedu.theory.exact import laws_of
        >>> from specedu.theory.settings import PAIRS, turning
        >>> settings = [turning(*PAIRS[2][0], 1)]
        >>> laws_of(EngineAsker(settings), settings)[0].exact
        True
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        *,
        method: str = "custom",
        draft_sample_method: str = "probabilistic",
        rejection_sample_method: str = "standard",
        speculative: Mapping[str, Any] | None = None,
        **llm_options: Any,
    ) -> None:
        self.settings = list(settings)
        self.vocab = settings[0].vocab
        self.names = {id(setting): self.vocab + i for i, setting in enumerate(self.settings)}
        self.asked: dict[str, tuple[Path, Point]] = {}
        self.rule = rejection_sample_method
        total, kappa = self.vocab + len(settings), max(1, *(s.kappa for s in settings))
        config: dict[str, Any] = {
            "method": method,
            "num_speculative_tokens": kappa,
            "rejection_sample_method": self.rule,
            **(speculative or {}),
        }
        if method == "custom":
            config["proposer"] = HandedIn(self)
        elif method == "draft_model":
            config["model"] = ProbingModel(self._draft_law, total)
            config["draft_sample_method"] = draft_sample_method
        else:
            config |= {"prompt_lookup_min": 1, "prompt_lookup_max": 1}
        self.llm = LLM(
            ProbingModel(self._target_law, total),
            config,
            **{"coins": HandedInCoins(self), "audit": True, "poison": True, **llm_options},
        )

    # --- the laws behind a prompt -----------------------------------------------------------------

    def _prompt(self, setting: Setting) -> list[int]:
        return [self.names[id(setting)], FIRST, *looked_up_ids(setting)]

    def _setting(self, text: Text) -> tuple[Setting, Text]:
        """Return the setting of a text, and what stands behind its first emitted token."""
        setting = self.settings[text[0] - self.vocab]
        return setting, text[len(self._prompt(setting)) + 1 :]

    def _pad(self, law: Law) -> Law:
        return law + (Fraction(0),) * len(self.settings)

    def _first_token(self, text: Text) -> Law | None:
        setting, _ = self._setting(text)
        if len(text) > len(self._prompt(setting)):
            return None
        return self._pad(tuple(Fraction(int(token == FIRST)) for token in range(self.vocab)))

    def _target_law(self, text: Text) -> Law:
        setting, behind = self._setting(text)
        return self._first_token(text) or self._pad(setting.target(behind))

    def _draft_law(self, text: Text) -> Law:
        setting, behind = self._setting(text)
        return self._first_token(text) or self._pad(setting.draft(behind))

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, requests: Sequence[tuple[Path, Point]]) -> list[Text]:
        """Return the run that each request's verify with drafts emits."""
        engine, runs = self.llm.engine, {}
        self.asked = {str(i): question for i, question in enumerate(requests)}
        for name, (path, _) in self.asked.items():
            setting = path.setting
            engine.add_request(
                name,
                self._prompt(setting),
                SamplingParams(
                    temperature=0.0 if setting.greedy else 1.0, max_tokens=setting.kappa + 2
                ),
                seed=0,
            )
        while engine.has_unfinished():
            for progress in engine.step():
                request = progress.request
                if request.step == 2:
                    runs[request.request_id] = tuple(progress.new_token_ids)
                    engine.cancel(request.request_id)
        return [runs[name] for name in self.asked]


class HandedIn(StatelessProposer):
    """Proposes what the question says, with the rows of its draft law."""

    def __init__(self, asker: EngineAsker) -> None:
        self.asker = asker

    def propose(self, tasks: Sequence[DraftTask], coins: CoinSource) -> list[Draft]:
        """Return the drafts of each task's question."""
        drafts = []
        for task in tasks:
            path, _ = self.asker.asked[task.request_id]
            if path.setting.onehot or not path.ids:
                drafts.append(Draft(list(path.ids)))
            else:
                rows = [[float(mass) for mass in self.asker._pad(q)] for q in path.qs]
                drafts.append(Draft(list(path.ids), torch.tensor(rows)))
        return drafts


class HandedInCoins:
    """Gives the coins of a question; a draft's coin lies in the middle of its id's bucket.

    A race has noise instead of a last coin: there the law of what is accepted can be asked, and the
    last token compared between rules.
    """

    def __init__(self, asker: EngineAsker) -> None:
        self.asker = asker

    def coins(self, keys: Sequence[CoinKey], purpose: Purpose) -> torch.Tensor:
        """Return one coin a key."""
        values = [self._coin(key, purpose) for key in keys]
        return torch.tensor(values, dtype=torch.float64)

    def noise(self, keys: Sequence[CoinKey], vocab: int) -> torch.Tensor:
        """Return one row of noise a key, its own for every question; the law cannot cut it."""
        seeds = torch.tensor([int(key.request_id) for key in keys])
        _, steps, positions = key_columns(keys)
        return exponential(seeds, steps, positions, vocab)

    def _coin(self, key: CoinKey, purpose: Purpose) -> float:
        path, point = self.asker.asked[key.request_id]
        place = key.position - len(self.asker._prompt(path.setting)) - 1
        if purpose is Purpose.FINAL and self.asker.rule == "match":  # keyed as plain decoding's
            return EVEN if place < 0 else point[place]
        if key.step != 1:
            return EVEN
        if purpose is Purpose.FINAL:
            return point[-1]
        if purpose is Purpose.ACCEPT:
            return point[place]
        q, x = path.qs[place], path.ids[place]
        return float(sum(q[:x], Fraction(0)) + q[x] / 2)


def looked_up_ids(setting: Setting) -> list[int]:
    """Return the ids that stand behind the first one in the prompt, for n-gram drafts to find.

    The last token before the drafts is ``FIRST``, which stands in the prompt too: what follows it
    there is what an n-gram lookup proposes.
    """
    ids = []
    for _ in range(setting.kappa):
        q = setting.draft(tuple(ids))
        ids.append(q.index(max(q)))
    return ids


def looked_up(setting: Setting, ids: Sequence[int]) -> Setting:
    """Return the setting with drafts that are certain: the given ids, one after another.

    Example:
        >>> from specedu.theory.settings import PAIRS, turning
        >>> setting = looked_up(turning(*PAIRS[2][0], 2), [1, 0])
        >>> [setting.draft(text).index(1) for text in [(), (0,)]]
        [1, 0]
    """

    def draft(text: Text) -> Law:
        return tuple(Fraction(int(x == ids[len(text)])) for x in range(setting.vocab))

    return replace(setting, draft=draft, kappa=len(ids), onehot=True)
