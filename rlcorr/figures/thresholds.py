"""Metrics of a correction as curves over one of its thresholds, with a cursor that moves along them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.sweep import BoundMetrics
from rlcorr.figures.axes import power_axis, threshold_scale
from rlcorr.figures.canvas import COOL, KEPT, REJECTED, WARM, Figure, Part, figure, vertical_line

_PURPLE = "#9a6cb4"
SHARES = {
    "kept tokens": ("kept_fraction", KEPT),
    "effective sample size": ("trained_eff_sample_size", COOL),
    "weights cut": ("rollout_is_oob_ratio", WARM),
}
"""Name on the page → metric, colour."""


def shares_over(
    thresholds: Sequence[float], numbers: Mapping[str, Tensor], *, of_ratio: bool, at: float | None = None
) -> Figure:
    """Shares between 0 and 1 of the whole correction, (K,) by metric as in `strips.strip.numbers_over`: those that
    move with the bound, and always the effective sample size; `at` draws a cursor."""
    lines = {name: numbers[metric] for name, (metric, _) in SHARES.items() if metric in numbers}
    moving = {name: x for name, x in lines.items() if name == "effective sample size" or bool((x != x[0]).any())}
    y = {"range": [-0.02, 1.02], "tickformat": ".0%"}
    return _over(moving, {name: SHARES[name][1] for name in moving}, thresholds, of_ratio, at, y)


def mismatch_over(
    thresholds: Sequence[float],
    metrics: BoundMetrics[Tensor],
    *,
    of_weights: bool,
    of_ratio: bool,
    at: float | None = None,
) -> Figure:
    """Of a rule, what it keeps: k3, and χ² of the ratios. Of bounded weights: χ², which is noise, and the mean weight
    that is missing to 1, which is bias. Values ≤ 0 have no place on a logarithmic axis."""
    if of_weights:
        lines = {"missing to a mean weight of 1": 1 - metrics.rollout_is_mean, "χ² of the weights": metrics.kept_chi2}
    else:
        lines = {"k3 of the kept tokens": metrics.kept_k3_kl, "χ² of the kept ratios": metrics.kept_chi2}
    values = torch.cat(list(lines.values()))
    drawn = values[values.isfinite() & (values > 1e-12)]
    y = power_axis(float(drawn.min()), float(drawn.max())) if len(drawn) else power_axis(1e-6, 1)
    return _over(lines, dict(zip(lines, (REJECTED, _PURPLE), strict=True)), thresholds, of_ratio, at, y)


def _over(
    lines: Mapping[str, Tensor],
    colours: Mapping[str, str],
    thresholds: Sequence[float],
    of_ratio: bool,
    at: float | None,
    y: Part,
) -> Figure:
    place, axis = threshold_scale(thresholds, of_ratio=of_ratio)
    x = [place(threshold) for threshold in thresholds]
    traces = []
    for name, values in lines.items():
        drawn = values.numpy(force=True).astype(np.float32)
        drawn = np.where(drawn > 0, drawn, np.nan) if y.get("type") == "log" else drawn
        look = {"mode": "lines", "line": {"color": colours[name], "width": 2}}
        traces.append({"type": "scatter", "name": name, "x": np.array(x, np.float32), "y": drawn, **look})
    shapes = [] if at is None else [_cursor(place(at), x)]
    return figure(traces, height=240, x=axis, y=y, shapes=shapes, legend=True)


def cursors(thresholds: Sequence[float], places: Sequence[float], *, of_ratio: bool) -> list[list[Part]]:
    """The cursor of `shares_over` and `mismatch_over` at each of these bounds, as their shapes."""
    place, _ = threshold_scale(thresholds, of_ratio=of_ratio)
    x = [place(threshold) for threshold in thresholds]
    return [[_cursor(place(at), x)] for at in places]


def _cursor(at: float, x: Sequence[float]) -> Part:
    """A line there, or at the end of the curves that lies nearer to it."""
    return vertical_line(x=min(max(at, x[0]), x[-1]), colour=REJECTED, dash="dot", width=2)
