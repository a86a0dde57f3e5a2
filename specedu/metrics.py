"""What speculation did: counters that add up, and the ratios made from them.

Only verifies with at least one draft count as *drafts* (vLLM's ``num_drafts``). A stop may cut an
emitted run: ``accepted`` counts what was accepted and kept, ``discarded`` what was emitted and cut.

Two mean lengths are in use and both are given. vLLM's is 1 + accepted / verifies, SGLang's is kept
tokens / verifies; they differ exactly by the runs that a stop cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SpecDecodeStats:
    """Counters of one request, or of many.

    Attributes:
        num_proposed_tokens: drafted tokens that a proposer made.
        num_drafts: verifies with at least one draft.
        num_draft_tokens: drafts that were verified, -1 fillers not counted.
        num_accepted_tokens: accepted drafts that were delivered.
        num_emitted_tokens: kept tokens of those verifies.
        num_discarded_tokens: emitted tokens of them that a stop cut.
        num_discarded_draft_tokens: accepted drafts among those.
        num_rejected_tokens: drafts that failed their test.
        num_never_tested_tokens: drafts behind a rejection.
        num_never_scheduled_tokens: proposed drafts that no verify saw.
        accepted_per_pos: accepted drafts at each place.
        tested_per_pos: drafts at each place that were accepted and kept, or rejected.
        drafted_per_pos: drafts at each place.
        histogram: how often a verify accepted so many drafts.
    """

    num_proposed_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_discarded_tokens: int = 0
    num_discarded_draft_tokens: int = 0
    num_rejected_tokens: int = 0
    num_never_tested_tokens: int = 0
    num_never_scheduled_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    tested_per_pos: list[int] = field(default_factory=list)
    drafted_per_pos: list[int] = field(default_factory=list)
    histogram: Counter[int] = field(default_factory=Counter)

    def observe(self, num_drafts: int, num_accepted: int, kept: int) -> None:
        """Count one verify.

        Args:
            num_drafts: its drafts, -1 fillers not counted; without any, nothing is counted.
            num_accepted: drafts that the rule accepted.
            kept: tokens delivered, 0 to ``num_accepted + 1``.

        Raises:
            ValueError: the three do not fit together.

        Example:
            >>> stats = SpecDecodeStats()
            >>> stats.observe(num_drafts=3, num_accepted=2, kept=3)
            >>> stats.mean_acceptance_length, stats.acceptance_rates
            (3.0, [1.0, 1.0, 0.0])
        """
        if not 0 <= num_accepted <= num_drafts or not 0 <= kept <= num_accepted + 1:
            raise ValueError(
                f"num_accepted, kept: {num_accepted}, {kept}, expected 0 to {num_drafts} and 0 to "
                f"{num_accepted + 1}"
            )
        if not num_drafts or not kept:
            return
        accepted = min(num_accepted, kept)
        rejected = int(num_accepted < num_drafts)
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += accepted
        self.num_emitted_tokens += kept
        self.num_discarded_tokens += num_accepted + 1 - kept
        self.num_discarded_draft_tokens += num_accepted - accepted
        self.num_rejected_tokens += rejected
        self.num_never_tested_tokens += num_drafts - num_accepted - rejected
        self.histogram[accepted] += 1
        tested = accepted + (rejected if accepted == num_accepted else 0)
        for counts, length in (
            (self.drafted_per_pos, num_drafts),
            (self.tested_per_pos, tested),
            (self.accepted_per_pos, accepted),
        ):
            counts.extend([0] * (num_drafts - len(counts)))
            for place in range(length):
                counts[place] += 1

    def add(self, other: SpecDecodeStats) -> None:
        """Add the counters of another; ratios of sums, never means of ratios."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, list):
                mine.extend([0] * (len(value) - len(mine)))
                for place, count in enumerate(value):
                    mine[place] += count
            elif isinstance(value, Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / verifies, so the last token counts (vLLM's); 1 before the first."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def tokens_per_verify(self) -> float:
        """Kept tokens / verifies (SGLang's); 1 before the first."""
        return self.num_emitted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified drafts; None before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_rates(self) -> list[float]:
        """Unconditional rate at each place: accepted there / verifies (vLLM's)."""
        return [count / self.num_drafts for count in self.accepted_per_pos]

    @property
    def conditional_acceptance_rates(self) -> list[float | None]:
        """Accepted / tested at each place; None where no draft was tested."""
        counts = zip(self.accepted_per_pos, self.tested_per_pos, strict=True)
        return [accepted / tested if tested else None for accepted, tested in counts]

    def check(self, pending: int = 0) -> None:
        """Assert that every proposed token and every emitted one is accounted for.

        ``pending`` drafts wait for their verify.

        Raises:
            AssertionError: a token is lost or counted twice.
        """
        assert self.num_draft_tokens == (
            self.num_accepted_tokens
            + self.num_discarded_draft_tokens
            + self.num_rejected_tokens
            + self.num_never_tested_tokens
        ), self
        seen = self.num_draft_tokens + self.num_never_scheduled_tokens
        assert self.num_proposed_tokens == seen + pending, (self, pending)
        accepted_by_rule = self.num_accepted_tokens + self.num_discarded_draft_tokens
        assert self.num_emitted_tokens + self.num_discarded_tokens == (
            accepted_by_rule + self.num_drafts
        ), self
        assert sum(self.accepted_per_pos) == self.num_accepted_tokens
        assert sum(self.drafted_per_pos) == self.num_draft_tokens
        assert sum(n * times for n, times in self.histogram.items()) == self.num_accepted_tokens
        assert sum(self.histogram.values()) == self.num_drafts
        counts = zip(self.accepted_per_pos, self.tested_per_pos, self.drafted_per_pos, strict=True)
        assert all(0 <= a <= tested <= drafted for a, tested, drafted in counts), self
        assert sum(self.tested_per_pos) <= self.num_accepted_tokens + self.num_rejected_tokens

    def prometheus(self) -> str:
        """Return the counters as a metrics page, under vLLM's names.

        Example:
            >>> print(SpecDecodeStats().prometheus().splitlines()[1])
            vllm:spec_decode_num_drafts_total 0
        """
        rows = [
            ("num_drafts", self.num_drafts),
            ("num_draft_tokens", self.num_draft_tokens),
            ("num_accepted_tokens", self.num_accepted_tokens),
        ]
        lines = []
        for name, value in rows:
            lines += [f"# TYPE vllm:spec_decode_{name}_total counter"]
            lines += [f"vllm:spec_decode_{name}_total {value}"]
        lines += ["# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter"]
        for place, count in enumerate(self.accepted_per_pos):
            label = f'{{position="{place}"}}'
            lines += [f"vllm:spec_decode_num_accepted_tokens_per_pos_total{label} {count}"]
        return "\n".join(lines) + "\n"
