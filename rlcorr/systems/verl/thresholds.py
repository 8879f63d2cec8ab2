"""verl's thresholds: parse what a person wrote into bounds, and write bounds as thresholds.

A threshold is one number u, or a pair "lower_upper" as text. For weights, u truncates weights above u, and a pair sets
weights outside it to 0. For k2, k3 and binary_kl, u is the upper bound. For k1, u means the pair 1/u and u, and verl
puts the bounds on 1/r; the bounds here are on r.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS

_SAME_NAME = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
RULES = {name: name for name in _SAME_NAME} | {"binary_kl": "token_binary_kl"}
"""verl's option of rollout_rs → our rule."""
OPTIONS = {ours: theirs for theirs, ours in RULES.items()}
RETIRED_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Values of rollout_rs in verl 0.7, with bounds on r → today's, with bounds on 1/r."""
Bounds = tuple[float | None, float]
"""The lower bound, None if there is none, and the upper one."""


# --- parse ---


def parse_bounds(name: str, threshold: Any) -> Bounds:
    """Parse a number, "upper" or "lower_upper". Raises `UsageError` with `name` in the message.

    A text with two "_" is refused: verl splits it at the first, so "0.5_2_0" is 0.5 to 20, as Python reads "2_0" as 20.

    >>> parse_bounds("rollout_is_threshold", "0.5_2.0")
    (0.5, 2.0)
    """
    if isinstance(threshold, int | float) and not isinstance(threshold, bool):
        return None, float(threshold)
    *lower, upper = str(threshold).split("_")
    try:
        if isinstance(threshold, str) and len(lower) < 2:
            return (float(lower[0]) if lower else None), float(upper)
    except ValueError:
        pass
    raise UsageError(f'{name} must be a number or "lower_upper" with one "_", as in "0.5_2.0"; got {threshold!r}.')


def of_weights(bounds: Bounds) -> dict[str, Any]:
    """Return the fields of our configuration: a pair masks weights, one number truncates them."""
    lower, upper = bounds
    mode = "truncate" if lower is None else "mask"
    return {"rollout_is_threshold": upper, "rollout_is_threshold_lower": lower, "rollout_is_mode": mode}


def parse_rules(rollout_rs: Any, threshold: Any) -> tuple[RejectionRule, ...]:
    """Return our rule for each option of rollout_rs, each once; bounds of k1 are on r.

    A single threshold is shared by all options. Raises `UsageError` for an unknown option, a missing threshold, another
    number of thresholds, and bounds that verl cannot use.
    """
    options = list(dict.fromkeys(_split("rollout_rs", rollout_rs)))
    for option in options:
        if option in RETIRED_RULES:
            raise UsageError(
                f"rollout_rs={option!r} is a name of verl 0.7, with bounds on r; now write {RETIRED_RULES[option]}, "
                f"whose bounds are on 1/r."
            )
        if option not in RULES:
            raise unknown("rollout_rs of verl", option, RULES)
    if threshold is None:
        raise UsageError(f"rollout_rs={rollout_rs!r} needs rollout_rs_threshold; got none.")
    specs = _split("rollout_rs_threshold", threshold) if isinstance(threshold, str) else [threshold]
    specs = specs * len(options) if len(specs) == 1 else specs
    if len(specs) != len(options):
        raise UsageError(
            f"{len(specs)} thresholds for {len(options)} rules; give one, or one per rule, and a pair as one text "
            f'"lower_upper", as in rollout_rs_threshold: "0.5_2.0"; got {threshold!r}.'
        )
    return tuple(_rule(option, spec) for option, spec in zip(options, specs, strict=True))


def _rule(option: str, spec: Any) -> RejectionRule:
    name = f"rollout_rs_threshold of {option}"
    lower, upper = parse_bounds(name, spec)
    if not option.endswith("_k1"):
        if lower is not None:
            raise UsageError(f"{name} must be one upper bound, without '_'; got {spec!r}.")
        return RejectionRule.named(RULES[option], upper=upper)
    if lower is None:
        if not 1 <= upper < math.inf:
            raise UsageError(f"{name}: one number u means 1/u to u, so it must be finite and ≥ 1; got {upper:g}.")
        lower = inverse(upper)
    if not 0 < lower <= upper or lower == math.inf:
        raise UsageError(f"{name} must be lower_upper with 0 < lower ≤ upper; got {spec!r}.")
    # verl compares −log r with the logarithms of its bounds, so it keeps 1/upper ≤ r ≤ 1/lower.
    least = None if upper == math.inf else inverse(upper)
    return RejectionRule.named(RULES[option], lower=least, upper=inverse(lower))


def _split(name: str, text: Any) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else []
    if not parts:
        raise UsageError(f"{name} must be text, comma-separated; got {text!r}.")
    return parts


def inverse(x: float) -> float:
    """Return 1/x with as few digits as possible, such that 1 divided by the result is x again.

    So a threshold that is read and written keeps its digits.
    """
    candidates = (float(f"{1 / x:.{digits}g}") for digits in range(1, 18))
    return next((y for y in candidates if y and 1 / y == x), 1 / x)


# --- write ---


def weight_text(config: CorrectionConfig) -> float | str:
    """Return rollout_is_threshold: a pair for masked weights, which must have two bounds, and one number for others."""
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is is None:
        return 2.0  # verl's default, which is not read without weights
    if lower is not None:
        return f"{dotted(lower)}_{dotted(upper)}"
    return "inf" if upper == math.inf else float(upper)


def rule_text(rule: RejectionRule) -> str:
    """Return one threshold of rollout_rs_threshold. Raises `UsageError` for a rule that verl does not have."""
    nearest = FACTS["verl"].nearest
    if rule.applies_to != "all":
        everywhere = rule.name.removesuffix(f"_{rule.applies_to}")
        other = everywhere if everywhere in OPTIONS else nearest[rule.divergence]
        raise UsageError(f"verl's rules do not look at advantages, so not {rule.name}; nearest: {other}.")
    if rule.name not in OPTIONS:
        raise UsageError(f"verl has no rule {rule.name}; nearest: {nearest[rule.divergence]}.")
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
