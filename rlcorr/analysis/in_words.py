"""Corrections in words: what a configuration does to tokens and answers, with its thresholds."""

import math

from rlcorr.config import CorrectionConfig
from rlcorr.divergences import DIVERGENCES
from rlcorr.presets.titles import OVER
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.serialize import short_number
from rlcorr.weights import LEVELS

_SCOPES = {"all": "", "negative": ", if its advantage is negative", "outward": ", if the update moves it away"}


def limits(config: CorrectionConfig) -> str:
    """Return what a correction does, with its thresholds.

    >>> limits(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))
    "Cap each token's weight at 2"
    >>> limits(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001),)))
    'Reject answers with a mean ratio outside 0.999 to 1.001'
    """
    parts = [_weights(config)] if config.rollout_is is not None else []
    parts += [_rejects(rule) for rule in config.rollout_rs]
    text = ", ".join(parts) or "no correction"
    return text[0].upper() + text[1:]


def statistic(rule: RejectionRule) -> str:
    """Return what a rule compares, in words that may follow "largest" and "smallest"."""
    divergence = DIVERGENCES[rule.divergence].title
    if rule.reduce in ("max", "min"):
        return f"{divergence} in an answer"
    return "product of ratios" if rule.name == "seq_sum_k1" else f"{OVER[rule.reduce]}{divergence}"


def _weights(config: CorrectionConfig) -> str:
    level, lower, upper = config.rollout_is, config.rollout_is_threshold_lower, config.rollout_is_threshold
    assert level is not None
    weight = LEVELS[level].title.replace("response", "answer")
    if config.rollout_is_mode == "mask":
        return f"zero {weight} {_outside(lower, upper)}"
    if upper == math.inf:
        return f"use {weight} without a cap" if lower is None else f"raise {weight} to {_short(lower)} or more"
    return f"cap {weight} at {_short(upper)}" if lower is None else f"clamp {weight} to {_range(lower, upper)}"


def _rejects(rule: RejectionRule) -> str:
    subject = "tokens" if rule.level == "token" else "answers"
    return f"reject {subject} with a {statistic(rule)} {_outside(rule.lower, rule.upper)}{_SCOPES[rule.applies_to]}"


def _outside(lower: float | None, upper: float) -> str:
    if lower is None:
        return f"above {_short(upper)}"
    return f"below {_short(lower)}" if upper == math.inf else f"outside {_range(lower, upper)}"


def _range(lower: float, upper: float) -> str:
    return f"{_short(lower)} to {_short(upper)}"


def _short(value: float) -> str:
    return short_number(value).removesuffix(".0").replace("-", "−")
