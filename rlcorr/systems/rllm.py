"""rLLM's rllm.algorithm.rollout_correction from ours: three keys, which its verl backend copies into verl's.

Source: rllm/trainer/config/rllm/base.yaml (commit 06bffb24) and docs/training/configuration.mdx (commit 658b441e):
bypass_mode, tis_mode → verl's rollout_is, tis_cap → verl's rollout_is_threshold. null for bypass_mode means the
backend's default, which is False for verl. Its tinker backend ignores the three keys without a message. Rejection
rules have no key of rLLM; verl's own keys still work.
"""

from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.systems.mapping.refusals import refuse

CAP = 2.0
"""tis_cap of base.yaml."""


def to_rllm(config: CorrectionConfig) -> dict[str, Any]:
    """Return rLLM's rollout_correction. Raises `UsageError` for what its three keys cannot express."""
    refuse("rLLM", config)
    cap = CAP if config.rollout_is is None else float(config.rollout_is_threshold)
    return {"bypass_mode": config.bypass_mode, "tis_mode": config.rollout_is, "tis_cap": cap}
