"""Figures of gradients: error over a threshold, presets between bias and noise, KL losses, the study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from rlcorr.figures.axes import threshold_scale
from rlcorr.figures.canvas import (
    ACROSS,
    COOL,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    Part,
    bars_with_errors,
    error_bars,
    fade,
    figure,
    vertical_line,
)
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import KLGradientReport
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sweep import GradientSweep, ToySweep

UNIT = "in units of the on-policy gradient"

Band = tuple[float, float, float]
"""What is drawn at one place: the line, and the lower and upper edge of its band."""


def threshold_curves(sweep: GradientSweep, *, at: float | None = None) -> Figure:
    """Bias, noise and whole error over the threshold, with 95 % bands; the thresholds that may be the best are shaded,
    `at` draws a cursor."""
    place, axis = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    reports, x = sweep.ranking.reports, [place(threshold) for threshold in sweep.thresholds]
    lines = {
        "bias": (WARM, [report.relative_bias for report in reports]),
        "noise": (COOL, [report.noise for report in reports]),
        "error": (KEPT, [report.error for report in reports]),
    }
    traces = [
        part for name, (colour, values) in lines.items() for part in banded(name, x, list(map(astuple, values)), colour)
    ]
    best = [place(end) for end in (sweep.best.value, sweep.best.low, sweep.best.high)]
    chosen = {"type": "rect", "x0": best[1], "x1": best[2], "yref": "paper", "y0": 0, "y1": 1}
    chosen |= {"fillcolor": fade(REJECTED, 0.15), "line": {"width": 0}, "layer": "below"}
    shapes = [chosen, vertical_line(x=best[0], colour=KEPT, dash="dash", width=2), _nothing(), *_cursor(x, place, at)]
    y = {"title_text": UNIT, "rangemode": "tozero"}
    return figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def exact_curves(toy: ToySweep, *, of_ratio: bool, at: float | None = None) -> Figure:
    """The same three lines where they are exact and need no band."""
    place, axis = threshold_scale(toy.thresholds, of_ratio=of_ratio)
    x = [place(threshold) for threshold in toy.thresholds]
    lines = (("bias", toy.bias, WARM), ("noise", toy.noise, COOL), ("error", toy.error, KEPT))
    look = {"type": "scatter", "mode": "lines", "x": x}
    traces = [look | {"name": name, "y": y, "line": {"color": colour, "width": 2}} for name, y, colour in lines]
    best = x[min(range(len(x)), key=toy.error.__getitem__)]
    shapes = [vertical_line(x=best, colour=KEPT, dash="dash", width=2), _nothing(), *_cursor(x, place, at)]
    y = {"title_text": UNIT, "rangemode": "tozero"}
    return figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def _cursor(x: Sequence[float], place: Callable[[float], float], at: float | None) -> list[Part]:
    """A line at the threshold, or at the end of the axis that lies nearer to it."""
    if at is None:
        return []
    return [vertical_line(x=min(max(place(at), x[0]), x[-1]), colour=REJECTED, dash="dot", width=2)]


def bias_noise_plane(reports: Mapping[str, GradientReport], *, marked: str = "") -> Figure:
    """One point per preset, noise to the right, bias upwards, with 95 % bars; the error is the distance from the
    corner. A gradient that is always 0 lies on the dashed arc of error 1. A shorter step has less noise and so lies
    nearer to the corner, whether or not it learns as much."""
    points = {name: (report.noise, report.relative_bias) for name, report in reports.items()}
    others = {name: ends for name, ends in points.items() if name != marked}
    top = max(1.2, max((max(across.value, up.value) for across, up in points.values()), default=1.0) * 1.15)
    traces = [_crosses("presets", others, ACROSS[0])]
    if marked in points:
        inwards = "top right" if points[marked][0].value < top / 2 else "top left"
        traces.append(_crosses(marked, {marked: points[marked]}, WARM, name_at=inwards))
    arc = {"type": "circle", "x0": -1, "x1": 1, "y0": -1, "y1": 1, "line": {"color": REJECTED, "dash": "dash"}}
    x = {"title_text": f"noise, {UNIT}", "range": [0, top]}
    y = {"title_text": f"bias, {UNIT}", "range": [0, top]}
    return figure(traces, height=380, x=x, y=y, shapes=[arc])


def parts_of_error(parts: Mapping[str, Interval]) -> Figure:
    """One bar per part with its 95 % interval."""
    bars = bars_with_errors("parts", parts, ACROSS[0])
    return figure([bars], height=380, x={"type": "category"}, y={"title_text": UNIT, "rangemode": "tozero"})


def kl_directions(reports: Mapping[str, KLGradientReport]) -> Figure:
    """Of each estimator as a loss: the cosine of its expected gradient with those of both KLs, with 95 % bars, and
    above them its length over that of the first: a direction without a length means nothing."""
    forward = {name: report.cosine for name, report in reports.items()}
    reverse = {name: report.reverse_cosine for name, report in reports.items()}
    traces = [
        bars_with_errors("with ∇KL(π_θ‖target)", forward, KEPT),
        bars_with_errors("with ∇KL(target‖π_θ)", reverse, WARM),
    ]
    lengths = [{"x": name, "text": f"×{report.length.value:.2g}", "y": 1} for name, report in reports.items()]
    made = figure(
        traces,
        height=300,
        x={"type": "category"},
        y={"title_text": "cosine", "range": [-1.05, 1.3]},
        notes=lengths,
        legend=True,
    )
    return made.update_layout(barmode="group", bargap=0.3)


def banded(name: str, x: Sequence[float], values: Sequence[Band], colour: str, of: str = "95 %") -> list[Part]:
    """A line over its band: one closed outline, so that it cannot come apart from its line."""
    around = [*(high for _, _, high in values), *(low for _, low, _ in reversed(values))]
    band = {"type": "scatter", "x": [*x, *reversed(x)], "y": around, "fill": "toself", "fillcolor": fade(colour, 0.18)}
    band |= {"mode": "none", "hoverinfo": "skip", "showlegend": False, "legendgroup": name, "name": f"{name}, {of}"}
    line = {"type": "scatter", "x": list(x), "y": [middle for middle, _, _ in values], "mode": "lines", "name": name}
    return [band, line | {"line": {"color": colour, "width": 2}, "legendgroup": name}]


# --- parts ---


def _crosses(name: str, points: Mapping[str, tuple[Interval, Interval]], colour: str, *, name_at: str = "") -> Part:
    """Points with bars to both sides and their names beside them (`name_at`), or under the mouse alone. All are one
    trace: as many traces as presets take four times as long to draw."""
    across, up = ([pair[i] for pair in points.values()] for i in (0, 1))
    return {
        "type": "scatter", "name": name, "x": [end.value for end in across], "y": [end.value for end in up],
        "mode": "markers+text" if name_at else "markers", "text": list(points), "textposition": name_at or "top right",
        "marker": {"color": colour, "size": 8},
        "error_x": error_bars(across, fade(colour, 0.35)), "error_y": error_bars(up, fade(colour, 0.35)),
        "hovertemplate": "%{text}: noise %{x:.2f}, bias %{y:.2f}<extra></extra>",
    }  # fmt: skip


def _nothing() -> Part:
    """The error of a gradient that is always 0."""
    line = {"color": REJECTED, "dash": "dash", "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": line}
