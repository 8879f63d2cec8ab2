"""ms-swift's rollout_importance_sampling as ours and back.

Source: 4.6.0, swift/rlhf_trainers/grpo_trainer.py:1066-1081 and 2328-2430, args_mixin.py:358. Modes have TRL's names,
but the ratio of a sequence is the geometric mean, and there is no lower bound.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import choice, number, options, refuse_ignored, settings
from rlcorr.systems.mapping.refusals import is_unbounded, minus_log, no_rule, require_plain
from rlcorr.systems.mapping.serialize import as_flags, commented

FIELDS: dict[str, Any] = {
    "rollout_importance_sampling_mode": None,
    "rollout_importance_sampling_threshold": 2.0,
    "off_policy_sequence_mask_delta": None,
}
"""The arguments and their defaults."""
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
RETIRED = {"log_rollout_offpolicy_metrics": "it chooses what ms-swift logs, so leave it out"}
OPSM = "off_policy_sequence_mask compares π_θ with π_rollout: the same as π_old in a batch's first update only"


def from_ms_swift(source: Any) -> CorrectionConfig:
    """Return the configuration of the arguments.

    `source` is a mapping {flag: value} with or without `--`, or ms-swift's own object.

    - token_truncate and token_mask bound r above.
    - sequence_truncate weighs with the bounded geometric mean; sequence_mask rejects by it and keeps token ratios.
    - off_policy_sequence_mask_delta δ removes sequences with A < 0 and mean −log r > δ from the mask. The loss is then
      averaged over the remaining tokens.

    Raises `UsageError` for unknown keys, and for a threshold without a mode, which ms-swift ignores.
    """
    source = options("ms-swift's correction", source, retired=RETIRED)
    values = settings("ms-swift's arguments", source, FIELDS)
    rules: tuple[RejectionRule, ...] = ()
    denominator: Any = "fixed"
    if values["off_policy_sequence_mask_delta"] is not None:
        delta = number("off_policy_sequence_mask_delta", values["off_policy_sequence_mask_delta"])
        rules, denominator = (RejectionRule.named("seq_mean_k1_negative", lower=math.exp(-delta)),), "kept"
    mode = values["rollout_importance_sampling_mode"]
    if mode is None:
        names = ["rollout_importance_sampling_threshold"]
        refuse_ignored("ms-swift", values, FIELDS, names, "without rollout_importance_sampling_mode")
        return CorrectionConfig(rollout_rs=rules, denominator=denominator)
    choice("rollout_importance_sampling_mode", mode, MODES)
    upper = number("rollout_importance_sampling_threshold", values["rollout_importance_sampling_threshold"])
    if mode == "sequence_mask":
        if rules:
            raise UsageError(
                "sequence_mask keeps its tokens in the denominator and the off-policy mask does not: keep one."
            )
        rules, upper = (RejectionRule.named("seq_mean_k1", upper=upper),), math.inf
    return CorrectionConfig(
        rollout_is="geometric" if mode == "sequence_truncate" else "token",
        rollout_is_threshold=upper,
        rollout_is_mode="mask" if mode == "token_mask" else "truncate",
        rollout_rs=rules,
        denominator=denominator,
    )


def to_ms_swift(config: CorrectionConfig) -> dict[str, Any]:
    """Return the arguments. Raises `UsageError` for what ms-swift cannot do; `ms_swift_text` notes a difference."""
    opsm = any(rule.name == "seq_mean_k1_negative" for rule in config.rollout_rs)
    bypass = "its default, without a correction"
    require_plain("ms-swift", config, bypass=bypass, loss="--loss_type", denominator="kept" if opsm else "fixed")
    fields = dict(FIELDS)
    geometric = None
    for rule in config.rollout_rs:
        if rule.name == "seq_mean_k1_negative" and rule.lower is not None and rule.upper == math.inf:
            fields["off_policy_sequence_mask_delta"] = minus_log(rule.lower)
        elif rule.name == "seq_mean_k1" and rule.lower is None and not opsm:
            geometric = rule
        else:
            raise no_rule("ms-swift", rule, "an upper bound on seq_mean_k1, or a lower one on seq_mean_k1_negative")
    if geometric is not None:
        if not is_unbounded(config):
            raise UsageError(
                "ms-swift's sequence_mask weighs kept tokens with raw ratios; nearest: token, threshold inf."
            )
        return fields | _mode("sequence_mask", geometric.upper)
    return fields | ({} if config.rollout_is is None else _weights(config))


def _weights(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is == "sequence":
        raise UsageError("ms-swift's sequence ratio is the geometric mean; nearest: rollout_is='geometric'.")
    if config.rollout_is_threshold_lower is not None:
        raise UsageError("ms-swift has no lower bound; nearest: no rollout_is_threshold_lower.")
    if config.rollout_is == "geometric" and config.rollout_is_mode == "mask":
        raise UsageError("ms-swift's sequence_mask keeps token ratios; nearest: token weights and a seq_mean_k1 rule.")
    level = "token" if config.rollout_is == "token" else "sequence"
    return _mode(f"{level}_{config.rollout_is_mode}", config.rollout_is_threshold)


def _mode(mode: str, upper: float) -> dict[str, Any]:
    return {"rollout_importance_sampling_mode": mode, "rollout_importance_sampling_threshold": float(upper)}


def ms_swift_text(config: CorrectionConfig) -> str:
    """Return the flags. Raises `UsageError` as `to_ms_swift` does."""
    fields = to_ms_swift(config)
    notes = [OPSM] if fields["off_policy_sequence_mask_delta"] is not None else []
    if fields["rollout_importance_sampling_mode"] is None:
        fields.pop("rollout_importance_sampling_threshold")
    text = as_flags(fields)
    return commented(text, ["ms-swift 4.6.0", *notes] + ["no flag: nothing is corrected"] * (not text))
