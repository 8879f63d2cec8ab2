"""Log-ratios of two policies, the divergences k1 k2 k3 built on them, and their sums over a sequence.

With d = log π_old − log π_rollout and r = eᵈ, on tokens sampled from π_rollout (Schulman, "Approximating KL
Divergence", 2020):  k1 = −d,  k2 = d²/2,  k3 = eᵈ − 1 − d. All three estimate KL(π_rollout‖π_old).
"""

import torch
from torch import Tensor

from rlcorr.masked import masked_max, masked_mean, masked_sum
from rlcorr.types import Reduce

SAFETY_BOUND = 20.0
"""Log-ratios are clamped to ±20 before exp: e²⁰ ≈ 4.9e8 is far beyond every threshold and still squares to a float."""


def log_ratio(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """d = log π_old − log π_rollout on the mask, 0 elsewhere; at least float32.

    bf16 and fp16 inputs are raised to float32 first: thresholds such as 1.001 do not exist in bf16.
    """
    at_least_float32 = torch.promote_types(old_log_probs.dtype, torch.float32)
    d = old_log_probs.to(at_least_float32) - rollout_log_probs.to(at_least_float32)
    return torch.where(mask, d, 0)


def ratio(d: Tensor) -> Tensor:
    """r = eᵈ with d clamped to ±20."""
    return d.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp()


def k1(d: Tensor) -> Tensor:
    """−d: unbiased, and may be negative."""
    return -d


def k2(d: Tensor) -> Tensor:
    """d²/2."""
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """eᵈ − 1 − d ≥ 0, d clamped to ±20.

    expm1 keeps the digits that exp(d) − 1 loses; below |d| = 1e-2 the series is shorter than the error of the
    remaining subtraction.
    """
    c = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    series = c.square() * (0.5 + c * (1 / 6 + c * (1 / 24 + c / 120)))
    return torch.where(c.abs() < 1e-2, series, torch.expm1(c) - c)


def over_sequence(x: Tensor, mask: Tensor, reduce: Reduce) -> Tensor:
    """(B, T) → (B,): sum, mean or max over the masked tokens of each row; an empty row gives 0."""
    return {"sum": masked_sum, "mean": masked_mean, "max": masked_max}[reduce](x, mask, -1)
