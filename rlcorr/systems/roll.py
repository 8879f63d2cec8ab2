"""ROLL's train_infer_correction from ours.

Source: v0.3.0, commit 8eb27cc2, roll/configs/base_config.py:424-480 and roll/utils/train_infer_corrections.py:16-165.

A filter removes tokens from the mask over which the default loss, seq-mean-token-mean, averages: denominator "kept".
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import no_rule, refuse

# ROLL's level → the start of our rule's name; our divergence → ROLL's name of the quantity.
PREFIXES = {"token": "token", "geometric": "seq_mean", "sequence": "seq_sum"}
MEASURES = {"k1": "ratio", "prob_diff": "diff"}


def to_roll(config: CorrectionConfig) -> dict[str, Any]:
    """Return ROLL's `train_infer_correction`. Raises `UsageError` for what ROLL cannot do."""
    refuse("ROLL", config)
    upper = float(config.rollout_is_threshold)
    weight = FACTS["ROLL"].fields["is_weight"]
    if config.rollout_is is not None:
        bound = None if upper == math.inf else upper
        weight = weight | {"enabled": True, "weight_type": config.rollout_is, "upper_bound": bound}
    return {"is_weight": weight, "filters": [_entry(rule) for rule in config.rollout_rs]}


def _entry(rule: RejectionRule) -> dict[str, Any]:
    names = {f"{prefix}_{ours}": (agg, theirs) for agg, prefix in PREFIXES.items() for ours, theirs in MEASURES.items()}
    if rule.name not in names:
        raise no_rule("ROLL", rule, "a rule of k1 or prob_diff on tokens, or on their mean or sum")
    agg, measure = names[rule.name]
    low = (0.0 if measure == "ratio" else -math.inf) if rule.lower is None else float(rule.lower)
    on = {"enabled": True, "agg_type": agg, "ratio_enabled": measure == "ratio", "diff_enabled": measure == "diff"}
    return FACTS["ROLL"].fields["filter"] | on | {f"{measure}_low": low, f"{measure}_high": float(rule.upper)}
