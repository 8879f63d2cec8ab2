"""AReaL's actor.rejection_sampling as ours and back, and its rollouts.

Source: commit cbff54d6, areal/api/cli_args.py:1505-1668 and areal/utils/functional/functional.py:185-425. Release 1.0.4
has the same fields.

Its kl_k3 is 1/r − 1 + log r and ours is r − 1 − log r, so neither can be translated. Its guide describes binary_kl, but
its validator refuses it.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.dumps import WithoutPair
from rlcorr.systems.mapping.keys import choice, known_keys, number, optional, options, refuse_ignored, settings, switch
from rlcorr.systems.mapping.refusals import is_unbounded, minus_log, only_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_yaml, commented

ROLLOUTS = WithoutPair(frozenset({"prompt", "completion", "head_version"}), "AReaL's rollouts, which have only texts")

FIELDS: dict[str, Any] = {
    "level": "token", "action": "mask", "metric": "ratio", "agg": "mean", "upper": 5.0, "lower": None,
}  # fmt: skip
"""Fields of `rejection_sampling`, with AReaL's defaults."""
_NOW = (
    "AReaL has rejection_sampling: {level: token, action: mask, metric: ratio, upper: cap} since pull request 1088; "
    "*_truncate is action: clamp, and sequence_* is level: sequence"
)
RETIRED = {f"{name}_imp_weight_{part}": _NOW for name in ("behav", "behave") for part in ("cap", "mode")}
"""Old keys → what to write now. AReaL itself refuses them, too (cli_args.py:3499-3531)."""
AGGREGATIONS = ("sum", "mean", "max")
RATIOS = {"token_k1": ("token", "mean"), **{f"seq_{agg}_k1": ("sequence", agg) for agg in AGGREGATIONS}}
SQUARES = {"token_k2": ("token", "mean"), **{f"seq_{agg}_k2": ("sequence", agg) for agg in AGGREGATIONS}}


def from_areal(source: Any) -> CorrectionConfig:
    """Return the configuration of `actor`'s use_decoupled_loss and rejection_sampling.

    `source` is a mapping, with or without `actor` around it, or AReaL's own RejectionSamplingConfig. It is translated
    as follows:

    - mask with metric ratio: a rule on r. The weight is r for tokens, and the geometric mean for sequences, whatever
      `agg` is.
    - mask with metric kl_k1 (log r) or kl_k2: a rule; the weight is the token's r.
    - clamp: truncated weights.

    Raises `UsageError` for unknown keys and names, for what AReaL ignores, and for what has no counterpart here.
    """
    source = options("AReaL's correction", source, ("actor",), RETIRED)
    if isinstance(source, Mapping):
        known_keys("AReaL's actor", source, ("use_decoupled_loss", "rejection_sampling"))
        decoupled = switch("use_decoupled_loss", source.get("use_decoupled_loss", False))
        source = source.get("rejection_sampling")
        if source is not None and not decoupled:
            raise UsageError("rejection_sampling does nothing in AReaL without use_decoupled_loss: true.")
    if source is None:
        return CorrectionConfig()
    values = settings("AReaL's rejection_sampling", source, FIELDS)
    level = choice("level", values["level"], ("token", "sequence"))
    action = choice("action", values["action"], ("mask", "clamp"))
    metric = choice("metric", values["metric"], ("ratio", "kl_k1", "kl_k2", "kl_k3"))
    agg = choice("agg", values["agg"], AGGREGATIONS)
    if level == "token":
        refuse_ignored("AReaL", values, FIELDS, ["agg"], "with level: token")
    lower, upper = optional("lower", values["lower"]), number("upper", values["upper"])
    if action == "clamp":
        return _clamped(level, metric, agg, lower, upper)
    return _masked(level, metric, agg, lower, upper)


def _clamped(level: str, metric: str, agg: str, lower: float | None, upper: float) -> CorrectionConfig:
    if metric != "ratio" or (level == "sequence" and agg != "mean"):
        raise UsageError(
            f"AReaL's clamp of {level} with {metric} and agg {agg} has no counterpart; nearest: ratio, mean."
        )
    weights: Any = "token" if level == "token" else "geometric"
    return CorrectionConfig(rollout_is=weights, rollout_is_threshold=upper, rollout_is_threshold_lower=lower or None)


def _masked(level: str, metric: str, agg: str, lower: float | None, upper: float) -> CorrectionConfig:
    prefix = "token" if level == "token" else f"seq_{agg}"
    weights: Any = "geometric" if level == "sequence" and metric == "ratio" else "token"
    if metric == "kl_k3":
        raise UsageError(
            "AReaL's kl_k3 is 1/r − 1 + log r, ours r − 1 − log r; nearest: kl_k2, the same on both sides."
        )
    if metric == "kl_k2":
        if lower is not None:
            raise UsageError(f"a lower bound of {lower:g} on kl_k2 has no counterpart; nearest: an upper bound alone.")
        rule = RejectionRule.named(f"{prefix}_k2", upper=upper)
    else:
        logs = metric == "kl_k1"
        rule = ratio_rule(f"{prefix}_k1", *((_exp(lower), math.exp(upper)) if logs else (lower, upper)))
    return CorrectionConfig(rollout_is=weights, rollout_is_threshold=math.inf, rollout_rs=(rule,))


def _exp(bound: float | None) -> float | None:
    return None if bound is None else math.exp(bound)


def to_areal(config: CorrectionConfig) -> dict[str, Any]:
    """Return the two keys of `actor`. Raises `UsageError` for what AReaL cannot do."""
    require_plain(
        "AReaL",
        config,
        bypass="use_decoupled_loss: false without recompute_logprob",
        loss="use_cispo_loss and the like",
    )
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


def areal_text(config: CorrectionConfig) -> str:
    """Return YAML under `actor`. Raises `UsageError` as `to_areal` does."""
    return commented(as_yaml("actor", to_areal(config)), ["AReaL 1.0.4 and main (commit cbff54d6)"])
