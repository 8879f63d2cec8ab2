"""Unsloth's GRPOConfig from ours (2026.10.9, on TRL 1.6 to 1.15): TRL's arguments, with the correction off.

Source: unsloth 2026.10.9, unsloth/models/rl.py:3362, and unsloth_zoo 2026.10.9, unsloth_zoo/rl_replacements.py:962-966,
1023-1076, 2719-2829. If an argument is missing, its loss takes sequence_mask, a cap of 2.0 and a clip_max of 3.0; but
its GRPOConfig has TRL's arguments with TRL's defaults, so these numbers are reached by direct callers only.

Geometric weights and verl's rejection rules are set by environment variables (UNSLOTH_GRPO_VLLM_IS_MODE,
UNSLOTH_GRPO_ROLLOUT_RS), which are not read or written here.
"""

from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.systems.mapping.refusals import refuse, renamed
from rlcorr.systems.trl import to_trl


def to_unsloth(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the arguments of GRPOConfig, always with the switch. Raises `UsageError` as `to_trl` does."""
    refuse("Unsloth", config)
    with renamed("TRL", "Unsloth"):
        return to_trl(config, loss)
