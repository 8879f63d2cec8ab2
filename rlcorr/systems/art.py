"""ART's dev.TrainConfig from ours (openpipe-art 0.5.23: art/loss.py:256-396, art/dev/train.py:11-43).

By default the old log-probs are those of the sampler, so the loss compares π_θ with π_rollout: bypass mode. With
precalculate_logprobs they are computed again, which gives three policies, and truncated_importance_sampling then clamps
π_old/π_rollout from above.

The default loss is CISPO: −sg(w) A log π_θ, with the ratio clamped to [1 − epsilon, 1 + epsilon_high] as w. In bypass
mode this is our loss_type reinforce with truncated weights.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.refusals import plain, refuse

_LEVEL, _TIS, _MASK = "importance_sampling_level", "truncated_importance_sampling", "mask_prob_ratio"


def to_art(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of dev.TrainConfig; `loss` has the bounds of the clip. Raises `UsageError` for the rest."""
    loss = loss or LossConfig()
    refuse("ART", config)
    if config.bypass_mode and config.loss_type == "reinforce":
        return _weights(config)
    if config.loss_type != "ppo_clip" and (config.bypass_mode or config.loss_type != "cispo"):
        raise UsageError(
            f"ART has PPO's clip and CISPO; nearest: ppo_clip, cispo without bypass_mode, or reinforce with weights in "
            f"bypass mode; got {config.loss_type!r}."
        )
    fields: dict[str, Any] = {
        "ppo": config.loss_type == "ppo_clip",
        "epsilon": loss.clip_ratio_low,
        "epsilon_high": loss.clip_ratio_high,
        "precalculate_logprobs": not config.bypass_mode,
    }
    return fields | _truncation(config)


def _truncation(config: CorrectionConfig) -> dict[str, Any]:
    if config.rollout_is is None:
        return {}
    if config.rollout_is != "token" or config.rollout_is_mode == "mask" or config.rollout_is_threshold_lower:
        raise UsageError("ART clamps token ratios from above; nearest: rollout_is='token', truncate, no lower bound.")
    return {_TIS: float(config.rollout_is_threshold)}


def _weights(config: CorrectionConfig) -> dict[str, Any]:
    lower, upper = config.rollout_is_threshold_lower or 0.0, config.rollout_is_threshold
    if config.rollout_is not in ("token", "geometric"):
        raise UsageError(
            f"ART weighs with token ratios, or with the geometric mean of a sequence; nearest: rollout_is='token'; got "
            f"{config.rollout_is!r}."
        )
    if upper == math.inf or lower > 1:
        raise UsageError("ART's CISPO clamps to 0 ≤ low ≤ 1 and a finite upper bound; nearest: 1e9.")
    is_masked = config.rollout_is_mode == "mask"
    if is_masked and lower:
        raise UsageError(f"ART's {_MASK} has no lower bound that rejects; nearest: no rollout_is_threshold_lower.")
    level = "token" if config.rollout_is == "token" else "sequence"
    fields = {"ppo": False, "epsilon": plain(1 - lower), "epsilon_high": plain(upper - 1)}
    return fields | {_LEVEL: level, _MASK: is_masked}
