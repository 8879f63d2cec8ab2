"""From which place of a slider on a token lies inside its bounds: one small integer in place of a comparison per place.

The bounds of a slider open from its first place to its last. So each statistic that they are compared with comes inside
once and stays there, and "inside at place k" is `k ≥ first`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.bounds import Side, at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.correction import log_weights
from rlcorr.errors import UsageError
from rlcorr.rejection import log_bounds, passes, reject, rule_statistic
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Opening:
    """The bounds at each of K places, as logarithms where they bound a ratio; float64, from tight to loose."""

    corrections: tuple[CorrectionConfig, ...]
    lower: Tensor  # (K,) −inf where there is none
    upper: Tensor  # (K,)

    def first_not_above(self, statistic: Tensor) -> Tensor:
        """The first place whose upper bound the statistic does not exceed, K if there is none; NaN exceeds all."""
        upper = self.upper.to(statistic.dtype)  # rounded as a comparison with the statistic rounds it
        return torch.searchsorted(upper, statistic.contiguous())

    def first_not_below(self, statistic: Tensor) -> Tensor:
        """The same of the lower bounds."""
        lower = self.lower.to(statistic.dtype)
        return torch.searchsorted(-lower, -statistic.contiguous())


def opening(correction: CorrectionConfig, places: Sequence[float], rule: int | None, side: Side) -> Opening:
    """Of the weights' bounds, or of the rule with this index. Raises `UsageError` unless the places go from the
    tightest to the loosest, and for a bound that the configuration refuses."""
    moved = tuple(at_threshold(correction, place, rule, side) for place in places)
    bounds = [weight_bounds(c) if rule is None else log_bounds(c.rollout_rs[rule]) for c in moved]
    lower, upper = torch.tensor(bounds, dtype=torch.float64).T.contiguous()
    if not (bool((upper[1:] >= upper[:-1]).all()) and bool((lower[1:] <= lower[:-1]).all())):
        raise UsageError("the places of a strip go from the tightest bound to the loosest; these do not.")
    return Opening(moved, lower, upper)


def weight_bounds(correction: CorrectionConfig) -> tuple[float, float]:
    """Their logarithms, −inf where there is no lower one."""
    lower, upper = correction.rollout_is_threshold_lower, correction.rollout_is_threshold
    return (-math.inf if lower is None else math.log(lower)), math.log(upper)


@dataclass(frozen=True)
class Entries:
    """First places at which something holds, (B, T) int64; K where it never does, and anything on padding."""

    kept: Tensor
    """Every rule lets the token through."""
    not_above: Tensor
    """Its weight is not above the upper bound of the weights; 0 without weights."""
    not_below: Tensor
    """Nor below the lower one; 0 without one."""

    @property
    def inside(self) -> Tensor:
        """Its weight lies within its bounds."""
        return torch.maximum(self.not_above, self.not_below)


def entries(batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: Opening, rule: int | None) -> Entries:
    """Of every token, for the moving bounds of the weights or of a rule; all others stand still. d is the log-ratio."""
    mask, never = batch.response_mask, len(moving.upper)
    others = tuple(r for number, r in enumerate(correction.rollout_rs) if number != rule)
    kept = torch.where(reject(batch, d, others) > 0, never, 0)
    if rule is not None:
        kept = torch.maximum(kept, _rule_entries(batch, d, correction, moving, rule))
    still = torch.zeros_like(mask, dtype=torch.long)
    if correction.rollout_is is None:
        return Entries(kept, still, still)
    log_w = log_weights(d, mask, correction.rollout_is)
    if rule is not None:
        ends = (torch.full((1,), end, dtype=torch.float64) for end in weight_bounds(correction))
        fixed = Opening((correction,), *ends)
        above, below = (first * never for first in (fixed.first_not_above(log_w), fixed.first_not_below(log_w)))
    else:
        above, below = moving.first_not_above(log_w), moving.first_not_below(log_w)
    real = ~log_w.isnan()  # a NaN weight is neither above nor below
    return Entries(kept, *(torch.where(real, first, 0).expand_as(mask) for first in (above, below)))


def _rule_entries(batch: TokenBatch, d: Tensor, correction: CorrectionConfig, moving: Opening, rule: int) -> Tensor:
    """(B, T): 0 for tokens that the rule does not concern."""
    moved = correction.rollout_rs[rule]
    first = statistic_entries(rule_statistic(moved, batch, d), moving).expand_as(d)
    if moved.applies_to == "all":
        return first
    nothing_passes = passes(moved, d.new_full((), torch.nan), batch, d)  # what does is not concerned
    return torch.where(nothing_passes, 0, first)


def statistic_entries(statistic: Tensor, moving: Opening) -> Tensor:
    """First places at which a statistic lies inside; NaN never does."""
    return torch.maximum(moving.first_not_above(statistic), moving.first_not_below(statistic))
