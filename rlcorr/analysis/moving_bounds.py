"""The slider value from which on a token is inside its bounds: one integer instead of a comparison per value.

The bounds of a slider open from its first value to its last. A statistic that is inside once therefore stays inside,
and "inside at index k" is `k >= first`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.bounds import BoundId, at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rejection import log_bounds, passes, reject, rule_statistic
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class MovingBounds:
    """One bound at K slider values, from tight to loose, as logarithms if it bounds a ratio."""

    corrections: tuple[CorrectionConfig, ...]
    lower: Tensor  # (K,) float64, −inf without a lower bound
    upper: Tensor  # (K,) float64

    def first_not_above(self, statistic: Tensor) -> Tensor:
        """Return the first index whose upper bound the statistic does not exceed; K if there is none, and for NaN."""
        upper = self.upper.to(statistic.dtype)  # rounded as a comparison with the statistic rounds it
        return torch.searchsorted(upper, statistic.contiguous())

    def first_not_below(self, statistic: Tensor) -> Tensor:
        """Return the first index whose lower bound the statistic does not fall below; K if there is none."""
        lower = self.lower.to(statistic.dtype)
        return torch.searchsorted(-lower, -statistic.contiguous())


def moving_bounds(correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId) -> MovingBounds:
    """Move one bound over the slider values.

    Raises:
        UsageError: unless the values go from the tightest to the loosest, and for a value that the configuration
            refuses.
    """
    moved, index = tuple(at_threshold(correction, value, bound) for value in slider_values), bound.rule_index
    bounds = [weight_bounds(c) if index is None else log_bounds(c.rollout_rs[index]) for c in moved]
    lower, upper = torch.tensor(bounds, dtype=torch.float64).T.contiguous()
    if not (bool((upper[1:] >= upper[:-1]).all()) and bool((lower[1:] <= lower[:-1]).all())):
        raise UsageError("slider values go from the tightest bound to the loosest; these do not.")
    return MovingBounds(moved, lower, upper)


def weight_bounds(correction: CorrectionConfig) -> tuple[float, float]:
    """Return the logarithms of the bounds of the weights, −inf without a lower one."""
    lower, upper = correction.rollout_is_threshold_lower, correction.rollout_is_threshold
    return (-math.inf if lower is None else math.log(lower)), math.log(upper)


@dataclass(frozen=True)
class EntryIndex:
    """For each token the first index at which something holds, (B, T) int64; K if it never does.

    Values on padding have no meaning.
    """

    kept: Tensor
    """Every rule keeps the token."""
    not_above: Tensor
    """Its weight is not above the upper bound of the weights; 0 without weights."""
    not_below: Tensor
    """Its weight is not below the lower bound; 0 without a lower bound."""

    @property
    def inside(self) -> Tensor:
        """Return the first index at which the weight is within its bounds."""
        return torch.maximum(self.not_above, self.not_below)


def entry_index(
    batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: MovingBounds, bound: BoundId
) -> EntryIndex:
    """Compute when each token comes inside while one bound moves and all others stay. d is the log-ratio, (B, T)."""
    mask, never, rule = batch.response_mask, len(moving.upper), bound.rule_index
    others = tuple(r for index, r in enumerate(correction.rollout_rs) if index != rule)
    kept = torch.where(reject(batch, d, others) > 0, never, 0)
    if rule is not None:
        kept = torch.maximum(kept, _rule_entries(batch, d, correction, moving, rule))
    zero = torch.zeros_like(mask, dtype=torch.long)
    if correction.weights is None:
        return EntryIndex(kept, zero, zero)
    log_w = correction.weights.raw(d, mask)
    if rule is not None:
        ends = (torch.full((1,), end, dtype=torch.float64) for end in weight_bounds(correction))
        fixed = MovingBounds((correction,), *ends)
        above, below = (first * never for first in (fixed.first_not_above(log_w), fixed.first_not_below(log_w)))
    else:
        above, below = moving.first_not_above(log_w), moving.first_not_below(log_w)
    real = ~log_w.isnan()  # a NaN weight is neither above nor below
    return EntryIndex(kept, *(torch.where(real, first, 0).expand_as(mask) for first in (above, below)))


def _rule_entries(
    batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: MovingBounds, rule_index: int
) -> Tensor:
    """Return the first index at which the rule keeps each token, (B, T); 0 if the rule does not concern the token."""
    rule = correction.rollout_rs[rule_index]
    first = statistic_entries(rule_statistic(rule, batch, d), moving).expand_as(d)
    if rule.applies_to == "all":
        return first
    # No bounds contain NaN, so a token that passes with NaN is one that the rule does not concern.
    concerned_fails = passes(rule, d.new_full((), torch.nan), batch, d)
    return torch.where(concerned_fails, 0, first)


def statistic_entries(statistic: Tensor, moving: MovingBounds) -> Tensor:
    """Return the first index at which a statistic is inside; K for NaN."""
    return torch.maximum(moving.first_not_above(statistic), moving.first_not_below(statistic))
