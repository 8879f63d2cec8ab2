"""What an experiment ended in: the reward over the last steps, with paired differences between two thresholds."""

import math

from torch import Tensor

from rlcorr.gradients.bootstrap import Interval

LAST = 10
"""Steps at the end whose mean counts."""
# Quantile 0.975 of Student's t by degrees of freedom, from 1; scipy.stats.t.ppf(0.975, range(1, 32)).
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
    2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042, 2.04,
)  # fmt: skip


def ending(reward: Tensor) -> Tensor:
    """Return the mean of the last steps: (…, steps) → (…)."""
    return reward[..., -LAST:].mean(-1)


def outcome(values: Tensor) -> Interval:
    """Return mean ± t·sd/√n over the seeds, (seeds,): it holds the mean in 95 of 100 such experiments.

    One seed has an infinite interval. Of two thresholds pass the differences by seed: both have seen the same random
    numbers.

    >>> import torch
    >>> outcome(torch.tensor([0.1, 0.3, 0.2])).low  # 0.2 − 4.303 · 0.1/√3
    -0.048...
    """
    n, mean = len(values), values.double().mean().item()
    half = math.inf if n < 2 else _STUDENT[n - 2] * values.double().std().item() / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def sentence(endings: Tensor, correction: str) -> str:
    """Say how the run without a correction and the one with it end, and whether they differ.

    Args:
        endings: (2, seeds): without and with it.
        correction: its words, such as "a cap of 1".
    """
    before, after, gain = outcome(endings[0]), outcome(endings[1]), outcome(endings[1] - endings[0])
    seeds = endings.shape[1]
    said = f"Without a correction the reward ends at {before.value:.2f}, with {correction} at {after.value:.2f}"
    if not gain.tells:
        return f"{said}: no difference beyond the {seeds} seeds ({signed(gain)})."
    return f"{said}: {'better' if gain.value > 0 else 'worse'} by {signed(gain)} over {seeds} seeds."


def signed(gain: Interval) -> str:
    """Return a difference with its interval."""
    return f"{gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
