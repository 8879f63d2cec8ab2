"""open-instruct's rho flags from ours, and its rollouts.

Source: commit e6c3044a, open_instruct/grpo_utils.py:110-135, 325-337, 372-463. 0 means "no bound". A token that a mask
drops still counts in the denominator.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import bounds, no_rule, only_rule, refuse

FIELDS = FACTS["open-instruct"].fields
RULES = {"token": "token_k1", "geometric": "seq_mean_k1"}
VACO = "seq_mean_abs_ratio_error_outward"
"""The rule of rho_mask_tv_divergence."""


def to_open_instruct(config: CorrectionConfig) -> dict[str, Any]:
    """Return the flags. Raises `UsageError` for what open-instruct cannot do."""
    refuse("open-instruct", config)
    if config.rollout_is is None:
        return FIELDS | {"use_rho_correction": False}
    nearest = "token_k1, seq_mean_k1 with geometric weights, or seq_mean_abs_ratio_error_outward"
    rule = only_rule("open-instruct", config.rollout_rs, (RULES[config.rollout_is], VACO), nearest)
    weights = _bounds(config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold))
    if config.rollout_is_mode == "mask":
        if rule is not None:
            raise UsageError("open-instruct has one mask; nearest: truncated weights and the rule.")
        clamp, mask = (0.0, 0.0), weights
    else:
        clamp, mask = weights, (0.0, 0.0) if rule is None else _bounds(*bounds(rule))
        if rule is not None and clamp == (0.0, 0.0) and rule.name != VACO:
            raise no_rule("open-instruct", rule, "rollout_is_mode='mask' with the same bounds, which is what it does")
    names = [name for name in FIELDS if name.endswith("_bound")]
    sides = dict(zip(names, (*clamp, *mask), strict=True))
    switches = {"rho_mask_sequence_level": config.rollout_is == "geometric",
                "rho_mask_tv_divergence": rule is not None and rule.name == VACO}  # fmt: skip
    return FIELDS | sides | switches


def _bounds(low: float, high: float) -> tuple[float, float]:
    high = 0.0 if high == math.inf else high
    if not 0 <= low < 1 or not (high == 0 or high > 1):
        raise UsageError(
            f"open-instruct wants a lower bound below 1 and an upper one above 1; got {low:g} and {high:g}; nearest: "
            f"0.999 and 1.001."
        )
    return low, high
