"""torchtitan's DAPOLoss and GRPOLoss as ours and back (0.3.0: torchtitan/experiments/rl/losses/dapo.py, grpo.py).

It has two policies and no weights: the clip of π_θ/π_rollout is the correction. Log-ratios are clamped to ±10.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import known_keys, number, options
from rlcorr.systems.mapping.refusals import no_rule, refuse_centering
from rlcorr.systems.mapping.serialize import as_call, commented

DAPO = {"ratio_clip_low": 0.2, "ratio_clip_high": 0.2}
GRPO = {"clip_eps": 0.2}


def from_torchtitan(source: Any) -> tuple[CorrectionConfig, LossConfig]:
    """Return the correction and the loss's numbers of DAPOLoss.Config or GRPOLoss.Config.

    `source` is a mapping of its fields, with or without `loss` around them, or such an object. Raises `UsageError` for
    unknown keys, and for a mixture of both kinds.
    """
    source = options("torchtitan's loss", source, ("loss",))
    if not isinstance(source, Mapping):
        names = GRPO if "clip_eps" in dir(source) else DAPO
        source = {name: getattr(source, name) for name in names}
    kind = GRPO if "clip_eps" in source else DAPO
    known_keys("torchtitan's loss", source, kind)
    clips = [number(name, source.get(name, default)) for name, default in kind.items()]  # one number, or low and high
    return CorrectionConfig(bypass_mode=True), LossConfig(clip_ratio_low=clips[0], clip_ratio_high=clips[-1])


def to_torchtitan(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the fields of DAPOLoss.Config. Raises `UsageError` for what torchtitan cannot do."""
    loss = loss or LossConfig()
    refuse_centering("torchtitan", loss)
    if not config.bypass_mode or config.loss_type != "ppo_clip":
        raise UsageError("torchtitan clips π_θ/π_rollout and weighs nothing; nearest: bypass_mode=True with ppo_clip.")
    if config.rollout_rs:
        raise no_rule(
            "torchtitan", config.rollout_rs[0], "its clip, a LossConfig with clip_ratio_low and clip_ratio_high"
        )
    return {"ratio_clip_low": loss.clip_ratio_low, "ratio_clip_high": loss.clip_ratio_high}


def torchtitan_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return the call of DAPOLoss.Config. Raises `UsageError` as `to_torchtitan` does."""
    return commented(as_call("DAPOLoss.Config", to_torchtitan(config, loss)), ["torchtitan 0.3.0, experiments/rl"])
