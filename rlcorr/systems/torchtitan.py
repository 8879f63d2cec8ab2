"""torchtitan's DAPOLoss from ours (0.3.0: torchtitan/experiments/rl/losses/dapo.py).

It has two policies and no weights: the clip of π_θ/π_rollout is the correction. Log-ratios are clamped to ±10.
"""

from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.refusals import no_rule


def to_torchtitan(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of DAPOLoss.Config. Raises `UsageError` for what torchtitan cannot do."""
    loss = loss or LossConfig()
    if not config.bypass_mode or config.loss_type != "ppo_clip":
        raise UsageError("torchtitan clips π_θ/π_rollout and weighs nothing; nearest: bypass_mode=True with ppo_clip.")
    if config.rollout_rs:
        raise no_rule(
            "torchtitan", config.rollout_rs[0], "its clip, a LossConfig with clip_ratio_low and clip_ratio_high"
        )
    return {"ratio_clip_low": loss.clip_ratio_low, "ratio_clip_high": loss.clip_ratio_high}
