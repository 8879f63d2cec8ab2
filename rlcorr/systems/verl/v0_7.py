"""verl 0.7's dialect (0.7.0: trainer/ppo/rollout_corr_helper.py:80-180): one rule with bounds on r, and a veto."""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import number
from rlcorr.systems.mapping.refusals import bounds, no_rule, ratio_rule
from rlcorr.systems.verl.thresholds import reciprocal, require_threshold, weight_text

KEYS = ("rollout_rs_threshold_lower", "rollout_token_veto_threshold")
"""Keys that no other version has."""
RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Its name for rollout_rs → our rule."""


def is_v0_7(mapping: Any) -> bool:
    """Check whether one of the keys is there that only verl 0.7 has."""
    return isinstance(mapping, Mapping) and any(key in mapping for key in KEYS)


def rules(rollout_rs: Any, upper: Any, lower: Any, veto: Any) -> tuple[RejectionRule, ...]:
    """Return the rule of rollout_rs with its two thresholds, and the veto, as far as they are not None.

    Raises `UsageError` for unknown names and wrong numbers, `ThresholdError` for a missing or wrong upper threshold.
    """
    made = []
    if rollout_rs is not None:
        if rollout_rs not in tuple(RULES):
            raise unknown("rollout_rs of verl v0.7.0", str(rollout_rs), RULES)
        require_threshold(rollout_rs, upper)
        high = number("rollout_rs_threshold", upper)
        low = reciprocal("rollout_rs_threshold", high) if lower is None else number("rollout_rs_threshold_lower", lower)
        made.append(ratio_rule(RULES[rollout_rs], low, high))
    if veto is not None:
        made.append(RejectionRule.named("seq_min_k1", lower=number("rollout_token_veto_threshold", veto)))
    return tuple(made)


def to_v0_7(config: CorrectionConfig) -> dict[str, Any]:
    """Return every field in the names of verl 0.7. Raises `UsageError` for what verl 0.7 cannot do."""
    threshold = weight_text(config)
    if config.rollout_is is not None and config.rollout_is_mode == "mask":
        raise UsageError("verl 0.7 truncates weights only; nearest: version='0.9.1', or rollout_is_mode='truncate'.")
    names = {ours: theirs for theirs, ours in RULES.items()}
    fields = {"rollout_rs": None, "rollout_rs_threshold": None, **dict.fromkeys(KEYS)}
    for rule in config.rollout_rs:
        if rule.name == "seq_min_k1" and rule.upper == math.inf:
            fields["rollout_token_veto_threshold"] = rule.lower
        elif rule.name in names and fields["rollout_rs"] is None:
            low, high = bounds(rule)
            fields |= {"rollout_rs": names[rule.name], "rollout_rs_threshold": high, "rollout_rs_threshold_lower": low}
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
