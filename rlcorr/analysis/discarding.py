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


def discarded(batch: TokenBatch, keep: Tensor, *, seed: int = 0) -> Discarded:
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
    rewards = batch.rewards
    has_rewards = rewards is not None and bool(rewards[answered].isfinite().all())
    reward = torch.where(answered, rewards, 0).double() if rewards is not None else torch.zeros_like(length)
    columns = torch.stack([answered.double(), length, reward], -1)  # count, length and reward of all answers
    sums = _sums_per_unit(torch.cat([columns * answered[:, None], columns * keep[:, None]], -1), _units(batch))
    samples = resampled(sums, seed)
    count, length_sum, reward_sum, kept, kept_length, kept_reward = samples.unbind(-1)
    return Discarded(
        float(kept[0] / count[0]),
        with_interval(kept_length / kept / (length_sum / count) - 1),
        with_interval(kept_reward / kept - reward_sum / count) if has_rewards else None,
    )


def _units(batch: TokenBatch) -> Tensor:
    """Return the number of the prompt of each answer, or of the answer itself if the prompts are not known, (B,)."""
    groups, rows = batch.group_ids, torch.arange(len(batch.response_mask), device=batch.response_mask.device)
    if groups is None or bool((groups < 0).any()):
        return rows
    return groups.unique(return_inverse=True)[1]


def _sums_per_unit(columns: Tensor, units: Tensor) -> Tensor:
    return columns.new_zeros(int(units.max()) + 1, columns.shape[1]).index_add_(0, units, columns)
