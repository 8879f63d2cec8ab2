"""Advantages of a complete set of answers: means over a group or a batch become expectations."""

from dataclasses import replace

import torch
from torch import Tensor

from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.learner.score import with_advantages
from rlcorr.types import TokenBatch


def expected_advantages(batch: TokenBatch, probability: Tensor, config: AdvantageConfig) -> Tensor:
    """Compute the advantages (A, T) of A answers as the run computes them, in the limit of infinite groups and batches.

    GRPO: (r − E r)/σ(r) over the answers to a prompt; without `norm_by_std`, and for RLOO, r − E r. GAE and REINFORCE++
    with `whiten`: normalised to mean 0 and variance 1 over all tokens. Raises `UsageError` as `with_advantages` does.

    Args:
        probability: probability of each answer given its prompt (`group_ids`), under the policy that sampled, (A,).
    """
    mask = batch.response_mask
    if not config.grouped:
        advantages = with_advantages(batch, config).advantages
        assert advantages is not None
        return _whitened(advantages, mask, probability) if config.whiten else advantages
    # Undiscounted returns at the first token are the reward of the whole answer, including its KL penalty.
    undiscounted = replace(config, estimator="reinforce_pp", gamma=1.0)
    rewards = with_advantages(batch, undiscounted).advantages
    assert rewards is not None
    assert batch.group_ids is not None
    per_answer = _normalised(rewards[:, 0].double(), batch.group_ids, probability, config)
    return torch.where(mask, per_answer[:, None], 0).float()


def _normalised(rewards: Tensor, prompts: Tensor, probability: Tensor, config: AdvantageConfig) -> Tensor:
    def expected(values: Tensor) -> Tensor:
        total, weight = (
            torch.zeros(int(prompts.max()) + 1, dtype=torch.float64, device=values.device).index_add(0, prompts, x)
            for x in (probability * values, probability)
        )
        return (total / weight)[prompts]

    centred = rewards - expected(rewards)
    if config.estimator == "grpo" and config.norm_by_std:
        return centred / (expected(centred.square()).sqrt() + 1e-6)
    return centred


def _whitened(advantages: Tensor, mask: Tensor, probability: Tensor) -> Tensor:
    weight = probability[:, None] * mask
    mean = (weight * advantages).sum() / weight.sum()
    variance = (weight * (advantages - mean).square()).sum() / weight.sum()
    return torch.where(mask, (advantages - mean) * (variance + 1e-8).rsqrt(), 0).float()
