"""Policy and value losses per token, and the one function that averages them.

The importance weight w multiplies the per-token loss after the clip and carries no gradient.
"""

import torch
from torch import Tensor

from rlcorr.config import Denominator
from rlcorr.masked import masked_mean, masked_sum
from rlcorr.ratios import ratio


def ppo_clip(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """max(−A ρ, −A clip(ρ, 1 − low, 1 + high)) with ρ = π_θ/π_old (Schulman et al., arXiv:1707.06347)."""
    rho = ratio(log_probs - old_log_probs)
    return torch.maximum(-advantages * rho, -advantages * rho.clamp(1 - low, 1 + high))


def reinforce(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """−A log π_θ."""
    return -advantages * log_probs


def clipped_value(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± clip) − R)²)."""
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (near - returns).square()) / 2


def token_mean(loss: Tensor, keep: Tensor, mask: Tensor, denominator: Denominator) -> Tensor:
    """Σ loss over kept tokens, divided by all response tokens (fixed) or by the kept ones (kept).

    An all-rejected batch gives 0 with a graph. With `fixed`, rejecting a share of the tokens shrinks the
    effective step by that share; with `kept` it does not.
    """
    if denominator == "kept":
        return masked_mean(loss, keep)
    return masked_sum(loss, keep) / mask.sum().clamp(min=1)
