"""The effect of a correction on one step: final weights, the statistic of a rule, and what happens to each token."""

import math

import numpy as np
import torch

from rlcorr.config import CorrectionConfig
from rlcorr.divergences import SIGNED
from rlcorr.figures.axes import decades, ratio_axis, span_of, stretched, stretched_axis, token_axis
from rlcorr.figures.canvas import (
    COOL,
    CUT,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    Part,
    Parts,
    fade,
    figure,
    legend_keys,
    moving_note,
    vertical_line,
)
from rlcorr.figures.cells import (
    centres,
    select_values,
    token_map,
)
from rlcorr.rejection import inside, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch
from rlcorr.weights import Weights

BINS = 81
"""Odd, so that the middle bar contains ratio 1 and no bar mixes warm and cool."""

CLOSE = 1 / 20
"""Two lines are closer than this share of the axis if their labels would touch."""
FATES = ("padding", "kept", "below threshold", "above threshold", "rejected")
"""Ordered by severity. If several tokens share a cell, it shows the most severe one."""

Statistic = tuple[list[Part], Part, Parts]  # traces, x axis, shapes


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
        *legend_keys({"below 1": COOL, "about 1": KEPT, "above 1": WARM}),
    ]
    x = {"title_text": "importance weight", **ratio_axis(span)}
    return figure(traces, height=300, x=x, y=token_axis(len(before)), shapes=marks, legend=True)


def weight_marks(config: CorrectionConfig, zeros: int, span: float) -> list[Part]:
    """Return the bounds of the weights as lines, and a note with the number of tokens with weight 0."""
    bounds = (config.rollout_is_threshold_lower, config.rollout_is_threshold)
    marks = _bounds(*bounds, (-span, span)) if config.rollout_is else []
    if zeros:
        marks.append(moving_note(f"{zeros:,} tokens have weight 0", x=1, y=0.92, side="right", xref="paper"))
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
    around_0 = _signed_statistic if rule.divergence in SIGNED else _divergence_statistic
    build = _ratio_statistic if rule.divergence == "k1" else around_0
    traces, x, marks = build(rule, kept, np.where(np.isnan(rejected), np.inf, rejected))
    if rule.level == "token":
        y = token_axis(len(kept) + len(rejected))
    else:
        y = {"title_text": "sequences", "range": [0, 1.15 * max(1, int((traces[0]["y"] + traces[1]["y"]).max()))]}
    return figure(traces, height=300, x=x, y=y, shapes=marks, legend=True)


def _ratio_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    titles = {None: "ratio", "sum": "product of ratios", "mean": "geometric mean of ratios"}
    title = f"{titles.get(rule.reduce, f'{rule.reduce} ratio')}, per {rule.level}"
    if not _is_stretched(rule):
        traces, span = _two_sided(kept, rejected, "1")
        return traces, {"title_text": title, **ratio_axis(span)}, rule_marks(rule, (-span, span))
    span = span_of(np.concatenate([kept, rejected]))
    traces, end = _two_sided(stretched(kept), stretched(rejected), "1", float(stretched(span)))
    return (
        traces,
        {"title_text": "geometric mean, stretched near 1", **stretched_axis(span)},
        rule_marks(rule, (-end, end)),
    )


def _signed_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    """Draw a divergence with a sign on a linear axis around 0."""
    traces, span = _two_sided(kept, rejected, "0")
    x = {"title_text": f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip(), "range": [-span, span]}
    return traces, x, rule_marks(rule, (-span, span))


def _is_stretched(rule: RejectionRule) -> bool:
    """Check whether the rule bounds a geometric mean, whose bounds are too close to 1 for an axis of all ratios."""
    return rule.divergence == "k1" and rule.reduce == "mean"


def _two_sided(
    kept: np.ndarray, rejected: np.ndarray, neutral: str, span: float | None = None
) -> tuple[list[Part], float]:
    """Return bars on both sides of 0 with their legend, and half the width of their axis."""
    span = span_of(np.concatenate([kept, rejected])) if span is None else span
    groups = (("inside", kept, _SIDES), ("outside", rejected, REJECTED))
    bars = [_bars(name, group, (-span, span), colours=colours) for name, group, colours in groups]
    return [*bars, *legend_keys({f"inside, below {neutral}": COOL, f"above {neutral}": WARM})], span


def _divergence_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    """Draw a divergence ≥ 0 over its decades. Values below the first decade are counted in the first bar."""
    positions, low, high = on_axis(rule, np.concatenate([kept, rejected]))
    traces = [
        _bars(name, group, (low, high), colours=colour)
        for name, group, colour in (
            ("inside", positions[: len(kept)], KEPT),
            ("outside", positions[len(kept) :], REJECTED),
        )
    ]
    ticks = list(range(int(low), int(high) + 1))
    title = f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip()
    x = {"title_text": title, "range": [low, high], "tickvals": ticks, "ticktext": [f"{10.0**t:g}" for t in ticks]}
    x["read"] = "10^"
    return traces, x, rule_marks(rule, (low, high))


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


def token_fates(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> np.ndarray:
    """Return what happens to each token, (B, T) uint8: an index into FATES."""
    mask = batch.response_mask
    fates = mask.to(torch.uint8)
    if config.weights is not None:
        below, above = config.weights.outside(config.weights.raw(result.log_ratio, mask))
        fates = fates.masked_fill(mask & below, 2).masked_fill(mask & above, 3)
    return fates.masked_fill(mask & ~result.keep_mask, 4).cpu().numpy()


def fate_mask(fates: np.ndarray, config: CorrectionConfig | None = None) -> Figure:
    """Draw the fate of every token: rows are sequences, columns are tokens, padding is blank.

    In large batches a cell shows the most severe fate of its tokens. The legend has the fates that are possible under
    `config`; by default all.
    """
    colours = (fade(KEPT, 0.3), fade(CUT, 0.5), CUT, REJECTED)
    return token_map("fate", fates, FATES[1:], colours, None if config is None else _possible_fates(config))


def _possible_fates(config: CorrectionConfig) -> list[str]:
    is_possible = (
        True,
        config.rollout_is is not None and config.rollout_is_threshold_lower is not None,
        config.rollout_is is not None and math.isfinite(config.rollout_is_threshold),
        bool(config.rollout_rs),
    )
    return [fate for fate, possible in zip(FATES[1:], is_possible, strict=True) if possible]


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
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": edges.astype(np.float32),
        # Half a token instead of none: a logarithmic axis has no 0, and a gap would break the line.
        "y": np.maximum(np.append(counts, counts[-1]), 0.5).astype(np.float32),
        "line": {"shape": "hv", "color": REJECTED, "width": 1.2},
        "hoverinfo": "skip",
    }


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
        return moving_note(f"threshold {bound:g} →", x=high, side="right")
    if x < low:
        return moving_note(f"← threshold {bound:g}", x=low, side="left")
    room = (high - low) / 8  # labels of two bounds near 1 point outwards, so that they do not overlap
    side = "left" if (x < high - room if x >= 0 else x < low + room) else "right"
    return vertical_line(x=x, colour=colour, dash="dash", width=2, label=f"{bound:g}", side=side)
