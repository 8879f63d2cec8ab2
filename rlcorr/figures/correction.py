"""Pure figure builders. The app and the lessons show the same pictures; nothing here touches a file or a page."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import log_weights
from rlcorr.errors import UsageError
from rlcorr.figures.axes import decades, ratio_axis, span_of, token_axis
from rlcorr.figures.canvas import (
    BLANK,
    COOL,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    Part,
    Parts,
    fade,
    figure,
    moving_note,
    vertical_line,
)
from rlcorr.rejection import inside, rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

_BINS = 81  # odd, so that the middle bar holds ratio 1 and no bar mixes warm and cool
_CELLS = 96  # per side of a density
_LARGEST_MASK = 256  # cells per side; beyond it, neighbouring tokens share a cell

FATES = ("padding", "kept", "below bound", "above bound", "rejected")
"""Ordered by severity: where several tokens share a cell, the most severe one shows."""

Statistic = tuple[list[Part], Part, Parts]  # traces, x axis, shapes


# --- one step: where the two policies disagree ---


def probability_density(batch: TokenBatch, over: Parts = ()) -> Figure:
    """Tokens over (π_rollout, π_old), counted in cells: warm above the diagonal, cool below it. `over` lies on top."""
    old, rollout = pair(batch)
    p_old, p_rollout = np.exp(old).clip(max=1), np.exp(rollout).clip(max=1)  # log-probs of 1e-8 are recorded, too
    counts, edges, _ = np.histogram2d(p_old, p_rollout, bins=_CELLS, range=((0, 1), (0, 1)))
    rows, columns = np.indices(counts.shape)
    diagonal = {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines", "name": "ratio 1", "hoverinfo": "skip"}
    diagonal["line"] = {"color": REJECTED, "width": 1}
    x = {"title_text": "probability in the engine, π_rollout", "range": [0, 1], "constrain": "domain"}
    y = {"title_text": "probability in the trainer, π_old", "range": [0, 1], "constrain": "domain", "scaleanchor": "x"}
    if not over:
        return figure([density(edges, edges, counts, np.sign(rows - columns)), diagonal], height=340, x=x, y=y)
    cells = density(edges, edges, counts, np.sign(rows - columns), faintest=0.3)
    return figure([cells, diagonal | {"showlegend": False}, *over], height=440, x=x, y=y, legend=True)


def ratio_density(batch: TokenBatch, over: Parts = (), notes: Parts = (), *, span: float | None = None) -> Figure:
    """Tokens over (π_rollout, log π_old/π_rollout): the same tokens, with the axis of the difference magnified, by
    default so far that ±span holds 99.9 % of them."""
    old, rollout = pair(batch)
    d = old - rollout
    span = span_of(d) if span is None else span
    box = ((-span, span), (0, 1))
    p_rollout = np.exp(rollout).clip(max=1)
    counts, y_edges, x_edges = np.histogram2d(d.clip(-span, span), p_rollout, bins=_CELLS, range=box)
    side = np.sign(_centres(y_edges))[:, None]
    x = {"title_text": "probability in the engine, π_rollout", "range": [0, 1]}
    y = {"title_text": "ratio π_old/π_rollout", **ratio_axis(span)}
    shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "line": {"color": REJECTED}}]
    if not over:
        return figure([density(x_edges, y_edges, counts, side)], height=340, x=x, y=y, shapes=shapes)
    traces = [density(x_edges, y_edges, counts, side, faintest=0.3), *over]
    return figure(traces, height=440, x=x, y=y, shapes=shapes, notes=notes, legend=True)


def density(
    x_edges: np.ndarray, y_edges: np.ndarray, counts: np.ndarray, side: np.ndarray, *, faintest: float = 0.12
) -> Part:
    """log(1 + count) as the strength of a colour: z in −1 … 0 … 1 for the sides, 2 … 3 on the line itself."""
    strength = np.log1p(counts)
    strength /= max(float(strength.max()), 1.0)
    z = np.where(side == 0, 2 + strength, side * strength)
    cool, warm, green = ([fade(c, a) for a in (faintest, 1)] for c in (COOL, WARM, KEPT))
    scale = [[0, cool[1]], [0.25, cool[0]], [0.2501, warm[0]], [0.5, warm[1]], [0.75, green[0]], [1, green[1]]]
    return {
        "type": "heatmap",
        "name": "tokens",
        "x": _centres(x_edges).astype(np.float32),
        "y": _centres(y_edges).astype(np.float32),
        "z": np.where(counts > 0, z, np.nan).astype(np.float32),
        "customdata": counts.astype(np.int32),
        "meta": {"z": "strength of the colour", "detail": "count"},
        "zmin": -1,
        "zmax": 3,
        "colorscale": scale,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{customdata} tokens near (%{x:.2f}, %{y:.2f})<extra></extra>",
    }


# --- one step and one configuration: what the correction does ---


def weight_histogram(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> Figure:
    """Final weights of the kept tokens as bars, on a logarithmic axis; the weights before the bounds as an outline.

    Weights of 0 have no place on the axis; a note counts them.
    """
    mask, keep = batch.response_mask, result.keep_mask
    raw = log_weights(result.log_ratio, mask, config.rollout_is or "token").expand_as(mask)
    before, rejected, weights = _picked(raw, mask), _picked(raw, mask & ~keep), _picked(result.weights, keep)
    span = span_of(before)
    bounds = (config.rollout_is_threshold_lower, config.rollout_is_threshold)
    marks = _bounds(*bounds, span) if config.rollout_is else []
    if zero := int((weights == 0).sum()):
        marks.append(moving_note(f"{zero:,} tokens have weight 0", x=1, y=0.92, side="right", xref="paper"))
    traces = [
        _bars("kept", np.log(weights[weights > 0]), (-span, span), colours=_SIDES),
        _bars("rejected", rejected, (-span, span), colours=REJECTED),
        _outline("before the bounds" if config.rollout_is else "token ratios", before, span),
    ]
    x = {"title_text": "importance weight", **ratio_axis(span)}
    return figure(traces, height=300, x=x, y=token_axis(len(before)), shapes=marks, legend=True)


def statistic_histogram(batch: TokenBatch, result: CorrectionResult, rule: RejectionRule) -> Figure:
    """What one rule compares, per token or per sequence: bars inside its bounds, grey bars outside."""
    mask = batch.response_mask
    statistic = rule_statistic(rule, batch, result.log_ratio)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    passed = inside(rule, statistic)
    kept, rejected = _picked(statistic, member & passed), _picked(statistic, member & ~passed)
    build = {"k1": _ratio_statistic, "prob_diff": _signed_statistic, "signed_kl": _signed_statistic}.get(
        rule.divergence, _divergence_statistic
    )
    traces, x, marks = build(rule, kept, np.where(np.isnan(rejected), np.inf, rejected))
    if rule.level == "token":
        y = token_axis(len(kept) + len(rejected))
    else:
        y = {"title_text": "sequences", "range": [0, 1.15 * max(1, int((traces[0]["y"] + traces[1]["y"]).max()))]}
    return figure(traces, height=300, x=x, y=y, shapes=marks, legend=True)


def _ratio_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    what = {None: "ratio", "sum": "product of ratios", "mean": "geometric mean of ratios"}
    traces, span = _two_sided(kept, rejected)
    x = {"title_text": f"{what.get(rule.reduce, f'{rule.reduce} ratio')}, per {rule.level}", **ratio_axis(span)}
    return traces, x, _bounds(rule.lower, rule.upper, span)


def _signed_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    """A divergence with a direction, on a linear axis around 0."""
    traces, span = _two_sided(kept, rejected)
    x = {"title_text": f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip(), "range": [-span, span]}
    given = [b for b in (rule.lower, rule.upper) if b is not None]
    return traces, x, [_bound(b, b, (-span, span), REJECTED) for b in given]


def _two_sided(kept: np.ndarray, rejected: np.ndarray) -> tuple[list[Part], float]:
    """Bars on both sides of 0, and half the width of their axis."""
    span = span_of(np.concatenate([kept, rejected]))
    groups = (("inside", kept, _SIDES), ("outside", rejected, REJECTED))
    return [_bars(name, group, (-span, span), colours=colours) for name, group, colours in groups], span


def _divergence_statistic(rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> Statistic:
    """A divergence ≥ 0 over its decades; values below the first decade are counted in the first bar."""
    values = np.concatenate([kept, rejected])
    low, high = decades(values[np.isfinite(values) & (values > 0)])
    traces = [
        _bars(name, np.log10(np.maximum(group, 10.0**low)), (low, high), colours=colour)
        for name, group, colour in (("inside", kept, KEPT), ("outside", rejected, REJECTED))
    ]
    ticks = list(range(low, high + 1))
    title = f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip()
    x = {"title_text": title, "range": [low, high], "tickvals": ticks, "ticktext": [f"{10.0**t:g}" for t in ticks]}
    x["read"] = "10^"
    return traces, x, [_bound(math.log10(rule.upper), rule.upper, (low, high), REJECTED)]


def token_fates(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> np.ndarray:
    """What became of each token, (B, T) uint8: an index into FATES."""
    mask = batch.response_mask
    fates = mask.to(torch.uint8)
    if config.rollout_is is not None:
        raw = log_weights(result.log_ratio, mask, config.rollout_is)
        lower = config.rollout_is_threshold_lower
        if lower is not None:
            fates = fates.masked_fill(mask & (raw < math.log(lower)), 2)
        fates = fates.masked_fill(mask & (raw > math.log(config.rollout_is_threshold)), 3)
    return fates.masked_fill(mask & ~result.keep_mask, 4).cpu().numpy()


def fate_mask(fates: np.ndarray) -> Figure:
    """Rows are sequences, columns are tokens; padding is blank. Large masks are binned to the most severe fate."""
    return token_map("fate", fates, FATES[1:], (fade(KEPT, 0.3), COOL, WARM, REJECTED))


def token_map(name: str, codes: np.ndarray, names: Sequence[str], colours: Sequence[str]) -> Figure:
    """(B, T) uint8 as cells: 0 is blank, k has the k-th colour and name. The highest code of a cell shows."""
    down, across = (max(1, math.ceil(n / _LARGEST_MASK)) for n in codes.shape)
    kinds = len(colours) + 1
    cells = {
        "type": "heatmap",
        "name": name,
        # Small integers in uint8 hold no 0xFF bytes, whose base64 ("////") plotly escapes to six times its size.
        "z": _binned(codes, down, across),
        "x0": (across - 1) / 2,
        "dx": across,
        "y0": (down - 1) / 2,
        "dy": down,
        "zmin": -0.5,
        "zmax": kinds - 0.5,
        "colorscale": [[edge / kinds, c] for code, c in enumerate((BLANK, *colours)) for edge in (code, code + 1)],
        "showscale": False,
        "meta": {"z": ", ".join(f"{code} {name}" for code, name in enumerate(FATES))},
        "hovertemplate": "sequence %{y:.0f}, token %{x:.0f}<extra></extra>",
    }
    key = {"type": "scatter", "x": [None], "y": [None], "mode": "markers"}
    marker = {"symbol": "square", "size": 9}
    keys = [key | {"name": n, "marker": marker | {"color": c}} for n, c in zip(names, colours, strict=True)]
    x = {"title_text": "token", "showgrid": False}
    y = {"title_text": "sequence", "showgrid": False, "autorange": "reversed"}
    return figure([cells, *keys], height=300, x=x, y=y, legend=True)


def _binned(codes: np.ndarray, down: int, across: int) -> np.ndarray:
    """The largest code of each down × across block, by slices: numpy's max over two axes takes ten times as long."""
    padded = np.pad(codes, ((0, -codes.shape[0] % down), (0, -codes.shape[1] % across)))
    rows = reduce(np.maximum, (padded[i::down] for i in range(down)))
    return reduce(np.maximum, (rows[:, j::across] for j in range(across)))


# --- the numbers of a figure ---


def digest(figure: Figure) -> str:
    """The figure in numbers, one line per trace: name, kind, size, then sum, mean, least and greatest value drawn."""
    traces: list[Any] = list(figure.data)
    return "\n".join(f"{trace.name} ({trace.type}, {_digest_of(trace)}" for trace in traces)


def _digest_of(trace: Any) -> str:
    drawn = np.asarray(trace.z if trace.type == "heatmap" else trace.y)
    size = "×".join(str(n) for n in drawn.shape)
    values = drawn[drawn != None].astype(float)  # noqa: E711 - elementwise: gaps in a line are None
    values = values[np.isfinite(values)]
    if not len(values):
        return f"{size}): nothing drawn"
    numbers = {"sum": values.sum(), "mean": values.mean(), "min": values.min(), "max": values.max()}
    return f"{size}): " + " ".join(f"{name}={value + 0.0:.4g}" for name, value in numbers.items())


# --- parts ---


_SIDES = [COOL] * (_BINS // 2) + [KEPT] + [WARM] * (_BINS // 2)


def _bars(name: str, values: np.ndarray, drawn: tuple[float, float], *, colours: str | list[str]) -> Part:
    """Counted bars over an axis of logarithms; what lies beyond it is counted in the outermost bars."""
    counts, edges = _counted(values, *drawn)
    return {
        "type": "bar",
        "name": name,
        "x": _centres(edges).astype(np.float32),
        "y": counts.astype(np.int32),
        # Half as wide: where kept and rejected tokens share a bin, neither hides the other.
        "width": float(edges[1] - edges[0]) * (0.5 if name == "rejected" else 1),
        "marker": {"color": colours, "line": {"width": 0}},
        "showlegend": isinstance(colours, str),  # the sides of ratio 1 have two colours, which no key can show
        "hovertemplate": "%{y}<extra>" + name + "</extra>",
    }


def _outline(name: str, values: np.ndarray, span: float) -> Part:
    counts, edges = _counted(values, -span, span)
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


def _counted(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges of _BINS equal bins without NaN. A value within rounding of an edge may be counted on its other
    side; for never doing that np.histogram takes eight times as long."""
    with np.errstate(invalid="ignore"):  # NaN becomes the least of all integers
        places = ((values.clip(low, high) - low) * (_BINS / (high - low))).astype(np.int32)
    counts = np.bincount(np.minimum(places[places >= 0], _BINS - 1), minlength=_BINS)
    return counts, np.linspace(low, high, _BINS + 1)


def _bounds(lower: float | None, upper: float, span: float) -> list[Part]:
    """Marks for the bounds on a ratio."""
    given = [b for b in (lower, upper) if b is not None and math.isfinite(b)]
    return [_bound(math.log(b), b, (-span, span), WARM if b >= 1 else COOL) for b in given]


def _bound(x: float, bound: float, drawn: tuple[float, float], colour: str) -> Part:
    """A line at the bound, or an arrow at the edge if the bound lies beyond everything drawn."""
    low, high = drawn
    if x > high:
        return moving_note(f"bound {bound:g} →", x=high, side="right")
    if x < low:
        return moving_note(f"← bound {bound:g}", x=low, side="left")
    room = (high - low) / 8  # two bounds close to 1 are written outwards, where there is room
    side = "left" if (x < high - room if x >= 0 else x < low + room) else "right"
    return vertical_line(x=x, colour=colour, dash="dash", width=2, label=f"{bound:g}", side=side)


def pair(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """log π_old and log π_rollout of the real tokens, as flat float64 arrays."""
    if batch.old_log_probs is None:
        raise UsageError("this picture needs old_log_probs; the batch has only rollout_log_probs.")
    old, rollout = (_picked(each, batch.response_mask) for each in (batch.old_log_probs, batch.rollout_log_probs))
    return old.astype(float), rollout.astype(float)


def _centres(edges: np.ndarray) -> np.ndarray:
    return (edges[1:] + edges[:-1]) / 2


def _picked(values: Tensor, which: Tensor) -> np.ndarray:
    """The flat float32 values there; numpy picks seven times as fast as torch."""
    return values.detach().float().cpu().numpy()[which.cpu().numpy()]
