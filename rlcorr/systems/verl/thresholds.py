"""verl's thresholds: parse what a person wrote into bounds, and write bounds as thresholds.

A threshold is one number u, or a pair "lower_upper" as text. For weights, u truncates weights above u, and a pair sets
weights outside it to 0. For k2, k3 and binary_kl, u is the upper bound. For k1, u means the pair 1/u and u, and verl
puts the bounds on 1/r; the bounds here are on r.
"""

import math
from dataclasses import dataclass
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule

_SAME_NAME = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
RULES = {name: name for name in _SAME_NAME} | {"binary_kl": "token_binary_kl"}
"""verl's option of rollout_rs → our rule."""
OPTIONS = {ours: theirs for theirs, ours in RULES.items()}


@dataclass(frozen=True)
class Bounds:
    """The bounds of one threshold; `lower` is None if there is none."""

    lower: float | None
    upper: float

    def of_weights(self) -> dict[str, Any]:
        """Return the fields of our configuration: a pair masks weights, one number truncates them."""
        return {
            "rollout_is_threshold": self.upper,
            "rollout_is_threshold_lower": self.lower,
            "rollout_is_mode": "truncate" if self.lower is None else "mask",
        }


# --- parse ---


def parse_bounds(name: str, threshold: Any) -> Bounds:
    """Parse a number, "upper" or "lower_upper". Raises `UsageError` with `name` in the message.

    The text is split at the first "_", as in verl, so "0.5_2_0" is 0.5 to 20: Python reads "2_0" as 20.

    >>> parse_bounds("rollout_is_threshold", "0.5_2.0")
    Bounds(lower=0.5, upper=2.0)
    """
    if isinstance(threshold, list | tuple):
        raise UsageError(f'{name} is a number or text, "lower_upper" for a pair: "0.5_2.0"; got {threshold!r}.')
    if isinstance(threshold, bool):  # a bool is an int in Python
        raise UsageError(f"{name} must be a number or text, not a boolean; got {threshold!r}.")
    if isinstance(threshold, int | float):
        return Bounds(None, float(threshold))
    if not isinstance(threshold, str):
        raise UsageError(f"{name} must be a number or text; got {threshold!r}.")
    try:
        numbers = [float(part) for part in threshold.split("_", 1)]
    except ValueError as error:
        raise UsageError(
            f'{name} must be a number or "lower_upper" with one "_", as in "0.5_2.0"; got {threshold!r}.'
        ) from error
    return Bounds(numbers[0] if len(numbers) == 2 else None, numbers[-1])


def parse_options(rollout_rs: Any) -> list[str]:
    """Return the names in rollout_rs, each once. Raises `UsageError` if there is none."""
    return list(dict.fromkeys(_split("rollout_rs", rollout_rs)))


def parse_rule_bounds(rollout_rs: Any, options: list[str], threshold: Any) -> list[tuple[str, Bounds]]:
    """Return (name of our rule, its bounds) for each option; bounds of k1 are on r.

    A single threshold is shared by all options. Raises `UsageError` for a missing threshold, another number of
    thresholds, and bounds that verl cannot use.
    """
    if threshold is None:
        raise UsageError(f"rollout_rs={rollout_rs!r} needs rollout_rs_threshold; got none.")
    specs = _split("rollout_rs_threshold", threshold) if isinstance(threshold, str) else [threshold]
    specs = specs * len(options) if len(specs) == 1 else specs
    if len(specs) == 2 and len(options) == 1:
        raise UsageError(
            f'a pair is written "lower_upper": rollout_rs_threshold: "{"_".join(specs)}"; got {threshold!r}.'
        )
    if len(specs) != len(options):
        raise UsageError(f"rollout_rs_threshold must hold 1 or {len(options)} thresholds; got {threshold!r}.")
    return [(RULES[option], _rule_bounds(option, spec)) for option, spec in zip(options, specs, strict=True)]


def _rule_bounds(option: str, spec: Any) -> Bounds:
    name = f"rollout_rs_threshold of {option}"
    bounds = parse_bounds(name, spec)
    if not option.endswith("_k1"):
        if bounds.lower is not None:
            raise UsageError(f"{name} must be one upper bound, without '_'; got {spec!r}.")
        return bounds
    lower, upper = bounds.lower, bounds.upper
    if lower is None:
        if not 1 <= upper < math.inf:
            raise UsageError(f"{name}: one number u means 1/u to u, so it must be finite and ≥ 1; got {upper:g}.")
        lower = inverse(upper)
    if not 0 < lower <= upper or lower == math.inf:
        raise UsageError(f"{name} must be lower_upper with 0 < lower ≤ upper; got {spec!r}.")
    # verl compares −log r with the logarithms of its bounds, so it keeps 1/upper ≤ r ≤ 1/lower.
    return Bounds(None if upper == math.inf else inverse(upper), inverse(lower))


def _split(name: str, text: Any) -> list[str]:
    if not isinstance(text, str):
        raise UsageError(f"{name} must be text, comma-separated; got {text!r}.")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{name} is empty; got {text!r}.")
    return parts


def inverse(x: float) -> float:
    """Return 1/x with as few digits as possible, such that 1 divided by the result is x again.

    So a threshold that is read and written keeps its digits.
    """
    candidates = (float(f"{1 / x:.{digits}g}") for digits in range(1, 18))
    return next((y for y in candidates if y and 1 / y == x), 1 / x)


# --- write ---


def weight_text(config: CorrectionConfig) -> float | str:
    """Return rollout_is_threshold. Raises `UsageError` for weights that verl cannot bound in this way."""
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is is None:
        return 2.0  # verl's default, which is not read without weights
    if config.rollout_is == "prefix":
        raise UsageError("verl has no prefix weights; nearest: rollout_is='token'.")
    if config.rollout_is == "geometric":
        raise UsageError("verl has no geometric weights; nearest: rollout_is='sequence', or a seq_mean_k1 rule.")
    if config.rollout_is_mode == "mask":
        if lower is None:
            raise UsageError(
                "verl masks weights only between two bounds; nearest: rollout_is_threshold_lower=1e-9, below every "
                "weight, which verl clamps at e^-20."
            )
        return f"{dotted(lower)}_{dotted(upper)}"
    if lower is not None:
        raise UsageError(
            f"verl truncates weights above only; nearest: no rollout_is_threshold_lower (got {lower:g}), or "
            f"rollout_is_mode='mask'."
        )
    return "inf" if upper == math.inf else float(upper)


_NEAREST = {
    "prob_diff": "actor.policy_loss.loss_mode=dppo_tv, which bounds it inside the loss",
    "signed_kl": "token_binary_kl, or actor.policy_loss.loss_mode=dppo_kl",
    "abs_ratio_error": "the same rule with k2",
    "mult_error": "the same rule with k2, upper = (log bound)²/2",
    "binary_kl": "token_binary_kl",
    "forward_kl": "k3, whose mean is the same KL. OpenRLHF calls this rule binary_kl; in verl that name means the "
    "larger of both directions",
    "binary_tv": "actor.policy_loss.loss_mode=dppo_tv, which bounds it inside the loss",
    "prefix_gap": "actor.policy_loss.loss_mode=dppo_tv, which bounds each token by itself, inside the loss",
    "k1": "seq_max_k2 with upper = (log bound)²/2, a veto on both sides",
}


def rule_text(rule: RejectionRule) -> str:
    """Return one threshold of rollout_rs_threshold. Raises `UsageError` for a rule that verl does not have."""
    if rule.applies_to != "all":
        everywhere = rule.name.removesuffix(f"_{rule.applies_to}")
        nearest = everywhere if everywhere in OPTIONS else _NEAREST[rule.divergence]
        raise UsageError(f"verl's rules do not look at advantages, so not {rule.name}; nearest: {nearest}.")
    if rule.name not in OPTIONS:
        raise UsageError(f"verl has no rule {rule.name}; nearest: {_NEAREST[rule.divergence]}.")
    if rule.divergence != "k1":
        return dotted(rule.upper)
    if rule.upper == math.inf:
        raise UsageError(
            f"verl's {rule.name} always has an upper bound on r; nearest: upper=1e9, which only a sum can exceed."
        )
    return f"{dotted(inverse(rule.upper))}_{dotted(math.inf if rule.lower is None else inverse(rule.lower))}"


def dotted(x: float) -> str:
    """Return a number as text with a dot, as in 1.0e-05. Without dots YAML reads the pair 1_2 as one number, 12."""
    text = repr(float(x))
    return text if "." in text else text.replace("e", ".0e")
