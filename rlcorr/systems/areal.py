"""AReaL's actor.rejection_sampling from ours, and its rollouts.

Source: commit cbff54d6, areal/api/cli_args.py:1505-1668 and areal/utils/functional/functional.py:185-425. Release 1.0.4
has the same fields.

Its kl_k3 is 1/r − 1 + log r and ours is r − 1 − log r, so neither can be translated. Its guide describes binary_kl, but
its validator refuses it.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import is_unbounded, minus_log, only_rule, refuse

FIELDS = FACTS["AReaL"].fields
"""Fields of `rejection_sampling`, with AReaL's defaults."""
AGGREGATIONS = ("sum", "mean", "max")
RATIOS = {"token_k1": ("token", "mean"), **{f"seq_{agg}_k1": ("sequence", agg) for agg in AGGREGATIONS}}
SQUARES = {"token_k2": ("token", "mean"), **{f"seq_{agg}_k2": ("sequence", agg) for agg in AGGREGATIONS}}


def to_areal(config: CorrectionConfig) -> dict[str, Any]:
    """Return the two keys of `actor`. Raises `UsageError` for what AReaL cannot do."""
    refuse("AReaL", config)
    rule = only_rule(
        "AReaL", config.rollout_rs, (*RATIOS, *SQUARES), "a rule of k1 or k2 on tokens, or on their sum, mean, max"
    )
    if config.rollout_is is None and rule is None:
        return {"use_decoupled_loss": True, "rejection_sampling": None}
    fields = _weights(config) if rule is None else _rule(config, rule)
    return {"use_decoupled_loss": True, "rejection_sampling": FIELDS | fields}


def _weights(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is == "sequence":
        raise UsageError("AReaL's sequence weight is the geometric mean; nearest: rollout_is='geometric'.")
    if config.rollout_is_mode == "mask":
        raise UsageError("AReaL's mask is a rule; nearest: token_k1 with these bounds and rollout_is_threshold=inf.")
    level = "token" if config.rollout_is == "token" else "sequence"
    lower, upper = config.rollout_is_threshold_lower, _above_one(config.rollout_is_threshold)
    return {"level": level, "action": "clamp", "upper": upper, "lower": lower}


def _rule(config: CorrectionConfig, rule: RejectionRule) -> dict[str, Any]:
    if rule.name in SQUARES:
        level, agg = SQUARES[rule.name]
        if is_unbounded(config):
            return {"level": level, "metric": "kl_k2", "agg": agg, "upper": float(rule.upper)}
        raise UsageError(
            f"with {rule.name} AReaL weighs tokens with their raw ratio; nearest: rollout_is_threshold=inf."
        )
    level, agg = RATIOS[rule.name]
    if is_unbounded(config, "token" if level == "token" else "geometric"):
        return {"level": level, "agg": agg, "upper": _above_one(rule.upper), "lower": rule.lower}
    if level == "sequence" and is_unbounded(config):  # with kl_k1 the weight is the token's r
        lower = None if rule.lower is None else -minus_log(rule.lower)
        upper = math.inf if rule.upper == math.inf else -minus_log(rule.upper)
        return {"level": level, "metric": "kl_k1", "agg": agg, "upper": upper, "lower": lower}
    raise UsageError(
        f"with {rule.name} AReaL weighs with the raw ratio of tokens{', or of the mean' * (level == 'sequence')}; "
        f"nearest: rollout_is_threshold=inf with rollout_is='token'{' or geometric' * (level == 'sequence')}."
    )


def _above_one(upper: float) -> float:
    if not upper > 1:
        raise UsageError(f"AReaL wants an upper bound > 1 on ratios; got {upper:g}; nearest: 1.001.")
    return float(upper)
