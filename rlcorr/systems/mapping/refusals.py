"""Errors for what most systems cannot express, in the same words for all, and small conversions of rules."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS


@contextmanager
def renamed(system: str, dialect: str) -> Iterator[None]:
    """Replace a name in the messages of errors: a dialect is written by the functions of the system that it is of."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(system, dialect)) from None


Condition = Callable[[CorrectionConfig], bool]
CONDITIONS: dict[str, tuple[Condition, str]] = {
    "bypass": (
        lambda c: c.bypass_mode,
        "{system}'s correction compares π_old with π_rollout, not π_θ; nearest: {nearest}.",
    ),
    "no_bypass": (lambda c: c.bypass_mode, ""),
    "decoupled": (lambda c: not c.bypass_mode, ""),
    "loss": (
        lambda c: c.loss_type != "ppo_clip",
        "{system}'s correction names no loss, so {loss!r} would be lost; nearest: translate with loss_type='ppo_clip' "
        "and set {nearest} there.",
    ),
    "no_loss": (lambda c: c.loss_type != "ppo_clip", ""),
    "no_gradient": (lambda c: c.loss_type not in ("reinforce", "ppo_clip"), ""),
    "not_clipped": (lambda c: not c.bypass_mode or c.loss_type != "ppo_clip", ""),
    "kept": (
        lambda c: c.denominator == "kept",
        "{system} divides by all response tokens; nearest: denominator='fixed'.",
    ),
    "fixed": (
        lambda c: c.denominator == "fixed" and bool(c.rollout_rs),
        "{system} divides by the kept tokens; nearest: denominator='kept'.",
    ),
    "normalised": (
        lambda c: c.rollout_is_batch_normalize,
        "{system} does not normalise weights; nearest: rollout_is_batch_normalize=False.",
    ),
    "prefix": (lambda c: c.rollout_is == "prefix", "{system} has no prefix weights; nearest: rollout_is='token'."),
    "rules": (lambda c: bool(c.rollout_rs), "{system} cannot express {rule}; nearest: {nearest}."),
    "rules_alone": (lambda c: c.rollout_is is None and bool(c.rollout_rs), ""),
    "sequence": (lambda c: c.rollout_is == "sequence", ""),
    "geometric": (lambda c: c.rollout_is == "geometric", ""),
    "infinite": (lambda c: c.rollout_is is not None and c.rollout_is_threshold == math.inf, ""),
    "masked_tokens": (lambda c: c.rollout_is == "token" and c.rollout_is_mode == "mask", ""),
    "masked": (lambda c: c.rollout_is is not None and c.rollout_is_mode == "mask", ""),
    "masked_above": (lambda c: bool(c.weights) and c.weights.mode == "mask" and c.weights.lower is None, ""),
    "truncated_below": (lambda c: bool(c.weights) and c.weights.mode == "truncate" and c.weights.lower is not None, ""),
    "lower": (lambda c: c.rollout_is is not None and c.rollout_is_threshold_lower is not None, ""),
}
"""Condition in the rows `refuses` of systems.toml → when it holds, and its sentence; "" if each system has its own."""


def refuse(system: str, config: CorrectionConfig) -> None:
    """Raise `UsageError` for the first condition of the system's table that holds: what no text of it can express."""
    for name, nearest in FACTS[system].refuses.items():
        holds, sentence = CONDITIONS[name]
        if holds(config):
            is_common = nearest is True or "{nearest}" in sentence
            rule = _with_bounds(config.rollout_rs[0]) if config.rollout_rs else ""
            lower = config.rollout_is_threshold_lower
            values = {"system": system, "nearest": nearest, "loss": config.loss_type, "rule": rule, "lower": lower}
            raise UsageError((sentence if is_common else str(nearest)).format(**values))


def no_rule(system: str, rule: RejectionRule, nearest: str) -> UsageError:
    """Return the error for a rule that the system cannot apply."""
    return UsageError(f"{system} cannot express {_with_bounds(rule)}; nearest: {nearest}.")


def _with_bounds(rule: RejectionRule) -> str:
    lower = "" if rule.lower is None else f"{rule.lower:g} ≤ "
    upper = "" if rule.upper == math.inf else f" ≤ {rule.upper:g}"
    return f"{lower}{rule.name}{upper}"


def is_unbounded(config: CorrectionConfig, level: str = "token") -> bool:
    """Check whether the weights are of this level and have no bound."""
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    return config.rollout_is == level and lower is None and upper == math.inf and config.rollout_is_mode == "truncate"


def plain(value: float) -> float:
    """Round away the digits that exp, log, or adding and subtracting 1 have left.

    >>> plain(1.28 - 1)
    0.28
    """
    return float(f"{value:.12g}")


def minus_log(bound: float) -> float:
    """Return −log of a bound."""
    return plain(-math.log(bound))


def bounds(rule: RejectionRule) -> tuple[float, float]:
    """Return the bounds of a rule on ratios, 0 if there is no lower one."""
    return rule.lower or 0.0, float(rule.upper)


def only_rule(
    system: str, rules: tuple[RejectionRule, ...], allowed: Collection[str], nearest: str
) -> RejectionRule | None:
    """Return the only rule, or None. Raises `UsageError` if its name is not allowed, and if there are several."""
    for rule in rules:
        if rule.name not in allowed:
            raise no_rule(system, rule, nearest)
    if len(rules) > 1:
        raise UsageError(f"{system} has one gate at a time; nearest: only {rules[0].name} or only {rules[1].name}.")
    return rules[0] if rules else None
