"""The correction: importance weights and rejection, which are done about the ratio r = π_old/π_rollout.

Weights and safety clamp follow verl's rollout correction, with its faults mended: bounds are compared on log r, padding
never leaks, and batch normalisation happens after rejection.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, WeightLevel
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean, masked_sum, tally
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.rejection import reject
from rlcorr.types import CorrectionResult, TokenBatch


def correct(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """What is done about π_old ≠ π_rollout: a weight for every token, and which tokens are kept. All results (B, T).

    log_ratio    d = log π_old − log π_rollout, 0 on padding; at least float32
    weights      w = eˣ, x = d_t, Σ_t d_t or mean_t d_t (`rollout_is` token, sequence, geometric), truncated to the
                 bounds or 0 outside them, then divided by its mean over what is kept if that is asked for; 1 on every
                 token where `rollout_is` is None, 0 on padding
    keep_mask    real tokens whose statistics lie inside the bounds of every rule in `rollout_rs`
    rejected_by  0, or the number k ≥ 1 of the first rule that objected

    Ratios are clamped to e^±20. Nothing carries a gradient, and the response mask is not changed. Raises `UsageError`
    without old_log_probs, or without advantages where a rule asks for their sign. The weights are truncated importance
    sampling (Yao et al., 2025, fengyao.notion.site/off-policy-rl) or IcePop (arXiv:2510.18855); the rules follow verl's
    rollout correction.

    >>> old, rollout = torch.tensor([[0.6, 0.4, 0.8]]).log(), torch.tensor([[0.5, 0.8, 0.2]]).log()
    >>> batch = TokenBatch.from_log_probs(old, rollout, torch.tensor([[1, 1, 1]]))
    >>> rule = RejectionRule.named("token_k1", upper=3.0)
    >>> result = correct(batch, CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, rollout_rs=(rule,)))
    >>> [round(w, 2) for w in result.weights[0].tolist()]  # ratios 1.2, 0.5 and 4
    [1.2, 0.5, 2.0]
    >>> result.keep_mask[0].tolist(), result.rejected_by[0].tolist()
    ([True, True, False], [0, 0, 1])
    """
    require(batch, config)
    parts = [correct_block(batch.rows(rows), config) for rows in blocks(batch)]
    return normalise(joined(parts), config)


def blocks(batch: TokenBatch) -> list[slice]:
    """Rows in groups of about a quarter of a million tokens (a CPU): what is computed on one stays in the cache.

    >>> mask = torch.ones(3, 1 << 17, dtype=torch.bool)
    >>> blocks(TokenBatch(mask, torch.zeros(mask.shape)))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    rows, columns = batch.response_mask.shape
    tokens = 1 << 18 if batch.response_mask.device.type == "cpu" else 1 << 22
    step = max(tokens // max(columns, 1), 1)
    return [slice(start, start + step) for start in range(0, max(rows, 1), step)]


def correct_block(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """`correct` without batch normalisation, which needs all rows.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2))
    >>> correct_block(batch, CorrectionConfig()).log_ratio.tolist()
    [[0.0, 1.0]]
    """
    d, weights, by = decide(batch, config)
    return CorrectionResult(d, weights, batch.response_mask & (by == 0), by.to(torch.int8))


def decide(batch: TokenBatch, config: CorrectionConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Log-ratio, weights before normalisation, and the number of the rule that rejects (0: none), as float32; (B, T).

    The rule's number is a float, and there is no mask yet: the compiler that fuses this is ten times slower at writing
    bools.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2))
    >>> _, _, rejected_by = decide(batch, CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=2.0),)))
    >>> rejected_by.tolist()
    [[0.0, 1.0]]
    """
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    return d, importance_weights(d, batch.response_mask, config), reject(batch, d, config.rollout_rs)


def joined(parts: list[CorrectionResult]) -> CorrectionResult:
    """The results of several groups of rows as one.

    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 3, 5), torch.ones(3, 5))
    >>> parts = [correct_block(batch.rows(rows), CorrectionConfig()) for rows in (slice(0, 1), slice(1, 3))]
    >>> joined(parts).weights.shape
    torch.Size([3, 5])
    """
    if len(parts) == 1:
        return parts[0]
    names = ("log_ratio", "weights", "keep_mask", "rejected_by")
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return CorrectionResult(**columns)


def require(batch: TokenBatch, config: CorrectionConfig) -> None:
    """Raise `UsageError` unless the batch holds everything that the configuration reads.

    >>> rule = RejectionRule.named("token_k1_negative", upper=2.0)
    >>> batch = TokenBatch.from_log_probs(*torch.zeros(2, 1, 3), torch.ones(1, 3))
    >>> require(batch, CorrectionConfig())
    >>> require(batch, CorrectionConfig(rollout_rs=(rule,)))
    Traceback (most recent call last):
    rlcorr.errors.UsageError: token_k1_negative asks for the sign of the advantage; the batch has no advantages.
    """
    old_log_probs(batch)
    if config.needs_advantages and batch.advantages is None:
        names = ", ".join(rule.name for rule in config.rollout_rs if rule.applies_to != "all")
        raise UsageError(f"{names} asks for the sign of the advantage; the batch has no advantages.")


def old_log_probs(batch: TokenBatch) -> Tensor:
    """log π_old, (B, T). Raises `UsageError` where the batch has none.

    >>> old_log_probs(TokenBatch.from_log_probs(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))).tolist()
    [[0.0, 0.0]]
    """
    if batch.old_log_probs is None:
        raise UsageError("the correction needs old_log_probs; the batch has only rollout_log_probs.")
    return batch.old_log_probs


def log_weights(d: Tensor, mask: Tensor, level: WeightLevel) -> Tensor:
    """Logarithm of the unbounded weights: (B, T) token log r_t, (B, 1) sequence Σ log r_t or geometric mean log r_t.

    >>> d, mask = torch.tensor([[0.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> log_weights(d, mask, "sequence").tolist(), log_weights(d, mask, "geometric").tolist()
    ([[2.0]], [[1.0]])
    """
    if level == "token":
        return d
    return over_sequence(d, mask, "sum" if level == "sequence" else "mean")[:, None]


def bound_weights(log_w: Tensor, config: CorrectionConfig) -> Tensor:
    """exp(log w), truncated to the bounds (TIS) or zero outside them (IcePop); bounds belong to the inside.

    >>> truncate = CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0)
    >>> bound_weights(torch.tensor([0.0, 1.0]), truncate).tolist()
    [1.0, 2.0]
    """
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    if config.rollout_is_mode == "truncate":
        return ratio(log_w).clamp(lower, upper)
    return torch.where(between(log_w, lower, upper), ratio(log_w), 0)


def importance_weights(d: Tensor, mask: Tensor, config: CorrectionConfig) -> Tensor:
    """Bounded weights (B, T): 1 on real tokens if none are asked for, 0 on padding.

    >>> d, mask = torch.tensor([[0.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
    >>> importance_weights(d, mask, CorrectionConfig(rollout_is="token")).tolist()
    [[1.0, 2.0, 0.0]]
    """
    if config.rollout_is is None:
        return mask.to(d.dtype)
    return torch.where(mask, bound_weights(log_weights(d, mask, config.rollout_is), config), 0)


def normalise(result: CorrectionResult, config: CorrectionConfig) -> CorrectionResult:
    """Divide the weights by their mean over what is kept, unless that mean is 0 (self-normalised sampling).

    >>> weights, keep = torch.tensor([[1.0, 3.0]]), torch.ones(1, 2, dtype=torch.bool)
    >>> result = CorrectionResult(torch.zeros(1, 2), weights, keep, torch.zeros(1, 2, dtype=torch.int8))
    >>> normalise(result, CorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True)).weights.tolist()
    [[0.5, 1.5]]
    """
    if config.rollout_is is None or not config.rollout_is_batch_normalize:
        return result
    factor = divisor(kept_mean(result.weights, result.keep_mask, config.rollout_is))
    return replace(result, weights=result.weights / factor, norm_factor=factor)


def divisor(mean: Tensor) -> Tensor:
    """What batch normalisation divides by: the mean weight of what is kept, or 1 where that is 0.

    >>> divisor(torch.tensor([2.0, 0.0])).tolist()
    [2.0, 1.0]
    """
    return torch.where(mean > 1e-8, mean, 1.0)


def kept_mean(weights: Tensor, keep: Tensor, level: WeightLevel) -> Tensor:
    """The mean weight of what is kept: over tokens, or one vote per kept sequence.

    >>> weights, keep = torch.tensor([[1.0, 1.0], [4.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> kept_mean(weights, keep, "token").item(), kept_mean(weights, keep, "sequence").item()
    (2.0, 2.5)
    """
    if level == "token":
        return masked_mean(weights, keep)
    return masked_mean(masked_mean(weights, keep, -1), keep.any(-1))


def weight_votes(weights: Tensor, keep: Tensor, level: WeightLevel) -> tuple[Tensor, Tensor]:
    """What each sequence adds to the two sums whose quotient is `kept_mean`, (B,) each.

    >>> weights, keep = torch.tensor([[1.0, 1.0], [4.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    >>> [x.tolist() for x in weight_votes(weights, keep, "token")]
    [[2.0, 4.0], [2.0, 1.0]]
    """
    if level == "token":
        return masked_sum(weights, keep, -1), tally(keep)
    rows = keep.any(-1).to(weights)
    return masked_mean(weights, keep, -1) * rows, rows


def between(log_r: Tensor, lower: float | None, upper: float) -> Tensor:
    """lower ≤ r ≤ upper, compared as logarithms.

    >>> between(torch.tensor([0.5, 1.0, 3.0]).log(), 0.5, 2.0).tolist()
    [True, True, False]
    """
    floor = -math.inf if lower is None else math.log(lower)
    return (log_r >= floor) & (log_r <= math.log(upper))
