"""verl's thresholds: bounds as numbers and text. For weights, u truncates above u and "lower_upper" zeroes outside. For
k2, k3 and binary_kl, u is the upper bound. For k1, u means "1/u_u", and the bounds act on 1/r.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.keys import number

V070_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
_SAME_NAME = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
RULES = {name: name for name in _SAME_NAME} | {"binary_kl": "token_binary_kl"}
OPTIONS = {ours: theirs for theirs, ours in RULES.items()}


def weight_bounds(mapping: Mapping[str, Any], old: bool) -> tuple[float | None, float]:
    """The bounds on weights that rollout_is_threshold gives: (lower or None, upper). Raises `UsageError`."""
    spec = mapping.get("rollout_is_threshold", 2.0)
    if spec is None and mapping.get("rollout_is") is None:
        spec = 2.0
    if spec is None:
        raise UsageError(
            f"rollout_is_threshold is null: verl then computes no weights, although rollout_is is "
            f'{mapping["rollout_is"]!r}. Give a number or "lower_upper".'
        )
    return (None, number("rollout_is_threshold", spec)) if old else _pair("rollout_is_threshold", spec)


def rules(mapping: Mapping[str, Any]) -> tuple[RejectionRule, ...]:
    """rollout_rs and rollout_rs_threshold as rules. Raises `UsageError` for unknown names and misread numbers."""
    if mapping.get("rollout_rs") is None:
        return ()
    options = list(dict.fromkeys(_split("rollout_rs", mapping["rollout_rs"])))
    for option in options:
        if option in V070_RULES:
            raise UsageError(
                f"rollout_rs={option!r} is a name of verl v0.7.0: read it with version='0.7', or write "
                f"{V070_RULES[option]}, whose bounds verl puts on 1/r."
            )
        if option not in RULES:
            raise unknown("rollout_rs of verl", option, RULES)
    return tuple(_rule(option, spec) for option, spec in zip(options, _specs(mapping, options), strict=True))


def _specs(mapping: Mapping[str, Any], options: list[str]) -> list[Any]:
    """One threshold for each option; a single one is shared by all."""
    spec = mapping.get("rollout_rs_threshold")
    if spec is None:
        raise no_threshold(mapping)
    specs = _split("rollout_rs_threshold", spec) if isinstance(spec, str) else [spec]
    specs = specs * len(options) if len(specs) == 1 else specs
    if len(specs) == 2 and len(options) == 1:
        raise UsageError(f'a pair is written "lower_upper": rollout_rs_threshold: "{"_".join(specs)}"; got {spec!r}.')
    if len(specs) != len(options):
        raise UsageError(f"rollout_rs_threshold must hold 1 or {len(options)} thresholds; got {spec!r}.")
    return specs


def no_threshold(mapping: Mapping[str, Any]) -> UsageError:
    """The error for rejection without a threshold."""
    return UsageError(f"rollout_rs={mapping['rollout_rs']!r} needs rollout_rs_threshold; got none.")


def _rule(option: str, spec: Any) -> RejectionRule:
    name = f"rollout_rs_threshold of {option}"
    lower, upper = _pair(name, spec)
    if not option.endswith("_k1"):
        if lower is not None:
            raise UsageError(f"{name} must be one upper bound, without '_'; got {spec!r}.")
        return RejectionRule.named(RULES[option], upper=upper)
    lower = reciprocal(name, upper) if lower is None else lower
    if not 0 < lower <= upper:
        raise UsageError(f"{name} must be lower_upper with 0 < lower ≤ upper; got {spec!r}.")
    # verl compares −log r with the logarithms of its bounds, so it keeps 1/upper ≤ r ≤ 1/lower.
    return RejectionRule.named(option, lower=None if upper == math.inf else inverse(upper), upper=inverse(lower))


def reciprocal(name: str, upper: float) -> float:
    """The lower bound that verl takes where only an upper one is given."""
    if not 1 <= upper < math.inf:
        raise UsageError(f"{name}: one number u means 1/u to u, so it must be finite and ≥ 1; got {upper:g}.")
    return inverse(upper)


def _split(name: str, text: Any) -> list[str]:
    if not isinstance(text, str):
        raise UsageError(f"{name} must be text, comma-separated; got {text!r}.")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{name} is empty; got {text!r}.")
    return parts


def _pair(name: str, spec: Any) -> tuple[float | None, float]:
    """A number, "upper" or "lower_upper" → (lower or None, upper)."""
    if isinstance(spec, list | tuple):
        raise UsageError(f'{name} is a number or text, "lower_upper" for a pair: "0.5_2.0"; got {spec!r}.')
    if not isinstance(spec, str):
        return None, number(name, spec)
    parts = spec.split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UsageError(f'{name} must be a number or "lower_upper" with one "_", as in "0.5_2.0"; got {spec!r}.')
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]


def inverse(x: float) -> float:
    """1/x, as the shortest decimal whose own inverse is x again: there and back gives the same digits."""
    candidates = (float(f"{1 / x:.{digits}g}") for digits in range(1, 18))
    return next((y for y in candidates if y and 1 / y == x), 1 / x)


def weight_text(config: CorrectionConfig) -> float | str:
    """rollout_is_threshold. Raises `UsageError` for weights that verl cannot bound so."""
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is is None:
        return 2.0  # verl's default, which nobody reads
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
    "tv": "the same rule with k2",
    "mult_error": "the same rule with k2, upper = (log bound)²/2",
    "binary_kl": "token_binary_kl",
    "forward_kl": "k3, whose mean is the same KL. What OpenRLHF calls binary_kl is this rule, what verl calls so the "
    "larger of both directions",
    "prob_gap": "actor.policy_loss.loss_mode=dppo_tv, which bounds it inside the loss",
    "prefix_gap": "actor.policy_loss.loss_mode=dppo_tv, which bounds each token by itself, inside the loss",
    "k1": "seq_max_k2 with upper = (log bound)²/2, a veto on both sides",
}


def rule_text(rule: RejectionRule) -> str:
    """One threshold of rollout_rs_threshold. Raises `UsageError` for a rule that verl does not have."""
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
    """A number that has a dot also with an exponent, so that YAML takes no pair of them for one number."""
    text = repr(float(x))
    return text if "." in text else text.replace("e", ".0e")
