"""The parts of all figures: colours, layout, lines and notes. The only file that imports plotly.

Colours have one meaning everywhere: ratio > 1 warm, ratio < 1 cool, rejected grey, kept and set by the reader green,
padding blank. Fills are translucent, so that figures work on light and on dark pages. A figure is built from plain
dicts in one call, because plotly's update_* and add_* methods take longer than the arithmetic behind the figure.
"""

import base64
import html
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from plotly.graph_objects import Figure

from rlcorr.gradients.bootstrap import Interval

WARM, COOL, KEPT, REJECTED, CUT = "#d9692a", "#2f7fc1", "#3f9c7d", "#8b8f97", "#9a6cb4"
"""KEPT is also the colour of what a person has chosen, or brought."""
RED = "#d64545"
"""A promise that is missed, or a correction whose step is good and whose training was not."""
BLANK = "rgba(0,0,0,0)"
ACROSS = ("#5f7a94", "#9a6cb4", "#b0803a", "#4f9a94", "#c0607a", "#7a8f3a", "#6a6ad0", "#a0522d", "#708090", "#2e8b57")
"""Colours of presets. They are different from the colours of the two sides of ratio 1."""

MOST_LINES = len(ACROSS)

ROW, LETTER = 18, 7
"""Pixels: height of a row of a row plot, and width of a letter of its name."""
_RANKS = 120  # points of a `tail_curve`, at most

Part = dict[str, Any]
Parts = Sequence[Part]
Values = Sequence[Any] | np.ndarray


def figure(
    traces: Parts, *, height: int, x: Part, y: Part, shapes: Parts = (), notes: Parts = (), legend: bool = False
) -> Figure:
    """Build a figure from traces, axes, shapes and notes, with a transparent background.

    If the labels of an axis differ from its coordinates, its `read` converts a coordinate to the label: exp, exp of −,
    10^ or −. Exported tables contain the converted values.
    """
    read = {name: of["read"] for name, of in (("x", x), ("y", y)) if of.get("read")}
    note = {"yref": "paper", "yanchor": "top", "showarrow": False}
    layout = {
        "template": "none",
        "height": height,
        "margin": {"l": 52, "r": 12, "t": 42 if legend else 8, "b": 40},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "bargap": 0,
        "barmode": "overlay",
        "hovermode": "closest",
        "uirevision": "keep",
        "paper_bgcolor": BLANK,
        "plot_bgcolor": BLANK,
        "xaxis": axis(x),
        "yaxis": axis(y),
        "shapes": list(shapes),
        "annotations": [note | n for n in notes],
    } | ({"meta": {"read": read}} if read else {})
    return Figure(data=traces, layout=layout, _validate=False)


def axis(settings: Part) -> Part:
    """Return the settings of an axis with its title as a dict, and with the look of all axes.

    Plotly splits `title_text` only in figures that it validates; these skip validation.
    """
    title = {"text": settings.get("title_text", ""), "standoff": 6, "font": {"size": 12}}
    rest = {key: value for key, value in settings.items() if key not in ("read", "title_text")}
    return {"gridcolor": fade(REJECTED, 0.25), "zeroline": False, "title": title} | rest


def row_plot(
    rows: Part, titles: Mapping[str, str] | None, *, x: Part, y: Part, shapes: Parts, room: int, **layout: float
) -> Figure:
    """Draw a trace of named rows with the names or titles of all rows, below a horizontal axis.

    With titles, hover texts have the title above the name. A browser cuts titles, or puts them above the rows, to fit
    its width (`row_names.js`).

    Args:
        rows: a trace from `rows_with_errors`.
        titles: name of a row → its title.
        room: pixels in addition to the height of the rows.
        layout: further settings of the figure.
    """
    names = rows["y"]
    y = {"type": "category", "dtick": 1} | y
    if titles is not None:
        y |= {"tickmode": "array", "tickvals": names, "ticktext": [literal(titles[name]) for name in names]}
        rows = rows | {"hovertext": [titled(titles[name], name) for name in names]}
        rows["hovertemplate"] = rows["hovertemplate"].replace("%{y}", "%{hovertext}")
    made = figure([rows], height=ROW * len(names) + room, x=x | {"side": "top"}, y=y, shapes=shapes)
    left = 20 + LETTER * max(map(len, names), default=0)
    return made.update_layout({"margin.l": left, "margin.t": 44, "margin.b": 8, **layout})


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each run, preset or method, in the order in which they are first named."""
    return {name: ACROSS[index % MOST_LINES] for index, name in enumerate(dict.fromkeys(names))}


def titled(title: str, names: str) -> str:
    """Return a hover text: a title, and below it the names that links and commands use."""
    return literal(title) if names == title else f"{literal(title)}<br>{literal(names)}"


def literal(text: str) -> str:
    """Escape a text for plotly, which reads tags. The name of a run may contain anything."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def legend_keys(colours: Mapping[str, str]) -> list[Part]:
    """Return traces that draw nothing and give each of these names its colour in the legend."""
    key = {"type": "scatter", "x": [None], "y": [None], "mode": "markers"}
    return [key | {"name": n, "marker": {"symbol": "square", "size": 9, "color": c}} for n, c in colours.items()]


def line(name: str, x: Values, y: Values, colour: str, *, width: float = 2, dash: str = "", **more: Any) -> Part:
    """Draw a line through points. `more` are further settings of the trace."""
    look = {"color": colour, "width": width} | ({"dash": dash} if dash else {})
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": look, **more}


def arrow(name: str, end: Sequence[float], colour: str, *, width: int = 3, **more: Any) -> Part:
    """Draw an arrow from the origin. `more` are further arguments of `line`."""
    tip = {"symbol": ["circle", "arrow"], "size": [1, 12 + width], "angleref": "previous", "color": colour}
    (x, y), look = end, {"mode": "lines+markers", "marker": tip, **more}
    return line(name, [0.0, x], [0.0, y], colour, width=width, **look)


def points(name: str, places: Iterable[Sequence[float]], colour: str, *, size: int = 6, **look: Any) -> Part:
    """Draw points at these (x, y). `look` are further settings of the marker."""
    x, y = np.array(list(places)).reshape(-1, 2).T.tolist()
    marker = {"color": colour, "size": size, **look}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker}


def band(name: str, x: Values, low: Values, high: Values, colour: str, **more: Any) -> Part:
    """Draw the area between two lines. It is one closed outline, so that it stays with them."""
    outline = {"x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself", "fillcolor": fade(colour, 0.18)}
    return {"type": "scatter", "name": name, "mode": "none", "hoverinfo": "skip", **outline, **more}


def vertical_band(low: float, high: float, colour: str, **more: Any) -> Part:
    """Return a shaded rectangle of the whole height between two positions."""
    box = {"type": "rect", "x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1}
    return box | {"fillcolor": fade(colour, 0.15), "line": {"width": 0}, **more}


def vertical_line(*, x: float, colour: str, dash: str, width: int, label: str = "", side: str = "left") -> Part:
    """Draw a vertical line over the whole height. `side` is the edge of the label that touches its upper end."""
    line = {"color": colour, "dash": dash, "width": width}
    shape = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    return shape | {"label": _label(label, side)} if label else shape


def horizontal_line(*, y: float, label: str = "", colour: str = REJECTED) -> Part:
    """Draw a dotted line over the whole width, with its label above its right end."""
    line = {"color": colour, "dash": "dot", "width": 1.5}
    text = {"text": label, "textposition": "end", "padding": 2}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line, "label": text}


def moving_note(text: str, *, x: float, y: float = 1, side: str, xref: str = "x") -> Part:
    """Write a text that may change while a threshold is dragged.

    It is the label of an invisible line: for a changed annotation plotly draws the whole figure again, for a changed
    shape only the shape.
    """
    point = {"type": "line", "xref": xref, "x0": x, "x1": x, "yref": "paper", "y0": y, "y1": y, "line": {"width": 0}}
    return point | {"label": _label(text, side)}


def _label(text: str, side: str) -> Part:
    return {"text": text, "textposition": "end", "textangle": 0, "xanchor": side, "yanchor": "top"}


def tail_curve(name: str, sizes: np.ndarray, colour: str, *, shares: bool = False) -> Part:
    """Draw the number of sizes that are at least x, over x. With `shares`, divide it by the number N of all sizes.

    The point of the k-th largest size above 0 has the height k or k/N. k is 1, 2, 3 … with growing steps; every point
    is exact.
    """
    ordered = np.sort(sizes[sizes > 0])[::-1]
    ranks = np.unique(np.geomspace(1, max(len(ordered), 1), _RANKS).round().astype(int))[: len(ordered)]
    tokens = "%{y:.2g} of the tokens" if shares else "%{y} tokens"
    heights = ranks / max(len(sizes), 1) if shares else ranks.astype(np.int32)
    hover = f"{tokens} with |log r| ≥ %{{x:.2g}}<extra>{html.escape(name)}</extra>"
    curve = line(name, ordered[ranks - 1], heights, colour, hovertemplate=hover)
    curve["line"]["shape"] = "vh"
    return curve


def error_bars(intervals: Sequence[Interval], colour: str, *, thickness: int = 1) -> Part:
    """Draw error bars from each value to the ends of its interval.

    A value outside its interval gets a bar on one side only.
    """
    above = [max(interval.high - interval.value, 0) for interval in intervals]
    below = [max(interval.value - interval.low, 0) for interval in intervals]
    return {"array": above, "arrayminus": below, "color": colour, "thickness": thickness}


def interval_bars(
    groups: Mapping[str, Mapping[str, Interval]], y_name: str, colours: Sequence[str] = ACROSS, *,
    height: int = 300, shapes: Parts = (), **more: Any,
) -> Figure:  # fmt: skip
    """Draw one bar with its interval per name, groups side by side. `more` are settings of the vertical axis."""
    traces = [
        {
            "type": "bar", "name": group, "x": list(values), "y": [interval.value for interval in values.values()],
            "marker": {"color": fade(colour, 0.7)}, "error_y": error_bars(list(values.values()), colour),
        }
        for (group, values), colour in zip(groups.items(), colours, strict=False)
    ]  # fmt: skip
    x, y = {"type": "category"}, {"title_text": y_name, **more}
    made = figure(traces, height=height, x=x, y=y, shapes=shapes, legend=len(groups) > 1)
    return made.update_layout(barmode="group", bargap=0.3)


def rows_with_errors(
    name: str, values: Mapping[str, Interval], colour: str, hover: str, *, thickness: int = 1, **more: Any
) -> Part:
    """Draw one row per name with its interval. `hover` is the template of a value, and `more` has the kind of trace."""
    rows = {"name": name, "y": list(values), "x": [interval.value for interval in values.values()]}
    errors = error_bars(list(values.values()), colour, thickness=thickness)
    return rows | {"error_x": errors, "hovertemplate": f"%{{y}}: {hover}<extra></extra>", **more}


def fade(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def text_summary(figure: Figure) -> str:
    """Describe the figure for a screen reader: the range of each named line and bar."""
    traces: list[Any] = list(figure.data)
    ranges = [(trace.name, _value_range(trace)) for trace in traces if trace.name]
    return "; ".join(f"{name} from {low:.3g} to {high:.3g}" for name, (low, high) in ranges if low <= high)


def _value_range(trace: Any) -> tuple[float, float]:
    """Return the smallest and the largest height, or place from left to right if the heights are names.

    Without finite values the result is (1, 0).
    """
    if trace.type not in ("bar", "scatter", "scattergl"):
        return 1.0, 0.0
    values = np.asarray(trace.y)
    if values.dtype.kind == "U" or (trace.type == "bar" and trace.orientation == "h"):  # y has the names
        values = np.asarray(trace.x)
    finite = values[np.isfinite(values)] if values.dtype.kind in "fiu" else values[:0]
    return (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 0.0)


def digest(figure: Figure) -> str:
    """Describe the figure in numbers: per trace its name, kind, size, sum, mean, smallest and largest value."""
    everything: list[Any] = list(figure.data)
    traces = [trace for trace in everything if trace.x is None or list(trace.x) != [None]]  # no keys of the legend
    return "\n".join(f"{trace.name} ({trace.type}, {_digest_of(trace)}" for trace in traces)


def _digest_of(trace: Any) -> str:
    data = np.asarray(trace.z if trace.type == "heatmap" else trace.y)
    if data.dtype.kind == "U":  # y has names, so the numbers are on the x axis
        data = np.asarray(trace.x)
    size = "×".join(str(n) for n in data.shape)
    values = data[data != None].astype(float)  # noqa: E711 - elementwise: gaps in a line are None
    values = values[np.isfinite(values)]
    if not len(values):
        return f"{size}): nothing drawn"
    numbers = {"sum": values.sum(), "mean": values.mean(), "min": values.min(), "max": values.max()}
    return f"{size}): " + " ".join(f"{name}={_four_digits(value + 0.0)}" for name, value in numbers.items())


def _four_digits(value: float) -> str:
    """Return four significant digits; 1234.5 is 1.234e+03, because without decimals it would look like a count."""
    return f"{value:.4g}" if abs(value) < 999.5 or value.is_integer() else f"{value:.3e}"


def packed_script(path: Path) -> bytes:
    """Return a small script that stores the script at `path`, compressed, in `window.packedPlotly`.

    The value is base64 of a zlib stream, 45 % of the original size, for file servers that do not compress.
    `DecompressionStream("deflate")` unpacks it in the browser.
    """
    packed = base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode()
    return f'window.packedPlotly = "{packed}"\n'.encode()
