"""Intervals of numbers that are computed from sums over prompts, by the bootstrap."""

from dataclasses import dataclass

import torch
from torch import Tensor

REPLICATES = 1000
LEVEL = (0.025, 0.975)
MOST_UNITS = 4096
_AT_ONCE = 1 << 20  # resampled units in memory


@dataclass(frozen=True)
class Estimate:
    """A number, and the interval that holds 95 % of its bootstrap samples."""

    value: float
    low: float
    high: float


def resampled(sums: Tensor, seed: int = 0) -> Tensor:
    """Return sums over the units of (units, columns): of all units, then of units drawn with replacement.

    More than `MOST_UNITS` are drawn in as many groups: the samples have the same variance, and take bounded time.

    Returns:
        (1 + REPLICATES, columns)
    """
    chance = torch.Generator().manual_seed(seed)
    if len(sums) > MOST_UNITS:
        groups = torch.arange(len(sums), device=sums.device) % MOST_UNITS
        sums = sums.new_zeros(MOST_UNITS, sums.shape[1]).index_add_(0, groups, sums)
    units = len(sums)
    rows = max(_AT_ONCE // units, 1)
    parts = [sums.sum(0)[None]]
    for start in range(0, REPLICATES, rows):
        drawn = torch.randint(units, (min(rows, REPLICATES - start), units), generator=chance)
        parts.append(sums[drawn.to(sums.device)].sum(1))
    return torch.cat(parts)


def with_interval(samples: Tensor) -> Estimate:
    """Return the first sample, which is of all units, with the interval of the others.

    Samples that are not finite, such as means of nothing, are left out.
    """
    value, others = float(samples[0]), samples[1:]
    low, high = others[others.isfinite()].quantile(torch.tensor(LEVEL, dtype=samples.dtype, device=samples.device))
    return Estimate(value, float(low), float(high))
