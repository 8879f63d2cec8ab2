"""The bars of a histogram at every slider value: counts per bar, of items that come in one by one."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlcorr.analysis.bound_curve import (
    MovingBounds,
    MovingCorrection,
    WeightedItems,
    lower_bounds,
    statistic_entries,
    upper_bounds,
)
from rlcorr.config import CorrectionConfig
from rlcorr.figures.axes import span_of
from rlcorr.figures.canvas import Part
from rlcorr.figures.cells import select_values
from rlcorr.figures.histograms import BINS, bin_of, on_axis, rule_marks, weight_marks
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.rejection import rule_statistic
from rlcorr.types import TokenBatch
from rlcorr.weights import Weights


@dataclass(frozen=True)
class Bars:
    """The bars of one histogram as its figure draws them; `counts` by the name of the trace, (K, 81) int32."""

    low: float
    high: float
    """The ends of the axis: where the first bar begins and the last ends."""
    counts: dict[str, np.ndarray]
    marks: list[list[Part]]
    """At each slider value the shapes of the figure: its bounds, and a note about weights of 0, which have no bar."""


def weight_bars(batch: TokenBatch, correction: CorrectionConfig, moved: MovingCorrection) -> Bars:
    """Compute the bars of `figures.histograms.weight_histogram`."""
    mask, count, items, factors = batch.response_mask, len(moved.moving.upper), moved.items, moved.factors
    raw = select_values((correction.weights or Weights("token")).raw(moved.d, mask).expand_as(mask), mask)
    span, kept = span_of(raw), items.kept.numpy()
    of_raw = bin_of(raw, -span, span)
    rejected = _counts(np.where(of_raw >= 0, 0, count), of_raw, count) - _counts(kept, of_raw, count)
    if moved.bound.rule_index is None:
        counts, zeros = _cut(raw[kept == 0], moved.moving, span, factors.numpy())
    elif bool((factors == factors[0]).all()):
        with np.errstate(divide="ignore"):  # a weight of 0 has no bar
            log_w = np.log((items.values / factors[0]).float().numpy())
        bars = np.where(log_w == -np.inf, -1, bin_of(log_w, -span, span))
        counts = _counts(kept, bars, count)
        zeros = _counts(np.where(log_w == -np.inf, kept, count), np.zeros_like(of_raw), count)[:, 0]
    else:
        counts, zeros = _recounted(items, span, factors.numpy())
    marks = [weight_marks(c, none, span) for c, none in zip(moved.moving.corrections, zeros.tolist(), strict=True)]
    return Bars(-span, span, {"kept": counts, "rejected": rejected}, marks)


def statistic_bars(batch: TokenBatch, d: Tensor, moving: MovingBounds, rule_index: int) -> Bars:
    """Compute the bars of `figures.histograms.statistic_histogram` for the rule whose bounds move."""
    mask, count = batch.response_mask, len(moving.upper)
    rules = [correction.rollout_rs[rule_index] for correction in moving.corrections]
    rule = rules[0]
    statistic = rule_statistic(rule, batch, d)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    values = select_values(statistic, member)
    drawn, low, high = on_axis(rule, np.where(np.isnan(values), np.inf, values))
    bars, first = bin_of(drawn, low, high), statistic_entries(statistic, moving)[member].numpy()
    inside = _counts(first, bars, count)
    outside = np.bincount(bars, minlength=BINS).astype(np.int32) - inside
    marks = [rule_marks(moved, (low, high)) for moved in rules]
    return Bars(low, high, {"inside": inside, "outside": outside}, marks)


def _counts(first: np.ndarray, bars: np.ndarray, count: int) -> np.ndarray:
    """Count the items of each bar that have come in, (K, 81). Items in no bar (negative) are left out."""
    counted = (first < count) & (bars >= 0)
    cells = np.bincount(first[counted] * BINS + bars[counted], minlength=count * BINS)
    return cells.reshape(count, BINS).cumsum(0).astype(np.int32)


def _cut(raw: np.ndarray, moving: MovingBounds, span: float, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count kept tokens whose weights are cut at moving bounds. Sorted once, each bar is a slice between its edges."""
    ordered = np.sort(raw[~np.isnan(raw)])
    shift = np.log(factors)[:, None]
    edges = np.linspace(-span, span, BINS + 1)[1:-1] + shift
    ends = np.searchsorted(ordered.clip(-SAFETY_BOUND, SAFETY_BOUND), edges.astype(np.float32))
    whole = np.zeros((len(factors), 1), ends.dtype)
    ends = np.concatenate([whole, ends, whole + len(ordered)], 1)
    start = np.searchsorted(ordered, moving.lower.numpy().astype(np.float32))[:, None]
    stop = np.searchsorted(ordered, moving.upper.numpy().astype(np.float32), side="right")[:, None]
    counts = np.diff(ends.clip(start, stop), axis=1).astype(np.int32)
    if moving.corrections[0].rollout_is_mode == "mask":
        return counts, len(raw) - counts.sum(1, dtype=np.int32)
    for bounds, outside in ((upper_bounds(moving), len(ordered) - stop), (lower_bounds(moving), start)):
        log_bounds = bounds.clamp(min=math.exp(-SAFETY_BOUND)).log().numpy()[:, None] - shift
        counts[np.arange(len(counts)), bin_of(log_bounds, -span, span)[:, 0]] += outside[:, 0].astype(np.int32)
    return counts, np.zeros(len(counts), np.int32)


def _recounted(items: WeightedItems, span: float, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count every slider value anew, unless nothing has come in: a rule moves what all weights are divided by."""
    kept, weights = items.kept.numpy(), items.values.numpy()
    counts, zeros = np.zeros((len(factors), BINS), np.int32), np.zeros(len(factors), np.int32)
    entered = np.bincount(kept.clip(max=len(factors)), minlength=len(factors) + 1)
    for index, factor in enumerate(factors):
        if index and not entered[index]:
            counts[index], zeros[index] = counts[index - 1], zeros[index - 1]
            continue
        inside = weights[kept <= index]
        bars = bin_of(np.log((inside[inside > 0] / factor).astype(np.float32)), -span, span)
        counts[index], zeros[index] = np.bincount(bars, minlength=BINS), int((inside == 0).sum())
    return counts, zeros
