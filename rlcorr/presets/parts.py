"""The type `Preset`, and short functions for the common configurations."""

import math
from dataclasses import dataclass, field
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.rules import RejectionRule

ON_EVERY_TOKEN = LossConfig(kl_loss_tokens="response")
"""For systems whose rules reject tokens from the policy loss only, not from the KL term to the reference."""


@dataclass(frozen=True)
class Preset:
    """A configuration with its source and the situation in which it fails."""

    system: str
    config: CorrectionConfig
    source: str
    """Version or commit, keys and paper, and what the system does differently from this configuration."""
    fails_when: str
    """The situation, and what happens in it."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Hyperparameters of the loss, if the method sets them."""


def truncated(level: str = "token", upper: float = 2.0, **changes: Any) -> CorrectionConfig:
    """Return a configuration with truncated weights.

    >>> config = truncated(upper=5.0)
    >>> config.rollout_is, config.rollout_is_threshold, config.rollout_is_mode
    ('token', 5.0, 'truncate')
    """
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=upper, **changes)


def unbounded(level: str = "token", **changes: Any) -> CorrectionConfig:
    """Return a configuration with weights without a bound.

    >>> unbounded("sequence").rollout_is_threshold
    inf
    """
    return truncated(level, math.inf, **changes)


def masked(lower: float | None, upper: float, level: str = "token", **changes: Any) -> CorrectionConfig:
    """Return a configuration with weights that are 0 outside the bounds.

    >>> config = masked(0.5, 5.0)
    >>> config.rollout_is_threshold_lower, config.rollout_is_threshold, config.rollout_is_mode
    (0.5, 5.0, 'mask')
    """
    return truncated(level, upper, rollout_is_threshold_lower=lower, rollout_is_mode="mask", **changes)


def rules(**bounds: tuple[float | None, float]) -> tuple[RejectionRule, ...]:
    """Return rejection rules from their names and (lower, upper) bounds.

    >>> [rule.explain() for rule in rules(seq_mean_k1=(0.999, 1.001))]
    ["Rule seq_mean_k1 keeps a sequence while 0.999 ≤ geometric mean of the sequence's ratios ≤ 1.001."]
    """
    return tuple(RejectionRule.named(name, lower=lower, upper=upper) for name, (lower, upper) in bounds.items())


def symmetric_clip(half_width: float) -> LossConfig:
    """Return a loss configuration whose clip has the same width below and above 1.

    >>> symmetric_clip(0.15).clip_ratio_low, symmetric_clip(0.15).clip_ratio_high
    (0.15, 0.15)
    """
    return LossConfig(clip_ratio_low=half_width, clip_ratio_high=half_width)
