"""rLLM's rllm.algorithm.rollout_correction as ours and back: three keys, which its verl backend copies into verl's.

Source: rllm/trainer/config/rllm/base.yaml (commit 06bffb24) and docs/training/configuration.mdx (commit 658b441e):
bypass_mode, tis_mode → verl's rollout_is, tis_cap → verl's rollout_is_threshold. null for bypass_mode means the
backend's default, which is False for verl. Its tinker backend ignores the three keys without a message. Rejection
rules have no key of rLLM; verl's own keys still work.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import choice, number, options, refuse_ignored, settings, switch
from rlcorr.systems.mapping.refusals import no_rule, refuse_normalised, refuse_prefix
from rlcorr.systems.mapping.serialize import as_yaml, commented

FIELDS: dict[str, Any] = {"bypass_mode": None, "tis_mode": None, "tis_cap": 2.0}
"""The fields, with the values of base.yaml."""
PARENT = ("rllm", "algorithm", "rollout_correction")
BACKEND = "for the backend verl: the backend tinker ignores this block"


def from_rllm(source: Any) -> CorrectionConfig:
    """Return the configuration of rLLM's rollout_correction.

    `source` is a mapping with or without its three parents. Raises `UsageError` for unknown keys and modes, for a cap
    without a mode, and for weights in bypass mode, which verl computes for its metrics only.

    >>> from_rllm({"rllm.algorithm.rollout_correction.tis_mode": "token"}).rollout_is_threshold
    2.0
    """
    source = options("rLLM's rollout_correction", source, PARENT)
    values = settings("rLLM's rollout_correction", source, FIELDS)
    is_bypass = values["bypass_mode"] is not None and switch("bypass_mode", values["bypass_mode"])
    if values["tis_mode"] is None:
        refuse_ignored("rLLM", values, FIELDS, ["tis_cap"], "without tis_mode")
        return CorrectionConfig(bypass_mode=is_bypass)
    level = choice("tis_mode", values["tis_mode"], ("token", "sequence"))
    if is_bypass:
        raise UsageError("in bypass mode rLLM's weights reach verl's metrics only: leave out tis_mode or bypass_mode.")
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=number("tis_cap", values["tis_cap"]))


def to_rllm(config: CorrectionConfig) -> dict[str, Any]:
    """Return rLLM's rollout_correction. Raises `UsageError` for what its three keys cannot express.

    >>> to_rllm(CorrectionConfig(rollout_is="sequence", rollout_is_threshold=5.0))
    {'bypass_mode': False, 'tis_mode': 'sequence', 'tis_cap': 5.0}
    """
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    refuse_normalised("rLLM", config)
    refuse_prefix("rLLM", config)
    if config.loss_type != "ppo_clip" or config.denominator == "kept":
        raise UsageError(
            "rLLM's rollout_correction has no key for the loss or its denominator; nearest: ppo_clip and 'fixed', and "
            "rllm.algorithm.loss_fn there."
        )
    if config.rollout_rs:
        raise no_rule("rLLM", config.rollout_rs[0], "verl's own algorithm.rollout_correction, which its backend reads")
    if config.rollout_is == "geometric":
        raise UsageError("rLLM has no geometric weights; nearest: rollout_is='sequence'.")
    if config.rollout_is is not None and (config.rollout_is_mode == "mask" or lower is not None or upper == math.inf):
        raise UsageError("rLLM's weights have a finite cap and are truncated at it; nearest: an upper bound of 1e9.")
    cap = FIELDS["tis_cap"] if config.rollout_is is None else float(upper)
    return {"bypass_mode": config.bypass_mode, "tis_mode": config.rollout_is, "tis_cap": cap}


def rllm_text(config: CorrectionConfig) -> str:
    """Return YAML under `rllm.algorithm.rollout_correction`. Raises `UsageError` as `to_rllm` does."""
    return commented(as_yaml(".".join(PARENT), to_rllm(config)), ["rLLM, commit 06bffb24", BACKEND])
