"""The choices of a configuration, apart from its bounds: weights, mode, rejection rules, denominator."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from text import phrases

from rlcorr import CorrectionConfig, RejectionRule
from rlcorr.config import Denominator, WeightLevel, WeightMode
from rlcorr.rules import RULE_NAMES, Divergence

NONE = "none"


@dataclass(frozen=True)
class Choice:
    """One setting of a configuration that is picked from a list: its key in the address and the preset's value.

    The value of a choice of several is a list.
    """

    key: str
    label: str
    value: str | list[str]
    options: tuple[str, ...]
    help: str

    @property
    def several(self) -> bool:
        return isinstance(self.value, list)


def choices_of(config: CorrectionConfig) -> list[Choice]:
    """Return the choices, with the configuration's own values."""
    return [
        Choice("level", "Weights", config.rollout_is or NONE, (NONE, *get_args(WeightLevel)), phrases.LEVEL),
        Choice("mode", "Outside the thresholds", config.rollout_is_mode, get_args(WeightMode), phrases.MODE),
        Choice("rules", "Rejection rules", [rule.name for rule in config.rollout_rs], tuple(RULE_NAMES), phrases.RULES),
        Choice("denominator", "Divide by", config.denominator, get_args(Denominator), phrases.DENOMINATOR),
        Choice("normalise", "Mean weight", _mean(config), ("as it is", "one"), phrases.NORMALISE),
    ]


def edited(config: CorrectionConfig, chosen: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration with these choices, by their keys. Raises `UsageError` if they contradict each other."""
    present = {rule.name: rule for rule in config.rollout_rs}
    changes: dict[str, Any] = {
        "rollout_is": None if chosen["level"] == NONE else chosen["level"],
        "rollout_is_mode": chosen["mode"],
        "rollout_rs": tuple(present.get(name) or usual_rule(name) for name in chosen["rules"]),
        "denominator": chosen["denominator"],
        "rollout_is_batch_normalize": chosen["normalise"] == "one",
    }
    return replace(config, **changes)


def usual_rule(name: str) -> RejectionRule:
    """Return a rule with bounds to start from, taken from public presets with such a rule if there are any."""
    _, divergence, reduce, _ = RULE_NAMES[name]
    if divergence == "k1":
        lower, upper = RATIO_BOUNDS[reduce]
    else:
        lower, upper = DIVERGENCE_BOUNDS[divergence]
    if reduce == "sum" and divergence not in ("k1", "mult_error"):
        lower, upper = (None if lower is None else 10 * lower), 10 * upper
    if reduce == "min":
        upper = math.inf
    return RejectionRule.named(name, lower=lower, upper=upper)


RATIO_BOUNDS: dict[str | None, tuple[float | None, float]] = {
    None: (0.5, 2.0), "sum": (0.5, 2.0), "mean": (0.999, 1.001), "max": (None, 100.0), "min": (1e-4, math.inf),
}  # fmt: skip
DIVERGENCE_BOUNDS: dict[Divergence, tuple[float | None, float]] = {
    "k2": (None, 0.01), "k3": (None, 0.01), "binary_kl": (None, 2.0), "prob_diff": (-0.2, 0.2),
    "signed_kl": (-0.05, 0.05), "abs_ratio_error": (None, 2.0), "mult_error": (None, 2.0),
    "forward_kl": (None, 5e-3), "binary_tv": (None, 0.05), "prefix_gap": (None, 0.2),
}  # fmt: skip


def _mean(config: CorrectionConfig) -> str:
    return "one" if config.rollout_is_batch_normalize else "as it is"
