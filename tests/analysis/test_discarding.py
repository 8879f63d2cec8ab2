"""What discarding answers does to a batch, against means by hand and an independent bootstrap."""

import numpy as np
import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.discarding import discarded
from rlcorr.errors import UsageError


def batch(lengths: list[int], **fields: torch.Tensor) -> TokenBatch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return TokenBatch(mask, torch.full(mask.shape, -1.0), **fields)


def test_the_means_of_what_is_left_worked_out_by_hand() -> None:
    """Lengths 2, 4, 6 and 0, of which 2 and 4 are kept: 3 in place of 4. Rewards 1, 0, 1: 1/2 in place of 2/3."""
    rewards = torch.tensor([1.0, 0.0, 1.0, 7.0])
    left = discarded(batch([2, 4, 6, 0], rewards=rewards), torch.tensor([True, True, False, True]))
    assert left.kept == pytest.approx(2 / 3)
    assert left.length.value == pytest.approx(3 / 4 - 1)
    assert left.reward is not None
    assert left.reward.value == pytest.approx(1 / 2 - 2 / 3)


def test_the_interval_is_that_of_another_bootstrap_over_prompts() -> None:
    """Four answers of one length per prompt: resampling answers would halve the interval. The ends agree within the
    noise of a thousand samples."""
    chance = np.random.default_rng(0)
    per_prompt = chance.integers(10, 100, 50)
    lengths, groups = np.repeat(per_prompt, 4), np.repeat(np.arange(50), 4)
    keep = chance.random(200) < 1 - lengths / 200
    left = discarded(batch(lengths.tolist(), group_ids=torch.tensor(groups)), torch.tensor(keep))
    samples = []
    for _ in range(4000):
        rows = (chance.integers(0, 50, 50)[:, None] * 4 + np.arange(4)).ravel()
        samples.append(lengths[rows][keep[rows]].mean() / lengths[rows].mean() - 1)
    low, high = np.quantile(samples, [0.025, 0.975])
    width = high - low
    assert left.length.low == pytest.approx(low, abs=width / 8)
    assert left.length.high == pytest.approx(high, abs=width / 8)
    assert left.length.high < 0  # long answers are discarded more often


def test_discarding_by_chance_is_no_bias() -> None:
    chance = torch.Generator().manual_seed(3)
    lengths = torch.randint(5, 200, (400,), generator=chance).tolist()
    left = discarded(batch(lengths), torch.rand(400, generator=chance) < 0.7)
    assert left.length.low < 0 < left.length.high
    assert left.reward is None


def test_nothing_that_is_kept_is_refused() -> None:
    with pytest.raises(UsageError, match="no answer is kept"):
        discarded(batch([2, 3]), torch.zeros(2, dtype=torch.bool))
