"""ms-swift's rollout_importance_sampling from ours.

Source: 4.6.0, swift/rlhf_trainers/grpo_trainer.py:1066-1081 and 2328-2430, args_mixin.py:358. Modes have TRL's names,
but the ratio of a sequence is the geometric mean, and there is no lower bound.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.refusals import is_unbounded, minus_log, no_rule, refuse


def to_ms_swift(config: CorrectionConfig) -> dict[str, Any]:
    """Return the arguments. Raises `UsageError` for what ms-swift cannot do."""
    opsm = any(rule.name == "seq_mean_k1_negative" for rule in config.rollout_rs)
    refuse("ms-swift", config)
    if config.denominator != ("kept" if opsm else "fixed") and (config.rollout_rs or not opsm):
        over = ("the kept tokens", "kept") if opsm else ("all response tokens", "fixed")
        raise UsageError(f"ms-swift divides by {over[0]}; nearest: denominator={over[1]!r}.")
    delta, geometric = None, None
    for rule in config.rollout_rs:
        if rule.name == "seq_mean_k1_negative" and rule.lower is not None and rule.upper == math.inf:
            delta = minus_log(rule.lower)
        elif rule.name == "seq_mean_k1" and rule.lower is None and not opsm:
            geometric = rule
        else:
            raise no_rule("ms-swift", rule, "an upper bound on seq_mean_k1, or a lower one on seq_mean_k1_negative")
    if geometric is not None:
        if not is_unbounded(config):
            raise UsageError(
                "ms-swift's sequence_mask weighs kept tokens with raw ratios; nearest: token, threshold inf."
            )
        weights = _mode("sequence_mask", geometric.upper)
    else:
        weights = _mode(None) if config.rollout_is is None else _weights(config)
    return weights | {"off_policy_sequence_mask_delta": delta}


def _weights(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is == "sequence":
        raise UsageError("ms-swift's sequence ratio is the geometric mean; nearest: rollout_is='geometric'.")
    if config.rollout_is_threshold_lower is not None:
        raise UsageError("ms-swift has no lower bound; nearest: no rollout_is_threshold_lower.")
    if config.rollout_is == "geometric" and config.rollout_is_mode == "mask":
        raise UsageError("ms-swift's sequence_mask keeps token ratios; nearest: token weights and a seq_mean_k1 rule.")
    level = "token" if config.rollout_is == "token" else "sequence"
    return _mode(f"{level}_{config.rollout_is_mode}", config.rollout_is_threshold)


def _mode(mode: str | None, upper: float | None = None) -> dict[str, Any]:
    threshold = {} if upper is None else {"rollout_importance_sampling_threshold": float(upper)}
    return {"rollout_importance_sampling_mode": mode} | threshold
