"""What all figures are made of: the colours, the page they lie on, a line across it. The only import of plotly.

Colours mean one thing everywhere: ratio > 1 warm, ratio < 1 cool, kept green, rejected grey, padding blank. Fills are
translucent, so that every figure works on a light and on a dark page. A figure is built from plain dicts in one call:
plotly's update_* and add_* methods cost more than the arithmetic behind the picture.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from rlcorr.gradients.bootstrap import Interval

WARM, COOL, KEPT, REJECTED = "#d9692a", "#2f7fc1", "#3f9c7d", "#8b8f97"
BLANK = "rgba(0,0,0,0)"
ACROSS = ("#5f7a94", "#9a6cb4", "#b0803a", "#4f9a94", "#c0607a", "#7a8f3a", "#6a6ad0", "#a0522d", "#708090", "#2e8b57")
"""Colours of presets, which stand for neither side of ratio 1."""

_RANKS = 120  # points of a tail

Part = dict[str, Any]
Parts = Sequence[Part]


def figure(
    traces: Parts, *, height: int, x: Part, y: Part, shapes: Parts = (), notes: Parts = (), legend: bool = False
) -> Figure:
    """The one way a figure is built: traces, axes, marks and notes on a page without a background.

    Where the labels of an axis are not its coordinates, `read` says how to get the one from the other: exp, exp of −,
    10^ or −. A table of the figure holds what the labels say.
    """
    read = {name: given["read"] for name, given in (("x", x), ("y", y)) if given.get("read")}
    note = {"yref": "paper", "yanchor": "top", "showarrow": False, "font": {"size": 11}}
    layout = {
        "template": "none",
        "height": height,
        "margin": {"l": 52, "r": 12, "t": 42 if legend else 8, "b": 40},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "bargap": 0,
        "barmode": "overlay",
        "hovermode": "closest",
        "uirevision": "keep",
        "paper_bgcolor": BLANK,
        "plot_bgcolor": BLANK,
        "xaxis": _axis(x),
        "yaxis": _axis(y),
        "shapes": list(shapes),
        "annotations": [note | n for n in notes],
    } | ({"meta": {"read": read}} if read else {})
    return Figure(data=traces, layout=layout, _validate=False)


def _axis(given: Part) -> Part:
    """With its title as a dict: plotly splits `title_text` only in figures that it checks, and this one it does not."""
    title = {"text": given.get("title_text", ""), "standoff": 6, "font": {"size": 12}}
    rest = {key: value for key, value in given.items() if key not in ("read", "title_text")}
    return {"gridcolor": fade(REJECTED, 0.25), "zeroline": False, "title": title} | rest


def vertical_line(*, x: float, colour: str, dash: str, width: int, label: str = "", side: str = "left") -> Part:
    """A vertical line over the whole height; its `side` of the label lies at its upper end."""
    line = {"color": colour, "dash": dash, "width": width}
    drawn = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    return drawn | {"label": _label(label, side)} if label else drawn


def moving_note(text: str, *, x: float, y: float = 1, side: str, xref: str = "x") -> Part:
    """A text that may change while a threshold is dragged, as the label of a line that is not seen: for a changed note
    Plotly draws the whole picture anew, for a changed shape only the shape."""
    point = {"type": "line", "xref": xref, "x0": x, "x1": x, "yref": "paper", "y0": y, "y1": y, "line": {"width": 0}}
    return point | {"label": _label(text, side)}


def _label(text: str, side: str) -> Part:
    at = {"textposition": "end", "textangle": 0, "xanchor": side, "yanchor": "top"}
    return {"text": text, "font": {"size": 11}} | at


def ranked(name: str, sizes: np.ndarray, colour: str, *, shares: bool = False) -> Part:
    """The k-th largest size above 0 at height k, or k/N of all N sizes, for k = 1, 2, 3 … and then ever further apart:
    every point is exact."""
    ordered = np.sort(sizes[sizes > 0])[::-1]
    ranks = np.unique(np.geomspace(1, max(len(ordered), 1), _RANKS).round().astype(int))[: len(ordered)]
    tokens = "%{y:.2g} of the tokens" if shares else "%{y} tokens"
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": ordered[ranks - 1],
        "y": ranks / max(len(sizes), 1) if shares else ranks.astype(np.int32),
        "line": {"color": colour, "width": 2, "shape": "vh"},
        "hovertemplate": f"{tokens} with |log r| ≥ %{{x:.2g}}<extra>{html.escape(name)}</extra>",
    }  # fmt: skip


def error_bars(intervals: Sequence[Interval], colour: str, *, thickness: int = 1) -> Part:
    """From each value to the ends of its interval; one that lies beyond an end has a bar to the other side only."""
    above = [max(interval.high - interval.value, 0) for interval in intervals]
    below = [max(interval.value - interval.low, 0) for interval in intervals]
    return {"array": above, "arrayminus": below, "color": colour, "thickness": thickness}


def bars_with_errors(name: str, values: Mapping[str, Interval], colour: str) -> Part:
    """One bar per name with its interval."""
    return {
        "type": "bar", "name": name, "x": list(values), "y": [interval.value for interval in values.values()],
        "marker": {"color": fade(colour, 0.7)}, "error_y": error_bars(list(values.values()), colour),
    }  # fmt: skip


def fade(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def spoken(figure: Figure) -> str:
    """For those who do not see the figure: from where to where each of its named lines and bars reaches."""
    traces: list[Any] = list(figure.data)
    reaches = [(trace.name, _reach(trace)) for trace in traces if trace.name]
    return "; ".join(f"{name} from {low:.3g} to {high:.3g}" for name, (low, high) in reaches if low <= high)


def _reach(trace: Any) -> tuple[float, float]:
    """The least and the greatest height, or length of a bar that lies; the greatest first where there is none."""
    lies = trace.type == "bar" and trace.orientation == "h"
    values = np.asarray((trace.x if lies else trace.y) if trace.type in ("bar", "scatter", "scattergl") else ())
    finite = values[np.isfinite(values)] if values.dtype.kind in "fiu" else values[:0]
    return (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 0.0)


def digest(figure: Figure) -> str:
    """The figure in numbers, one line per trace: name, kind, size, then sum, mean, least and greatest value drawn."""
    traces: list[Any] = list(figure.data)
    return "\n".join(f"{trace.name} ({trace.type}, {_digest_of(trace)}" for trace in traces)


def _digest_of(trace: Any) -> str:
    drawn = np.asarray(trace.z if trace.type == "heatmap" else trace.y)
    if drawn.dtype.kind == "U":  # names: the numbers lie across
        drawn = np.asarray(trace.x)
    size = "×".join(str(n) for n in drawn.shape)
    values = drawn[drawn != None].astype(float)  # noqa: E711 - elementwise: gaps in a line are None
    values = values[np.isfinite(values)]
    if not len(values):
        return f"{size}): nothing drawn"
    numbers = {"sum": values.sum(), "mean": values.mean(), "min": values.min(), "max": values.max()}
    return f"{size}): " + " ".join(f"{name}={_four_digits(value + 0.0)}" for name, value in numbers.items())


def _four_digits(value: float) -> str:
    """Return four significant digits; 1234.5 is 1.234e+03, because without decimals it would look like a count."""
    return f"{value:.4g}" if abs(value) < 999.5 or value.is_integer() else f"{value:.3e}"
