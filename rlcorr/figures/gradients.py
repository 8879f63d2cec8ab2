"""Figures of gradients: progress over a threshold, presets ranked, and KL losses."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import TypeVar

from rlcorr.errors import UsageError
from rlcorr.figures.axes import threshold_scale
from rlcorr.figures.canvas import (
    ACROSS,
    BLANK,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    Part,
    bars_with_errors,
    error_bars,
    fade,
    figure,
    row_labels,
    titled_rows,
    vertical_line,
)
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import KLGradientReport
from rlcorr.gradients.report import BATCH_SIZES, GradientReport, Ranking
from rlcorr.gradients.sweep import GradientSweep, ToySweep

UNIT = "in units of the on-policy gradient"
PROGRESS = "progress η"
USUAL = BATCH_SIZES[0]
ROW, LETTER = 17, 6.4
"""Pixels: height of a row of the ranking, and width of a letter of a name."""

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
    level = {"type": "scatter", "mode": "lines", "name": "no correction", "x": [x[0], x[-1]], "y": [without] * 2}
    level |= {"line": {"color": REJECTED, "width": 2}}
    traces = [*banded("progress", x, list(map(astuple, progress)), KEPT), level]
    shapes = _marks(sweep, size, position, at)
    y = {"title_text": PROGRESS, "rangemode": "tozero"}
    return figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def progress_cursors(sweep: GradientSweep, batch_size: int, at: Sequence[float]) -> list[list[Part]]:
    """Return the lines and shaded areas of `progress_curves` for each cursor position; nothing else changes."""
    position, _ = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    size = size_index(batch_size, sweep.ranking.reports[0])
    return [_marks(sweep, size, position, value) for value in at]


def best_thresholds(sweep: GradientSweep, *, batch_size: int | None = None) -> Figure:
    """Draw the threshold with the most progress over the batch size, with its range in 95 % of the bootstrap samples.

    `batch_size` draws a cursor.
    """
    position, axis = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    sizes = sweep.ranking.reports[0].batch_sizes
    ends = [(position(best.value), position(best.low), position(best.high)) for best in sweep.best]
    shapes = [] if batch_size is None else [vertical_line(x=batch_size, colour=REJECTED, dash="dot", width=2)]
    ticks = sizes[1::4] if len(sizes) > 4 else sizes  # not at the ends, where a label is cut off
    x = {"title_text": "answers in a batch", "type": "log", "tickvals": ticks, "ticktext": [f"{n:,}" for n in ticks]}
    traces = banded("best threshold", sizes, ends, KEPT)
    return figure(traces, height=300, x=x, y=axis | {"title_text": "best threshold"}, shapes=shapes)


def exact_curves(toy: ToySweep, *, of_ratio: bool, at: float | None = None) -> Figure:
    """Draw exact progress, bias and noise over the threshold, without bands."""
    position, axis = threshold_scale(toy.thresholds, of_ratio=of_ratio)
    x = [position(threshold) for threshold in toy.thresholds]
    lines = (("progress", toy.progress, KEPT), ("bias", toy.bias, ACROSS[1]), ("noise", toy.noise, ACROSS[2]))
    look = {"type": "scatter", "mode": "lines", "x": x}
    traces = [look | {"name": name, "y": y, "line": {"color": colour, "width": 2}} for name, y, colour in lines]
    best = x[max(range(len(x)), key=toy.progress.__getitem__)]
    shapes = [vertical_line(x=best, colour=KEPT, dash="dash", width=2), *_cursor(x, position, at)]
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
    bars = _horizontal_bars({name: progress[name] for name in order}, [colours[name] for name in order])
    right = 1.05 * max(interval.high for interval in progress.values()) or 1.0
    shapes = _over_the_bars(groups, [] if shown is None else [shown], size)
    return _ranked(titled_rows(bars, titles), titles, right, shapes)


def ranking_shapes(ranking: Ranking, batch_size: int, shown: Sequence[GradientReport]) -> list[list[Part]]:
    """Return the shapes over the bars of `ranking_bars` for each of these corrections; nothing else changes."""
    size = size_index(batch_size, ranking.reports[0])
    return [_over_the_bars(ranking.choices[size].groups, [one], size) for one in shown]


def parts_of_bias(parts: Mapping[str, Interval]) -> Figure:
    """Draw one bar per part with its 95 % interval."""
    bars = bars_with_errors("parts", parts, ACROSS[0])
    return figure([bars], height=320, x={"type": "category"}, y={"title_text": UNIT, "rangemode": "tozero"})


def kl_directions(reports: Mapping[str, KLGradientReport]) -> Figure:
    """Draw the cosine of the expected gradient of each KL loss with the gradients of both KLs, with 95 % bars.

    Above the bars is the length of the gradient, divided by that of the true one. A direction without a length means
    nothing.
    """
    forward = {name: report.cosine for name, report in reports.items()}
    reverse = {name: report.reverse_cosine for name, report in reports.items()}
    traces = [
        bars_with_errors("with ∇KL(π_θ‖target)", forward, KEPT),
        bars_with_errors("with ∇KL(target‖π_θ)", reverse, ACROSS[6]),
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
    """Draw a line over its band. The band is one closed outline, so that it stays with its line."""
    around = [*(high for _, _, high in values), *(low for _, low, _ in reversed(values))]
    band = {"type": "scatter", "x": [*x, *reversed(x)], "y": around, "fill": "toself", "fillcolor": fade(colour, 0.18)}
    band |= {"mode": "none", "hoverinfo": "skip", "showlegend": False, "legendgroup": name, "name": f"{name}, {of}"}
    line = {"type": "scatter", "x": list(x), "y": [middle for middle, _, _ in values], "mode": "lines", "name": name}
    return [band, line | {"line": {"color": colour, "width": 2}, "legendgroup": name}]


# --- parts ---


def _marks(sweep: GradientSweep, size: int, position: Callable[[float], float], at: float | None) -> list[Part]:
    """Return the range of the best threshold and the best threshold itself, if the data show them, and the cursor."""
    cursor = _cursor([position(threshold) for threshold in sweep.thresholds], position, at)
    if not sweep.shows_best(size):
        return cursor
    middle, low, high = (position(end) for end in astuple(sweep.best[size]))
    shaded = {"type": "rect", "x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1}
    shaded |= {"fillcolor": fade(REJECTED, 0.15), "line": {"width": 0}, "layer": "below"}
    return [shaded, vertical_line(x=middle, colour=KEPT, dash="dash", width=2), *cursor]


def _cursor(x: Sequence[float], position: Callable[[float], float], at: float | None) -> list[Part]:
    """Draw a line at the threshold, or at the nearer end of the axis."""
    if at is None:
        return []
    return [vertical_line(x=min(max(position(at), x[0]), x[-1]), colour=REJECTED, dash="dot", width=2)]


def size_index(batch_size: int, report: GradientReport) -> int:
    """Return the index of this batch size in the report. Raises `UsageError` if it was not measured."""
    if batch_size not in report.batch_sizes:
        sizes = ", ".join(map(str, report.batch_sizes))
        raise UsageError(
            f"measured for batches of {sizes} answers; got {batch_size}: give batch_sizes= when measuring."
        )
    return report.batch_sizes.index(batch_size)


def _ranked(bars: Part, titles: Mapping[str, str] | None, right: float, shapes: Sequence[Part]) -> Figure:
    """Draw bars in their order from the top, with all their names or titles, on an axis up to `right`."""
    order = bars["y"]
    y = {"type": "category", "categoryorder": "array", "categoryarray": order, "autorange": "reversed"}
    y |= {"tickfont": {"size": 11}, "dtick": 1, "showgrid": False, "ticks": "outside", "tickcolor": BLANK}
    x = {"title_text": PROGRESS, "range": [0, right], "side": "top"}  # fixed, so that no shape changes it
    made = figure([bars], height=ROW * len(order) + 60, x=x, y=row_labels(y, order, titles), shapes=shapes)
    room = 20 + LETTER * max(len(name) for name in order)
    return made.update_layout({"margin.l": room, "margin.t": 44, "margin.b": 8, "bargap": 0.25})


def _horizontal_bars(values: Mapping[str, Interval], colours: Sequence[str]) -> Part:
    return {
        "type": "bar", "orientation": "h", "name": "progress", "y": list(values),
        "x": [interval.value for interval in values.values()], "marker": {"color": list(colours)},
        "error_x": error_bars(list(values.values()), REJECTED),
        "hovertemplate": "%{y}: η %{x:.3f}<extra></extra>",
    }  # fmt: skip


def _over_the_bars(groups: Sequence[Sequence[T]], shown: Sequence[GradientReport], size: int) -> list[Part]:
    """Return the backgrounds of every second group, and the bands and lines of the corrections `shown`."""
    ends = list(itertools.accumulate(map(len, groups)))
    backgrounds = [_background(end - len(group), end - 1) for group, end in zip(groups, ends, strict=True)][1::2]
    for one in shown:
        progress = one.progress[size]
        band = {"type": "rect", "x0": progress.low, "x1": progress.high, "yref": "paper", "y0": 0, "y1": 1}
        backgrounds.append(band | {"fillcolor": fade(WARM, 0.15), "line": {"width": 0}})
        backgrounds.append(vertical_line(x=progress.value, colour=WARM, dash="solid", width=2))
    return backgrounds


def _background(first: int, last: int) -> Part:
    """Return a grey background for the rows from `first` to `last`, over the whole width."""
    across = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": first - 0.5, "y1": last + 0.5}
    return across | {"fillcolor": fade(REJECTED, 0.15), "line": {"width": 0}, "layer": "below"}
