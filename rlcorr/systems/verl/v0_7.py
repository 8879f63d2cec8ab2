"""verl 0.7's dialect (0.7.0: trainer/ppo/rollout_corr_helper.py:80-180): one rule with bounds on r, and a veto."""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import number
from rlcorr.systems.mapping.refusals import band, bounds, no_rule
from rlcorr.systems.verl.thresholds import V070_RULES, no_threshold, reciprocal, weight_text

KEYS = ("rollout_rs_threshold_lower", "rollout_token_veto_threshold")
"""Its own."""


def speaks(mapping: Any) -> bool:
    """Whether one of its own keys is there."""
    return isinstance(mapping, Mapping) and any(key in mapping for key in KEYS)


def rules(mapping: Mapping[str, Any]) -> tuple[RejectionRule, ...]:
    """rollout_rs with its two thresholds, and the veto. Raises `UsageError` for unknown names and wrong numbers."""
    made = []
    if mapping.get("rollout_rs") is not None:
        if mapping["rollout_rs"] not in tuple(V070_RULES):
            raise unknown("rollout_rs of verl v0.7.0", str(mapping["rollout_rs"]), V070_RULES)
        if mapping.get("rollout_rs_threshold") is None:
            raise no_threshold(mapping)
        upper = number("rollout_rs_threshold", mapping["rollout_rs_threshold"])
        low = mapping.get("rollout_rs_threshold_lower")
        lower = reciprocal("rollout_rs_threshold", upper) if low is None else number("rollout_rs_threshold_lower", low)
        made.append(band(V070_RULES[mapping["rollout_rs"]], lower, upper))
    veto = mapping.get("rollout_token_veto_threshold")
    if veto is not None:
        made.append(RejectionRule.named("seq_min_k1", lower=number("rollout_token_veto_threshold", veto)))
    return tuple(made)


def written(config: CorrectionConfig) -> dict[str, Any]:
    """Every field. Raises `UsageError` for what verl 0.7 cannot do."""
    threshold = weight_text(config)
    if config.rollout_is is not None and config.rollout_is_mode == "mask":
        raise UsageError("verl 0.7 truncates weights only; nearest: version='0.9.1', or rollout_is_mode='truncate'.")
    named = {ours: theirs for theirs, ours in V070_RULES.items()}
    fields = {"rollout_rs": None, "rollout_rs_threshold": None, **dict.fromkeys(KEYS)}
    for rule in config.rollout_rs:
        if rule.name == "seq_min_k1" and rule.upper == math.inf:
            fields["rollout_token_veto_threshold"] = rule.lower
        elif rule.name in named and fields["rollout_rs"] is None:
            low, high = bounds(rule)
            fields |= {"rollout_rs": named[rule.name], "rollout_rs_threshold": high, "rollout_rs_threshold_lower": low}
        else:
            raise no_rule("verl 0.7", rule, "one of token_k1, seq_sum_k1, seq_mean_k1, and a lower bound on seq_min_k1")
    return {
        "rollout_is": config.rollout_is,
        "rollout_is_threshold": threshold,
        "rollout_is_batch_normalize": config.rollout_is_batch_normalize,
        **fields,
        "bypass_mode": config.bypass_mode,
        "loss_type": config.loss_type,
    }
