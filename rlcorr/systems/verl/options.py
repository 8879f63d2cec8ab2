"""verl's options as its helper reads them, and its exceptions: ValueError for names and numbers, else TypeError."""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.rules import RejectionRule

SUPPORTED_ROLLOUT_RS_OPTIONS: set[str] = {
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
}  # fmt: skip
TOKEN_LEVEL_ROLLOUT_RS_OPTIONS: set[str] = {"token_k1", "token_k2", "token_k3"}
NO_BOUND = 1e300
"""verl takes infinity for a bound on k2 and k3, which rejects nothing."""


def weights_config(rollout_is: Any, threshold: Any) -> CorrectionConfig:
    """The weights, before batch normalisation. Raises ValueError and TypeError as verl does."""
    if rollout_is not in ("token", "sequence"):
        raise ValueError(f"Invalid rollout_is: {rollout_is}. Must be 'token' or 'sequence'.")
    lower, upper = weight_bounds(threshold)
    return CorrectionConfig(
        rollout_is=rollout_is,
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower,
        rollout_is_mode="truncate" if lower is None else "mask",
    )


def weight_bounds(threshold: Any) -> tuple[float | None, float]:
    """(lower or None, upper) of a number, "upper" or "lower_upper"."""
    if isinstance(threshold, bool):
        raise TypeError("rollout_is_threshold must be a number or text, not a boolean.")
    if not isinstance(threshold, int | float | str):
        raise TypeError(f"rollout_is_threshold must be a number or text; got {threshold!r}.")
    numbers = _numbers("rollout_is_threshold", str(threshold).strip())
    lower, upper = (numbers[0] if len(numbers) == 2 else None), numbers[-1]
    _ordered("rollout_is_threshold", threshold, *numbers)
    return lower, upper


def rules_of(rollout_rs: Any, threshold: Any) -> tuple[RejectionRule, ...]:
    """The rules, whose k1 bounds verl puts on 1/r. Raises ValueError and TypeError as verl does."""
    if not isinstance(rollout_rs, str):
        raise ValueError(f"rollout_rs must be text, comma-separated for several options; got {rollout_rs!r}.")
    if threshold is None:
        raise ValueError("rollout_rs_threshold must be explicitly provided when rollout_rs is enabled.")
    options = list(dict.fromkeys(part.strip() for part in rollout_rs.split(",") if part.strip()))
    if not options:
        raise ValueError("rollout_rs must contain at least one valid option.")
    for option in options:
        if option not in SUPPORTED_ROLLOUT_RS_OPTIONS:
            raise ValueError(
                f"Invalid rollout_rs option: {option}. Must be one of {sorted(SUPPORTED_ROLLOUT_RS_OPTIONS)}."
            )
    if not isinstance(threshold, int | float | str):
        raise TypeError(f"rollout_rs_threshold must be a number or text; got {threshold!r}.")
    specs = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(specs) not in (1, len(options)):
        raise ValueError(f"rollout_rs_threshold must hold 1 or {len(options)} thresholds; got {threshold!r}.")
    specs = specs * len(options) if len(specs) == 1 else specs
    return tuple(_rule(option, spec) for option, spec in zip(options, specs, strict=True))


def _rule(option: str, spec: str) -> RejectionRule:
    numbers = _numbers(f"threshold of {option}", spec)
    if not option.endswith("_k1"):
        if len(numbers) == 2:
            raise ValueError(f"threshold of {option} must be one upper bound, without '_'; got {spec!r}.")
        _ordered(f"threshold of {option}", spec, *numbers)
        return RejectionRule.named(option, upper=min(numbers[0], NO_BOUND))
    numbers = [1 / numbers[0] if numbers[0] else 0.0, numbers[0]] if len(numbers) == 1 else numbers
    _ordered(f"threshold of {option}", spec, *numbers)
    lower, upper = (1 / bound for bound in reversed(numbers))
    return RejectionRule.named(option, lower=lower or None, upper=min(upper, NO_BOUND))


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split("_", 1)]
    except ValueError as error:
        raise ValueError(f"Invalid {name} {text!r}.") from error


def _ordered(name: str, given: Any, *numbers: float) -> None:
    if not all(number > 0 for number in numbers) or list(numbers) != sorted(numbers) or math.isnan(sum(numbers)):
        raise ValueError(f"{name} must be positive, the lower bound first; got {given!r}.")
