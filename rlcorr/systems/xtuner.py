"""xtuner's RolloutImportanceSampling as ours and back (commit b934f462: xtuner/v1/rl/rollout_is.py:40-327).

Its pairs are (upper, lower), although its docstring says otherwise. Masked tokens are removed from the labels before
the loss counts them (trainer/worker.py:706-767): denominator "kept". Without rollout_is_threshold it does nothing, and
its veto is off, too.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import choice, options, pair, refuse_ignored, settings
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, no_rule, ratio_rule, require_plain
from rlcorr.systems.mapping.serialize import as_call, commented

FIELDS: dict[str, Any] = {
    "rollout_is_level": "token",
    "rollout_is_mode": "truncate",
    "rollout_is_threshold": None,
    "rollout_is_mask_threshold": None,
    "rollout_is_veto_threshold": None,
}
"""The fields and their defaults."""
RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""xtuner's level → our rule."""


def from_xtuner(source: Any) -> CorrectionConfig:
    """Return the configuration of the fields.

    `source` is a mapping, with or without `rollout_is` around it (the argument of its loss), or xtuner's own
    RolloutImportanceSampling. The ratio is the token's r, the product or the geometric mean.

    - truncate clamps the weight on both sides, mask rejects outside the bounds, both does both.
    - A ratio outside the veto's bounds rejects the sequence.
    - In mode mask rollout_is_threshold is a switch; it has the bounds if there is no rollout_is_mask_threshold.

    Raises `UsageError` for unknown keys and names, for pairs that are not (upper, lower), and for what xtuner ignores.
    """
    source = options("xtuner's RolloutImportanceSampling", source, ("rollout_is",))
    values = settings("xtuner's RolloutImportanceSampling", source, FIELDS)
    if values["rollout_is_threshold"] is None:
        refuse_ignored("xtuner", values, FIELDS, FIELDS, "without rollout_is_threshold")
        return CorrectionConfig()
    level = choice("rollout_is_level", values["rollout_is_level"], RULES)
    mode = choice("rollout_is_mode", values["rollout_is_mode"], ("truncate", "mask", "both"))
    low, high = _sides("rollout_is_threshold", values)
    rules = []
    if mode == "truncate":
        refuse_ignored("xtuner", values, FIELDS, ["rollout_is_mask_threshold"], "with rollout_is_mode truncate")
    if mode != "truncate":
        name = "rollout_is_threshold" if values["rollout_is_mask_threshold"] is None else "rollout_is_mask_threshold"
        rules.append(ratio_rule(RULES[level], *_sides(name, values)))
    if values["rollout_is_veto_threshold"] is not None:
        lowest, highest = _sides("rollout_is_veto_threshold", values)
        rules += [RejectionRule.named("seq_max_k1", upper=highest)] if highest < math.inf else []
        rules += [RejectionRule.named("seq_min_k1", lower=lowest)] if lowest else []
    return CorrectionConfig(
        rollout_is=level,
        rollout_is_threshold=math.inf if mode == "mask" else high,
        rollout_is_threshold_lower=None if mode == "mask" else low or None,
        rollout_rs=tuple(rules),
        denominator="kept" if rules else "fixed",
    )


def _sides(name: str, values: dict[str, Any]) -> tuple[float, float]:
    upper, lower = pair(name, values[name])
    if not upper > lower:
        raise UsageError(f"{name} of xtuner is (upper, lower); got {values[name]!r}.")
    return lower, upper


def to_xtuner(config: CorrectionConfig) -> dict[str, Any]:
    """Return the fields. Raises `UsageError` for what xtuner cannot do."""
    require_plain(
        "xtuner", config, bypass="its loss without recomputed log-probs", loss="loss_type", denominator="kept"
    )
    if config.rollout_is is None:
        if config.rollout_rs:
            raise UsageError("xtuner rejects only with weights; nearest: rollout_is='token' with a threshold of inf.")
        return dict(FIELDS)
    if config.rollout_is_mode == "mask":
        raise UsageError("xtuner rejects what it masks; nearest: rollout_is_threshold=inf and a rule of k1, kept.")
    level = config.rollout_is
    rules = {rule.name: rule for rule in config.rollout_rs}
    vetoes = rules.pop("seq_max_k1", None), rules.pop("seq_min_k1", None)
    mask = rules.pop(RULES[level], None)
    if rules:
        raise no_rule("xtuner", next(iter(rules.values())), f"{RULES[level]}, of the weights' level, or a veto")
    weights = _pair(config.rollout_is_threshold_lower or 0.0, config.rollout_is_threshold)
    fields = FIELDS | {
        "rollout_is_level": level,
        "rollout_is_threshold": weights,
        "rollout_is_veto_threshold": _veto(*vetoes),
    }
    if mask is None:
        return fields
    if is_unbounded(config, level):
        return fields | {"rollout_is_mode": "mask", "rollout_is_threshold": _pair(*bounds(mask))}
    return fields | {"rollout_is_mode": "both", "rollout_is_mask_threshold": _pair(*bounds(mask))}


def _pair(lower: float, upper: float) -> tuple[float, float]:
    return float(upper), float(lower)


def _veto(high: RejectionRule | None, low: RejectionRule | None) -> tuple[float, float] | None:
    if high is None and low is None:
        return None
    if (high is not None and high.lower is not None) or (low is not None and low.upper != math.inf):
        raise UsageError("xtuner's veto is an upper bound on seq_max_k1 and a lower one on seq_min_k1.")
    return _pair(0.0 if low is None else low.lower or 0.0, math.inf if high is None else high.upper)


def xtuner_text(config: CorrectionConfig) -> str:
    """Return the call of RolloutImportanceSampling. Raises `UsageError` as `to_xtuner` does."""
    notes = ["xtuner (commit b934f462); pairs are (upper, lower)"]
    return commented(as_call("RolloutImportanceSampling", to_xtuner(config)), notes)
