"""Rejection: a rule's statistic, and its comparison with the bounds.

The rules follow verl's rollout correction, with its faults repaired: bounds are on r, and are compared on log r.
"""

import math

import torch
from torch import Tensor

from rlcorr.divergences import DIVERGENCES
from rlcorr.ratios import over_sequence
from rlcorr.rules import AppliesTo, RejectionRule
from rlcorr.types import TokenBatch


def reject(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> Tensor:
    """Return the number k ≥ 1 of the first rule that rejects each real token, else 0; (B, T) int8.

    A NaN statistic is rejected.
    """
    rejected_by = torch.zeros_like(d, dtype=torch.int8)
    for index, rule in enumerate(rules, start=1):
        rejects = ~passes(rule, rule_statistic(rule, batch, d), batch, d)
        rejected_by = torch.where((rejected_by == 0) & rejects & batch.response_mask, index, rejected_by)
    return rejected_by


def rule_statistic(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return the value that the rule compares with its bounds: (B, T) for a token rule, (B, 1) for a sequence rule.

    For k1 this is log r, not −log r, so that its bounds are bounds on the ratio.

    >>> d = torch.tensor([[0.0, 2.0]])
    >>> batch = TokenBatch(torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2), old_log_probs=d)
    >>> rule_statistic(RejectionRule.named("seq_mean_k1", upper=2.0), batch, d).tolist()
    [[1.0]]
    """
    pair = batch.old_log_probs, batch.rollout_log_probs
    per_token = DIVERGENCES[rule.divergence].of(d, *pair, batch.response_mask)
    if rule.reduce is None:
        return per_token
    return over_sequence(per_token, batch.response_mask, rule.reduce)[:, None]


def log_bounds(rule: RejectionRule) -> tuple[float, float]:
    """Return the bounds on the rule's statistic. For k1 they are the logarithms of the configured bounds.

    Logarithms are compared because exp would round, and move a ratio that is exactly on a bound.
    """
    lower = -math.inf if rule.lower is None else rule.lower
    if rule.divergence != "k1":
        return lower, rule.upper
    return (lower if rule.lower is None else math.log(lower)), math.log(rule.upper)


def inside(rule: RejectionRule, statistic: Tensor) -> Tensor:
    """Check whether the statistic is inside the rule's bounds. NaN is outside."""
    lower, upper = log_bounds(rule)
    return (statistic >= lower) & (statistic <= upper)


def passes(rule: RejectionRule, statistic: Tensor, batch: TokenBatch, d: Tensor) -> Tensor:
    """Return which tokens the rule keeps: those inside its bounds, and those to which it does not apply."""
    if rule.applies_to == "all":
        return inside(rule, statistic)
    assert batch.advantages is not None
    return inside(rule, statistic) | ~_applies(rule.applies_to, batch.advantages, d)


def _applies(applies_to: AppliesTo, advantages: Tensor, d: Tensor) -> Tensor:
    """Return the tokens to which the rule applies. The negated form makes it apply to a NaN."""
    if applies_to == "negative":
        return ~(advantages >= 0)
    return ~(d * advantages <= 0)
