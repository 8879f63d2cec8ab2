"""Advantages from rewards. They are float32 or float64 even if the rewards are integers or bools, as 0/1 often are."""

import torch
from torch import Tensor

from rlcorr.masked import masked_mean
from rlcorr.ratios import at_least_float32

GROUPED = ("grpo", "rloo")
"""Estimators that compare the answers to one prompt. Their advantages are not whitened."""


def token_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Put the reward of each response on its last token, (B,) → (B, T). Tokens of a response must be contiguous."""
    last = mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))
    return torch.where(last, at_least_float32(rewards)[:, None], 0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return generalised advantage estimates and returns, (B, T) each, 0 on padding.

    δ_t = r_t + γ V_{t+1} − V_t,  A_t = Σ_k (γλ)^k δ_{t+k},  R_t = A_t + V_t; V after the last token is 0
    (Schulman et al., arXiv:1506.02438). Padding is skipped: it adds nothing and causes no decay.

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    >>> advantages, returns = gae(rewards, values, torch.ones(1, 2, dtype=torch.bool), gamma=1.0, lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([[0.5, 0.5]], [[1.0, 1.0]])
    """
    rewards, values = at_least_float32(rewards), torch.where(mask, at_least_float32(values), 0)
    advantages = torch.zeros_like(values, dtype=torch.promote_types(rewards.dtype, values.dtype))
    next_advantage = next_value = advantages.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], advantage, 0)
    return advantages, torch.where(mask, advantages + values, 0)


def group_normalised(
    rewards: Tensor, group_ids: Tensor, counted: Tensor | None = None, *, by_std: bool = True
) -> Tensor:
    """Return GRPO's advantages, (B,): (r − mean of the group) / (standard deviation of the group + 1e-6).

    The standard deviation has n − 1 in its denominator (Shao et al., arXiv:2402.03300). Without `by_std` the difference
    is not divided (Dr. GRPO, arXiv:2503.20783). Rows that are False in `counted` (B,) enter no group's statistics and
    get 0. A group with fewer than two counted rows gets 0.

    >>> group_normalised(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([7, 7, 8]), by_std=False).tolist()
    [0.5, -0.5, 0.0]
    """
    group, counted, n = _groups(group_ids, counted)
    exact = rewards.double()  # in float32 equal rewards of 10.1 differ from their mean by 1e-6; / std amplifies that
    centred = exact - (_per_group(exact, group, counted) / n.clamp(min=1))[group]
    if by_std:
        variance = _per_group(centred.square(), group, counted) / (n - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[group] + 1e-6)
    return torch.where(counted & (n > 1)[group], centred, 0).to(at_least_float32(rewards).dtype)


def leave_one_out(rewards: Tensor, group_ids: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return RLOO's advantages, (B,): r − the mean of the other rewards of its group.

    Source: Ahmadian et al., arXiv:2402.14740. `counted` is explained at `group_normalised`.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([7, 7, 7])).tolist()
    [1.0, -0.5, -0.5]
    """
    group, counted, n = _groups(group_ids, counted)
    exact = rewards.double()
    others = (_per_group(exact, group, counted)[group] - exact) / (n - 1).clamp(min=1)[group]
    return torch.where(counted & (n > 1)[group], exact - others, 0).to(at_least_float32(rewards).dtype)


def _groups(group_ids: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return consecutive group indices (B,), the counted rows (B,), and the number of counted rows per group."""
    group = torch.unique(group_ids, return_inverse=True)[1]
    counted = torch.ones_like(group, dtype=torch.bool) if counted is None else counted
    return group, counted, _per_group(torch.ones(len(group), device=group.device), group, counted)


def _per_group(x: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """Return Σ x over the counted rows of each group."""
    groups = int(group.max()) + 1 if len(group) else 0
    return x.new_zeros(groups).index_add(0, group, torch.where(counted, x, 0))


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Return R_t = r_t + γ R_{t+1}, (B, T), 0 on padding. REINFORCE++ whitens it over the batch (arXiv:2501.03262)."""
    return gae(rewards, torch.zeros_like(at_least_float32(rewards)), mask, gamma, 1.0)[1]


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale advantages to zero mean and unit variance over the mask, 0 elsewhere. All 0 if they are equal.

    >>> [round(x, 3) for x in whiten(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False])).tolist()]
    [-1.0, 1.0, 0.0]
    """
    advantages = at_least_float32(advantages)
    mean = masked_mean(advantages, mask)
    variance = masked_mean((advantages - mean).square(), mask)
    return torch.where(mask, (advantages - mean) * (variance + 1e-8).rsqrt(), 0)
