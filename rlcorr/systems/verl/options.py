"""The options of verl's helper, with verl's exceptions: ValueError for names and numbers, TypeError for other types."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.rules import RejectionRule
from rlcorr.systems.verl.thresholds import (
    RULES,
    Bounds,
    ThresholdError,
    parse_bounds,
    parse_options,
    parse_rule_bounds,
)

SUPPORTED_ROLLOUT_RS_OPTIONS: set[str] = set(RULES) - {"binary_kl"}
"""The options of verl 0.9.1. It does not have binary_kl, which pull request 6800 adds."""
TOKEN_LEVEL_ROLLOUT_RS_OPTIONS: set[str] = {name for name in SUPPORTED_ROLLOUT_RS_OPTIONS if name.startswith("token_")}
NO_BOUND = 1e300
"""A bound that rejects nothing. It replaces infinity, which verl accepts as a bound on k2 and k3; our rules do not."""


def weights_config(rollout_is: Any, threshold: Any) -> CorrectionConfig:
    """Return the weights' settings, without batch normalisation. Raises ValueError and TypeError as verl does."""
    if rollout_is not in ("token", "sequence"):
        raise ValueError(f"Invalid rollout_is: {rollout_is}. Must be 'token' or 'sequence'.")
    with _verl_errors():
        bounds = parse_bounds("rollout_is_threshold", threshold)
    _check_order("rollout_is_threshold", bounds, threshold)
    return CorrectionConfig(
        rollout_is=rollout_is,
        rollout_is_threshold=bounds.upper,
        rollout_is_threshold_lower=bounds.lower,
        rollout_is_mode="truncate" if bounds.lower is None else "mask",
    )


def rejection_rules(rollout_rs: Any, threshold: Any) -> tuple[RejectionRule, ...]:
    """Return the rules, with k1 bounds on r. Raises ValueError and TypeError as verl does."""
    with _verl_errors():
        options = parse_options(rollout_rs)
        for option in options:
            if option not in SUPPORTED_ROLLOUT_RS_OPTIONS:
                raise ValueError(
                    f"Invalid rollout_rs option: {option}. Must be one of {sorted(SUPPORTED_ROLLOUT_RS_OPTIONS)}."
                )
        # verl reads a boolean as the text "True", and raises ValueError.
        threshold = str(threshold) if isinstance(threshold, bool) else threshold
        parsed = parse_rule_bounds(rollout_rs, options, threshold)
    for name, bounds in parsed:
        _check_order(f"rollout_rs_threshold of {name}", bounds, threshold)
    return tuple(
        RejectionRule.named(name, lower=bounds.lower, upper=min(bounds.upper, NO_BOUND)) for name, bounds in parsed
    )


def _check_order(name: str, bounds: Bounds, threshold: Any) -> None:
    lower = bounds.upper if bounds.lower is None else bounds.lower
    if not 0 < lower <= bounds.upper:  # also refuses NaN
        raise ValueError(f"{name} must be positive, the lower bound first; got {threshold!r}.")


@contextmanager
def _verl_errors() -> Iterator[None]:
    """Replace `ThresholdError` by the exception that verl raises."""
    try:
        yield
    except ThresholdError as error:
        raise (TypeError if error.wrong_type else ValueError)(str(error)) from error
