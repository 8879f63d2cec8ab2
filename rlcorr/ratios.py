"""Log-ratios of two policies, their divergences k1, k2 and k3, and reductions over a sequence.

d = log π_old − log π_rollout and r = eᵈ, on tokens sampled from π_rollout. k1 = −d, k2 = d²/2 and k3 = eᵈ − 1 − d all
estimate KL(π_rollout‖π_old) (Schulman, "Approximating KL Divergence", 2020).
"""

import math
from typing import Literal

import torch
from torch import Tensor

from rlcorr.masked import masked_max, masked_mean, masked_min, masked_sum

Reduce = Literal["sum", "mean", "max", "min"]
SAFETY_BOUND = 20.0
"""Log-ratios are clamped to ±20 before exp. e²⁰ ≈ 4.9e8 is above every threshold, and its square is still finite."""


def log_ratio(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return d = log π_old − log π_rollout on the mask, 0 elsewhere; at least float32.

    bf16 and fp16 inputs are converted to float32 first, because bf16 cannot represent thresholds such as 1.001.
    """
    return torch.where(mask, at_least_float32(old_log_probs) - at_least_float32(rollout_log_probs), 0)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert bf16, fp16, integers and bools to float32, and return other tensors unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def ratio(d: Tensor) -> Tensor:
    """Return r = eᵈ with d clamped to ±20."""
    return d.clamp(-SAFETY_BOUND, SAFETY_BOUND).exp()


def k1(d: Tensor) -> Tensor:
    """Return k1 = −d, which is unbiased and may be negative."""
    return -d


def k2(d: Tensor) -> Tensor:
    """Return k2 = d²/2."""
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """Return k3 = eᵈ − 1 − d ≥ 0, with d clamped to ±20.

    The subtraction loses digits near 0. Below |d| = 1/4 the power series Σ dʲ/j! from j = 2 is used instead:
    up to j = 7 in float32, where the next term is 2·(1/4)⁶/8! ≈ 1e-8 of the sum, and up to j = 11 in float64.

    >>> round(k3(torch.tensor(1.0)).item(), 4)  # e − 2
    0.7183
    """
    c = d.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    last = 11 if c.dtype == torch.float64 else 7
    series = torch.full_like(c, 1 / math.factorial(last))
    for j in range(last - 1, 1, -1):
        series = (series * c).add_(1 / math.factorial(j))
    return torch.where(c.abs() < 0.25, c.square() * series, c.exp() - 1 - c)


def excess(d: Tensor) -> Tensor:
    """Return r − 1, with d clamped to ±20. Unlike eᵈ − 1 it keeps the digits of a small d.

    >>> round(excess(torch.tensor(1.0)).item(), 4)  # e − 1
    1.7183
    """
    return torch.expm1(d.clamp(-SAFETY_BOUND, SAFETY_BOUND))


def over_sequence(x: Tensor, mask: Tensor, reduce: Reduce) -> Tensor:
    """Return the sum, mean, max or min over each row's tokens on the mask, (B, T) → (B,); 0 for an empty row."""
    return {"sum": masked_sum, "mean": masked_mean, "max": masked_max, "min": masked_min}[reduce](x, mask, -1)
