"""The items of a sweep: tokens or sequences, each with the number that bounds are compared with and its sums."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import WeightLevel, WeightMode
from rlcorr.correction import log_weights
from rlcorr.measuring.moments import moments
from rlcorr.ratios import excess, k3, log_ratio, ratio
from rlcorr.rejection import passes, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Items:
    """The items of some rows, unsorted."""

    statistic: Tensor  # (M,)
    sums: Tensor  # (7, M)
    fixed: Tensor  # (6,)
    lowest: Tensor  # (B,)
    highest: Tensor  # (B,)


def weight_items(batch: TokenBatch, counted: Tensor, level: WeightLevel, mode: WeightMode) -> Items:
    d, mask = _log_ratio(batch), batch.response_mask
    log_w = log_weights(d, mask, level)
    droppable = mask if mode == "mask" else torch.zeros_like(mask)
    return _items(mask, counted, log_w, droppable, _kept_terms(d), mask, ratio_terms(log_w.expand_as(d)))


def rule_items(batch: TokenBatch, counted: Tensor, rule: RejectionRule) -> Items:
    d, mask = _log_ratio(batch), batch.response_mask
    # NaN is outside of all bounds, so what still passes is what the rule does not concern.
    droppable = mask & ~passes(rule, d.new_full((), torch.nan), batch, d)
    statistic = rule_statistic(rule, batch, d)
    return _items(mask, counted, statistic, droppable, _kept_terms(d), droppable, ratio_terms(d))


def _items(
    mask: Tensor,
    counted: Tensor,
    statistic: Tensor,
    droppable: Tensor,
    kept: list[Tensor],
    weighted: Tensor,
    ratios: list[Tensor],
) -> Items:
    """One item per token, or per row where the statistic is (B, 1); each holds the sums over its counted tokens.

    The bounds decide about the `kept` terms of the droppable tokens and the `ratios` terms of the weighted ones; the
    other counted tokens add theirs at every bound.
    """
    moving = [torch.where(droppable & counted, x, 0) for x in kept]
    moving += [torch.where(weighted & counted, x, 0) for x in ratios]
    still = [torch.where(counted & ~droppable, x, 0).sum() for x in kept]
    still += [torch.where(counted & ~weighted, x, 0).sum() for x in ratios]
    sums, real = torch.stack([counted.double(), *moving]), mask
    if statistic.shape != mask.shape:
        sums, real = sums.sum(-1, keepdim=True), mask.any(-1, keepdim=True)
    extremes = moments(statistic.expand_as(mask), droppable)
    rows, broken = mask.any(-1), (mask & ~counted).any(-1)  # a row that is not counted whole is never kept whole
    lowest = torch.where(broken, -math.inf, extremes.low)
    return Items(statistic[real], sums[:, real], torch.stack(still), lowest[rows], extremes.high[rows])


def _log_ratio(batch: TokenBatch) -> Tensor:
    assert batch.old_log_probs is not None
    return log_ratio(batch.old_log_probs, batch.rollout_log_probs, batch.response_mask).detach()


def _kept_terms(d: Tensor) -> list[Tensor]:
    wide = d.double()
    return [torch.ones_like(wide), wide, k3(wide)]


def ratio_terms(log_r: Tensor) -> list[Tensor]:
    """r − 1, its square, and r²."""
    wide = log_r.double()
    return [excess(wide), excess(wide).square(), ratio(wide).square()]
