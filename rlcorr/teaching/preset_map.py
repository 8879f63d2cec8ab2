"""All presets in one table: the level of their weights against the kind of their rules."""

from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.presets import PRESETS

LEVELS = ("none", "token", "prefix", "sequence", "geometric")
"""Levels of the weights, as in `CorrectionConfig.rollout_is`."""
RULES = (
    "none", "the loss itself", "single tokens", "product or sum", "geometric mean", "mean divergence", "worst token",
    "several",
)  # fmt: skip
"""Kinds of rules: the quantity that decides what is rejected."""


def weight_level(config: CorrectionConfig) -> str:
    """Return the level of the weights, one of LEVELS."""
    return config.rollout_is or "none"


def rule_kind(config: CorrectionConfig) -> str:
    """Return the kind of the rejection rules, one of RULES.

    Without a rule in bypass mode it is "the loss itself", unless the loss has no clip.
    """
    if len(config.rollout_rs) > 1:
        return "several"
    for rule in config.rollout_rs:
        mean = "geometric mean" if rule.divergence == "k1" else "mean divergence"
        return {None: "single tokens", "sum": "product or sum", "mean": mean}.get(rule.reduce, "worst token")
    return "the loss itself" if config.bypass_mode and config.loss_type not in UNCLIPPED else "none"


def preset_map() -> dict[tuple[str, str], list[str]]:
    """Return (level, rule) → names of the presets, in the order of `PRESETS`. Empty cells are left out."""
    cells: dict[tuple[str, str], list[str]] = {}
    for name, entry in PRESETS.items():
        cells.setdefault((weight_level(entry.config), rule_kind(entry.config)), []).append(name)
    return cells
