"""Which acceptance rule an engine verifies with, and what the rule is given besides the laws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .config import SpeculativeConfig
from .kernels import Verified, verify_block, verify_chain, verify_synthetic, verify_threshold
from .theory.rates import conditional_rates, rates_of_length


@dataclass(frozen=True)
class Rule:
    """An acceptance rule with its settings.

    Attributes:
        method: ``standard``, ``block``, ``match`` or ``synthetic``.
        sampler: what ``standard`` draws the last token with, ``chain``, ``race`` or ``logspace``.
        threshold_single: ``accept_threshold_single``; 1 leaves the rule exact.
        threshold_acc: ``accept_threshold_acc``; 1 leaves the rule exact.
        rates: of ``synthetic``, the conditional rate of each place.

    Example:
        >>> Rule.of(SpeculativeConfig("ngram", 3)).method
        'standard'
    """

    method: str = "standard"
    sampler: str = "chain"
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    rates: tuple[float, ...] = ()

    @classmethod
    def of(cls, config: SpeculativeConfig | None) -> Rule:
        """Return the rule that a configuration asks for."""
        if config is None:
            return cls()
        rates = config.synthetic_acceptance_rates
        if config.synthetic_acceptance_length is not None:
            kappa = config.num_speculative_tokens
            rates = rates_of_length(config.synthetic_acceptance_length, kappa)
        return cls(
            config.rejection_sample_method,
            config.sampler,
            config.accept_threshold_single,
            config.accept_threshold_acc,
            tuple(conditional_rates(rates or ())),
        )

    def function(self, max_spec_len: int, device: torch.device) -> Callable[..., Verified]:
        """Return the function of a rule that draws with coins, for a launch of that width."""
        if self.method == "block":
            return verify_block
        if self.method == "synthetic":
            rates = torch.tensor(self.rates[:max_spec_len], dtype=torch.float64, device=device)
            return functools.partial(verify_synthetic, conditional_rates=rates)
        if (self.threshold_single, self.threshold_acc) != (1.0, 1.0):
            return functools.partial(
                verify_threshold,
                accept_threshold_single=self.threshold_single,
                accept_threshold_acc=self.threshold_acc,
            )
        return verify_chain
