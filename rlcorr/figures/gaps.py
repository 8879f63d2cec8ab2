"""Measured gaps between engines and trainers as a strip plot, with the size of another gap as a line through it."""

import html
import math

from rlcorr.analysis.published import SYMBOLS, Cause, Gap, Measure, Range, described, rows
from rlcorr.figures.axes import power_axis
from rlcorr.figures.canvas import COOL, KEPT, REJECTED, WARM, Figure, Part, figure, vertical_line

KINDS: dict[str, tuple[str, str]] = {
    "rounding, published": (COOL, "circle"),
    "rounding, rlcorr": (COOL, "circle-open"),
    "other causes": (WARM, "diamond"),
    "cause not separated": (REJECTED, "square"),
}
"""Legend → colour and symbol of the points."""
_SIZES = ((1.0, 7), (10.0, 9), (math.inf, 12))
"""Billions of weights up to which a point has this size. A model of unknown size has the middle one."""
_ROUNDING: tuple[Cause, ...] = ("rounding", "routing")


def gap_strip(size: float, measure: Measure = "k3") -> Figure:
    """Draw one row per number format or cause. A line joins the ends of a measured range; `size` is a vertical line.

    A size of 0 has no place on the logarithmic axis, and is not drawn.
    """
    kinds = rows(measure)
    points = [(row.name, gap, near) for row in kinds for gap, near in row.gaps]
    traces = [_ranges(points), *(_points(kind, points) for kind in KINDS)]
    ends = [end for row in kinds for end in (row.low, row.high)] + ([size] if size > 0 else [])
    x = power_axis(min(ends), max(ends)) | {"title_text": SYMBOLS[measure]}
    y = {"type": "category", "categoryarray": [row.name for row in reversed(kinds)], "automargin": True}
    side = "left" if size < math.sqrt(min(ends) * max(ends)) else "right"
    yours = vertical_line(x=size, colour=KEPT, dash="solid", width=2, label="yours", side=side)
    shapes = [yours] if size > 0 else []
    return figure(
        traces, height=24 * len(kinds) + 110, x=x, y=y | {"categoryorder": "array"}, shapes=shapes, legend=True
    )


def _ranges(points: list[tuple[str, Gap, Range]]) -> Part:
    """Draw a line from the smallest to the largest size of each measured gap."""
    x = [end for _, _, (low, high) in points for end in (low, high, None)]
    y = [name for name, _, _ in points for _ in range(3)]
    look = {"mode": "lines", "line": {"color": REJECTED, "width": 1}, "hoverinfo": "skip", "showlegend": False}
    return {"type": "scatter", "x": x, "y": y, **look}


def _points(kind: str, points: list[tuple[str, Gap, Range]]) -> Part:
    """Draw the gaps of a kind in the middle of their ranges. The text of a point ends with its source."""
    some = [(name, gap, near) for name, gap, near in points if _kind(gap) == kind]
    colour, symbol = KINDS[kind]
    return {
        "type": "scatter", "mode": "markers", "name": kind,
        "x": [math.sqrt(low * high) for _, _, (low, high) in some], "y": [name for name, _, _ in some],
        "text": [html.escape(described(gap, near)) for _, gap, near in some],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": [_marker_size(gap.billions) for _, gap, _ in some]},
    }  # fmt: skip


def _marker_size(billions: float | None) -> int:
    return next(size for most, size in _SIZES if (5.0 if billions is None else billions) <= most)


def _kind(gap: Gap) -> str:
    if gap.cause == "unknown":
        return "cause not separated"
    if gap.cause not in _ROUNDING:
        return "other causes"
    return "rounding, rlcorr" if gap.ours else "rounding, published"
