"""xtuner's RolloutImportanceSampling from ours (commit b934f462: xtuner/v1/rl/rollout_is.py:40-327).

Its pairs are (upper, lower), although its docstring says otherwise. Masked tokens are removed from the labels before
the loss counts them (trainer/worker.py:706-767): denominator "kept". Without rollout_is_threshold it does nothing, and
its veto is off, too.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, no_rule, refuse

FIELDS = FACTS["xtuner"].fields
RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""xtuner's level → our rule."""


def to_xtuner(config: CorrectionConfig) -> dict[str, Any]:
    """Return the fields. Raises `UsageError` for what xtuner cannot do."""
    refuse("xtuner", config)
    if config.rollout_is is None:
        return dict(FIELDS)
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
