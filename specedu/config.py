"""Settings, frozen and checked when they are made: nothing illegal travels further.

Every refusal names the setting, its value and the legal range. Names are vLLM's where it has one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .draft.base import Proposer

GREEDY_BELOW = 1e-2  # a temperature between 0 and this overflows exp(logit / T) in float32
METHODS = ("ngram", "draft_model", "early_exit", "custom")
REJECTION_SAMPLE_METHODS = ("standard", "block", "match", "synthetic")
SAMPLERS = ("chain", "race", "logspace")
DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
QUANTIZATIONS = ("int4",)
PROMPT_LOOKUP_DEFAULT = 5  # vLLM's, where both ends of the range are left out


def refuse(name: str, value: object, legal: str, shown: str | None = None) -> None:
    """Raise the one error that every illegal setting gets; ``shown`` stands for a long value.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name}: {shown or repr(value)}, expected {legal}")


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse what is no int in [low, high]; a bool is none.

    Raises:
        ValueError: it is not.
    """
    legal = f"an int of at least {low}" if high is None else f"an int in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(name, value, legal)
    if value < low or (high is not None and value > high):
        refuse(name, value, legal)


def check_number(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    """Refuse what is no finite number in [low, high], or in (low, high].

    Raises:
        ValueError: it is not.
    """
    legal = f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, value, legal)
    if not low <= value <= high or (open_low and value == low):
        refuse(name, value, legal)


def check_flag(name: str, value: object) -> None:
    """Refuse what is no bool.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, bool):
        refuse(name, value, "True or False")


def check_list(name: str, value: object, of: str) -> tuple[Any, ...]:
    """Return a sequence as a tuple; refuse what is none.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        refuse(name, value, f"a sequence of {of}")
    return tuple(value)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not in the list; the error lists the valid names.

    Raises:
        ValueError: it is not.
    """
    if value not in choices:
        refuse(name, value, f"one of {', '.join(choices)}")


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen, and when it ends.

    Attributes:
        temperature: 0 is greedy; otherwise at least 0.01.
        top_k: how many ids are kept; 0 or -1 keeps all. Ids that tie with the k-th stay.
        top_p: the likeliest ids are kept until their mass reaches it; the one that crosses stays.
        min_p: ids below ``min_p`` times the largest probability go.
        max_tokens: the output's length at most.
        min_tokens: no end-of-text, stop id or stop string before that many tokens.
        stop: strings that end the output; the text is cut before them. None is none.
        stop_token_ids: ids that end the output; they are kept, as the last token. None is none.
        ignore_eos: go on behind the end-of-text id.
        include_stop_str_in_output: keep the stop string in the text.
        seed: makes the output a function of the request alone; None draws one.
        n: how many outputs, each with a seed of its own.

    Raises:
        ValueError: a setting is illegal.

    Example:
        >>> SamplingParams(temperature=0, max_tokens=8).greedy
        True
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    seed: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        """Check every setting, and turn the sequences into tuples."""
        check_number("temperature", self.temperature, 0, 100)
        if 0 < self.temperature < GREEDY_BELOW:
            refuse("temperature", self.temperature, f"0 (greedy) or at least {GREEDY_BELOW}")
        check_int("top_k", self.top_k, -1)
        check_number("top_p", self.top_p, 0, 1, open_low=True)
        check_number("min_p", self.min_p, 0, 1)
        check_int("max_tokens", self.max_tokens, 1)
        check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        one = isinstance(self.stop, str)
        stop = (self.stop,) if one else check_list("stop", self.stop or (), "strings")
        for i, word in enumerate(stop):
            if not isinstance(word, str) or not word:
                refuse(f"stop[{i}]", word, "a string of at least one character")
        object.__setattr__(self, "stop", stop)
        ids = check_list("stop_token_ids", self.stop_token_ids or (), "ids")
        object.__setattr__(self, "stop_token_ids", ids)
        for i, token in enumerate(self.stop_token_ids):
            check_int(f"stop_token_ids[{i}]", token, 0)
        check_flag("ignore_eos", self.ignore_eos)
        check_flag("include_stop_str_in_output", self.include_stop_str_in_output)
        if self.seed is not None:
            check_int("seed", self.seed, -(2**63), 2**63 - 1)
        check_int("n", self.n, 1)

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken."""
        return self.temperature == 0


@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made and verified.

    Attributes:
        method: ``ngram``, ``draft_model``, ``early_exit`` or ``custom``.
        num_speculative_tokens: κ, drafted tokens a step at most.
        model: the draft model (``draft_model``): an object, a name, a folder, or ``self``.
        quantization: ``int4`` streams the draft's weights in four bits (``draft_model``).
        early_exit_layers: how many layers of the target draft (``early_exit``).
        proposer: any Proposer (``custom``).
        prompt_lookup_min: shortest suffix that is looked up (``ngram``).
        prompt_lookup_max: longest; both left out mean 5, one left out takes the other's value.
        prompt_lookup_latest: of several occurrences take the latest; the earliest is the default.
        draft_sample_method: ``greedy`` takes the draft's argmax, q is one-hot; ``probabilistic``
            draws from q at the request's temperature and keeps that very row.
        rejection_sample_method: ``standard`` tests the ratio p/q. ``match`` draws plain decoding's
            token at every place and keeps the drafts that equal it: the same text as without
            speculation, from the same seed; it accepts fewer ``probabilistic`` drafts. ``block``
            decides over all drafts of a step at once and never accepts fewer on average; with
            one-hot drafts it gains nothing. ``synthetic`` accepts at given rates, whatever the
            text: for timing alone.
        sampler: the kernel of ``standard``: ``chain`` draws the last token by inverse CDF, ``race``
            by a race of exponentials, ``logspace`` races too and compares logarithms; the law is
            the same.
        accept_threshold_single: below 1, drafts that the target gives at least this much are
            accepted whatever their coin (``standard`` with ``chain``); the law is then not the
            target's.
        accept_threshold_acc: below 1, every acceptance is raised by its inverse; the law is then
            not the target's.
        synthetic_acceptance_rates: of each place, the probability that the drafts up to there are
            all accepted (``synthetic``): never increasing, one a drafted token.
        synthetic_acceptance_length: instead of rates, the mean acceptance length, in [1, κ + 1].
        num_speculative_tokens_per_batch_size: a schedule ``[(first, last, kappa), ...]`` over batch
            sizes, beginning at 1 and without gaps.

    Raises:
        ValueError: a setting is illegal, missing, or belongs to another method.

    Example:
        >>> SpeculativeConfig("ngram", 3).prompt_lookup_max
        5
    """

    method: str
    num_speculative_tokens: int
    model: Any = None
    quantization: str | None = None
    early_exit_layers: int | None = None
    proposer: Proposer | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_latest: bool = False
    draft_sample_method: str = "greedy"
    rejection_sample_method: str = "standard"
    sampler: str = "chain"
    accept_threshold_single: float = 1.0
    accept_threshold_acc: float = 1.0
    synthetic_acceptance_rates: Sequence[float] | None = None
    synthetic_acceptance_length: float | None = None
    num_speculative_tokens_per_batch_size: Sequence[tuple[int, int, int]] | None = None

    def __post_init__(self) -> None:
        """Check every setting, fill in the prompt lookup's range, and copy the schedule."""
        check_choice("method", self.method, METHODS)
        check_int("num_speculative_tokens", self.num_speculative_tokens, 1)
        check_choice("draft_sample_method", self.draft_sample_method, DRAFT_SAMPLE_METHODS)
        check_choice(
            "rejection_sample_method", self.rejection_sample_method, REJECTION_SAMPLE_METHODS
        )
        check_choice("sampler", self.sampler, SAMPLERS)
        self._check_rule()
        check_flag("prompt_lookup_latest", self.prompt_lookup_latest)
        needs = {
            "draft_model": "model",
            "early_exit": "early_exit_layers",
            "custom": "proposer",
        }
        for method, name in needs.items():
            given = getattr(self, name) is not None
            if given != (self.method == method):
                legal = "one" if not given else f"none with method {self.method!r}"
                refuse(f"{name} of method {self.method!r}", getattr(self, name), legal)
        if self.early_exit_layers is not None:
            check_int("early_exit_layers", self.early_exit_layers, 1)
        if self.quantization is not None:
            check_choice("quantization", self.quantization, QUANTIZATIONS)
            if self.method != "draft_model":
                refuse("quantization", self.quantization, f"none with method {self.method!r}")
        lookup = ("prompt_lookup_min", "prompt_lookup_max", "prompt_lookup_latest")
        if self.method == "ngram":
            self._fill_prompt_lookup()
        else:
            for name in lookup:
                if getattr(self, name) is not getattr(SpeculativeConfig, name):  # its default
                    refuse(name, getattr(self, name), f"none with method {self.method!r}")
        draws = ("draft_model", "early_exit")
        if self.method not in draws and self.draft_sample_method != "greedy":
            legal = f"'greedy' with method {self.method!r}, which does not draw by it"
            refuse("draft_sample_method", self.draft_sample_method, legal)
        if self.rejection_sample_method == "block" and self.draft_sample_method == "greedy":
            if self.method != "custom":
                warnings.warn(
                    "rejection_sample_method: 'block' with one-hot drafts, as draft_sample_method "
                    "'greedy' makes them, accepts exactly as often as 'standard'",
                    stacklevel=3,
                )
        if self.num_speculative_tokens_per_batch_size is not None:
            check_batch_size_schedule(self.num_speculative_tokens_per_batch_size)
            for i, (_, _, kappa) in enumerate(self.num_speculative_tokens_per_batch_size):
                name = f"num_speculative_tokens_per_batch_size[{i}] kappa"
                check_int(name, kappa, 0, self.num_speculative_tokens)
            schedule = tuple(tuple(entry) for entry in self.num_speculative_tokens_per_batch_size)
            object.__setattr__(self, "num_speculative_tokens_per_batch_size", schedule)

    def _check_rule(self) -> None:
        """Check the acceptance rule's settings, alone and together."""
        method = self.rejection_sample_method
        if self.sampler != "chain" and method != "standard":
            refuse("sampler", self.sampler, f"'chain' with rejection_sample_method {method!r}")
        for name in ("accept_threshold_single", "accept_threshold_acc"):
            value = getattr(self, name)
            check_number(name, value, 0, 1, open_low=True)
            if value != 1 and (method, self.sampler) != ("standard", "chain"):
                refuse(
                    name, value, "1 but with rejection_sample_method 'standard', sampler 'chain'"
                )
        if (self.accept_threshold_single, self.accept_threshold_acc) != (1, 1):
            warnings.warn(
                f"accept_threshold_single: {self.accept_threshold_single}, accept_threshold_acc: "
                f"{self.accept_threshold_acc}: below 1 the text does not follow the target's law",
                stacklevel=4,
            )
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if method != "synthetic":
            for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
                if getattr(self, name) is not None:
                    legal = f"none with rejection_sample_method {method!r}"
                    refuse(name, getattr(self, name), legal)
        elif (rates is None) == (length is None):
            legal = "either of the two with rejection_sample_method 'synthetic'"
            refuse(
                "synthetic_acceptance_rates, synthetic_acceptance_length", (rates, length), legal
            )
        elif length is not None:
            check_number("synthetic_acceptance_length", length, 1, self.num_speculative_tokens + 1)
        else:
            self._check_rates(check_list("synthetic_acceptance_rates", rates, "numbers"))

    def _check_rates(self, rates: Sequence[float]) -> None:
        if len(rates) != self.num_speculative_tokens:
            legal = f"one of each of num_speculative_tokens = {self.num_speculative_tokens}"
            refuse("synthetic_acceptance_rates", rates, legal)
        for i, (rate, before) in enumerate(zip(rates, (1, *rates), strict=False)):
            check_number(f"synthetic_acceptance_rates[{i}]", rate, 0, before)
        object.__setattr__(self, "synthetic_acceptance_rates", tuple(rates))

    def _fill_prompt_lookup(self) -> None:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        default = PROMPT_LOOKUP_DEFAULT if low is None and high is None else None
        low = next(n for n in (low, high, default) if n is not None)
        high = next(n for n in (high, low) if n is not None)
        given = "prompt_lookup_max" if self.prompt_lookup_min is None else "prompt_lookup_min"
        check_int(given, low, 1)
        check_int("prompt_lookup_max", high, 1)
        if low > high:
            refuse("prompt_lookup_min", low, f"at most prompt_lookup_max = {high}")
        object.__setattr__(self, "prompt_lookup_min", low)
        object.__setattr__(self, "prompt_lookup_max", high)

    def draft_length(self, decodes: int) -> int:
        """Return the drafts of a request, at most, with so many requests that decode.

        Behind the schedule's last range its last length goes on.

        Example:
            >>> schedule = [(1, 4, 3), (5, 8, 1)]
            >>> config = SpeculativeConfig(
            ...     method="ngram",
            ...     num_speculative_tokens=3,
            ...     num_speculative_tokens_per_batch_size=schedule,
            ... )
            >>> [config.draft_length(decodes) for decodes in (1, 4, 5, 99)]
            [3, 3, 1, 1]
        """
        schedule = self.num_speculative_tokens_per_batch_size
        if schedule is None:
            return self.num_speculative_tokens
        return next((kappa for _, last, kappa in schedule if decodes <= last), schedule[-1][2])

    @classmethod
    def of(cls, settings: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
        """Return the configuration that a mapping describes; an unknown name is refused.

        Raises:
            ValueError: a name is unknown or missing, or a setting is illegal.

        Example:
            >>> SpeculativeConfig.of({"method": "ngram", "num_speculative_tokens": 3}).method
            'ngram'
        """
        if settings is None or isinstance(settings, cls):
            return settings
        names = [field.name for field in fields(cls)]
        for name in settings:
            check_choice("speculative_config", name, names)
        for name in ("method", "num_speculative_tokens"):
            if name not in settings:
                refuse("speculative_config", dict(settings), f"a value for {name!r}")
        return cls(**settings)


def check_batch_size_schedule(schedule: Sequence[Sequence[int]]) -> None:
    """Refuse a schedule that is not a run of (first, last, kappa) from 1 on without gaps.

    Raises:
        ValueError: names the entry that is wrong.

    Example:
        >>> check_batch_size_schedule([(1, 16, 3), (17, 64, 0)])
    """
    name = "num_speculative_tokens_per_batch_size"
    if not check_list(name, schedule, "(first, last, kappa)"):
        refuse(name, schedule, "at least one (first, last, kappa)")
    following = 1
    for i, entry in enumerate(schedule):
        if not isinstance(entry, Sequence) or len(entry) != 3:
            refuse(f"{name}[{i}]", entry, "three ints (first, last, kappa)")
        first, last, kappa = entry
        check_int(f"{name}[{i}] first", first, following, following)
        check_int(f"{name}[{i}] last", last, first)
        check_int(f"{name}[{i}] kappa", kappa, 0)
        following = last + 1


@dataclass(frozen=True)
class CacheConfig:
    """The paged cache: ``num_blocks`` blocks of ``block_size`` slots, one slot a token.

    Raises:
        ValueError: a number is below 1.
    """

    block_size: int = 16
    num_blocks: int = 256

    def __post_init__(self) -> None:
        """Check both."""
        check_int("block_size", self.block_size, 1)
        check_int("num_blocks", self.num_blocks, 1)


@dataclass(frozen=True)
class SchedulerConfig:
    """How much a step may hold.

    Attributes:
        max_num_seqs: running requests at most.
        max_num_batched_tokens: the token budget of a step, draft slots included.
        max_model_len: tokens of one request at most, prompt and output.
        draft_slots: what each running decode is charged besides its tokens, drafting or not.
        num_lookahead_tokens: cache slots behind the scheduled tokens that the drafter writes to.

    Raises:
        ValueError: a number is out of range, or the budget cannot hold every running decode.

    Example:
        >>> SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64).draft_slots
        0
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    draft_slots: int = 0
    num_lookahead_tokens: int = 0

    def __post_init__(self) -> None:
        """Check every number, and that the budget holds the decodes."""
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_int("max_model_len", self.max_model_len, 2)
        check_int("draft_slots", self.draft_slots, 0)
        check_int("num_lookahead_tokens", self.num_lookahead_tokens, 0)
        least = self.max_num_seqs * (1 + self.draft_slots)
        if self.max_num_batched_tokens < least:
            raise ValueError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens}, expected at least {least} "
                f"for max_num_seqs = {self.max_num_seqs} decodes of 1 token and draft_slots = "
                f"{self.draft_slots} each"
            )
