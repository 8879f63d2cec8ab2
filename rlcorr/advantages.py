"""Advantages from rewards."""

import torch
from torch import Tensor

from rlcorr.masked import masked_mean


def token_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """(B,) → (B, T): the reward of a response sits on its last token. Tokens of a response are contiguous."""
    last = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
    return torch.where(last, rewards[:, None], 0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over (B, T) → (advantages, returns), both 0 on padding.

    δ_t = r_t + γ V_{t+1} − V_t,  A_t = Σ_k (γλ)^k δ_{t+k},  R_t = A_t + V_t; V after the last token is 0
    (Schulman et al., arXiv:1506.02438). Padding is skipped: it neither adds nor decays.
    """
    values = torch.where(mask, values, 0)
    advantages = torch.zeros_like(values)
    next_advantage = next_value = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], advantage, 0)
    return advantages, torch.where(mask, advantages + values, 0)


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit variance over the mask, 0 elsewhere; all zeros if nothing varies."""
    mean = masked_mean(advantages, mask)
    variance = masked_mean((advantages - mean).square(), mask)
    return torch.where(mask, (advantages - mean) * (variance + 1e-8).rsqrt(), 0)
