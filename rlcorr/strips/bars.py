"""The bars of a histogram at every place of a slider: counts per bar, of items that come in one by one."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import log_weights
from rlcorr.figures.axes import span_of
from rlcorr.figures.canvas import Part
from rlcorr.figures.cells import picked
from rlcorr.figures.correction import BINS, bin_of, on_axis, rule_marks, weight_marks
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.rejection import rule_statistic
from rlcorr.strips.entries import Opening, statistic_entries
from rlcorr.strips.numbers import Weights, lower_bounds, upper_bounds
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Bars:
    """As the figure of this histogram draws them; `counts` by the name of its trace, (K, 81) int32."""

    low: float
    high: float
    """The ends of the axis, where the first bar begins and the last ends."""
    counts: dict[str, np.ndarray]
    marks: list[list[Part]]
    """At each place the shapes of the figure: its bounds, and a note about what has no bar."""


def weight_bars(
    batch: TokenBatch, d: Tensor, items: Weights, correction: CorrectionConfig, moving: Opening, rule: int | None,
    factors: Tensor,
) -> Bars:  # fmt: skip
    """Of `figures.correction.weight_histogram`."""
    mask, places = batch.response_mask, len(moving.upper)
    raw = picked(log_weights(d, mask, correction.rollout_is or "token").expand_as(mask), mask)
    span, kept = span_of(raw), items.kept.numpy()
    of_raw = bin_of(raw, -span, span)
    rejected = _counts(np.where(of_raw >= 0, 0, places), of_raw, places) - _counts(kept, of_raw, places)
    if rule is None:
        counts, zeros = _cut(raw[kept == 0], moving, span, factors.numpy())
    elif bool((factors == factors[0]).all()):
        with np.errstate(divide="ignore"):  # a weight of 0 has no bar
            log_w = np.log((items.values / factors[0]).float().numpy())
        bars = np.where(log_w == -np.inf, -1, bin_of(log_w, -span, span))
        counts = _counts(kept, bars, places)
        zeros = _counts(np.where(log_w == -np.inf, kept, places), np.zeros_like(of_raw), places)[:, 0]
    else:
        counts, zeros = _recounted(items, span, factors.numpy())
    marks = [weight_marks(c, none, span) for c, none in zip(moving.corrections, zeros.tolist(), strict=True)]
    return Bars(-span, span, {"kept": counts, "rejected": rejected}, marks)


def statistic_bars(batch: TokenBatch, d: Tensor, moving: Opening, number: int) -> Bars:
    """Of `figures.correction.statistic_histogram`, for the rule whose bounds move."""
    mask, places = batch.response_mask, len(moving.upper)
    rules = [correction.rollout_rs[number] for correction in moving.corrections]
    rule = rules[0]
    statistic = rule_statistic(rule, batch, d)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    values = picked(statistic, member)
    drawn, low, high = on_axis(rule, np.where(np.isnan(values), np.inf, values))
    bars, first = bin_of(drawn, low, high), statistic_entries(statistic, moving)[member].numpy()
    inside = _counts(first, bars, places)
    outside = np.bincount(bars, minlength=BINS).astype(np.int32) - inside
    marks = [rule_marks(moved, (low, high)) for moved in rules]
    return Bars(low, high, {"inside": inside, "outside": outside}, marks)


def _counts(first: np.ndarray, bars: np.ndarray, places: int) -> np.ndarray:
    """(K, 81): how many items of each bar have come in; those in no bar (negative) and never are left out."""
    counted = (first < places) & (bars >= 0)
    cells = np.bincount(first[counted] * BINS + bars[counted], minlength=places * BINS)
    return cells.reshape(places, BINS).cumsum(0).astype(np.int32)


def _cut(raw: np.ndarray, moving: Opening, span: float, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kept tokens whose weights are cut at moving bounds: sorted once, a bar between two of its edges is a slice."""
    ordered = np.sort(raw[~np.isnan(raw)])
    shift = np.log(factors)[:, None]
    edges = np.linspace(-span, span, BINS + 1)[1:-1] + shift
    places = np.searchsorted(ordered.clip(-SAFETY_BOUND, SAFETY_BOUND), edges.astype(np.float32))
    whole = np.zeros((len(factors), 1), places.dtype)
    places = np.concatenate([whole, places, whole + len(ordered)], 1)
    start = np.searchsorted(ordered, moving.lower.numpy().astype(np.float32))[:, None]
    stop = np.searchsorted(ordered, moving.upper.numpy().astype(np.float32), side="right")[:, None]
    counts = np.diff(places.clip(start, stop), axis=1).astype(np.int32)
    if moving.corrections[0].rollout_is_mode == "mask":
        return counts, len(raw) - counts.sum(1, dtype=np.int32)
    for bounds, outside in ((upper_bounds(moving), len(ordered) - stop), (lower_bounds(moving), start)):
        log_bounds = bounds.clamp(min=math.exp(-SAFETY_BOUND)).log().numpy()[:, None] - shift
        counts[np.arange(len(counts)), bin_of(log_bounds, -span, span)[:, 0]] += outside[:, 0].astype(np.int32)
    return counts, np.zeros(len(counts), np.int32)


def _recounted(items: Weights, span: float, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a rule moves what all weights are divided by, every place is counted anew, unless nothing has come in."""
    kept, weights = items.kept.numpy(), items.values.numpy()
    counts, zeros = np.zeros((len(factors), BINS), np.int32), np.zeros(len(factors), np.int32)
    entered = np.bincount(kept.clip(max=len(factors)), minlength=len(factors) + 1)
    for place, factor in enumerate(factors):
        if place and not entered[place]:
            counts[place], zeros[place] = counts[place - 1], zeros[place - 1]
            continue
        chosen = weights[kept <= place]
        bars = bin_of(np.log((chosen[chosen > 0] / factor).astype(np.float32)), -span, span)
        counts[place], zeros[place] = np.bincount(bars, minlength=BINS), int((chosen == 0).sum())
    return counts, zeros
