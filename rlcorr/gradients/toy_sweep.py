"""The exact gradient error of a correction over a threshold, in a small world with a gap as wide as a run's."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.analysis.thresholds import Side, at_threshold
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import old_log_probs
from rlcorr.gradients.toy import Policies, World, gradient_truth, random_policy, world
from rlcorr.ratios import log_ratio
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Toy:
    """Policies that differ by a known amount, and what each response is worth."""

    where: World
    policies: Policies
    advantages: torch.Tensor  # (N,)


@dataclass(frozen=True)
class ToySweep:
    """In units of the policy gradient, one number per threshold; no interval, because nothing is sampled."""

    thresholds: list[float]
    bias: list[float]
    noise: list[float]
    """Standard deviation over batches of so many responses."""
    error: list[float]
    """√(bias² + noise²)."""


def small_world(gap: float, *, vocabulary: int = 4, length: int = 5, seed: int = 0) -> Toy:
    """All 364 responses of at most five tokens over four: π_rollout has the logits of π_old plus normal noise of this
    standard deviation, and every response has a standard normal advantage. Update and scores start at π_old."""
    where = world(vocabulary, length)
    old = random_policy(where, seed)
    rollout = old + random_policy(where, seed + 1, gap)
    generator = torch.Generator().manual_seed(seed + 2)
    advantages = torch.randn(len(where.tokens), generator=generator, dtype=torch.float64)
    return Toy(where, Policies(rollout, old, old), advantages)


def spread_of(batch: TokenBatch) -> float:
    """√ mean d² over the tokens, d the log-ratio: a gap for `small_world`. Two digits, between 1e-4 and 3."""
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask)
    return float(f"{min(max(float(d[batch.response_mask].double().square().mean().sqrt()), 1e-4), 3.0):.2g}")


def toy_sweep(
    toy: Toy,
    correction: CorrectionConfig,
    thresholds: Sequence[float],
    batch_size: int,
    *,
    rule: int | None = None,
    side: Side = "band",
    loss: LossConfig | None = None,
) -> ToySweep:
    """The correction at each threshold (`at_threshold`), for batches of so many responses."""
    bias, noise = [], []
    for threshold in thresholds:
        moved = at_threshold(correction, threshold, rule, side)
        truth = gradient_truth(toy.where, toy.policies, toy.advantages, moved, loss or LossConfig())
        bias.append(truth.relative_bias)
        noise.append((truth.variance / batch_size) ** 0.5 / float(truth.reference.norm()))
    error = [(b * b + n * n) ** 0.5 for b, n in zip(bias, noise, strict=True)]
    return ToySweep(list(thresholds), bias, noise, error)
