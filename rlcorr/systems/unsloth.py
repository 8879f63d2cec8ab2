"""Unsloth's GRPOConfig as ours and back (2026.10.9, on TRL 1.6 to 1.15): TRL's arguments, with the correction off.

Source: unsloth 2026.10.9, unsloth/models/rl.py:3362, and unsloth_zoo 2026.10.9, unsloth_zoo/rl_replacements.py:962-966,
1023-1076, 2719-2829. If an argument is missing, its loss takes sequence_mask, a cap of 2.0 and a clip_max of 3.0; but
its GRPOConfig has TRL's arguments with TRL's defaults, so these numbers are reached by direct callers only.

Geometric weights and verl's rejection rules are set by environment variables (UNSLOTH_GRPO_VLLM_IS_MODE,
UNSLOTH_GRPO_ROLLOUT_RS), which are not read or written here.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import options
from rlcorr.systems.mapping.refusals import renamed
from rlcorr.systems.mapping.serialize import as_call, commented
from rlcorr.systems.trl import OPSM, cap_as_clip_max, from_trl, to_trl

_SWITCH = "vllm_importance_sampling_correction"
_NAMES = {"TRL": "Unsloth"}
GEOMETRIC = "Unsloth takes geometric weights from the variable UNSLOTH_GRPO_VLLM_IS_MODE, which is not written here"


def from_unsloth(source: Any) -> CorrectionConfig:
    """Return the configuration of the arguments of Unsloth's GRPOConfig, as `from_trl` does.

    `source` is a mapping of the arguments, or a GRPOConfig. Without vllm_importance_sampling_correction the correction
    is off. Raises `UsageError` as `from_trl` does, so also for bounds without this switch.

    >>> from_unsloth({}) == CorrectionConfig()
    True
    >>> from_unsloth({"vllm_importance_sampling_correction": True}).rollout_is_threshold
    3.0
    """
    source = options("Unsloth's GRPOConfig", source)
    if isinstance(source, Mapping):
        source = {_SWITCH: False} | cap_as_clip_max("Unsloth", source)
    with renamed(_NAMES):
        return from_trl(source)


def to_unsloth(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return the arguments of GRPOConfig, always with the switch. Raises `UsageError` as `to_trl` does.

    >>> to_unsloth(CorrectionConfig())
    {'use_vllm': True, 'vllm_importance_sampling_correction': False}
    """
    if config.rollout_is == "geometric":
        raise UsageError(f"{GEOMETRIC}; nearest: rollout_is='sequence', the product.")
    with renamed(_NAMES):
        return to_trl(config, loss)


def unsloth_text(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return the call of GRPOConfig. Raises `UsageError` as `to_unsloth` does."""
    fields = to_unsloth(config, loss)
    notes = [OPSM] if "off_policy_mask_threshold" in fields else []
    return commented(as_call("GRPOConfig", fields), ["Unsloth 2026.10.9 with TRL 1.6 to 1.15", *notes])
