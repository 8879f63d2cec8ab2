"""Pure figure builders. The app and the lessons show the same pictures; nothing here touches a file or a page.

Colours mean one thing everywhere: ratio > 1 warm, ratio < 1 cool, kept green, rejected grey, padding blank. Fills are
translucent, so that every figure works on a light and on a dark page.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from rlcorr.correction import inside, log_weights, rule_statistic
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.types import CorrectionConfig, CorrectionResult, RejectionRule, TokenBatch

WARM, COOL, KEPT, REJECTED = "#d9692a", "#2f7fc1", "#3f9c7d", "#8b8f97"
_LINES = ("#5f7a94", "#9a6cb4", REJECTED)  # curves over steps mean neither side of ratio 1
_BINS = 81  # odd, so that the middle bar holds ratio 1 and no bar mixes warm and cool
_GRID = 96  # cells per side of the density
_LARGEST_MASK = 256  # cells per side; beyond it, neighbouring tokens share a cell

FATES = ("padding", "kept", "below bound", "above bound", "rejected")
"""Ordered by severity: where several tokens share a cell, the most severe one shows."""


# --- a run over its steps ---


def curve(
    steps: Sequence[int],
    lines: Mapping[str, Sequence[float | None]],
    *,
    log: bool = False,
    share: bool = False,
    at: int | None = None,
) -> go.Figure:
    """One line per name over the steps; `at` draws a cursor. A logarithmic axis leaves values ≤ 0 out.

    The axis of a share ends at 1 and covers at least 5 %, so that noise in the fourth digit looks like what it is.
    """
    figure = _figure(height=190, x="step", y="")
    for (name, values), colour in zip(lines.items(), _LINES, strict=False):
        shown = [v if v is not None and (v > 0 or not log) else None for v in values]
        marker = {"color": colour, "size": 5}
        mode = "lines+markers" if len(steps) <= 40 else "lines"
        figure.add_scatter(x=list(steps), y=shown, name=name, mode=mode, line={"color": colour}, marker=marker)
    if at is not None:
        figure.add_vline(x=at, line={"color": REJECTED, "width": 1, "dash": "dot"})
    if log:
        drawn = [math.log10(v) for values in lines.values() for v in values if v is not None and v > 0] or [0.0]
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
        figure.update_yaxes(range=[math.floor(min(drawn)), math.floor(max(drawn)) + 1])
    if share:
        smallest = min((v for values in lines.values() for v in values if v is not None), default=1.0)
        figure.update_yaxes(range=[min(smallest - 0.01, 0.95), 1.005])
    figure.update_xaxes(tickformat="d", nticks=6)
    return figure.update_layout(showlegend=len(lines) > 1, margin_t=28 if len(lines) > 1 else 8)


# --- one step: where the two policies disagree ---


def probability_density(batch: TokenBatch) -> go.Figure:
    """Tokens over (π_rollout, π_old), counted in cells: warm above the diagonal, cool below it."""
    old, rollout = _pair(batch)
    counts, edges, _ = np.histogram2d(np.exp(old), np.exp(rollout), bins=_GRID, range=((0, 1), (0, 1)))
    centres = (edges[1:] + edges[:-1]) / 2
    rows, columns = np.indices(counts.shape)
    figure = _figure(height=340, x="probability in the engine, π_rollout", y="probability in the trainer, π_old")
    figure.add_trace(_density(centres, centres, counts, np.sign(rows - columns)))
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": REJECTED, "width": 1}, name="ratio 1", hoverinfo="skip"
    )
    figure.update_yaxes(scaleanchor="x", range=[0, 1], constrain="domain")
    return figure.update_xaxes(range=[0, 1], constrain="domain")


def ratio_density(batch: TokenBatch) -> go.Figure:
    """Tokens over (π_rollout, π_old/π_rollout): the same tokens, with the axis of the difference magnified."""
    old, rollout = _pair(batch)
    d = old - rollout
    span = _span(d)
    counts, y, x = np.histogram2d(d.clip(-span, span), np.exp(rollout), bins=_GRID, range=((-span, span), (0, 1)))
    y, x = (y[1:] + y[:-1]) / 2, (x[1:] + x[:-1]) / 2
    figure = _figure(height=340, x="probability in the engine, π_rollout", y="ratio π_old/π_rollout")
    figure.add_trace(_density(x, y, counts, np.sign(y)[:, None]))
    figure.add_hline(y=0, line={"color": REJECTED, "width": 1})
    ticks = ratio_ticks(span)
    figure.update_yaxes(range=[-span, span], tickvals=np.log(ticks), ticktext=[f"{t:g}" for t in ticks])
    return figure.update_xaxes(range=[0, 1])


def _density(x: np.ndarray, y: np.ndarray, counts: np.ndarray, side: np.ndarray) -> go.Heatmap:
    """log₁₀(1 + count), signed by the side of ratio 1; cells on the line are green and hold no sign."""
    strength = np.log10(1 + counts)
    top = max(float(strength.max()), 1.0)
    level = np.where(side == 0, 0.0, np.clip(strength / top, 0, 1) * side)
    z = np.where(side == 0, 2 + strength / top, level)  # −1 … 1 for the sides, 2 … 3 for the line itself
    return go.Heatmap(
        x=x.astype(np.float32),
        y=y.astype(np.float32),
        z=np.where(counts > 0, z, np.nan).astype(np.float32),
        customdata=counts.astype(np.int32),
        zmin=-1,
        zmax=3,
        showscale=False,
        hoverongaps=False,
        name="tokens",
        hovertemplate="%{customdata} tokens near (%{x:.2f}, %{y:.2f})<extra></extra>",
        colorscale=[
            [0, _fade(COOL, 1)],
            [0.25, _fade(COOL, 0.12)],
            [0.2501, _fade(WARM, 0.12)],
            [0.5, _fade(WARM, 1)],
            [0.7499, _fade(KEPT, 0.1)],
            [0.75, _fade(KEPT, 0.25)],
            [1, _fade(KEPT, 1)],
        ],
    )


# --- one step and one configuration: what the correction does ---


def weight_histogram(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> go.Figure:
    """Final weights of the kept tokens as bars, on a logarithmic axis; the weights before the bounds as an outline.

    Weights of 0 have no place on the axis and are counted in the trace "weight 0".
    """
    mask, keep = batch.response_mask, result.keep_mask
    raw = log_weights(result.log_ratio, mask, config.rollout_is or "token")
    span = _span(_numpy(raw[mask]))
    bounds = (config.rollout_is_threshold_lower, config.rollout_is_threshold) if config.rollout_is else ()
    weights = _numpy(result.weights[keep])
    figure = _figure(height=300, x="importance weight", y="tokens")
    _bars(figure, "kept", np.log(weights[weights > 0]), span, signed=True)
    _bars(figure, "rejected", _numpy(raw[mask & ~keep]), span, colour=REJECTED)
    _outline(figure, "before the bounds" if config.rollout_is else "token ratios", _numpy(raw[mask]), span)
    zero = int((weights == 0).sum())
    if zero:
        figure.add_annotation(text=f"{zero:,} tokens have weight 0", **_CORNER)
    _log_ratio_axis(figure, span, bounds)
    return _count_axis(figure, int(mask.sum()), log=True)


def statistic_histogram(batch: TokenBatch, result: CorrectionResult, rule: RejectionRule) -> go.Figure:
    """What one rule compares, per token or per sequence: bars inside its bounds, grey bars outside."""
    mask = batch.response_mask
    statistic = rule_statistic(rule, batch, result.log_ratio)
    member = mask if rule.level == "token" else mask.any(-1, keepdim=True)
    passed = inside(rule, statistic)
    kept, rejected = _numpy(statistic[member & passed]), _numpy(statistic[member & ~passed])
    rejected = np.nan_to_num(rejected, nan=np.inf)
    figure = _figure(height=300, x="", y="tokens" if rule.level == "token" else "sequences")
    if rule.divergence == "k1":
        span = _span(_numpy(statistic[member]))
        _bars(figure, "inside", kept, span, signed=True)
        _bars(figure, "outside", rejected, span, colour=REJECTED)
        what = {None: "ratio", "sum": "product of ratios", "mean": "geometric mean of ratios", "max": "largest ratio"}
        figure.update_xaxes(title_text=f"{what[rule.reduce]}, per {rule.level}")
        _log_ratio_axis(figure, span, (rule.lower, rule.upper))
    else:
        _divergence_bars(figure, rule, kept, rejected)
    tallest = max(a + b for a, b in zip(*(trace.y for trace in _traces(figure)), strict=True))
    return _count_axis(figure, tallest, log=rule.level == "token")


def fate_mask(fates: np.ndarray) -> go.Figure:
    """Rows are sequences, columns are tokens; padding is blank. Large masks are binned to the most severe fate."""
    down, across = (max(1, math.ceil(n / _LARGEST_MASK)) for n in fates.shape)
    cells = _binned(fates, down, across)
    figure = _figure(height=300, x="token", y="sequence")
    # Codes are small integers in uint8: no 0xFF bytes, whose base64 ("////") plotly escapes to six times its size.
    colours = ["rgba(0,0,0,0)", _fade(KEPT, 0.3), COOL, WARM, REJECTED]
    scale = [[edge / 5, colour] for code, colour in enumerate(colours) for edge in (code, code + 1)]
    figure.add_heatmap(
        z=cells,
        x0=across / 2,
        dx=across,
        y0=down / 2,
        dy=down,
        zmin=-0.5,
        zmax=4.5,
        colorscale=scale,
        showscale=False,
        name="fate",
        hovertemplate="sequence %{y:.0f}, token %{x:.0f}<extra></extra>",
    )
    for code, colour in enumerate(colours[1:], start=1):
        marker = {"color": colour, "symbol": "square", "size": 9}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=FATES[code])
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(showgrid=False, zeroline=False)
    return figure.update_layout(showlegend=True, margin_t=42)


def token_fates(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> np.ndarray:
    """What became of each token, (B, T) uint8: an index into FATES."""
    fates = batch.response_mask.to(torch.uint8)
    if config.rollout_is is not None:
        raw = log_weights(result.log_ratio, batch.response_mask, config.rollout_is)
        lower = config.rollout_is_threshold_lower
        if lower is not None:
            fates = fates.masked_fill(batch.response_mask & (raw < math.log(lower)), 2)
        fates = fates.masked_fill(batch.response_mask & (raw > math.log(config.rollout_is_threshold)), 3)
    return fates.masked_fill(batch.response_mask & ~result.keep_mask, 4).cpu().numpy()


def _binned(codes: np.ndarray, down: int, across: int) -> np.ndarray:
    """The largest code of each down × across block."""
    short = (-codes.shape[0] % down, -codes.shape[1] % across)
    padded = np.pad(codes, ((0, short[0]), (0, short[1])))
    return padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across).max(axis=(1, 3))


# --- numbers of a figure ---


def digest(figure: go.Figure) -> str:
    """The figure in numbers, one line per trace: name, size, sum, mean, smallest and largest value drawn."""
    lines = []
    for trace in _traces(figure):
        drawn = trace.z if trace.type == "heatmap" else trace.y
        values = np.array([v for v in np.ravel(np.asarray(drawn)) if v is not None], dtype=float)
        values = values[np.isfinite(values)]
        size = "×".join(str(n) for n in np.shape(drawn))
        if not len(values):
            lines.append(f"{trace.name} ({trace.type}, {size}): nothing drawn")
            continue
        numbers = {"sum": values.sum(), "mean": values.mean(), "min": values.min(), "max": values.max()}
        lines.append(
            f"{trace.name} ({trace.type}, {size}): " + " ".join(f"{k}={_number(v)}" for k, v in numbers.items())
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value + 0.0:.4g}".replace("-0", "0") if abs(value) < 1e-12 else f"{value:.4g}"


# --- shared parts ---

_CORNER = {
    "xref": "paper",
    "yref": "paper",
    "x": 1,
    "y": 0.92,
    "xanchor": "right",
    "yanchor": "top",
    "showarrow": False,
}


def _traces(figure: go.Figure) -> list[Any]:
    return list(figure.data)


def _figure(*, height: int, x: str, y: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 52, "r": 12, "t": 8, "b": 40},
        showlegend=False,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        bargap=0,
        barmode="overlay",
        uirevision="keep",
        hovermode="closest",
    )
    return figure.update_xaxes(title_text=x, title_standoff=6).update_yaxes(title_text=y, title_standoff=6)


def _bars(
    figure: go.Figure, name: str, values: np.ndarray, span: float, *, colour: str = "", signed: bool = False
) -> None:
    """Counted bars over [−span, span]; what lies beyond is counted in the outermost bars."""
    counts, edges = np.histogram(values.clip(-span, span), bins=_BINS, range=(-span, span))
    centres = (edges[1:] + edges[:-1]) / 2
    colours = [COOL] * (_BINS // 2) + [KEPT] + [WARM] * (_BINS // 2) if signed else colour
    figure.add_bar(
        x=np.round(centres, 6),
        y=counts.astype(np.int32),
        # Half as wide where two groups share a bin, so that neither hides the other.
        width=float(edges[1] - edges[0]) * (1 if signed else 0.5),
        marker={"color": colours, "line": {"width": 0}},
        name=name,
        showlegend=not signed,
        customdata=[f"{r:.4g}" for r in np.exp(centres)],
        hovertemplate="ratio %{customdata}: %{y}<extra>" + name + "</extra>",
    )


def _outline(figure: go.Figure, name: str, values: np.ndarray, span: float) -> None:
    counts, edges = np.histogram(values.clip(-span, span), bins=_BINS, range=(-span, span))
    # Half a token instead of none: a logarithmic axis has no 0, and a gap would break the line.
    y = np.maximum(np.append(counts, counts[-1]), 0.5)
    figure.add_scatter(
        x=edges, y=y, name=name, mode="lines", hoverinfo="skip", line={"shape": "hv", "color": REJECTED, "width": 1.2}
    )


def _log_ratio_axis(figure: go.Figure, span: float, bounds: Sequence[float | None]) -> None:
    ticks = ratio_ticks(span)
    figure.update_xaxes(range=[-span * 1.02, span * 1.02], tickvals=np.log(ticks), ticktext=[f"{t:g}" for t in ticks])
    for bound in bounds:
        if bound is not None:
            _mark_bound(figure, math.log(bound), bound, (-span, span), WARM if bound >= 1 else COOL)


def _divergence_bars(figure: go.Figure, rule: RejectionRule, kept: np.ndarray, rejected: np.ndarray) -> None:
    """A divergence ≥ 0 over its decades; values below the first decade are counted in the first bar."""
    values = np.concatenate([kept, rejected[np.isfinite(rejected)]])
    low, high = _decades(values[values > 0])
    for name, group, colour in (("inside", kept, KEPT), ("outside", rejected, REJECTED)):
        log = np.log10(np.clip(group, 10.0**low, 10.0**high))
        counts, edges = np.histogram(log, bins=_BINS, range=(low, high))
        centres = (edges[1:] + edges[:-1]) / 2
        figure.add_bar(
            x=np.round(centres, 6),
            y=counts.astype(np.int32),
            width=(high - low) / _BINS,
            name=name,
            marker_color=colour,
        )
    ticks = list(range(low, high + 1))
    figure.update_xaxes(range=[low, high], tickvals=ticks, ticktext=[f"{10.0**t:g}" for t in ticks])
    figure.update_xaxes(title_text=f"{rule.reduce or ''} {rule.divergence} per {rule.level}".strip())
    _mark_bound(figure, math.log10(rule.upper), rule.upper, (low, high), REJECTED)


def _mark_bound(figure: go.Figure, x: float, bound: float, drawn: tuple[float, float], colour: str) -> None:
    """A line at the bound, or an arrow at the edge if the bound lies beyond everything drawn."""
    low, high = drawn
    label = {"y": 1, "yref": "paper", "yanchor": "top", "showarrow": False, "font": {"size": 11}}
    if low <= x <= high:
        figure.add_vline(x=x, line={"width": 2, "dash": "dash", "color": colour})
        figure.add_annotation(x=x, text=f" {bound:g} ", xanchor="left" if x < (low + high) / 2 else "right", **label)
    elif x > high:
        figure.add_annotation(x=high, text=f"bound {bound:g} →", xanchor="right", **label)
    else:
        figure.add_annotation(x=low, text=f"← bound {bound:g}", xanchor="left", **label)


def _count_axis(figure: go.Figure, most: int, *, log: bool) -> go.Figure:
    """An axis that stands still while a threshold moves. Tokens are counted on a log axis: the tails matter here."""
    if log:
        top = math.log10(max(most, 10)) + 0.05
        figure.update_yaxes(type="log", dtick=1, range=[math.log10(0.5), top], exponentformat="none")
    else:
        figure.update_yaxes(range=[0, max(most, 1) * 1.15], nticks=5)
    return figure.update_layout(showlegend=True, margin_t=42)


def _span(log_values: np.ndarray) -> float:
    """Half-width of a symmetric log axis that holds 99.9 % of the values."""
    sizes = np.abs(log_values[np.isfinite(log_values)])
    return float(np.clip(np.quantile(sizes, 0.999) * 1.1, 1e-4, SAFETY_BOUND)) if len(sizes) else 1.0


def _decades(positive: np.ndarray) -> tuple[int, int]:
    if not len(positive):
        return -6, 0
    low, high = np.quantile(positive, [0.005, 1])
    low, high = math.floor(math.log10(max(low, 1e-12))), math.ceil(math.log10(min(high, 1e9)))
    return low, max(high, low + 1)


def ratio_ticks(span: float) -> list[float]:
    """A handful of round ratios within exp(±span)."""
    if span > 5:
        decade = max(1, round(span / math.log(10) / 3))
        return [10.0**k for k in range(-9, 10) if k % decade == 0 and abs(k) * math.log(10) <= span]
    if span > 0.8:
        return [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if abs(math.log(t)) <= span]
    step = next(s for k in range(-6, 1) for s in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if span / s <= 3.5)
    ticks = [round(1 + k * step, 8) for k in range(-4, 5)]
    return [t for t in ticks if t > 0 and abs(math.log(t)) <= span]


def _pair(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """log π_old and log π_rollout of the real tokens, as flat float64 arrays."""
    assert batch.old_log_probs is not None
    mask = batch.response_mask
    return _numpy(batch.old_log_probs[mask]).astype(float), _numpy(batch.rollout_log_probs[mask]).astype(float)


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()


def _fade(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
