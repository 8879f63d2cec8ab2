"""Tinker's losses from ours (tinker-cookbook 0.6.1: Config and AsyncConfig of tinker_cookbook/rl/train.py).

Its losses compare π_θ with π_rollout, whose log-probs come with each token: bypass mode. The formulas are on the server
and documented (tinker-docs.thinkingmachines.ai/tinker/losses): importance_sampling is −r A with r = π_θ/π_rollout, ppo
clips r, cispo is −sg(clamp(r)) A log π_θ. The bounds are ratios, 0.8 and 1.2 by default.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.refusals import is_unbounded, plain, refuse

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"


def to_tinker(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of Config; `loss` has the bounds of ppo. Raises `UsageError` for what Tinker cannot do."""
    loss = loss or LossConfig()
    refuse("Tinker", config)
    if config.loss_type == "ppo_clip":
        return _with_bounds("ppo", 1 - loss.clip_ratio_low, 1 + loss.clip_ratio_high)
    if is_unbounded(config):
        return {"loss_fn": "importance_sampling"}
    upper = config.rollout_is_threshold
    if config.rollout_is != "token" or config.rollout_is_mode == "mask" or upper == math.inf:
        raise UsageError("Tinker's cispo clamps token ratios; nearest: rollout_is='token', truncate, upper bound 1e9.")
    return _with_bounds("cispo", config.rollout_is_threshold_lower or 0.0, upper)


def _with_bounds(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"loss_fn": kind, "loss_fn_config": {LOW: plain(low), HIGH: plain(high)}}
