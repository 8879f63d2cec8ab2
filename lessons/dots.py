"""Draw named values with their ranges as points on a horizontal axis, next to lines that they are compared with."""

from collections.abc import Mapping, Sequence

from rlcorr.figures.canvas import ACROSS, REJECTED, Figure, Part, error_bars, figure, vertical_line
from rlcorr.gradients.bootstrap import Interval

ROW, LETTER = 24, 7.2
"""Pixels: height of a row, and width of a letter of its name."""


def dots(
    name: str,
    values: Mapping[str, Interval],
    *,
    x_name: str,
    lines: Mapping[str, float] | None = None,
    x_range: Sequence[float] | None = None,
) -> Figure:
    """Draw one row per name: a point at the value, and a bar over its interval or range.

    Args:
        name: what the points are, for the printed numbers.
        lines: dashed vertical lines with their labels, such as the value at the start of training.
        x_range: both ends of the axis.
    """
    points = {
        "type": "scatter", "mode": "markers", "name": name, "y": list(values),
        "x": [value.value for value in values.values()],
        "marker": {"size": 12, "color": ACROSS[0], "line": {"color": "black", "width": 1}},
        "error_x": error_bars(list(values.values()), ACROSS[0], thickness=2),
    }  # fmt: skip
    shapes = [
        vertical_line(x=x, colour=colour, dash="dash", width=2, label=label, side="left")
        for colour, (label, x) in zip((REJECTED, *ACROSS[2:]), (lines or {}).items(), strict=False)
    ]
    y = {"type": "category", "categoryorder": "array", "categoryarray": list(values), "autorange": "reversed"}
    y["dtick"] = 1
    x: Part = {"title_text": x_name, **({"range": list(x_range)} if x_range else {})}
    made = figure([points], height=ROW * len(values) + 90, x=x, y=y, shapes=shapes)
    room = 20 + LETTER * max((len(row) for row in values), default=0)
    return made.update_layout({"margin.l": room, "margin.t": 26})
