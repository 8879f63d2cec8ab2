"""Importance weights and rejection: what is done about the ratio r = π_old/π_rollout.

The safety clamp, the weights and the rules follow verl's rollout correction, with its known faults
mended: bounds are on r, comparisons are made on log r, padding never leaks, and batch normalisation
happens after rejection.
"""

import math

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.ratios import k1, k2, k3, log_ratio, over_sequence, ratio
from rlcorr.types import CorrectionConfig, CorrectionResult, RejectionRule, TokenBatch, WeightLevel

PROBABILITY_FLOOR = 1e-6
"""binary_kl clips probabilities to [1e-6, 1 − 1e-6], so it is at most about 13.8."""


def correct(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Weights and kept tokens for this batch. Raises `UsageError` if π_old is missing."""
    if batch.old_log_probs is None:
        raise UsageError("the correction needs old_log_probs; the batch has only rollout_log_probs.")
    mask = batch.response_mask
    d = log_ratio(batch.old_log_probs, batch.rollout_log_probs, mask)
    keep, rejected_by = reject(batch, d, config.rollout_rs)
    return CorrectionResult(
        log_ratio=d, weights=importance_weights(d, mask, keep, config), keep_mask=keep, rejected_by=rejected_by
    )


def log_weights(d: Tensor, mask: Tensor, level: WeightLevel) -> Tensor:
    """Logarithm of the unbounded weights (B, T): token log r_t, sequence Σ log r_t, geometric mean of log r_t."""
    if level == "token":
        return d
    return over_sequence(d, mask, "sum" if level == "sequence" else "mean")[:, None].expand_as(d)


def bound_weights(log_w: Tensor, config: CorrectionConfig) -> Tensor:
    """exp(log w), truncated to the bounds (TIS) or zero outside them (IcePop); bounds belong to the inside."""
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is_mode == "truncate":
        return ratio(log_w).clamp(lower, upper)
    return torch.where(between(log_w, lower, upper), ratio(log_w), 0)


def importance_weights(d: Tensor, mask: Tensor, keep: Tensor, config: CorrectionConfig) -> Tensor:
    """Final weights (B, T), without gradient: 1 on real tokens if none are asked for, 0 on padding."""
    if config.rollout_is is None:
        return mask.to(d.dtype)
    bounded = torch.where(mask, bound_weights(log_weights(d.detach(), mask, config.rollout_is), config), 0)
    return _normalise(bounded, keep, config.rollout_is) if config.rollout_is_batch_normalize else bounded


def _normalise(weights: Tensor, keep: Tensor, level: WeightLevel) -> Tensor:
    """Divide by the mean weight of what is kept: over tokens, or one vote per kept sequence."""
    if level == "token":
        mean = masked_mean(weights, keep)
    else:
        mean = masked_mean(masked_mean(weights, keep, -1), keep.any(-1))
    return torch.where(mean > 1e-8, weights / mean, weights)


def reject(batch: TokenBatch, d: Tensor, rules: tuple[RejectionRule, ...]) -> tuple[Tensor, Tensor]:
    """Apply every rule to the original mask → (keep_mask, rejected_by). A NaN statistic is rejected."""
    keep = batch.response_mask
    rejected_by = torch.zeros_like(keep, dtype=torch.int8)
    for number, rule in enumerate(rules, start=1):
        passed = inside(rule, rule_statistic(rule, batch, d))
        rejected_by = torch.where(keep & ~passed, number, rejected_by)
        keep = keep & passed
    return keep, rejected_by.to(torch.int8)


def rule_statistic(rule: RejectionRule, batch: TokenBatch, d: Tensor) -> Tensor:
    """What the rule compares: (B, T) for a token rule, (B, 1) for a sequence rule.

    For k1 this is log r, not −log r, so that bounds on it are bounds on the ratio.
    """
    if rule.divergence == "k1":
        per_token = -k1(d)
    elif rule.divergence == "binary_kl":
        per_token = binary_kl(batch)
    else:
        # Clamped per token before it is summed, so one token cannot make the sum infinite.
        per_token = {"k2": k2, "k3": k3}[rule.divergence](d.clamp(-20, 20))
    if rule.reduce is None:
        return per_token
    return over_sequence(per_token, batch.response_mask, rule.reduce)[:, None]


def inside(rule: RejectionRule, statistic: Tensor) -> Tensor:
    """Whether the rule keeps; NaN is outside."""
    if rule.divergence == "k1":
        return between(statistic, rule.lower, rule.upper)
    return statistic <= rule.upper


def between(log_r: Tensor, lower: float | None, upper: float) -> Tensor:
    """lower ≤ r ≤ upper, compared as logarithms: exp would move a ratio that lies exactly on a bound."""
    floor = -math.inf if lower is None else math.log(lower)
    return (log_r >= floor) & (log_r <= math.log(upper))


def binary_kl(batch: TokenBatch) -> Tensor:
    """max(KL(P‖Q), KL(Q‖P)) of the two coins "this token or another", P from π_old, Q from π_rollout (KPop)."""
    assert batch.old_log_probs is not None
    floor, ceiling = PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR
    p = batch.old_log_probs.float().exp().clamp(floor, ceiling)
    q = batch.rollout_log_probs.float().exp().clamp(floor, ceiling)
    token, rest = p.log() - q.log(), (1 - p).log() - (1 - q).log()
    return torch.maximum(p * token + (1 - p) * rest, -(q * token + (1 - q) * rest))
