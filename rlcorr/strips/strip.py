"""A strip: what a correction makes of a batch at every value of the slider of one of its bounds.

What moves with a bound changes at a token only when the bound passes it. So everything is a running sum over the slider
values at which tokens come inside (`analysis.bound_curve`): the work of a few corrections, for all values together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.bound_curve import MovingBounds, MovingCorrection, headline_numbers, moving_correction, running
from rlcorr.bounds import BAND, BoundId
from rlcorr.config import CorrectionConfig
from rlcorr.figures.axes import span_of
from rlcorr.figures.canvas import Part
from rlcorr.figures.cells import binned, select_values
from rlcorr.figures.fates import FATES
from rlcorr.figures.histograms import BINS, bin_of, on_axis, rule_marks, weight_marks
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.rules import rule_statistic
from rlcorr.types import TokenBatch
from rlcorr.weights import Weights

BELOW, ABOVE, REJECTED = (FATES.index(fate) for fate in ("below threshold", "above threshold", "rejected"))


@dataclass(frozen=True)
class Bars:
    """The bars of one histogram as its figure draws them; `counts` by the name of the trace, (K, 81) int32."""

    low: float
    high: float
    """The ends of the axis: where the first bar begins and the last ends."""
    counts: dict[str, np.ndarray]
    marks: list[list[Part]]
    """At each slider value the shapes of the figure: its bounds, and a note about weights of 0, which have no bar."""


@dataclass(frozen=True)
class Cells:
    """What each cell of a mask, (H, W), shows at every slider value, as a code: an index into the fates or colours.

    At index k of the slider a cell shows the largest of these codes: its `base`, each code whose `until` is above k,
    and each code whose `since` is at most k.
    """

    base: np.ndarray
    """uint8, the code that does not depend on the slider; in a fate mask an index into FATES."""
    until: dict[int, np.ndarray]
    """uint16, by code: the first index at which it no longer shows; 0 if it never shows."""
    since: dict[int, np.ndarray] = field(default_factory=dict)
    """uint16, by code: the first index at which it shows; the number of slider values if it never does."""

    def at(self, index: int) -> np.ndarray:
        """Return the codes that the figure draws at this index, (H, W) uint8."""
        codes = self.base
        for code, until in self.until.items():
            codes = np.where(until > index, np.maximum(codes, np.uint8(code)), codes)
        for code, since in self.since.items():
            codes = np.where(since <= index, np.maximum(codes, np.uint8(code)), codes)
        return codes

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a package."""
        until = {f"cells/until/{code}": first for code, first in self.until.items()}
        return {"cells/base": self.base, **until, **{f"cells/since/{code}": p for code, p in self.since.items()}}


@dataclass(frozen=True)
class Strip:
    """Entry k of each part is what `correct`, `metrics` and the figures give for the bound `slider_values[k]`."""

    slider_values: tuple[float, ...]
    numbers: dict[str, Tensor]
    """Metric, without verl's prefix → (K,) float64."""
    weights: Bars
    """Bars of the weight histogram."""
    statistic: Bars | None
    """Bars of the histogram of the rule whose bounds move; None if the weights' bounds move."""
    cells: Cells
    """Cells of the fate mask."""


def strip(
    batch: TokenBatch, correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId = BAND
) -> Strip:
    """Compute the strip of one bound. Values are thresholds as in `at_threshold`, from the tightest to the loosest.

    Raises:
        UsageError: as `correct` does, and for values in another order.
    """
    moved = moving_correction(batch, correction, slider_values, bound)
    rule = moved.bound.rule_index
    return Strip(
        slider_values=tuple(slider_values),
        numbers=headline_numbers(batch, correction, moved),
        weights=weight_bars(batch, correction, moved),
        statistic=None if rule is None else statistic_bars(batch, moved.d, moved.moving, rule),
        cells=fate_cells(batch, correction, moved),
    )


def token_cells(
    batch: TokenBatch, correction: CorrectionConfig, slider_values: Sequence[float], bound: BoundId = BAND
) -> Cells:
    """Compute what becomes of every token at every slider value, one cell per token, (B, T).

    The codes are those of `figures.fates.token_fates`. Raises as `strip` does.
    """
    moved = moving_correction(batch, correction, slider_values, bound)
    return fate_cells(batch, correction, moved, merge_cells=lambda fates: fates)


# --- the cells of the fate mask: what each shows, and until which index ---


def fate_cells(
    batch: TokenBatch,
    correction: CorrectionConfig,
    moved: MovingCorrection,
    merge_cells: Callable[[np.ndarray], np.ndarray] = binned,
) -> Cells:
    """Compute the cells of the fate mask, as many as the figure has.

    Args:
        merge_cells: puts neighbouring tokens into one cell and takes the largest number of each cell, so that the cell
            shows the most severe fate.
    """
    mask, entries = batch.response_mask, moved.entries
    moving = {REJECTED} if moved.bound.rule_index is not None else {ABOVE, BELOW}
    firsts = {REJECTED: entries.kept}
    if correction.rollout_is is not None:
        firsts |= {ABOVE: entries.not_above, BELOW: entries.not_below}
    base = mask.to(torch.uint8)
    for fate in sorted(firsts):
        if fate not in moving:
            base = torch.where(mask & (firsts[fate] > 0), fate, base).to(torch.uint8)
    cells = merge_cells(base.numpy())
    until = {}
    for fate in sorted(moving & set(firsts)):
        first = merge_cells(torch.where(mask, firsts[fate], 0).numpy().astype(np.uint16))
        first = np.where(cells >= fate, np.uint16(0), first)
        if first.any():
            until[fate] = first
    return Cells(cells, until)


# --- the bars of a histogram: counts per bar, of items that come in one by one ---


def weight_bars(batch: TokenBatch, correction: CorrectionConfig, moved: MovingCorrection) -> Bars:
    """Compute the bars of `figures.histograms.weight_histogram`.

    An inside weight is in its own bar. A truncated one is in the bar of the bound, and a weight of 0 in none.
    """
    mask, moving, items, factors = batch.response_mask, moved.moving, moved.items, moved.factors.numpy()
    raw = select_values((correction.weights or Weights("token")).raw(moved.d, mask).expand_as(mask), mask)
    (span, count), kept, of_weights = (span_of(raw), len(factors)), items.kept.numpy(), moved.bound.rule_index is None
    of_raw = bin_of(raw, -span, span)
    rejected = _counts(np.where(of_raw >= 0, 0, count), of_raw, count) - _counts(kept, of_raw, count)
    first = np.maximum(kept, items.inside.numpy()) if of_weights else kept  # until then it is cut, or not there
    with np.errstate(divide="ignore"):
        log_w = np.log(items.values.numpy())
    log_w[np.isnan(log_w) | np.isneginf(log_w)] = np.nan
    inside = _counts_divided(first, log_w, np.log(factors), span)
    if of_weights and correction.rollout_is_mode == "truncate":
        for entry, bounds in zip((items.not_below, items.not_above), moving.of_weights(), strict=True):
            outside = (running(items.kept, count) - running(torch.maximum(items.kept, entry), count)).numpy()
            log_bounds = bounds.clamp(min=math.exp(-SAFETY_BOUND)).log().numpy() - np.log(factors)
            inside[np.arange(count), bin_of(log_bounds, -span, span)] += outside.astype(np.int32)
    zeros = running(items.kept, count).numpy() - inside.sum(1)
    marks = [weight_marks(c, int(none), span) for c, none in zip(moving.corrections, zeros, strict=True)]
    return Bars(-span, span, {"kept": inside, "rejected": rejected}, marks)


def statistic_bars(batch: TokenBatch, d: Tensor, moving: MovingBounds, rule_index: int) -> Bars:
    """Compute the bars of `figures.histograms.statistic_histogram` for the rule whose bounds move."""
    mask, count = batch.response_mask, len(moving.upper)
    rules = [correction.rollout_rs[rule_index] for correction in moving.corrections]
    rule = rules[0]
    statistic = rule_statistic(rule, batch, d)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    values = select_values(statistic, member)
    drawn, low, high = on_axis(rule, np.where(np.isnan(values), np.inf, values))
    bars, first = bin_of(drawn, low, high), moving.first_inside(statistic)[member].numpy()
    inside = _counts(first, bars, count)
    outside = np.bincount(bars, minlength=BINS).astype(np.int32) - inside
    marks = [rule_marks(moved, (low, high)) for moved in rules]
    return Bars(low, high, {"inside": inside, "outside": outside}, marks)


def _counts(first: np.ndarray, bars: np.ndarray, count: int) -> np.ndarray:
    """Count the items of each bar that have come in, (K, 81). Items in no bar (negative) are left out."""
    counted = (first < count) & (bars >= 0)
    cells = np.bincount(first[counted] * BINS + bars[counted], minlength=count * BINS)
    return cells.reshape(count, BINS).cumsum(0).astype(np.int32)


def _counts_divided(first: np.ndarray, log_w: np.ndarray, shift: np.ndarray, span: float) -> np.ndarray:
    """Count log weights less a shift, (K,), per bar. If the shift moves, the bars move over the sorted weights."""
    if (shift == shift[0]).all():
        return _counts(first, bin_of((log_w - shift[0]).astype(np.float32), -span, span), len(shift))
    order = np.argsort(log_w)[: np.count_nonzero(~np.isnan(log_w))]  # NaN is last
    edges, log_w, first, counts = np.linspace(-span, span, BINS + 1)[1:-1], log_w[order], first[order], []
    for index, of_index in enumerate(shift):
        bars = np.split(first <= index, np.searchsorted(log_w, edges + of_index))
        counts.append([np.count_nonzero(bar) for bar in bars])
    return np.array(counts, np.int32)
