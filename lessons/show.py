"""How every lesson prints: numbers in one spelling, and pictures together with their numbers.

The outputs are compared character by character when the lessons are tested, so nothing else may print a float.
"""

import json
from typing import Any

import torch
from IPython.display import display
from plotted import rounded

from rlcorr.figures.canvas import digest
from rlcorr.figures.correction import Figure

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
    """Draw a figure of the library, and print what it shows.

    It is drawn with four significant digits, and with 0 for what is only rounding: see plotted.py.
    """
    shown = {"data": [], "layout": {}, "config": {"displaylogo": False}} | json.loads(str(figure.to_json()))
    display({"application/vnd.plotly.v1+json": rounded(shown)}, raw=True)
    print(digest(figure))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    return list(value) if isinstance(value, list | tuple) else [value]
