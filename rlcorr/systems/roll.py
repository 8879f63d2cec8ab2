"""ROLL's train_infer_correction as ours and back.

Source: v0.3.0, commit 8eb27cc2, roll/configs/base_config.py:424-480 and roll/utils/train_infer_corrections.py:16-165.

A filter removes tokens from the mask over which the default loss, seq-mean-token-mean, averages: denominator "kept".
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import choice, known_keys, number, optional, options, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import no_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_yaml, commented

IS_WEIGHT: dict[str, Any] = {"enabled": False, "weight_type": "token", "upper_bound": 1.2, "detach": True}
FILTER: dict[str, Any] = {
    "enabled": False, "agg_type": "token", "ratio_enabled": True, "ratio_low": 0.8, "ratio_high": 1.2,
    "diff_enabled": False, "diff_low": -0.2, "diff_high": 0.2,
}  # fmt: skip
_LOSS = "it bounds π_θ/π_old in a loss (pg_variant tis), not the mismatch, so leave it out"
RETIRED = {
    **dict.fromkeys(("pg_variant", "tis_lower_bound", "tis_upper_bound"), _LOSS),
    **dict.fromkeys(
        ("infer_correction", "infer_is_mode", "infer_is_threshold_min", "infer_is_threshold_max"),
        "an older ROLL had it; now it is is_weight: {enabled: true, weight_type: token, upper_bound: X}",
    ),
    **dict.fromkeys(
        (
            "enable_token_reject", "infer_token_mask_threshold_min", "infer_token_mask_threshold_max",
            "enable_seq_reject", "infer_seq_mask_threshold_min", "infer_seq_mask_threshold_max",
        ),
        "an older ROLL had it; now it is an entry of filters: {enabled: true, agg_type: token, ratio_low: X, "
        "ratio_high: X}",
    ),
    **dict.fromkeys(
        ("enable_catastrophic_reject", "infer_catastrophic_threshold"),
        "an older ROLL rejected a sequence for one tiny ratio; today's has no such filter",
    ),
}  # fmt: skip
"""Older keys → what to write now. Source: the docs of October 2025, infer_correction."""
# ROLL's level → the start of our rule's name; our divergence → ROLL's name of the quantity.
PREFIXES = {"token": "token", "geometric": "seq_mean", "sequence": "seq_sum"}
MEASURES = {"k1": "ratio", "prob_diff": "diff"}
SEGMENT = "segments, the parts of an answer between two tool calls, have no counterpart; nearest: geometric."


def from_roll(source: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration of ROLL's `train_infer_correction`.

    `source` is a mapping of is_weight and filters, with or without that name around it. Weights are truncated above. A
    filter bounds r of tokens, their geometric mean or their product; or π_old − π_rollout of tokens, their mean or
    their sum. A part with `enabled: false` is not read. Bounds without `enabled` are refused, because ROLL then ignores
    them. Raises `UsageError` for unknown keys and names, segments, weights with a gradient, and what ROLL ignores.
    """
    source = options("ROLL's correction", source, ("train_infer_correction",), RETIRED)
    known_keys("ROLL's train_infer_correction", source, ("is_weight", "filters"))
    known_keys("ROLL's is_weight", source.get("is_weight", {}), IS_WEIGHT)
    weight = IS_WEIGHT | dict(source.get("is_weight", {}))
    rules = tuple(rule for entry in source.get("filters", ()) for rule in _filter(entry))
    denominator: Any = "kept" if rules else "fixed"
    if not switch("is_weight.enabled", weight["enabled"]):
        _switched_off("is_weight", source.get("is_weight", {}), IS_WEIGHT)
        return CorrectionConfig(rollout_rs=rules, denominator=denominator)
    if not switch("is_weight.detach", weight["detach"]):
        raise UsageError("weights with a gradient (detach: false) have no counterpart; nearest: detach: true.")
    level = _level("is_weight.weight_type", weight["weight_type"])
    upper = optional("is_weight.upper_bound", weight["upper_bound"])
    return CorrectionConfig(
        rollout_is=level,
        rollout_is_threshold=math.inf if upper is None else upper,
        rollout_rs=rules,
        denominator=denominator,
    )


def _level(name: str, value: Any) -> Any:
    if value == "segment":
        raise UsageError(f"{name}: {SEGMENT}")
    return choice(name, value, PREFIXES)


def _switched_off(part: str, source: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    if "enabled" not in source:
        refuse_ignored("ROLL", {**defaults, **source}, defaults, defaults, f"in {part} without enabled: true")


def _filter(entry: Mapping[str, Any]) -> list[RejectionRule]:
    known_keys("a filter of ROLL", entry, FILTER)
    values = FILTER | dict(entry)
    if not switch("enabled", values["enabled"]):
        _switched_off("a filter", entry, FILTER)
        return []
    kinds = [kind for kind in MEASURES.values() if switch(f"{kind}_enabled", values[f"{kind}_enabled"])]
    for kind in MEASURES.values():
        if kind not in kinds:
            refuse_ignored("ROLL", values, FILTER, [f"{kind}_low", f"{kind}_high"], f"without {kind}_enabled: true")
    if not kinds:
        raise UsageError("a filter of ROLL with neither ratio_enabled nor diff_enabled rejects nothing: leave it out.")
    prefix = PREFIXES[_level("agg_type", values["agg_type"])]
    rules = []
    if "ratio" in kinds:
        rules.append(
            ratio_rule(f"{prefix}_k1", *(number(f"ratio_{side}", values[f"ratio_{side}"]) for side in ("low", "high")))
        )
    if "diff" in kinds:
        low, high = (number(f"diff_{side}", values[f"diff_{side}"]) for side in ("low", "high"))
        rules.append(RejectionRule.named(f"{prefix}_prob_diff", lower=None if low == -math.inf else low, upper=high))
    return rules


def to_roll(config: CorrectionConfig) -> dict[str, Any]:
    """Return ROLL's `train_infer_correction`. Raises `UsageError` for what ROLL cannot do."""
    require_plain(
        "ROLL", config, bypass="pg_variant vanilla without recomputed log-probs", loss="pg_variant", denominator="kept"
    )
    upper = float(config.rollout_is_threshold)
    if config.rollout_is is not None and config.rollout_is_mode == "mask":
        raise UsageError(
            "ROLL masks by filters only; nearest: rollout_is_threshold=inf and a rule of k1, denominator='kept'."
        )
    if config.rollout_is is not None and config.rollout_is_threshold_lower is not None:
        raise UsageError("ROLL truncates weights above only; nearest: no rollout_is_threshold_lower.")
    weight = dict(IS_WEIGHT)
    if config.rollout_is is not None:
        bound = None if upper == math.inf else upper
        weight |= {"enabled": True, "weight_type": config.rollout_is, "upper_bound": bound}
    return {"is_weight": weight, "filters": [_entry(rule) for rule in config.rollout_rs]}


def _entry(rule: RejectionRule) -> dict[str, Any]:
    names = {f"{prefix}_{ours}": (agg, theirs) for agg, prefix in PREFIXES.items() for ours, theirs in MEASURES.items()}
    if rule.name not in names:
        raise no_rule("ROLL", rule, "a rule of k1 or prob_diff on tokens, or on their mean or sum")
    agg, measure = names[rule.name]
    low = (0.0 if measure == "ratio" else -math.inf) if rule.lower is None else float(rule.lower)
    on = {"enabled": True, "agg_type": agg, "ratio_enabled": measure == "ratio", "diff_enabled": measure == "diff"}
    return FILTER | on | {f"{measure}_low": low, f"{measure}_high": float(rule.upper)}


def roll_text(config: CorrectionConfig) -> str:
    """Return YAML under `train_infer_correction`. Raises `UsageError` as `to_roll` does."""
    notes = ["ROLL v0.3.0", "averaged over the kept tokens with loss_agg_mode: seq-mean-token-mean, its default"]
    return commented(as_yaml("train_infer_correction", to_roll(config)), notes if config.rollout_rs else notes[:1])
