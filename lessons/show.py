"""How every lesson prints: numbers in one spelling, and pictures together with their numbers.

The outputs are compared character by character when the lessons are tested, so nothing else may print a float.
"""

import base64
import json
from typing import Any

import numpy as np
import torch
from IPython.display import display

from rlcorr.figures import canvas

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


def picture(figure: canvas.Figure) -> None:
    """Draw a figure of the library, and print what it shows: the picture is not tested, the numbers are.

    It is drawn with four significant digits: the last bits of a sum depend on where it lies in memory, and a notebook
    that is built again must not.
    """
    shown = {"data": [], "layout": {}, "config": {"displaylogo": False}} | json.loads(str(figure.to_json()))
    display({"application/vnd.plotly.v1+json": _rounded(shown)}, raw=True)
    print(canvas.digest(figure))


def _rounded(part: Any) -> Any:
    if isinstance(part, dict) and "bdata" in part:  # how plotly writes an array
        numbers = np.frombuffer(base64.b64decode(part["bdata"]), part["dtype"])
        if numbers.dtype.kind != "f":
            return part
        rounded = np.array([float(f"{x:.4g}") for x in numbers], np.float32)
        return part | {"dtype": "f4", "bdata": base64.b64encode(rounded.tobytes()).decode()}
    if isinstance(part, dict):
        return {key: _rounded(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_rounded(value) for value in part]
    return float(f"{part:.4g}") if isinstance(part, float) else part


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return value.flatten().tolist()
    return list(value) if isinstance(value, list | tuple) else [value]
