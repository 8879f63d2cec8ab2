"""The correction: importance weights and rejection, both computed from the ratio r = π_old/π_rollout.

Weights and safety clamp follow verl's rollout correction, with its faults repaired: bounds are compared on
log r, padding never leaks into a result, and batch normalisation happens after rejection.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.masked import count_true, masked_mean, masked_sum
from rlcorr.ratios import log_ratio
from rlcorr.rules import reject
from rlcorr.types import CorrectionResult, TokenBatch


def correct(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Compute a weight for every token, and which tokens are kept, because π_old ≠ π_rollout. All results are (B, T).

    log_ratio    d = log π_old − log π_rollout, 0 on padding; at least float32
    weights      w = eˣ with x = d_t, Σ_t d_t, mean_t d_t or Σ_{j≤t} d_j (`rollout_is` token, sequence, geometric or
                 prefix). It is truncated to the bounds or set to 0 outside them, then divided by its mean over the kept
                 tokens or sequences if `rollout_is_batch_normalize`. 1 on every token if `rollout_is` is None; 0 on
                 padding
    keep_mask    real tokens whose statistics are inside the bounds of every rule in `rollout_rs`
    rejected_by  0, or the number k ≥ 1 of the first rule that rejects the token

    Ratios are clamped to e^±20. No result has a gradient. The weights are truncated importance sampling (Yao et al.,
    2025, fengyao.notion.site/off-policy-rl) or IcePop (arXiv:2510.18855); the rules follow verl's rollout correction.
    Raises `UsageError` if old_log_probs are missing, or advantages although a rule reads their sign.

    >>> old, rollout = torch.tensor([[0.6, 0.4, 0.8]]).log(), torch.tensor([[0.5, 0.8, 0.2]]).log()
    >>> batch = TokenBatch.from_log_probs(old, rollout, torch.tensor([[1, 1, 1]]))
    >>> rule = RejectionRule.named("token_k1", upper=3.0)
    >>> result = correct(batch, CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, rollout_rs=(rule,)))
    >>> [round(w, 2) for w in result.weights[0].tolist()]  # ratios 1.2, 0.5 and 4
    [1.2, 0.5, 2.0]
    >>> result.keep_mask[0].tolist(), result.rejected_by[0].tolist()
    ([True, True, False], [0, 0, 1])
    """
    require_fields(batch, config)
    parts = [correct_block(batch.rows(rows), config) for rows in row_blocks(batch)]
    return normalise(concat_results(parts), config)


def row_blocks(batch: TokenBatch) -> list[slice]:
    """Split the rows into slices of about a quarter of a million tokens on a CPU, so that one fits into the cache."""
    rows, columns = batch.response_mask.shape
    tokens = 1 << 18 if batch.response_mask.device.type == "cpu" else 1 << 22  # per slice
    step = max(tokens // max(columns, 1), 1)
    return [slice(start, start + step) for start in range(0, max(rows, 1), step)]


def correct_block(batch: TokenBatch, config: CorrectionConfig) -> CorrectionResult:
    """Compute what `correct` does, except batch normalisation, which needs all rows."""
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask).detach()
    rejected_by = reject(batch, d, config.rollout_rs)
    keep = batch.response_mask & (rejected_by == 0)
    return CorrectionResult(d, importance_weights(d, batch.response_mask, config), keep, rejected_by)


def concat_results(parts: list[CorrectionResult]) -> CorrectionResult:
    """Concatenate the results of several groups of rows."""
    if len(parts) == 1:
        return parts[0]
    names = ("log_ratio", "weights", "keep_mask", "rejected_by")
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return CorrectionResult(**columns)


def require_fields(batch: TokenBatch, config: CorrectionConfig) -> None:
    """Raise `UsageError` unless the batch has every field that the configuration reads, and for other types."""
    if not isinstance(batch, TokenBatch) or not isinstance(config, CorrectionConfig):
        got = f"{type(batch).__name__} and {type(config).__name__}"
        raise UsageError(f"a correction takes a TokenBatch and a CorrectionConfig, as preset(name) returns; got {got}.")
    old_log_probs(batch)
    if config.needs_advantages and batch.advantages is None:
        names = ", ".join(rule.name for rule in config.rollout_rs if rule.applies_to != "all")
        raise UsageError(f"{names} asks for the sign of the advantage; the batch has no advantages.")


def old_log_probs(batch: TokenBatch) -> Tensor:
    """Return log π_old, (B, T). Raises `UsageError` if the batch has none."""
    if batch.old_log_probs is None:
        raise UsageError("the correction needs old_log_probs; the batch has only rollout_log_probs.")
    return batch.old_log_probs


def importance_weights(d: Tensor, mask: Tensor, config: CorrectionConfig) -> Tensor:
    """Return the bounded weights, (B, T): 1 on real tokens if `rollout_is` is None, 0 on padding."""
    weights = config.weights
    return mask.to(d.dtype) if weights is None else torch.where(mask, weights.bounded(weights.raw(d, mask)), 0)


def normalise(result: CorrectionResult, config: CorrectionConfig) -> CorrectionResult:
    """Divide the weights by their mean over what is kept, unless it is 0 (self-normalised importance sampling)."""
    if config.weights is None or not config.weights.normalise:
        return result
    factor = norm_divisor(kept_mean(result.weights, result.keep_mask, per_token=config.weights.per_token))
    return replace(result, weights=result.weights / factor, norm_factor=factor)


def norm_divisor(mean: Tensor) -> Tensor:
    """Return the divisor of batch normalisation: the mean weight of what is kept, or 1 if that mean is 0."""
    return torch.where(mean > 1e-8, mean, 1.0)


def kept_mean(weights: Tensor, keep: Tensor, *, per_token: bool) -> Tensor:
    """Return the mean weight over the kept tokens, or, for weights per sequence, over sequences with kept tokens."""
    if per_token:
        return masked_mean(weights, keep)
    return masked_mean(masked_mean(weights, keep, -1), keep.any(-1))


def norm_factor_sums(weights: Tensor, keep: Tensor, *, per_token: bool) -> tuple[Tensor, Tensor]:
    """Return each sequence's part of the numerator and of the denominator of `kept_mean`, (B,) each."""
    if per_token:
        return masked_sum(weights, keep, -1), count_true(keep)
    rows = keep.any(-1).to(weights)
    return masked_mean(weights, keep, -1) * rows, rows
