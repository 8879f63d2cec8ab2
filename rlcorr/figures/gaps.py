"""Measured gaps between engines and trainers as a strip, with the size of another gap as a line through it."""

import html
import math
from typing import Any

from rlcorr.analysis.published import FORMATS, SYMBOLS, Gap, Range, Sized, described, measured
from rlcorr.figures.axes import power_axis
from rlcorr.figures.canvas import KEPT, REJECTED, Figure, Part, fade, figure, vertical_line

LANES = ("16 bits or more", "fewer bits", "other causes")
"""From the top: rounding to these formats, and old weights, hidden updates, bugs and what was not separated."""
_EXACT = ("float32", "float16", "bfloat16")
SMALLEST, BEYOND = 1e-7, "← sums in float32"
"""The left end of the axis, unless the size is smaller, and what is said of the gaps beyond it."""
_SIZES = ((1.0, 7), (10.0, 9), (math.inf, 12))
"""Billions of weights up to which a point has this size. A model of unknown size has the middle one."""


def gap_strip(size: float) -> Figure:
    """Draw the measured gaps on one axis, in a lane per kind, with the nearest ones named; a k3 of `size` is a line.

    A line joins the ends of a measured range. A size of 0 has no place on the logarithmic axis, and is not drawn.
    """
    gaps = measured("k3")
    low, high = min(SMALLEST, size / 3) if size > 0 else SMALLEST, max(size, *(end for _, (_, end) in gaps))
    x = power_axis(low, high) | {"title_text": SYMBOLS["k3"]}
    y = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": LANES[::-1],
        "range": [-0.7, 2.8],
        "automargin": True,
    }
    yours = vertical_line(x=size, colour=KEPT, dash="solid", width=3, label="<b>yours</b>", side="left")
    yours["label"] |= {"textposition": "start", "yanchor": "bottom"}  # the names of neighbours are at the upper end
    beyond = _note(LANES[0], BEYOND, x=0, xref="paper", xanchor="left", yanchor="top")
    names = [] if size == 0 else _neighbours(gaps, size)
    shapes = [yours] * (size > 0)
    return figure([_ranges(gaps), _points(gaps)], height=210, x=x, y=y, shapes=shapes, notes=[beyond, *names])


def _ranges(gaps: tuple[Sized, ...]) -> Part:
    """Draw a line from the smallest to the largest size of each measured gap."""
    x = [end for _, (low, high) in gaps for end in (low, high, None)]
    y = [_lane(gap) for gap, _ in gaps for _ in range(3)]
    look = {"mode": "lines", "line": {"color": fade(REJECTED, 0.5), "width": 3}, "hoverinfo": "skip"}
    return {"type": "scatter", "x": x, "y": y, **look}


def _points(gaps: tuple[Sized, ...]) -> Part:
    """Draw each gap in the middle of its range: filled if it is published, open if this project measured it.

    The text of a point ends with its source.
    """
    marker = {
        "color": REJECTED, "symbol": ["circle-open" if gap.ours else "circle" for gap, _ in gaps],
        "size": [_marker_size(gap.billions) for gap, _ in gaps],
    }  # fmt: skip
    return {
        "type": "scatter", "mode": "markers", "name": "measured gaps", "marker": marker,
        "x": [_middle(size) for _, size in gaps], "y": [_lane(gap) for gap, _ in gaps],
        "text": [html.escape(described(gap, size)) for gap, size in gaps],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _neighbours(gaps: tuple[Sized, ...], size: float) -> list[Part]:
    """Name the nearest gap on each side of this size."""
    middles = sorted(((_middle(of_gap), gap) for gap, of_gap in gaps), key=lambda pair: pair[0])
    below, above = ([pair for pair in middles if (pair[0] <= size) == is_below] for is_below in (True, False))
    sides = [("right", pair) for pair in below[-1:]] + [("left", pair) for pair in above[:1]]
    return [
        _note(_lane(gap), f"{gap.model}, {FORMATS[gap.format]}", x=math.log10(x), xanchor=side, yshift=6)
        for side, (x, gap) in sides
    ]


def _note(lane: str, text: str, **place: Any) -> Part:
    return {"yref": "y", "y": lane, "yanchor": "bottom", "text": html.escape(text)} | place


def _middle(size: Range) -> float:
    return math.sqrt(size[0] * size[1])


def _marker_size(billions: float | None) -> int:
    return next(size for most, size in _SIZES if (5.0 if billions is None else billions) <= most)


def _lane(gap: Gap) -> str:
    if gap.cause not in ("rounding", "routing"):
        return LANES[2]
    return LANES[0] if gap.format in _EXACT else LANES[1]
