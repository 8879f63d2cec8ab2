"""Corrections in words: what a configuration does to tokens and answers, with its thresholds."""

from rlcorr.config import CorrectionConfig
from rlcorr.divergences import DIVERGENCES
from rlcorr.presets.titles import OVER, about_weights, outside
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.serialize import short_number

_SCOPES = {"all": "", "negative": ", if its advantage is negative", "outward": ", if the update moves it away"}


def limits(config: CorrectionConfig) -> str:
    """Return what a correction does, with its thresholds.

    >>> limits(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))
    "Cap each token's weight at 2"
    >>> limits(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001),)))
    'Reject answers with a mean ratio outside 0.999 to 1.001'
    """
    parts = [*about_weights(config, _short), *map(_rejects, config.rollout_rs)]
    text = ", ".join(parts) or "no correction"
    return text[0].upper() + text[1:]


def statistic(rule: RejectionRule) -> str:
    """Return what a rule compares, in words that may follow "largest" and "smallest"."""
    divergence = DIVERGENCES[rule.divergence].title
    if rule.reduce in ("max", "min"):
        return f"{divergence} in an answer"
    return "product of ratios" if rule.name == "seq_sum_k1" else f"{OVER[rule.reduce]}{divergence}"


def _rejects(rule: RejectionRule) -> str:
    subject = "tokens" if rule.level == "token" else "answers"
    bounds = outside(rule.lower, rule.upper, _short)
    return f"reject {subject} with a {statistic(rule)} {bounds}{_SCOPES[rule.applies_to]}"


def _short(value: float) -> str:
    return short_number(value).removesuffix(".0").replace("-", "−")
