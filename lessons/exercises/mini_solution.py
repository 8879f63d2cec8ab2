"""The solution of mini.py: a corrected training loop in plain PyTorch, in the pieces that the lessons ask for.

Shapes: B answers, the n answers to one prompt in neighbouring rows, padded to T tokens. `trainer_logp` and
`engine_logp` are log-probs of the drawn tokens, (B, T); `mask`, (B, T), is True on real tokens. Padding may contain
anything, so every piece selects with the mask and none multiplies by it: nan times 0 is nan.
"""

import copy
import math
from collections import deque
from collections.abc import Callable

import torch
from count_on import END, LONGEST, PROMPTS, START, Policy, reward
from torch import Tensor
from torch.optim import Optimizer

WeightFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""trainer_logp, engine_logp and mask → the weight of every token, all (B, T)."""

EPOCHS = 2
"""Optimizer steps on one batch. At the second, the policy is no longer the trainer that scored the batch."""
CLIP = 0.2

# --- lesson 01: draw answers, score them, compare their rewards ---


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one answer to each prompt. Return tokens, their log-probs and the mask, all (B, LONGEST)."""
    before, going = torch.full_like(prompts, START), torch.ones_like(prompts, dtype=torch.bool)
    columns = []
    for place in range(LONGEST):
        logp = policy(prompts, before, torch.full_like(prompts, place)).double().log_softmax(-1)
        before = logp.exp().multinomial(1, generator=generator)[:, 0]
        columns.append((before, logp.gather(-1, before[:, None])[:, 0], going))
        going = going & (before != END)  # END itself is a token of the answer, what follows is padding
    tokens, engine_logp, mask = (torch.stack(column, 1) for column in zip(*columns, strict=True))
    return tokens, engine_logp, mask


def log_probs(policy: Policy, prompts: Tensor, tokens: Tensor) -> Tensor:
    """Return the policy's log-prob of every token, (B, T), in one pass: the token before each is known already."""
    before = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], 1)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = policy(prompts[:, None].expand_as(tokens), before, places)
    return logits.double().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def advantages(rewards: Tensor) -> Tensor:
    """Subtract from each reward the mean of the other answers to the same prompt; rewards are (prompts, n)."""
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return rewards - others


# --- lesson 02: the ratio of two policies ---


def ratios(trainer_logp: Tensor, engine_logp: Tensor, mask: Tensor) -> Tensor:
    """Return p/q of every token, and 0 on padding."""
    return (trainer_logp - engine_logp).where(mask, -math.inf).exp()


# --- lesson 04: PPO's clip ---


def clipped(new_logp: Tensor, trainer_logp: Tensor, advantage: Tensor) -> Tensor:
    """Return PPO's coefficient of every token, (B, T): π/p, and 0 where the clip has taken its gradient away.

    That is where the update has moved a token out of 1 ± CLIP in the direction of its advantage, (B,).
    """
    rho, up = (new_logp - trainer_logp).exp(), advantage[:, None] > 0
    too_far = torch.where(up, rho > 1 + CLIP, rho < 1 - CLIP)
    return rho.where(~too_far, 0)


# --- lesson 05: a cap ---


def capped(trainer_logp: Tensor, engine_logp: Tensor, mask: Tensor, lower: float | None, upper: float) -> Tensor:
    """Return the ratios, moved to the nearer bound where they are outside; 0 on padding."""
    return ratios(trainer_logp, engine_logp, mask).clamp(lower, upper).where(mask, 0)


# --- lesson 07: rejection, and the loss ---


def kept(trainer_logp: Tensor, engine_logp: Tensor, mask: Tensor, lower: float, upper: float) -> Tensor:
    """Return the mask of the answers whose geometric mean of the ratios is within the bounds."""
    mean = (trainer_logp - engine_logp).where(mask, 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mask & (mean.exp() >= lower) & (mean.exp() <= upper)


def loss(new_logp: Tensor, weights: Tensor, mask: Tensor, advantage: Tensor) -> Tensor:
    """Return a number with the gradient −Σ w·A·∇log π / N, over the N tokens of the mask. `advantage` is (B,)."""
    coefficients = (weights.detach() * advantage[:, None]).where(mask, 0)
    return -(coefficients * new_logp.where(mask, 0)).sum() / mask.sum()


# --- lesson 13: one step, and a queue of old weights ---


def update(
    policy: Policy, engine: Policy, optimizer: Optimizer, prompts: Tensor, generator: torch.Generator,
    weight_fn: WeightFn,
) -> float:  # fmt: skip
    """Train the policy on one batch of the engine's answers. Return their mean reward."""
    tokens, engine_logp, mask = sample(engine, prompts, generator)
    rewards = reward(prompts, tokens, mask)
    advantage = advantages(rewards.view(PROMPTS, -1)).flatten()
    trainer_logp = log_probs(policy, prompts, tokens).detach()  # before the first step; the ratio stays as it is
    weights = weight_fn(trainer_logp, engine_logp, mask)
    for _ in range(EPOCHS):
        new_logp = log_probs(policy, prompts, tokens)
        optimizer.zero_grad()
        loss(new_logp, weights * clipped(new_logp, trainer_logp, advantage), mask, advantage).backward()
        optimizer.step()
    return float(rewards.mean())


def train(policy: Policy, lag: int, steps: int, step: Callable[[Policy], float]) -> list[float]:
    """Call `step` with an engine whose weights are `lag` steps old, or as old as there are. Return the rewards.

    `step` trains the policy on the engine's answers. The queue forgets the oldest copy by itself.
    """
    versions, history = deque([copy.deepcopy(policy)], maxlen=lag + 1), []
    for _ in range(steps):
        history.append(step(versions[0]))
        versions.append(copy.deepcopy(policy))
    return history
