"""A corrected training loop in plain PyTorch: the pieces that lessons 01 to 13 ask for.

`count_on.py` has the task, a policy for it and how that is sampled; `mini_vllm.py` trains a language model with the
same functions (lesson 16).
"""

import copy
import math
from collections.abc import Callable

import torch
from count_on import PROMPTS, Policy, log_probs, reward, sample
from torch import Tensor
from torch.optim import Optimizer

Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log-probs of trainer and engine, and the mask → the weight of every token, all (B, T)."""


def advantages(rewards: Tensor) -> Tensor:
    """Lesson 01: of n answers to each of P prompts, (P, n), each reward less the mean of the others."""
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return rewards - others


def ratios(trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
    """Lesson 02: p/q of every token from its log-probs; 0 at padding, whatever that holds."""
    return (trainer - engine).where(mask, -math.inf).exp()


def truncated(trainer: Tensor, engine: Tensor, mask: Tensor, lower: float | None, upper: float) -> Tensor:
    """Lesson 05: the ratios, moved to the nearer bound where they lie outside."""
    return ratios(trainer, engine, mask).clamp(lower, upper).where(mask, 0)


def kept(trainer: Tensor, engine: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    """Lesson 07: the tokens of the answers whose geometric mean lies within the bounds."""
    mean = (trainer - engine).where(mask, 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mask & (mean.exp() >= lower) & (mean.exp() <= upper)


def loss(trainer: Tensor, weights: Tensor, mask: Tensor, advantage: Tensor) -> Tensor:
    """Lesson 07: what has the gradient −Σ w·A·∇log p / N over the N tokens of the mask. `advantage` is (B,)."""
    return -(weights.detach() * advantage[:, None] * trainer.where(mask, 0)).sum() / mask.sum()


def update(
    policy: Policy, engine: Policy, optimizer: Optimizer, prompts: Tensor, chance: torch.Generator, weigh: Weigh
) -> float:
    """Lesson 13: one step of the policy on answers of the engine, n in a row to each prompt; their mean reward."""
    tokens, engine_log_probs = sample(engine, prompts, chance)
    rewards, mask = reward(prompts, tokens), torch.ones_like(tokens, dtype=torch.bool)
    trainer = log_probs(policy, prompts, tokens)
    weights = weigh(trainer, engine_log_probs, mask)
    advantage = advantages(rewards.view(PROMPTS, -1)).flatten()
    optimizer.zero_grad()
    loss(trainer, weights, mask, advantage).backward()
    optimizer.step()
    return float(rewards.mean())


def train(weigh: Weigh, lag: int, steps: int, seed: int) -> list[float]:
    """The mean reward of every step, each batch sampled by weights that are `lag` steps old."""
    torch.manual_seed(seed)
    chance, policy = torch.Generator().manual_seed(seed), Policy().double()
    optimizer = torch.optim.Adam(policy.parameters(), 2e-2)
    prompts, versions, course = torch.arange(PROMPTS).repeat_interleave(8), [copy.deepcopy(policy)], []
    for _ in range(steps):
        course.append(update(policy, versions[0], optimizer, prompts, chance, weigh))
        versions = [*versions, copy.deepcopy(policy)][-1 - lag :]
    return course
