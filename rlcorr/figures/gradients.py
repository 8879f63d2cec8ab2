"""Figures of gradients: progress over a threshold, and presets by progress or by bias and noise."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import TypeVar

from rlcorr.errors import UsageError
from rlcorr.figures.axes import decade_axis, threshold_scale
from rlcorr.figures.canvas import (
    ACROSS,
    BLANK,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    Part,
    bars_with_errors,
    fade,
    figure,
    line,
    literal,
    row_plot,
    rows_with_errors,
    titled,
    vertical_band,
    vertical_line,
)
from rlcorr.figures.thresholds import cursor
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import BATCH_SIZES, GradientReport, Ranking
from rlcorr.gradients.sweep import GradientSweep, ToySweep

UNIT = "in units of the on-policy gradient"
PROGRESS = "progress η"
USUAL = BATCH_SIZES[0]
SEPARATOR = ", "
NEARLY_0 = 1e-6
"""A logarithmic axis has no 0; this is beyond its end."""

T = TypeVar("T")
Band = tuple[float, float, float]
"""Values at one x position: the line, and the lower and upper edge of its band."""


def progress_curves(sweep: GradientSweep, batch_size: int = USUAL, *, at: float | None = None) -> Figure:
    """Draw η(B) over the threshold with its 95 % band, and η(B) of no correction as a grey line.

    If the data show which threshold is best, it is dashed, and the range that may contain it is shaded. `at` draws a
    cursor. Raises `UsageError` for a batch size that the sweep lacks.
    """
    size = size_index(batch_size, sweep.ranking.reports[0])
    progress = [report.progress[size] for report in sweep.ranking.reports]
    choice = sweep.ranking.choices[size]
    without = progress[choice.best].value - choice.over_nothing.value
    position, axis = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    x = [position(threshold) for threshold in sweep.thresholds]
    level = line("no correction", [x[0], x[-1]], [without] * 2, REJECTED)
    traces = [*banded("progress", x, list(map(astuple, progress)), KEPT), level]
    shapes = _marks(sweep, size, position, at)
    y = {"title_text": PROGRESS, "rangemode": "tozero"}
    return figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def progress_cursors(sweep: GradientSweep, batch_size: int, at: Sequence[float]) -> list[list[Part]]:
    """Return the lines and shaded areas of `progress_curves` for each cursor position; nothing else changes."""
    position, _ = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    size = size_index(batch_size, sweep.ranking.reports[0])
    return [_marks(sweep, size, position, value) for value in at]


def best_thresholds(sweep: GradientSweep, *, batch_size: int) -> Figure:
    """Draw the threshold with the most progress over the batch size, with its range in 95 % of the bootstrap samples.

    `batch_size` is where the cursor is.
    """
    position, axis = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    sizes = sweep.ranking.reports[0].batch_sizes
    ends = [(position(best.value), position(best.low), position(best.high)) for best in sweep.best]
    shapes = [vertical_line(x=batch_size, colour=REJECTED, dash="dot", width=2)]
    ticks = sizes[1::4] if len(sizes) > 4 else sizes  # not at the ends, where a label is cut off
    x = {"title_text": "answers in a batch", "type": "log", "tickvals": ticks, "ticktext": [f"{n:,}" for n in ticks]}
    traces = banded("best threshold", sizes, ends, KEPT)
    return figure(traces, height=300, x=x, y=axis | {"title_text": "best threshold"}, shapes=shapes)


def exact_curves(toy: ToySweep, *, of_ratio: bool, at: float | None = None) -> Figure:
    """Draw exact progress, bias and noise over the threshold, without bands."""
    position, axis = threshold_scale(toy.thresholds, of_ratio=of_ratio)
    x = [position(threshold) for threshold in toy.thresholds]
    lines = (("progress", toy.progress, KEPT), ("bias", toy.bias, ACROSS[1]), ("noise", toy.noise, ACROSS[2]))
    traces = [line(name, x, y, colour) for name, y, colour in lines]
    best = x[max(range(len(x)), key=toy.progress.__getitem__)]
    shapes = [vertical_line(x=best, colour=KEPT, dash="dash", width=2), *cursor(x, position, at)]
    y = {"title_text": "progress η; bias, noise", "rangemode": "tozero"}
    return figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def ranking_bars(
    names: Sequence[str],
    ranking: Ranking,
    batch_size: int = USUAL,
    *,
    titles: Mapping[str, str] | None = None,
    marked: str = "",
    shown: GradientReport | None = None,
) -> Figure:
    """Draw η(B) of every correction with 95 % bars, the best on top.

    Corrections that do not differ significantly from the first of their group share a shade, and every second group has
    a grey background. The bar of `marked` is warm. A warm line with a band shows η(B) of the correction `shown`.
    `titles` label the corrections; by default, their names do.
    """
    size = size_index(batch_size, ranking.reports[0])
    groups = [[names[index] for index in group] for group in ranking.choices[size].groups]
    progress = {name: report.progress[size] for name, report in zip(names, ranking.reports, strict=True)}
    order = [name for group in groups for name in group]
    colours = {name: fade(ACROSS[0], 0.45 if i % 2 else 0.8) for i, group in enumerate(groups) for name in group}
    colours |= {marked: WARM}
    look = {"type": "bar", "orientation": "h", "marker": {"color": [colours[name] for name in order]}}
    bars = rows_with_errors("progress", {name: progress[name] for name in order}, REJECTED, "η %{x:.3f}", **look)
    right = 1.05 * max(interval.high for interval in progress.values()) or 1.0
    x = {"title_text": PROGRESS, "range": [0, right]}  # fixed, so that no shape changes it
    y = {"categoryorder": "array", "categoryarray": order, "autorange": "reversed"}
    y |= {"showgrid": False, "ticks": "outside", "tickcolor": BLANK}
    shapes = _over_the_bars(groups, [] if shown is None else [shown], size)
    return row_plot(bars, titles, x=x, y=y, shapes=shapes, room=60, bargap=0.25)


def ranking_shapes(ranking: Ranking, batch_size: int, shown: Sequence[GradientReport]) -> list[list[Part]]:
    """Return the shapes over the bars of `ranking_bars` for each of these corrections; nothing else changes."""
    size = size_index(batch_size, ranking.reports[0])
    return [_over_the_bars(ranking.choices[size].groups, [one], size) for one in shown]


def parts_of_bias(parts: Mapping[str, Interval]) -> Figure:
    """Draw one bar per part with its 95 % interval."""
    bars = bars_with_errors("parts", parts, ACROSS[0])
    return figure([bars], height=320, x={"type": "category"}, y={"title_text": UNIT, "rangemode": "tozero"})


def banded(name: str, x: Sequence[float], values: Sequence[Band], colour: str, of: str = "95 %") -> list[Part]:
    """Draw a line over its band. The band is one closed outline, so that it stays with its line."""
    around = [*(high for _, _, high in values), *(low for _, low, _ in reversed(values))]
    band = {"type": "scatter", "x": [*x, *reversed(x)], "y": around, "fill": "toself", "fillcolor": fade(colour, 0.18)}
    band |= {"mode": "none", "hoverinfo": "skip", "showlegend": False, "legendgroup": name, "name": f"{name}, {of}"}
    return [band, line(name, list(x), [middle for middle, _, _ in values], colour, legendgroup=name)]


def bias_noise_plane(
    reports: Mapping[str, GradientReport],
    batch_size: int,
    *,
    titles: Mapping[str, str],
    marked: str,
    shown: GradientReport,
) -> Figure:
    """Draw one point per preset: its noise in batches of B answers on x and its bias on y, on logarithmic axes.

    Both are in units of the on-policy gradient. Equal presets share a point. Values below 1/1000 of the largest are at
    the edge. Noise can be averaged away, by a larger batch or over steps; bias cannot. Both also depend on the length
    of the step: a shorter one has less noise, whether or not it learns as much. η shows which one learns more. The
    legend names `marked`, whose point is warm. A warm cross is the correction `shown`; its arms are the intervals.
    Those of the presets are in their hover texts. `titles` stand for the names of the presets in texts.
    """
    points = {
        name: (report.noise[size_index(batch_size, report)], report.relative_bias) for name, report in reports.items()
    }
    same_point: dict[tuple[float, float], list[str]] = {}
    for name, (noise, bias) in points.items():
        if name != marked:
            same_point.setdefault((noise.value, bias.value), []).append(name)
    others = {SEPARATOR.join(names): points[names[0]] for names in same_point.values()}
    x, y = (_spread_axis([pair[i].value for pair in points.values()]) for i in (0, 1))
    corner = 10 ** x["range"][0], 10 ** y["range"][0]
    traces = [_points("presets", others, titles, ACROSS[0], corner)]
    if marked in points:
        traces.append(_points(literal(titles[marked]), {marked: points[marked]}, titles, WARM, corner))
    x["title_text"], y["title_text"] = "noise", "bias"
    return figure(traces, height=320, x=x, y=y, shapes=bias_noise_cross(shown, batch_size), legend=True)


def bias_noise_cross(shown: GradientReport, batch_size: int) -> list[Part]:
    """Return noise and bias of this correction with their intervals, as lines for `bias_noise_plane`."""
    noise, bias = (
        Interval(*(max(end, NEARLY_0) for end in astuple(interval)))
        for interval in (shown.noise[size_index(batch_size, shown)], shown.relative_bias)
    )
    line = {"type": "line", "line": {"color": WARM, "width": 3}}
    return [
        line | {"x0": noise.low, "x1": noise.high, "y0": bias.value, "y1": bias.value},
        line | {"x0": noise.value, "x1": noise.value, "y0": bias.low, "y1": bias.high},
    ]


# --- parts ---


def _marks(sweep: GradientSweep, size: int, position: Callable[[float], float], at: float | None) -> list[Part]:
    """Return the range of the best threshold and the best threshold itself, if the data show them, and the cursor."""
    asked = cursor([position(threshold) for threshold in sweep.thresholds], position, at)
    if not sweep.shows_best(size):
        return asked
    middle, low, high = (position(end) for end in astuple(sweep.best[size]))
    best = vertical_line(x=middle, colour=KEPT, dash="dash", width=2)
    return [vertical_band(low, high, REJECTED, layer="below"), best, *asked]


def size_index(batch_size: int, report: GradientReport) -> int:
    """Return the index of this batch size in the report. Raises `UsageError` if it was not measured."""
    if batch_size not in report.batch_sizes:
        sizes = ", ".join(map(str, report.batch_sizes))
        raise UsageError(
            f"measured for batches of {sizes} answers; got {batch_size}: give batch_sizes= when measuring."
        )
    return report.batch_sizes.index(batch_size)


def _over_the_bars(groups: Sequence[Sequence[T]], shown: Sequence[GradientReport], size: int) -> list[Part]:
    """Return the backgrounds of every second group, and the bands and lines of the corrections `shown`."""
    ends = list(itertools.accumulate(map(len, groups)))
    across = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "line": {"width": 0}, "layer": "below"}
    across["fillcolor"] = fade(REJECTED, 0.15)
    rows = [{"y0": end - len(group) - 0.5, "y1": end - 0.5} for group, end in zip(groups, ends, strict=True)]
    backgrounds = [across | row for row in rows[1::2]]
    for one in shown:
        progress = one.progress[size]
        backgrounds.append(vertical_band(progress.low, progress.high, WARM))
        backgrounds.append(vertical_line(x=progress.value, colour=WARM, dash="solid", width=2))
    return backgrounds


def _spread_axis(values: Sequence[float]) -> Part:
    """Return a logarithmic axis for the values that are numbers, without those below 1/1000 of the largest."""
    numbers = [value for value in values if not math.isnan(value)]
    top = max(numbers, default=1.0) or 1.0
    low = max(min(numbers, default=1.0), top / 1000)
    return decade_axis(low, top)


def _points(
    name: str,
    points: Mapping[str, tuple[Interval, Interval]],
    titles: Mapping[str, str],
    colour: str,
    corner: tuple[float, float],
) -> Part:
    """Draw a point per pair of noise and bias, with both intervals in its hover text; none is beyond the corner.

    All points are one trace, because one trace per preset takes four times as long to draw.
    """
    noise, bias = ([max(pair[i].value, corner[i]) for pair in points.values()] for i in (0, 1))
    return {
        "type": "scatter", "name": name, "x": noise, "y": bias, "text": list(points), "mode": "markers",
        "marker": {"color": colour, "size": 8},
        "customdata": [[end for interval in pair for end in astuple(interval)] for pair in points.values()],
        "hovertext": [_hover_text(names.split(SEPARATOR), titles) for names in points],
        "hovertemplate": "%{hovertext}<br>noise %{customdata[0]:.2g} (%{customdata[1]:.2g} to %{customdata[2]:.2g}), "
        "bias %{customdata[3]:.2g} (%{customdata[4]:.2g} to %{customdata[5]:.2g})<extra></extra>",
    }  # fmt: skip


def _hover_text(names: Sequence[str], titles: Mapping[str, str]) -> str:
    """Return one line per title, with the names of the presets that have it."""
    by_title: dict[str, list[str]] = {}
    for name in names:
        by_title.setdefault(titles[name], []).append(name)
    return "<br>".join(titled(title, SEPARATOR.join(same)) for title, same in by_title.items())
