"""How discarding answers changes a batch: its mean length and its mean reward, with intervals over prompts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.analysis.resampling import Estimate, resampled, with_interval
from rlcorr.errors import UsageError
from rlcorr.masked import count_true
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Discarded:
    """What is left of a batch after some answers were discarded."""

    kept: float
    """Share of the answers with tokens that are kept."""
    length: Estimate
    """Mean length of the kept answers, relative to that of all answers, minus 1."""
    reward: Estimate | None
    """Mean reward of the kept answers minus that of all answers; None if a reward is unknown."""


def discarded(batch: TokenBatch, keep: Tensor) -> Discarded:
    """Compare the kept answers, (B,) bool, with all answers. Answers without tokens do not count.

    The bootstrap resamples prompts, or answers if the groups are not known. The same samples give both means, so that
    what they share cancels.

    Raises:
        UsageError: if no answer is kept.
    """
    length = count_true(batch.response_mask).double()
    answered = length > 0
    keep = keep & answered
    if not bool(keep.any()):
        raise UsageError("no answer is kept, so there is nothing to compare.")
    rewards = torch.full_like(length, torch.nan) if batch.rewards is None else batch.rewards.double()
    columns = torch.stack([torch.ones_like(length), length, rewards], -1)  # count, length and reward
    columns = torch.cat([torch.where(some[:, None], columns, 0) for some in (answered, keep)], -1)
    groups = batch.group_ids
    if groups is None or bool((groups < 0).any()):  # the prompts are not known
        sums = columns
    else:
        prompts = groups.unique(return_inverse=True)[1]
        sums = columns.new_zeros(int(prompts.max()) + 1, columns.shape[1]).index_add_(0, prompts, columns)
    count, length_sum, reward_sum, kept, kept_length, kept_reward = resampled(sums).unbind(-1)
    return Discarded(
        float(kept[0] / count[0]),
        with_interval(kept_length / kept / (length_sum / count) - 1),
        with_interval(kept_reward / kept - reward_sum / count) if bool(reward_sum[0].isfinite()) else None,
    )
