"""Errors for what most systems cannot express, in the same words for all, and small conversions of rules."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Replace names in the messages of errors: a dialect is read by the functions of the system that it comes from.

    >>> with renamed({"TRL": "Unsloth"}):
    ...     raise UsageError("TRL has no geometric weights.")
    Traceback (most recent call last):
    rlcorr.errors.UsageError: Unsloth has no geometric weights.
    """
    try:
        yield
    except UsageError as error:
        message = str(error)
        for name, replacement in names.items():
            message = message.replace(name, replacement)
        raise UsageError(message) from None


def require_plain(system: str, config: CorrectionConfig, *, bypass: str, loss: str, denominator: str = "fixed") -> None:
    """Raise `UsageError` unless this is a decoupled correction of PPO's clip without batch normalisation.

    If tokens are rejected, the denominator must be this one, too. `bypass` ends the message about bypass mode: the
    nearest setting. `loss` is the system's key for the loss.

    >>> require_plain("TRL", CorrectionConfig(denominator="kept"), bypass="none", loss="loss_type")
    Traceback (most recent call last):
    rlcorr.errors.UsageError: TRL divides by all response tokens; nearest: denominator='fixed'.
    """
    if config.bypass_mode:
        raise UsageError(f"{system}'s correction compares π_old with π_rollout, not π_θ; nearest: {bypass}.")
    if config.loss_type != "ppo_clip":
        raise UsageError(
            f"{system}'s correction names no loss, so {config.loss_type!r} would be lost; nearest: translate with "
            f"loss_type='ppo_clip' and set {loss} there."
        )
    if config.denominator != denominator and (config.denominator == "kept" or config.rollout_rs):
        over = "all response tokens" if denominator == "fixed" else "the kept tokens"
        raise UsageError(f"{system} divides by {over}; nearest: denominator={denominator!r}.")
    refuse_normalised(system, config)
    refuse_prefix(system, config)


def refuse_prefix(system: str, config: CorrectionConfig) -> None:
    """Raise `UsageError` if a weight is the product of the ratios up to its token, which only CTPO's loss has.

    >>> refuse_prefix("TRL", CorrectionConfig(rollout_is="prefix"))
    Traceback (most recent call last):
    rlcorr.errors.UsageError: TRL has no prefix weights; nearest: rollout_is='token'.
    """
    if config.rollout_is == "prefix":
        raise UsageError(f"{system} has no prefix weights; nearest: rollout_is='token'.")


def refuse_normalised(system: str, config: CorrectionConfig) -> None:
    """Raise `UsageError` if weights are divided by their mean."""
    if config.rollout_is_batch_normalize:
        raise UsageError(f"{system} does not normalise weights; nearest: rollout_is_batch_normalize=False.")


def no_rule(system: str, rule: RejectionRule, nearest: str) -> UsageError:
    """Return the error for a rule that the system cannot apply.

    >>> print(no_rule("TRL", RejectionRule.named("token_k2", upper=1.0), "rollout_is_mode='mask'"))
    TRL cannot express token_k2 ≤ 1; nearest: rollout_is_mode='mask'.
    """
    lower = "" if rule.lower is None else f"{rule.lower:g} ≤ "
    upper = "" if rule.upper == math.inf else f" ≤ {rule.upper:g}"
    return UsageError(f"{system} cannot express {lower}{rule.name}{upper}; nearest: {nearest}.")


def is_unbounded(config: CorrectionConfig, level: str = "token") -> bool:
    """Check whether the weights are of this level and have no bound.

    >>> is_unbounded(CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf))
    True
    >>> is_unbounded(CorrectionConfig())
    False
    """
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    return config.rollout_is == level and lower is None and upper == math.inf and config.rollout_is_mode == "truncate"


def minus_log(bound: float) -> float:
    """Return −log of a bound, without the digits that exp and log have added.

    >>> minus_log(math.exp(-1e-4))
    0.0001
    """
    return float(f"{-math.log(bound):.12g}")


def bounds(rule: RejectionRule) -> tuple[float, float]:
    """Return the bounds of a rule on ratios, 0 if there is no lower one.

    >>> bounds(RejectionRule.named("token_k1", upper=2.0))
    (0.0, 2.0)
    """
    return rule.lower or 0.0, float(rule.upper)


def only_rule(
    system: str, rules: Iterable[RejectionRule], allowed: Iterable[str], nearest: str
) -> RejectionRule | None:
    """Return the only rule, or None. Raises `UsageError` if its name is not allowed, and if there are several.

    >>> only_rule("TRL", (), ("token_k1",), "none")
    """
    rules, allowed = tuple(rules), tuple(allowed)
    for rule in rules:
        if rule.name not in allowed:
            raise no_rule(system, rule, nearest)
    if len(rules) > 1:
        raise UsageError(f"{system} has one gate at a time; nearest: only {rules[0].name} or only {rules[1].name}.")
    return rules[0] if rules else None
