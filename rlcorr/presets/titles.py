"""Short titles of presets for people, made from their configurations."""

import math
from collections.abc import Callable

from rlcorr.config import CorrectionConfig
from rlcorr.divergences import DIVERGENCES
from rlcorr.losses.policy_losses import LOSSES
from rlcorr.presets import Preset
from rlcorr.rules import RejectionRule
from rlcorr.weights import LEVELS

OVER = {None: "", "sum": "summed ", "mean": "mean ", "max": "largest ", "min": "smallest "}


def title(preset: Preset) -> str:
    """Return what a preset does, in a few words.

    >>> from rlcorr import PRESETS
    >>> title(PRESETS["decoupled_token_is"]), title(PRESETS["disabled"])
    ("Cap each token's weight at 2", 'No correction')
    >>> title(PRESETS["decoupled_geo_rs"])
    'Reject answers by mean ratio'
    """
    config = preset.config
    parts = [*about_weights(config), *dict.fromkeys(map(_rule, config.rollout_rs))]
    if LOSSES[config.loss_type].title:
        parts.append(LOSSES[config.loss_type].title)
    if preset.loss.score_centering:
        parts.append("subtract the sampler's mean score")
    if not parts:
        return "PPO's clip against the sampler" if config.bypass_mode else "No correction"
    text = ", ".join(parts)
    return text[0].upper() + text[1:]


def about_weights(config: CorrectionConfig, written: Callable[[float], str] = "{:g}".format) -> list[str]:
    """Return what is done to the weights, without a capital letter; nothing if there are none.

    `written` writes a bound.
    """
    if config.rollout_is is None:
        return []
    low, high, weight = config.rollout_is_threshold_lower, config.rollout_is_threshold, LEVELS[config.rollout_is].title
    if config.rollout_is_mode == "mask":
        return [f"zero {weight} {outside(low, high, written)}"]
    if math.isinf(high):
        return [f"use {weight} without a cap" if low is None else f"raise {weight} to {written(low)} or more"]
    if low is None:
        return [f"cap {weight} at {written(high)}"]
    return [f"clamp {weight} to {written(low)} to {written(high)}"]


def outside(low: float | None, high: float, written: Callable[[float], str]) -> str:
    """Return the words for what lies outside of these bounds; `written` writes a bound."""
    if low is None:
        return f"above {written(high)}"
    return f"below {written(low)}" if math.isinf(high) else f"outside {written(low)} to {written(high)}"


def _rule(rule: RejectionRule) -> str:
    subject = "tokens" if rule.level == "token" else "answers"
    divergence = DIVERGENCES[rule.divergence].title
    if rule.divergence == "k1" and rule.reduce == "sum":
        return f"reject {subject} by product of ratios"
    scope = {"all": "", "negative": " (negative advantage)", "outward": " (moving away)"}[rule.applies_to]
    return f"reject {subject} by {OVER[rule.reduce]}{divergence}{scope}"
