"""Simple figures for the results of a lesson: named lines over a number, and named bars."""

from collections.abc import Iterable, Mapping, Sequence

from rlcorr.figures.canvas import ACROSS, REJECTED, Figure, Part, band, figure, vertical_line

Values = Sequence[float]
_FEW = 20
"""Lines with at most this many points show the points."""


def curves(
    x: Values,
    lines: Mapping[str, Values],
    *,
    x_name: str,
    y_name: str,
    log: str = "",
    bands: Mapping[str, tuple[Values, Values]] | None = None,
    marks: Iterable[float] = (),
    height: int = 300,
) -> Figure:
    """Draw one line per name.

    Args:
        log: the logarithmic axes: "", "x", "y" or "xy".
        bands: lower and upper ends of the intervals of a line.
        marks: positions of vertical lines.
    """
    traces: list[Part] = []
    for place, (name, y) in enumerate(lines.items()):
        colour = ACROSS[place % len(ACROSS)]
        if bands and name in bands:
            quiet = {"legendgroup": name, "showlegend": False}
            traces.append(band(f"{name}, interval", x, *bands[name], colour, **quiet))
        mode = "lines+markers" if len(x) <= _FEW else "lines"
        line = {"type": "scatter", "name": name, "x": list(x), "y": list(y), "mode": mode, "legendgroup": name}
        traces.append(line | {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 5}})
    shapes = [vertical_line(x=mark, colour=REJECTED, dash="dot", width=2) for mark in marks]
    axes = [_axis(x_name, "x" in log), _axis(y_name, "y" in log)]
    return figure(traces, height=height, x=axes[0], y=axes[1], shapes=shapes, legend=len(lines) > 1)


def rows(values: Mapping[str, float], *, x_name: str) -> Figure:
    """Draw one horizontal bar per name, the first on top: for names that are too long for a column.

    A name may have two lines, separated by <br>.
    """
    written = [line for name in values for line in name.split("<br>")]
    bar: Part = {"type": "bar", "orientation": "h", "name": x_name, "x": list(values.values()), "y": list(values)}
    bar |= {"marker": {"color": ACROSS[0]}}
    y = {"type": "category", "autorange": "reversed", "dtick": 1}
    made = figure([bar], height=90 + 20 * len(values) + 8 * len(written), x=_axis(x_name, log=False), y=y)
    return made.update_layout({"bargap": 0.3, "margin.l": 20 + 6 * max(map(len, written))})


def _axis(name: str, log: bool) -> Part:
    return {"title_text": name, **({"type": "log", "exponentformat": "power"} if log else {})}
