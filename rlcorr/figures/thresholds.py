"""Metrics of a correction as curves over one of its thresholds, with a cursor."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlcorr.analysis.bound_curve import BoundCurve
from rlcorr.figures.axes import power_axis, threshold_scale
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, WARM, Figure, Part, figure, line, vertical_line

SHARES = {
    "kept tokens": ("kept_fraction", KEPT),
    "effective sample size": ("trained_eff_sample_size", ACROSS[2]),
    "weights clipped": ("rollout_is_oob_ratio", WARM),
}
"""Name on the page → metric, colour."""


def shares_over(
    thresholds: Sequence[float], numbers: Mapping[str, Tensor], *, of_ratio: bool, at: float | None = None
) -> Figure:
    """Draw shares of the whole correction, (K,) by metric (`BoundCurve.numbers`), between 0 and 1.

    Shares that do not move with the bound are left out, except the effective sample size. `at` draws a cursor.
    """
    lines = {name: numbers[metric] for name, (metric, _) in SHARES.items() if metric in numbers}
    moving = {name: x for name, x in lines.items() if name == "effective sample size" or bool((x != x[0]).any())}
    y = {"range": [-0.02, 1.02], "tickformat": ".0%"}
    return _over(moving, {name: SHARES[name][1] for name in moving}, thresholds, of_ratio, at, y)


def mismatch_over(curve: BoundCurve, *, of_weights: bool, of_ratio: bool, at: float | None = None) -> Figure:
    """Draw what the correction leaves. Rule: k3 of the kept tokens and χ² of their ratios. Weights: χ², which is noise,
    and how far the mean weight is below 1, which is bias. A logarithmic axis leaves out values ≤ 0."""
    if of_weights:
        lines = {"bias: 1 − mean weight": 1 - curve.mean_weight, "noise: χ² of the weights": curve.kept_chi2}
    else:
        lines = {"k3 of the kept tokens": curve.kept_k3, "χ² of the kept ratios": curve.kept_chi2}
    values = torch.cat(list(lines.values()))
    drawn = values[values.isfinite() & (values > 1e-12)]
    y = power_axis(float(drawn.min()), float(drawn.max())) if len(drawn) else power_axis(1e-6, 1)
    return _over(lines, dict(zip(lines, (ACROSS[0], ACROSS[6]), strict=True)), curve.thresholds, of_ratio, at, y)


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
        if not np.isfinite(drawn).any():  # a legend lists only what is drawn
            continue
        traces.append(line(name, np.array(x, np.float32), drawn, colours[name]))
    return figure(traces, height=240, x=axis, y=y, shapes=cursor(x, place, at), legend=True)


def cursors(thresholds: Sequence[float], places: Sequence[float], *, of_ratio: bool) -> list[list[Part]]:
    """Return the shapes of the cursor of `shares_over` and `mismatch_over` at each of these bounds."""
    place, _ = threshold_scale(thresholds, of_ratio=of_ratio)
    x = [place(threshold) for threshold in thresholds]
    return [cursor(x, place, at) for at in places]


def cursor(x: Sequence[float], position: Callable[[float], float], at: float | None) -> list[Part]:
    """Return a line at the threshold, or at the nearer end of the curves; nothing without a threshold."""
    if at is None:
        return []
    return [vertical_line(x=min(max(position(at), x[0]), x[-1]), colour=REJECTED, dash="dot", width=2)]
