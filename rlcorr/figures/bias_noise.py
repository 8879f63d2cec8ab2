"""All presets between the bias and the noise of their gradients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from rlcorr.figures.axes import decade_axis
from rlcorr.figures.canvas import ACROSS, WARM, Figure, Part, figure, literal, titled
from rlcorr.figures.gradients import USUAL, size_index
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport

SEPARATOR = ", "
NEARLY_0 = 1e-6
"""A logarithmic axis has no 0; this is beyond its end."""


def bias_noise_plane(
    reports: Mapping[str, GradientReport],
    batch_size: int = USUAL,
    *,
    titles: Mapping[str, str] | None = None,
    marked: str = "",
    shown: GradientReport | None = None,
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
    crossed = [] if shown is None else bias_noise_cross(shown, batch_size)
    same_point: dict[tuple[float, float], list[str]] = {}
    for name, (noise, bias) in points.items():
        if name != marked:
            same_point.setdefault((noise.value, bias.value), []).append(name)
    others = {SEPARATOR.join(names): points[names[0]] for names in same_point.values()}
    x, y = (_spread_axis([pair[i].value for pair in points.values()]) for i in (0, 1))
    corner = 10 ** x["range"][0], 10 ** y["range"][0]
    titles = titles or {name: name for name in points}
    traces = [_points("presets", others, titles, ACROSS[0], corner)]
    if marked in points:
        traces.append(_points(literal(titles[marked]), {marked: points[marked]}, titles, WARM, corner))
    x["title_text"], y["title_text"] = "noise", "bias"
    return figure(traces, height=320, x=x, y=y, shapes=crossed, legend=True)


def bias_noise_cross(shown: GradientReport, batch_size: int = USUAL) -> list[Part]:
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
