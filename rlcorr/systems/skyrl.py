"""SkyRL's off_policy_correction as ours and back, and our metrics under SkyRL's names (SkyRL, commit a9564572).

What one side cannot say is refused with the nearest thing that it can say; nothing is approximated in silence.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, WeightLevel
from rlcorr.errors import UsageError, unknown
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import known_keys, number, options, refuse_ignored, settings
from rlcorr.systems.mapping.serialize import as_yaml, commented

FIELDS = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_high": 1.01,
    "geo_mask_low": 0.99,
    "product_mask_high": 2.0,
    "product_mask_low": 0.5,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
}
"""SkyRL's fields and defaults (commit a9564572)."""
DEPRECATED = {"use_tis": False, "tis_imp_ratio_cap": -1.0}
BESIDE = {**DEPRECATED, "policy_loss_type": "regular"}
"""Keys of `trainer.algorithm` that act on the correction; regular was their default up to 0.4.0."""
PLACE = "off_policy_correction"
NOTE = "without policy_loss_type, SkyRL 0.5.0 takes dppo, which counts the gap by itself; a weight would count it twice"
SEQUENCE_MASKS = {"product": ("seq_sum_k1", "product_mask"), "geometric": ("seq_mean_k1", "geo_mask")}


def from_skyrl(mapping: Any) -> CorrectionConfig:
    """Return the configuration of SkyRL's `trainer.algorithm.off_policy_correction`, a mapping with or without these
    names around it, or of its own OffPolicyCorrectionConfig.

    outlier → seq_min_k1 and seq_max_k1, token mask → token_k1, sequence mask → seq_sum_k1 (product) or seq_mean_k1
    (geometric). A lower bound of 0 is no bound. What is left out has SkyRL's default. SkyRL sums a sequence over the
    tokens that its token mask left, ours over all of them: sequence weights and masks beside a token mask differ.
    Raises `UsageError` for unknown keys and for what SkyRL would ignore or turn around without a word.

    Beside off_policy_correction may be, as in `trainer.algorithm`, the deprecated use_tis and tis_imp_ratio_cap, and
    policy_loss_type: regular, which is PPO's clip and is meant where it is left out. It was SkyRL's default up to
    0.4.0; with 0.5.0's, dppo, a weight would count the gap twice.
    """
    mapping = options("SkyRL's off_policy_correction", mapping, ("trainer", "algorithm"))
    if isinstance(mapping, Mapping) and PLACE in mapping:
        beside = {name: value for name, value in mapping.items() if name != PLACE}
        known_keys("SkyRL's algorithm", beside, (PLACE, *BESIDE))
        mapping = beside | dict(mapping[PLACE] or {})
    allowed = FIELDS | BESIDE if isinstance(mapping, Mapping) else FIELDS
    given = BESIDE | settings("SkyRL's off_policy_correction", mapping, allowed)
    _check_loss(given)
    _check_switches(given)
    level, cap = _weights(given)
    rules = (*_outliers(given), *_token_mask(given), *_sequence_mask(given))
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=cap, rollout_rs=rules)


def _check_loss(given: dict[str, Any]) -> None:
    loss = given["policy_loss_type"]
    if loss == "dppo" and (given["tis_ratio_type"] is not None or given["use_tis"] is True):
        raise UsageError(
            "policy_loss_type dppo compares π_θ with π_rollout, so a weight beside it counts the gap twice; write "
            "policy_loss_type: regular, or leave the weight out."
        )
    if loss != "regular":
        raise UsageError(
            f"off_policy_correction is read beside policy_loss_type: regular; got {loss!r}: leave it out, and set our "
            f"loss_type to what is meant."
        )


def _check_switches(given: dict[str, Any]) -> None:
    """Raise `UsageError` for a bound whose switch is off, which SkyRL does not look at."""
    level, metric = given["tis_ratio_type"], given["sequence_mask_metric"]
    switched = {f"{name}_tis_ratio_clip_high": ("tis_ratio_type", name, level) for name in ("token", "sequence")} | {
        f"{prefix}_{side}": ("sequence_mask_metric", name, metric)
        for name, (_, prefix) in SEQUENCE_MASKS.items()
        for side in ("low", "high")
    }
    for bound, (key, wanted, got) in switched.items():
        if got != wanted:
            refuse_ignored("SkyRL", given, FIELDS, [bound], f"without {key}: {wanted}")
    if given["use_tis"] is False:
        refuse_ignored("SkyRL", given, BESIDE, ["tis_imp_ratio_cap"], "without the deprecated use_tis: true")


def _weights(given: dict[str, Any]) -> tuple[WeightLevel | None, float]:
    level = given["tis_ratio_type"]
    if not isinstance(given["use_tis"], bool):
        raise UsageError(f"use_tis must be True or False; got {given['use_tis']!r}.")
    if given["use_tis"]:
        if level is not None:
            raise UsageError(f"use_tis overrides tis_ratio_type={level!r} in SkyRL: leave out the deprecated use_tis.")
        return "token", _cap(given, "tis_imp_ratio_cap")
    if level is None:
        return None, CorrectionConfig.rollout_is_threshold
    if level not in ("token", "sequence"):
        raise unknown("tis_ratio_type", str(level), ("token", "sequence"))
    return level, _cap(given, f"{level}_tis_ratio_clip_high")


def _cap(given: dict[str, Any], name: str) -> float:
    cap = number(name, given[name])
    if not cap > 0:
        raise UsageError(
            f"{name} must be > 0; got {cap:g}. SkyRL takes min(ρ, cap), so that every weight would be {cap:g}: the "
            f"default of tis_imp_ratio_cap, -1, turns the gradient around."
        )
    return cap


def _outliers(given: dict[str, Any]) -> list[RejectionRule]:
    low, high = given["outlier_token_is_threshold_low"], given["outlier_token_is_threshold_high"]
    rules = []
    if low is not None:
        rules.append(RejectionRule.named("seq_min_k1", lower=number("outlier_token_is_threshold_low", low)))
    if high is not None:
        rules.append(RejectionRule.named("seq_max_k1", upper=number("outlier_token_is_threshold_high", high)))
    return rules


def _token_mask(given: dict[str, Any]) -> list[RejectionRule]:
    low, high = given["token_mask_is_threshold_low"], given["token_mask_is_threshold_high"]
    if low is None and high is None:
        return []
    if low is None or high is None:
        missing = "token_mask_is_threshold_low" if low is None else "token_mask_is_threshold_high"
        raise UsageError(
            f"{missing} is missing: SkyRL then leaves its token mask off. Give both, 0.0 or inf for no bound."
        )
    return [_band(given, "token_k1", "token_mask_is_threshold")]


def _sequence_mask(given: dict[str, Any]) -> list[RejectionRule]:
    metric = given["sequence_mask_metric"]
    if metric is None:
        return []
    if metric not in SEQUENCE_MASKS:
        raise unknown("sequence_mask_metric", str(metric), SEQUENCE_MASKS)
    return [_band(given, *SEQUENCE_MASKS[metric])]


def _band(given: dict[str, Any], rule: str, prefix: str) -> RejectionRule:
    low, high = (number(f"{prefix}_{side}", given[f"{prefix}_{side}"]) for side in ("low", "high"))
    return RejectionRule.named(rule, lower=None if low == 0 else low, upper=high)


def to_skyrl(config: CorrectionConfig) -> dict[str, Any]:
    """Return SkyRL's `off_policy_correction`, every field. Raises `UsageError` for what SkyRL cannot do.

    It is for policy_loss_type: regular, which `skyrl_text` writes beside it: 0.5.0's default, dppo, compares π_θ with
    π_rollout itself, so that a weight beside it would count the gap twice.
    """
    _refuse(config)
    fields = dict(FIELDS)
    if config.rollout_is is not None:
        fields["tis_ratio_type"] = config.rollout_is
        fields[f"{config.rollout_is}_tis_ratio_clip_high"] = float(config.rollout_is_threshold)
    for rule in config.rollout_rs:
        fields |= _rule(rule)
    if {"seq_sum_k1", "seq_mean_k1"} <= {rule.name for rule in config.rollout_rs}:
        raise UsageError(
            "SkyRL has one sequence mask; nearest: keep either seq_sum_k1 (product) or seq_mean_k1 (geometric)."
        )
    return fields


def skyrl_text(config: CorrectionConfig) -> str:
    """Return YAML under `trainer.algorithm`: off_policy_correction, and the loss that it is for. Raises `UsageError` as
    `to_skyrl` does."""
    fields = {"policy_loss_type": BESIDE["policy_loss_type"], PLACE: to_skyrl(config)}
    return commented(as_yaml("trainer.algorithm", fields), ["SkyRL 0.4.0", NOTE])


def _refuse(config: CorrectionConfig) -> None:
    lower = config.rollout_is_threshold_lower
    if config.bypass_mode:
        raise UsageError(
            "SkyRL has no bypass mode; nearest: policy_loss_type rollout_is or dppo, without a correction."
        )
    if config.loss_type != "ppo_clip":
        raise UsageError(
            f"SkyRL's off_policy_correction names no loss, so {config.loss_type!r} would be lost; nearest: translate "
            f"with loss_type='ppo_clip' and set policy_loss_type there."
        )
    if config.denominator == "kept":
        raise UsageError("SkyRL divides by the tokens from before the rejection; nearest: denominator='fixed'.")
    if config.rollout_is_batch_normalize:
        raise UsageError("SkyRL does not normalise weights; nearest: rollout_is_batch_normalize=False.")
    if config.rollout_is == "geometric":
        raise UsageError("SkyRL has no geometric weights; nearest: rollout_is='sequence', or a seq_mean_k1 rule.")
    if config.rollout_is is not None and config.rollout_is_mode == "mask":
        rule = "token_k1" if config.rollout_is == "token" else "seq_sum_k1"
        raise UsageError(
            f"SkyRL's weights are truncated, never masked; nearest: rollout_is_mode='truncate' and a {rule} rule with "
            f"the same bounds."
        )
    if config.rollout_is is not None and lower is not None:
        raise UsageError(f"SkyRL truncates weights above only; nearest: no rollout_is_threshold_lower; got {lower:g}.")


def _rule(rule: RejectionRule) -> dict[str, Any]:
    low, high = 0.0 if rule.lower is None else float(rule.lower), float(rule.upper)
    if rule.name == "seq_min_k1" and rule.upper == math.inf:
        return {"outlier_token_is_threshold_low": low}
    if rule.name == "seq_max_k1" and rule.lower is None:
        return {"outlier_token_is_threshold_high": high}
    if rule.name in ("seq_min_k1", "seq_max_k1"):
        raise UsageError(
            f"SkyRL's outlier veto is a lower bound on seq_min_k1 and an upper one on seq_max_k1; got {rule}."
        )
    if rule.name == "token_k1":
        return {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
    for metric, (name, prefix) in SEQUENCE_MASKS.items():
        if rule.name == name:
            return {"sequence_mask_metric": metric, f"{prefix}_low": low, f"{prefix}_high": high}
    nearest = f"{'token' if rule.level == 'token' else 'seq_mean'}_k1"
    raise UsageError(
        f"SkyRL's rules bound ratios, for every token alike, so it has no {rule.name}; nearest: {nearest}."
    )


# --- metrics ---

METRICS = {
    "is_ratio_mean": "is_ratio_mean",
    "is_ratio_std": "is_ratio_std",
    "is_ratio_max": "is_ratio_max",
    "is_ratio_min": "is_ratio_min",
    "outlier_seq_masked_ratio": "rollout_rs_veto_seq_masked_fraction",
    "outlier_seq_over_high_ratio": "rollout_rs_seq_max_k1_log_ratio_fraction_high",
    "outlier_seq_under_low_ratio": "rollout_rs_seq_min_k1_log_ratio_fraction_low",
    "token_mask_ratio": "rollout_rs_token_k1_masked_fraction",
    "tis_token_clip_high_ratio": "rollout_is_ratio_fraction_high",
    "tis_seq_clip_high_ratio": "rollout_is_ratio_fraction_high",
    "geo_sequence_mask_masked_ratio": "rollout_rs_seq_mean_k1_seq_masked_fraction",
    "geo_sequence_mask_over_high_ratio": "rollout_rs_seq_mean_k1_log_ratio_fraction_high",
    "geo_sequence_mask_under_low_ratio": "rollout_rs_seq_mean_k1_log_ratio_fraction_low",
    "product_sequence_mask_masked_ratio": "rollout_rs_seq_sum_k1_seq_masked_fraction",
    "product_sequence_mask_over_high_ratio": "rollout_rs_seq_sum_k1_log_ratio_fraction_high",
    "product_sequence_mask_under_low_ratio": "rollout_rs_seq_sum_k1_log_ratio_fraction_low",
    "rollout_train_logprobs_abs_diff_mean": "abs_log_ratio",
    "rollout_train_logprobs_abs_diff_std": "abs_log_ratio_std",
    "rollout_train_logprobs_abs_diff_max": "abs_log_ratio_max",
    "rollout_train_logprobs_abs_diff_min": "abs_log_ratio_min",
}
"""SkyRL's name of a metric → ours. Its masked positions count as ratio 0 in is_ratio_*; ours are left out."""


def skyrl_metrics(report: dict[str, float], config: CorrectionConfig) -> dict[str, float]:
    """The same numbers under SkyRL's names, where this configuration has them."""
    other = {"token": "tis_seq_clip_high_ratio", "sequence": "tis_token_clip_high_ratio"}.get(config.rollout_is or "")
    return {name: report[PREFIX + key] for name, key in METRICS.items() if PREFIX + key in report and name != other}
