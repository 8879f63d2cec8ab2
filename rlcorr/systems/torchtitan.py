"""torchtitan's DAPOLoss from ours (0.3.0: torchtitan/experiments/rl/losses/dapo.py).

It has two policies and no weights: the clip of π_θ/π_rollout is the correction. Log-ratios are clamped to ±10.
"""

from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.systems.mapping.refusals import refuse


def to_torchtitan(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of DAPOLoss.Config. Raises `UsageError` for what torchtitan cannot do."""
    loss = loss or LossConfig()
    refuse("torchtitan", config)
    return {"ratio_clip_low": loss.clip_ratio_low, "ratio_clip_high": loss.clip_ratio_high}
