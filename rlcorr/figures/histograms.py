"""Histograms of one step: its final weights, and the statistic that a rule compares."""

import math

import numpy as np

from rlcorr.config import CorrectionConfig
from rlcorr.divergences import SIGNED
from rlcorr.figures import canvas
from rlcorr.figures.axes import decades, ratio_axis, span_of, stretched, stretched_axis, token_axis
from rlcorr.figures.canvas import COOL, KEPT, REJECTED, WARM, Figure, Part
from rlcorr.figures.cells import centres, select_values
from rlcorr.rules import RejectionRule, inside, rule_statistic
from rlcorr.types import CorrectionResult, TokenBatch
from rlcorr.weights import Weights

BINS = 81
"""Odd, so that the middle bar contains ratio 1 and no bar mixes warm and cool."""

CLOSE = 1 / 20
"""Two lines are closer than this share of the axis if their labels would touch."""


def weight_histogram(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> Figure:
    """Draw the final weights of the kept tokens as bars on a logarithmic axis.

    An outline shows the weights before the bounds. Weights of 0 have no position on this axis; a note counts them.
    """
    mask, keep = batch.response_mask, result.keep_mask
    raw = (config.weights or Weights("token")).raw(result.log_ratio, mask).expand_as(mask)
    before, rejected = select_values(raw, mask), select_values(raw, mask & ~keep)
    weights = select_values(result.weights, keep)
    span = span_of(before)
    marks = weight_marks(config, int((weights == 0).sum()), span)
    traces = [
        _bars("kept", np.log(weights[weights > 0]), (-span, span), colours=_SIDES),
        _bars("rejected", rejected, (-span, span), colours=REJECTED) | {"showlegend": bool(config.rollout_rs)},
        _outline("before the thresholds" if config.rollout_is else "token ratios", before, span),
        *canvas.legend_keys({"below 1": COOL, "about 1": KEPT, "above 1": WARM}),
    ]
    x = {"title_text": "importance weight", **ratio_axis(span)}
    return canvas.figure(traces, height=300, x=x, y=token_axis(len(before)), shapes=marks, legend=True)


def weight_marks(config: CorrectionConfig, zeros: int, span: float) -> list[Part]:
    """Return the bounds of the weights as lines, and a note with the number of tokens with weight 0."""
    bounds = (config.rollout_is_threshold_lower, config.rollout_is_threshold)
    marks = _bounds(*bounds, (-span, span)) if config.rollout_is else []
    if zeros:
        marks.append(canvas.moving_note(f"{zeros:,} tokens have weight 0", x=1, y=0.92, side="right", xref="paper"))
    return marks


def statistic_histogram(batch: TokenBatch, result: CorrectionResult, rule: RejectionRule) -> Figure:
    """Draw the statistic that one rule compares, per token or per sequence.

    Bars inside the bounds are coloured, bars outside are grey.
    """
    mask = batch.response_mask
    statistic = rule_statistic(rule, batch, result.log_ratio)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    passed = inside(rule, statistic)
    kept, rejected = select_values(statistic, member & passed), select_values(statistic, member & ~passed)
    values = np.concatenate([kept, np.where(np.isnan(rejected), np.inf, rejected)])
    positions, low, high = on_axis(rule, values)
    ends, sides = (low, high), rule.divergence in SIGNED
    traces = [
        _bars("inside", positions[: len(kept)], ends, colours=_SIDES if sides else KEPT),
        _bars("outside", positions[len(kept) :], ends, colours=REJECTED),
    ]
    y = token_axis(len(values))
    if rule.level != "token":
        y = {"title_text": "sequences", "range": [0, 1.15 * max(1, int((traces[0]["y"] + traces[1]["y"]).max()))]}
    if sides:
        neutral = "1" if rule.divergence == "k1" else "0"
        traces += canvas.legend_keys({f"inside, below {neutral}": COOL, f"above {neutral}": WARM})
    x = _statistic_axis(rule, values, ends)
    return canvas.figure(traces, height=300, x=x, y=y, shapes=rule_marks(rule, ends), legend=True)


def _statistic_axis(rule: RejectionRule, values: np.ndarray, ends: tuple[float, float]) -> Part:
    """Return the axis of `on_axis` with its title and labels."""
    if _is_stretched(rule):
        return {"title_text": "geometric mean, stretched near 1", **stretched_axis(span_of(values))}
    if rule.divergence == "k1":
        titles = {None: "ratio", "sum": "product of ratios"}
        title = titles.get(rule.reduce, f"{rule.reduce} ratio")
        return {"title_text": f"{title}, per {rule.level}", **ratio_axis(ends[1])}
    axis = {"title_text": f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip(), "range": list(ends)}
    if rule.divergence in SIGNED:
        return axis
    ticks = list(range(int(ends[0]), int(ends[1]) + 1))
    return axis | {"tickvals": ticks, "ticktext": [f"{10.0**tick:g}" for tick in ticks], "read": "10^"}


def _is_stretched(rule: RejectionRule) -> bool:
    """Check whether the rule bounds a geometric mean, whose bounds are too close to 1 for an axis of all ratios."""
    return rule.divergence == "k1" and rule.reduce == "mean"


def rule_marks(rule: RejectionRule, ends: tuple[float, float]) -> list[Part]:
    """Return the bounds of a rule as lines on the axis of `on_axis`, which has these ends."""
    if rule.divergence == "k1":
        return _bounds(rule.lower, rule.upper, ends, _is_stretched(rule))
    if rule.divergence in SIGNED:
        return [_bound(b, b, ends, REJECTED) for b in (rule.lower, rule.upper) if b is not None]
    return [_bound(math.log10(rule.upper), rule.upper, ends, REJECTED)]


def on_axis(rule: RejectionRule, values: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the positions of a rule's statistic on its axis, and the ends of the axis.

    log r and differences have an axis around 0, which is stretched for geometric means. Other divergences have one of
    whole decades.
    """
    if _is_stretched(rule):
        end = float(stretched(span_of(values)))
        return stretched(values), -end, end
    if rule.divergence in SIGNED:
        span = span_of(values)
        return values, -span, span
    low, high = decades(values[np.isfinite(values) & (values > 0)])
    return np.log10(np.maximum(values, 10.0**low)), low, high


# --- parts ---


_SIDES = [COOL] * (BINS // 2) + [KEPT] + [WARM] * (BINS // 2)


def _bars(name: str, values: np.ndarray, ends: tuple[float, float], *, colours: str | list[str]) -> Part:
    """Draw a histogram over logarithms. Values outside the axis are counted in the outermost bars."""
    counts, edges = _histogram(values, *ends)
    return {
        "type": "bar",
        "name": name,
        "x": centres(edges).astype(np.float32),
        "y": counts.astype(np.int32),
        # Half as wide, so that rejected tokens do not hide kept ones in the same bin.
        "width": float(edges[1] - edges[0]) * (0.5 if name == "rejected" else 1),
        "marker": {"color": colours, "line": {"width": 0}},
        "showlegend": isinstance(colours, str),  # a legend cannot show the three colours around ratio 1
        "hovertemplate": "%{y}<extra>" + name + "</extra>",
    }


def _outline(name: str, values: np.ndarray, span: float) -> Part:
    counts, edges = _histogram(values, -span, span)
    # Half a token instead of none: a logarithmic axis has no 0, and a gap would break the line.
    heights = np.maximum(np.append(counts, counts[-1]), 0.5).astype(np.float32)
    outline = canvas.line(name, edges.astype(np.float32), heights, REJECTED, width=1.2, hoverinfo="skip")
    outline["line"]["shape"] = "hv"
    return outline


def _histogram(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and edges of BINS equal bins, without NaN.

    A value within rounding of an edge may be counted in the next bin. np.histogram avoids this, but takes eight times
    as long.
    """
    bins = bin_of(values, low, high)
    return np.bincount(bins[bins >= 0], minlength=BINS), np.linspace(low, high, BINS + 1)


def bin_of(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the bar in which each value is counted, int32; negative for NaN."""
    with np.errstate(invalid="ignore"):  # NaN becomes the smallest integer
        return np.minimum(((values.clip(low, high) - low) * (BINS / (high - low))).astype(np.int32), BINS - 1)


def _bounds(lower: float | None, upper: float, ends: tuple[float, float], is_stretched: bool = False) -> list[Part]:
    """Return lines for the bounds on a ratio."""
    finite = [b for b in (lower, upper) if b is not None and math.isfinite(b)]
    positions = [float(stretched(math.log(b))) if is_stretched else math.log(b) for b in finite]
    marks = [_bound(x, b, ends, REJECTED) for x, b in zip(positions, finite, strict=True)]
    if len(marks) == 2 and positions[1] - positions[0] < (ends[1] - ends[0]) * CLOSE:
        marks = [mark | {"label": mark["label"] | {"padding": 8}} for mark in marks]  # else the labels touch
    return marks


def _bound(x: float, bound: float, ends: tuple[float, float], colour: str) -> Part:
    """Draw a line at the bound, or an arrow at the edge if the bound is outside the axis."""
    low, high = ends
    if x > high:
        return canvas.moving_note(f"threshold {bound:g} →", x=high, side="right")
    if x < low:
        return canvas.moving_note(f"← threshold {bound:g}", x=low, side="left")
    room = (high - low) / 8  # labels of two bounds near 1 point outwards, so that they do not overlap
    side = "left" if (x < high - room if x >= 0 else x < low + room) else "right"
    return canvas.vertical_line(x=x, colour=colour, dash="dash", width=2, label=f"{bound:g}", side=side)
