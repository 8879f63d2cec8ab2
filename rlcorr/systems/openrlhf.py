"""OpenRLHF's is_correction flags from ours (0.11.2: openrlhf/models/loss.py:121-247, cli/train_ppo_ray.py).

It has a level, a mode, a gate and a threshold. A gate drops tokens, or sequences by their mean; the other tokens keep
their unbounded ratio.
"""

from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, only_rule, refuse

GATES = {"binary_kl": "forward_kl", "tv": "binary_tv"}
"""OpenRLHF's gate → our divergence."""


def to_openrlhf(config: CorrectionConfig) -> dict[str, Any]:
    """Return the flags without their prefix. Raises `UsageError` for what OpenRLHF cannot do."""
    refuse("OpenRLHF", config)
    return dict(zip(FACTS["OpenRLHF"].fields, _settings(config), strict=True))


def _settings(config: CorrectionConfig) -> tuple[str, str, str, tuple[float, float]]:
    """Return level, mode, gate and threshold. Raises `UsageError` for what OpenRLHF cannot do."""
    gates = {f"{prefix}_{ours}": (level, theirs) for prefix, level in (("token", "token"), ("seq_mean", "seq"))
             for theirs, ours in GATES.items()} | {"seq_mean_k1": ("seq", "ratio")}  # fmt: skip
    for rejection in config.rollout_rs:
        if rejection.divergence in (nearest := FACTS["OpenRLHF"].nearest):  # a name with another meaning there
            raise UsageError(f"{nearest[rejection.divergence]}.")
    rule = only_rule("OpenRLHF", config.rollout_rs, gates, "seq_mean_k1, or a mean of forward_kl or binary_tv")
    if config.rollout_is is None and rule is None:
        return "off", "mask", "ratio", (0.5, 5.0)
    if config.rollout_is != "token":
        raise UsageError(
            f"OpenRLHF's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}."
        )
    if rule is None:
        lower, upper = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
        return "token", "clip" if config.rollout_is_mode == "truncate" else "mask", "ratio", (lower, upper)
    if not is_unbounded(config):
        raise UsageError("OpenRLHF's gate weighs kept tokens with raw ratios; nearest: rollout_is_threshold=inf.")
    level, gate = gates[rule.name]
    return level, "mask", gate, bounds(rule)
