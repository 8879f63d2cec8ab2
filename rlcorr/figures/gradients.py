"""Figures of gradients: progress over a threshold, and corrections by progress."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple

from rlcorr.errors import UsageError
from rlcorr.figures import canvas
from rlcorr.figures.axes import threshold_scale
from rlcorr.figures.canvas import ACROSS, BLANK, KEPT, LETTER, RED, REJECTED, WARM, Figure, Part
from rlcorr.figures.thresholds import cursor
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import BATCH_SIZES, GradientReport
from rlcorr.gradients.sweep import GradientSweep, ToySweep

PROGRESS = "progress η"
USUAL = BATCH_SIZES[0]

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
    level = canvas.line("no correction", [x[0], x[-1]], [without] * 2, REJECTED)
    traces = [*banded("progress", x, list(map(astuple, progress)), KEPT), level]
    shapes = _marks(sweep, size, position, at)
    y = {"title_text": PROGRESS, "rangemode": "tozero"}
    return canvas.figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def progress_cursors(sweep: GradientSweep, batch_size: int, at: Sequence[float]) -> list[list[Part]]:
    """Return the lines and shaded areas of `progress_curves` for each cursor position; nothing else changes."""
    position, _ = threshold_scale(sweep.thresholds, of_ratio=sweep.of_ratio)
    size = size_index(batch_size, sweep.ranking.reports[0])
    return [_marks(sweep, size, position, value) for value in at]


def exact_curves(toy: ToySweep, *, of_ratio: bool) -> Figure:
    """Draw exact progress, bias and noise over the threshold, without bands."""
    position, axis = threshold_scale(toy.thresholds, of_ratio=of_ratio)
    x = [position(threshold) for threshold in toy.thresholds]
    lines = (("progress", toy.progress, KEPT), ("bias", toy.bias, ACROSS[1]), ("noise", toy.noise, ACROSS[2]))
    traces = [canvas.line(name, x, y, colour) for name, y, colour in lines]
    best = x[max(range(len(x)), key=toy.progress.__getitem__)]
    shapes = [canvas.vertical_line(x=best, colour=KEPT, dash="dash", width=2)]
    y = {"title_text": "progress η; bias, noise", "rangemode": "tozero"}
    return canvas.figure(traces, height=300, x=axis, y=y, shapes=shapes, legend=True)


def ranking_bars(
    progress: Mapping[str, Interval],
    titles: Mapping[str, str],
    *,
    marked: str = "",
    trained: Mapping[str, str] | None = None,
    against: Collection[str] = (),
    shown: Interval | None = None,
) -> Figure:
    """Draw η of every correction with its 95 % interval, in this order, from top to bottom.

    The bar of `marked` is warm. A warm line with a band shows η of the correction `shown`. `trained` says how training
    runs with a correction ended, at the right of its bar. The corrections of `against` are red: training ended below no
    correction, although their step is better.
    """
    colours = {name: RED if name in against else canvas.fade(ACROSS[0], 0.7) for name in progress} | {marked: WARM}
    look = {"type": "bar", "orientation": "h", "marker": {"color": [colours[name] for name in progress]}}
    bars = canvas.rows_with_errors("progress", progress, REJECTED, "η %{x:.3f}", **look)
    right = 1.05 * max(interval.high for interval in progress.values()) or 1.0
    x = {"title_text": PROGRESS, "range": [0, right]}  # fixed, so that no shape changes it
    y = {"categoryorder": "array", "categoryarray": list(progress), "autorange": "reversed"}
    y |= {"showgrid": False, "ticks": "outside", "tickcolor": BLANK}
    shapes = [] if shown is None else shown_line(shown)
    made = canvas.row_plot(bars, titles, x=x, y=y, shapes=shapes, room=60, bargap=0.25)
    if not trained:
        return made
    at_right = {"xref": "paper", "x": 1, "xanchor": "left", "showarrow": False, "xshift": 4}
    notes = [at_right | {"y": name, "text": text} for name, text in trained.items()]
    for note in notes:
        if note["y"] in against:
            note["font"] = {"color": RED}
    notes.append(at_right | {"yref": "paper", "y": 1, "yanchor": "bottom", "text": "in training"})
    room = 14 + LETTER * max(map(len, ("in training", *trained.values())))
    return made.update_layout({"annotations": notes, "margin.r": room, "height": 56 + 22 * len(progress)})


def shown_line(progress: Interval) -> list[Part]:
    """Return the line and the band of `ranking_bars`."""
    band = canvas.vertical_band(progress.low, progress.high, WARM)
    return [band, canvas.vertical_line(x=progress.value, colour=WARM, dash="solid", width=2)]


def banded(name: str, x: Sequence[float], values: Sequence[Band], colour: str, of: str = "95 %") -> list[Part]:
    """Draw a line over its band."""
    middle, low, high = ([value[part] for value in values] for part in range(3))
    area = canvas.band(f"{name}, {of}", x, low, high, colour, legendgroup=name, showlegend=False)
    return [area, canvas.line(name, list(x), middle, colour, legendgroup=name)]


# --- parts ---


def _marks(sweep: GradientSweep, size: int, position: Callable[[float], float], at: float | None) -> list[Part]:
    """Return the range of the best threshold and the best threshold itself, if the data show them, and the cursor."""
    asked = cursor([position(threshold) for threshold in sweep.thresholds], position, at)
    if not sweep.shows_best(size):
        return asked
    middle, low, high = (position(end) for end in astuple(sweep.best[size]))
    best = canvas.vertical_line(x=middle, colour=KEPT, dash="dash", width=2)
    return [canvas.vertical_band(low, high, REJECTED, layer="below"), best, *asked]


def size_index(batch_size: int, report: GradientReport) -> int:
    """Return the index of this batch size in the report. Raises `UsageError` if it was not measured."""
    if batch_size not in report.batch_sizes:
        sizes = ", ".join(map(str, report.batch_sizes))
        raise UsageError(
            f"measured for batches of {sizes} answers; got {batch_size}: give batch_sizes= when measuring."
        )
    return report.batch_sizes.index(batch_size)
