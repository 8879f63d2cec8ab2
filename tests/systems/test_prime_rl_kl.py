"""prime-rl's squared log-ratio (2026-08): on every token of loss_mask, over the tokens of the batch.

    loss = Σ_t [ −keep_t A_t e^(c_t − q_t) + kl_tau loss_mask_t (c_t − q_t)² ] / tokens

c is log π_θ, q the engine's. keep drops tokens whose probability the update moves further away than dppo_mask allows.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcorr import TokenBatch, correct
from rlcorr.config import LossConfig
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule

TAU = 0.5  # large, so that a difference is visible
PRESETS_OF = {"default": "prime_rl_dppo", "ipo": "prime_rl_ipo_2026_08"}
# Probabilities under the engine and under π_θ, and advantages, of each token; 0: padding.
CASES: dict[str, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    "nothing is rejected": ([[0.4, 0.4]], [[0.5, 0.5]], [[1.0, -1.0]]),
    "one token is rejected": ([[0.2, 0.4]], [[0.9, 0.5]], [[1.0, 1.0]]),
    "two lengths": ([[0.4, 0, 0], [0.4, 0.9, 0.1]], [[0.5, 0, 0], [0.5, 0.3, 0.2]], [[1.0, 0, 0], [1.0, -2.0, 0.5]]),
    "a row without a token": ([[0, 0], [0.2, 0.4], [0.3, 0]], [[0, 0], [0.9, 0.5], [0.3, 0]], [[1.0, 1.0]] * 3),
    "all is rejected": ([[0.1, 0.1]], [[0.9, 0.8]], [[1.0, 2.0]]),
}


def log(probabilities: list[list[float]], mask: Tensor) -> Tensor:
    return torch.where(mask, torch.tensor(probabilities, dtype=torch.float64).log(), math.nan)


def theirs(kind: str, q: Tensor, c: Tensor, mask: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the KL part of prime-rl's loss, and the gradient of the whole loss in log π_θ."""
    theta = torch.where(mask, c, 0.0).requires_grad_()
    engine = torch.where(mask, q, 0.0)
    gap = theta.detach().exp() - engine.exp()
    outward = torch.where(advantages > 0, gap > 0.2, gap < -0.2)
    keep = mask & ~(outward if kind == "default" else gap.abs() > 0.2)
    policy = torch.where(keep, -advantages * (theta - engine).exp(), 0).sum()
    kl = torch.where(mask, TAU * (theta - engine).square(), 0).sum() / mask.sum()
    return kl.detach(), torch.autograd.grad(policy / mask.sum() + kl, theta)[0]


@pytest.mark.parametrize("kind", PRESETS_OF)
def test_the_loss_and_its_gradient_are_prime_rls(kind: str) -> None:
    """Check the loss of the whole batch, and of its rows as micro-batches with the totals of the whole batch."""
    preset = PRESETS[PRESETS_OF[kind]]
    rule = RejectionRule.named(preset.config.rollout_rs[0].name, lower=-0.2, upper=0.2)
    config, loss = replace(preset.config, rollout_rs=(rule,)), replace(preset.loss, rollout_kl_loss_coef=2 * TAU)
    for name, (engine, trainer, pushes) in CASES.items():
        mask, advantages = torch.tensor(engine) > 0, torch.tensor(pushes, dtype=torch.float64)
        q, c = log(engine, mask), log(trainer, mask)
        kl, gradient = theirs(kind, q, c, mask, advantages)
        batch = TokenBatch(mask, q, c.clone(), advantages=advantages)
        totals: dict[str, Any] = {"tokens": float(mask.sum()), "sequences": float(mask.any(-1).sum())}
        whole: dict[str, Any] = {}
        for parts, given in (([slice(None)], whole), ([slice(row, row + 1) for row in range(len(mask))], totals)):
            theta = c.clone().requires_grad_()
            values = []
            for rows in parts:
                part = batch.rows(rows)
                result = correct(part, config)
                value, _ = policy_loss(theta[rows], part, result, config, loss, **given)
                plain, _ = policy_loss(theta[rows].detach(), part, result, config, LossConfig(), **given)
                value.backward()
                values.append(float(value.detach() - plain))
            assert sum(values) == pytest.approx(float(kl)), name
            assert theta.grad is not None
            torch.testing.assert_close(theta.grad, gradient, msg=f"{name}, {len(parts)} parts: {theta.grad}")
