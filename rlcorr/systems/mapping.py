"""A correction as a mapping, as YAML and JSON, and as SkyRL's off_policy_correction. verl has `translate_verl.py`.

What one side cannot say is refused with the nearest thing that it can say; nothing is approximated in silence.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import yaml

from rlcorr.config import CorrectionConfig, WeightLevel
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule

FIELDS = tuple(f.name for f in fields(CorrectionConfig))
RULE_KEYS = ("rule", "lower", "upper")

SKYRL = {
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
SKYRL_DEPRECATED = {"use_tis": False, "tis_imp_ratio_cap": -1.0}
SKYRL_METRICS = {"product": ("seq_sum_k1", "product_mask"), "geometric": ("seq_mean_k1", "geo_mask")}


# --- our own mapping ---


def to_dict(config: CorrectionConfig) -> dict[str, Any]:
    """Every field by its name; a rule is {"rule": "seq_mean_k1", "lower": 0.999, "upper": 1.001}, infinity is "inf"."""
    found = {name: getattr(config, name) for name in FIELDS}
    for name in ("rollout_is_threshold", "rollout_is_threshold_lower"):
        found[name] = None if found[name] is None else _written(found[name])
    return found | {"rollout_rs": [_rule_dict(rule) for rule in config.rollout_rs]}


def from_dict(mapping: Mapping[str, Any]) -> CorrectionConfig:
    """The configuration that `to_dict` wrote; what is left out has its default.

    Raises `UsageError` for an unknown key, a wrong value, or a number that is text: YAML reads 1e-4 as text.
    """
    known_keys("a correction", mapping, FIELDS)
    given = dict(mapping)
    if "rollout_is_threshold" in given:
        given["rollout_is_threshold"] = number("rollout_is_threshold", given["rollout_is_threshold"])
    if given.get("rollout_is_threshold_lower") is not None:
        given["rollout_is_threshold_lower"] = number("rollout_is_threshold_lower", given["rollout_is_threshold_lower"])
    if "rollout_rs" in given:
        given["rollout_rs"] = _rules(given["rollout_rs"])
    return CorrectionConfig(**given)


def to_yaml(config: CorrectionConfig) -> str:
    """`to_dict` as YAML. Every number has a dot, so that every YAML reader takes it for a number."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def from_yaml(text: str) -> CorrectionConfig:
    """`from_dict` of YAML text. Raises `UsageError` also where the text is no YAML."""
    try:
        mapping = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not YAML: {' '.join(str(error).split())}.") from None
    return from_dict(mapping)


def to_json(config: CorrectionConfig) -> str:
    """`to_dict` as JSON."""
    return json.dumps(to_dict(config), indent=2, allow_nan=False)


def from_json(text: str) -> CorrectionConfig:
    """`from_dict` of JSON text. Raises `UsageError` also where the text is no JSON."""
    try:
        mapping = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"this is not JSON: {error}.") from None
    return from_dict(mapping)


def _rule_dict(rule: RejectionRule) -> dict[str, Any]:
    lower = {} if rule.lower is None else {"lower": _written(rule.lower)}
    upper = {} if rule.upper == math.inf else {"upper": _written(rule.upper)}
    return {"rule": rule.name} | lower | upper


def _written(bound: float) -> float | str:
    """JSON has no infinity, so it is text."""
    return float(bound) if math.isfinite(bound) else str(bound)


def _rules(rules: Any) -> tuple[RejectionRule, ...]:
    if not isinstance(rules, list | tuple):
        raise UsageError(
            f"rollout_rs must be a list of rules, {{rule: token_k1, lower: 0.5, upper: 2.0}}; got {rules!r}."
        )
    return tuple(_rule(rule) for rule in rules)


def _rule(mapping: Any) -> RejectionRule:
    known_keys("a rejection rule", mapping, RULE_KEYS)
    name = mapping.get("rule")
    if not isinstance(name, str):
        raise UsageError(f"a rejection rule needs a name, as in rule: token_k1; got {dict(mapping)!r}.")
    lower, upper = mapping.get("lower"), mapping.get("upper", math.inf)
    return RejectionRule.named(
        name,
        lower=None if lower is None else number(f"lower of {name}", lower),
        upper=number(f"upper of {name}", upper),
    )


# --- SkyRL ---


def from_skyrl(mapping: Mapping[str, Any]) -> CorrectionConfig:
    """SkyRL's `trainer.algorithm.off_policy_correction`, or the deprecated use_tis and tis_imp_ratio_cap.

    outlier → seq_min_k1 and seq_max_k1, token mask → token_k1, sequence mask → seq_sum_k1 (product) or seq_mean_k1
    (geometric). A lower bound of 0 is no bound. What is left out has SkyRL's default, and numbers of a feature that is
    off are not read. SkyRL sums a sequence over the tokens that its token mask left, ours over all of them: sequence
    weights and sequence masks beside a token mask differ. Raises `UsageError` for unknown keys and for what SkyRL
    would ignore or turn around without a word.
    """
    known_keys("SkyRL's off_policy_correction", mapping, (*SKYRL, *SKYRL_DEPRECATED))
    given = SKYRL | SKYRL_DEPRECATED | dict(mapping)
    level, cap = _skyrl_weights(given)
    rules = (*_skyrl_outliers(given), *_skyrl_token_mask(given), *_skyrl_sequence_mask(given))
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=cap, rollout_rs=rules)


def _skyrl_weights(given: dict[str, Any]) -> tuple[WeightLevel | None, float]:
    level = given["tis_ratio_type"]
    if not isinstance(given["use_tis"], bool):
        raise UsageError(f"use_tis must be True or False; got {given['use_tis']!r}.")
    if given["use_tis"]:
        if level is not None:
            raise UsageError(f"use_tis overrides tis_ratio_type={level!r} in SkyRL: leave out the deprecated use_tis.")
        return "token", _skyrl_cap(given, "tis_imp_ratio_cap")
    if level is None:
        return None, CorrectionConfig.rollout_is_threshold
    if level not in ("token", "sequence"):
        raise unknown("tis_ratio_type", str(level), ("token", "sequence"))
    return level, _skyrl_cap(given, f"{level}_tis_ratio_clip_high")


def _skyrl_cap(given: dict[str, Any], name: str) -> float:
    cap = number(name, given[name])
    if not cap > 0:
        raise UsageError(
            f"{name} must be > 0; got {cap:g}. SkyRL takes min(ρ, cap), so that every weight would be {cap:g}: the "
            f"default of tis_imp_ratio_cap, -1, turns the gradient around."
        )
    return cap


def _skyrl_outliers(given: dict[str, Any]) -> list[RejectionRule]:
    low, high = given["outlier_token_is_threshold_low"], given["outlier_token_is_threshold_high"]
    rules = []
    if low is not None:
        rules.append(RejectionRule.named("seq_min_k1", lower=number("outlier_token_is_threshold_low", low)))
    if high is not None:
        rules.append(RejectionRule.named("seq_max_k1", upper=number("outlier_token_is_threshold_high", high)))
    return rules


def _skyrl_token_mask(given: dict[str, Any]) -> list[RejectionRule]:
    low, high = given["token_mask_is_threshold_low"], given["token_mask_is_threshold_high"]
    if low is None and high is None:
        return []
    if low is None or high is None:
        missing = "token_mask_is_threshold_low" if low is None else "token_mask_is_threshold_high"
        raise UsageError(
            f"{missing} is missing: SkyRL then leaves its token mask off. Give both, 0.0 or inf for no bound."
        )
    return [_skyrl_band(given, "token_k1", "token_mask_is_threshold")]


def _skyrl_sequence_mask(given: dict[str, Any]) -> list[RejectionRule]:
    metric = given["sequence_mask_metric"]
    if metric is None:
        return []
    if metric not in SKYRL_METRICS:
        raise unknown("sequence_mask_metric", str(metric), SKYRL_METRICS)
    return [_skyrl_band(given, *SKYRL_METRICS[metric])]


def _skyrl_band(given: dict[str, Any], rule: str, prefix: str) -> RejectionRule:
    low, high = (number(f"{prefix}_{side}", given[f"{prefix}_{side}"]) for side in ("low", "high"))
    return RejectionRule.named(rule, lower=None if low == 0 else low, upper=high)


def to_skyrl(config: CorrectionConfig) -> dict[str, Any]:
    """SkyRL's `off_policy_correction`, every field. Raises `UsageError` for what SkyRL cannot do.

    SkyRL's regular policy loss is meant; another one is SkyRL's own policy_loss_type.
    """
    _refuse_for_skyrl(config)
    found = dict(SKYRL)
    if config.rollout_is is not None:
        found["tis_ratio_type"] = config.rollout_is
        found[f"{config.rollout_is}_tis_ratio_clip_high"] = float(config.rollout_is_threshold)
    for rule in config.rollout_rs:
        found |= _skyrl_rule(rule)
    if {"seq_sum_k1", "seq_mean_k1"} <= {rule.name for rule in config.rollout_rs}:
        raise UsageError("SkyRL has one sequence mask: keep either seq_sum_k1 (product) or seq_mean_k1 (geometric).")
    return found


def _refuse_for_skyrl(config: CorrectionConfig) -> None:
    lower = config.rollout_is_threshold_lower
    if config.bypass_mode:
        raise UsageError(
            "SkyRL has no bypass mode; nearest: policy_loss_type rollout_is or dppo, without a correction."
        )
    if config.loss_type != "ppo_clip":
        raise UsageError(
            f"SkyRL's off_policy_correction names no loss, so {config.loss_type!r} would be lost: translate with "
            f"loss_type='ppo_clip' and set policy_loss_type there."
        )
    if config.denominator == "kept":
        raise UsageError("SkyRL divides by the tokens from before the rejection: denominator must be 'fixed'.")
    if config.rollout_is_batch_normalize:
        raise UsageError("SkyRL does not normalise weights: rollout_is_batch_normalize must be False.")
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


def _skyrl_rule(rule: RejectionRule) -> dict[str, Any]:
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
    for metric, (name, prefix) in SKYRL_METRICS.items():
        if rule.name == name:
            return {"sequence_mask_metric": metric, f"{prefix}_low": low, f"{prefix}_high": high}
    nearest = f"{'token' if rule.level == 'token' else 'seq_mean'}_k1"
    raise UsageError(
        f"SkyRL's rules bound ratios, for every token alike, so it has no {rule.name}; nearest: {nearest}."
    )


# --- what every translation needs ---


def known_keys(kind: str, mapping: Any, known: Iterable[str]) -> None:
    """Raise `UsageError` unless this is a mapping with no other keys than these."""
    if not isinstance(mapping, Mapping):
        raise UsageError(f"{kind} must be a mapping of names to values; got {mapping!r}.")
    known = tuple(known)
    for key in mapping:
        if key not in known:
            raise unknown(f"key of {kind}", str(key), known)


def number(name: str, value: Any) -> float:
    """The value as a float; "inf" is one too, because JSON has no other way to say it.

    Raises `UsageError` for what is no number, other text that looks like one included.
    """
    if (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, str) and _looks_like_a_number(value):
        dotted = value if "." in value else value.lower().replace("e", ".0e")
        raise UsageError(
            f"{name} is the text {value!r}: write the number {dotted}, without quotes (YAML reads an exponent without "
            f"a dot as text)."
        )
    raise UsageError(f"{name} must be a number; got {value!r}.")


def _looks_like_a_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
