"""All presets on one map: what their weights are taken of, against what their rules look at."""

from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.presets import PRESETS

LEVELS = ("none", "token", "sequence", "geometric")
"""Of the weights, as in `CorrectionConfig.rollout_is`."""
RULES = (
    "none", "the loss itself", "single tokens", "product or sum", "geometric mean", "mean divergence", "worst token",
    "several",
)  # fmt: skip
"""What is looked at before anything is left out."""


def weight_level(config: CorrectionConfig) -> str:
    """One of LEVELS."""
    return config.rollout_is or "none"


def rule_kind(config: CorrectionConfig) -> str:
    """One of RULES. Without a rule, bypass mode leaves it to its loss, unless that is one without a clip."""
    if len(config.rollout_rs) > 1:
        return "several"
    for rule in config.rollout_rs:
        mean = "geometric mean" if rule.divergence == "k1" else "mean divergence"
        return {None: "single tokens", "sum": "product or sum", "mean": mean}.get(rule.reduce, "worst token")
    return "the loss itself" if config.bypass_mode and config.loss_type not in UNCLIPPED else "none"


def preset_map() -> dict[tuple[str, str], list[str]]:
    """(level, rule) → the presets there, in the order of `PRESETS`; a place without any is left out."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, entry in PRESETS.items():
        places.setdefault((weight_level(entry.config), rule_kind(entry.config)), []).append(name)
    return places
