"""How every lesson prints: numbers in one spelling, and pictures with a text for those who do not see them.

When the lessons are tested, words and integers are compared exactly, decimals up to one unit of the last digit (see
printed.py).
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from IPython.display import display
from plotted import rounded

from rlcorr.figures.canvas import Figure, digest

PLOTLY = "application/vnd.plotly.v1+json"
LABEL, COLUMN = 38, 9
"""Characters for the label of a line and for each value."""


def show(label: str, *values: Any, digits: int = 4) -> None:
    """One line: a label, then numbers, texts, truths, or tensors and lists of them."""
    cells = [text(x, digits).rjust(COLUMN) for value in values for x in _flat(value)]
    print(" ".join([label.ljust(LABEL), *cells]).rstrip())


def text(x: Any, digits: int = 4) -> str:
    """A float with `digits` decimals and no negative zero; an integer with commas; anything else as it is."""
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, int):
        return f"{x:,}"
    if isinstance(x, float):
        return f"{round(x, digits) + 0.0:.{digits}f}"
    return str(x)


def picture(figure: Figure) -> None:
    """Draw a figure of the library, with four significant digits, and with 0 for what is only rounding: see plotted.py.

    What it shows in words and numbers is its alternative text, in the metadata of the output. The tests compare it.
    """
    shown = json.loads(str(figure.to_json()))
    _display(shown, "", digest(figure))


def moving_picture(name: str, figures: Mapping[str, Figure], start: str) -> None:
    """Draw figures of the same traces, one for each value of a slider: `name` says what the slider moves, the keys are
    its values. Without plotly, and on paper, the one at `start` is seen; the alternative text describes it."""
    labels = list(figures)
    drawn = [json.loads(str(figure.to_json())) for figure in figures.values()]
    first = drawn[labels.index(start)]
    traces = [
        trace | {"visible": label == start} for label, one in zip(labels, drawn, strict=True) for trace in one["data"]
    ]
    steps = []
    for place, (label, one) in enumerate(zip(labels, drawn, strict=True)):
        visible = [other == place for other, figure in enumerate(drawn) for _ in figure["data"]]
        moved = {key: one["layout"].get(key, []) for key in ("shapes", "annotations")}
        steps.append({"label": label, "method": "update", "args": [{"visible": visible}, moved]})
    slider = {"active": labels.index(start), "currentvalue": {"prefix": f"{name} "}, "pad": {"t": 42}, "steps": steps}
    layout = first["layout"] | {"sliders": [slider], "height": first["layout"]["height"] + 90}
    layout["margin"] = first["layout"]["margin"] | {"b": 130}
    _display({"data": traces, "layout": layout}, f"slider {name}, at {start}. ", digest(figures[start]))


def _display(figure: dict[str, Any], about: str, numbers: str) -> None:
    shown = {"data": [], "layout": {}, "config": {"displaylogo": False}} | figure
    axes = [figure["layout"].get(axis, {}).get("title", {}).get("text") for axis in ("yaxis", "xaxis")]
    text = f"{about}{' against '.join(filter(None, axes))}: {'; '.join(numbers.splitlines())}"
    display({PLOTLY: rounded(shown)}, raw=True, metadata={"image/png": {"alt": text}})


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    return list(value) if isinstance(value, list | tuple) else [value]
