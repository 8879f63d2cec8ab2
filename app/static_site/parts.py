"""Live parts as files of the static site, and parts that many of these files share.

Figures have as many digits as a screen shows, because the site has a thousand of them.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from components.live_part import LiveContent, Slider, part_data
from components.markdown import plain_text
from components.picture import Picture
from data.bounds import Bound
from text import phrases

from rlcorr.strips.packing import SMALLEST, Package, pack, unpack

DIGITS = 4
"""Significant digits of the numbers in figures."""
CURVES, EVERY, CURVE_DIGITS = ("shares_over", "mismatch_over"), 3, 3
"""Curves of 200 points, of which a file has every third: one for each eight pixels. Three digits are enough for one."""
NO_LINE = {
    "type": "line", "xref": "paper", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 0,
    "line": {"color": "black", "dash": "solid", "width": 0},
    "label": {"text": "", "textposition": "end", "textangle": 0, "xanchor": "left",
              "yanchor": "top", "padding": 3},
}  # fmt: skip
"""A line that is not seen, with all keys that a line of a strip can have. 3 is Plotly's usual padding."""
WHOLE = ""
"""Key of the file with the live part; other keys are those of sliders."""
RESETS = {"": phrases.RESET}
FILES = 5
"""A part is shared if at least this many files have it."""
CHARACTERS = 48
"""A part is shared if its JSON has at least this many characters. A shorter part is not worth the reference."""
LONG = 40
"""A list with at least this many parts has one part per slider value."""
SHARED = "~shared"


def bound_slider(b: Bound, values: Sequence[float]) -> Slider:
    """Return a slider of these values. A typed number goes to the nearest of them."""
    return Slider(b.key, b.label, values, b.value, generation=0, exact=(min(values), max(values)), help=b.help)


def with_part(
    strip: Package, content: LiveContent, sliders: Sequence[Slider], source: str, resets: Mapping[str, str] = RESETS
) -> Package:
    """Return a strip together with the live part that it moves.

    The heights of bars and the cells of masks are left out of the figures: the strip has them.
    """
    data = part(sliders, content, source, resets)
    for picture in (picture for row in data["rows"] for picture in row):
        moves = strip.about["pictures"].get(picture["key"], {"bars": {}, "cells": False})
        for trace in picture["figure"]["data"]:
            if trace["type"] == "bar" and trace["name"] in moves["bars"]:
                del trace["y"]
            elif trace["type"] == "heatmap" and moves["cells"]:
                del trace["z"]
    small = small_strip(strip)
    return Package(small.arrays, {**small.about, "part": data})


def part_and_strips(
    made: Mapping[str, Package], content: LiveContent, sliders: Sequence[Slider], source: str,
    resets: Mapping[str, str] = RESETS,
) -> dict[str, Package]:  # fmt: skip
    """Return the live part with the strip of its first slider, and the strips of the others by their sliders' keys."""
    if not made:
        return {WHOLE: Package({}, {"part": part([], content, source, {})})}
    first, *others = made.items()
    whole = with_part(first[1], content, sliders, source, resets)
    return {WHOLE: whole} | {key: small_strip(strip) for key, strip in others}


def small_strip(strip: Package) -> Package:
    """Return a strip with rounded lines; a slider of the site has so few values that one byte holds their indices."""
    arrays = {
        name: array.astype(np.uint8) if array.dtype == np.uint16 and array.max(initial=0) < 256 else array
        for name, array in strip.arrays.items()
    }
    return Package(arrays, {**strip.about, "shapes": [rounded(_uniform(lines)) for lines in strip.about["shapes"]]})


def _uniform(of_picture: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return lines with the same keys, and as many at each slider value, so that packing makes columns of them."""
    most = max(map(len, of_picture), default=0)
    return [[_whole_line(line) for line in lines] + [NO_LINE] * (most - len(lines)) for lines in of_picture]


def _whole_line(line: Mapping[str, Any]) -> dict[str, Any]:
    look, label = NO_LINE["line"] | line["line"], NO_LINE["label"] | line.get("label", {})
    return {**NO_LINE, "xref": "x", **line, "line": look, "label": label}


def part(sliders: Sequence[Slider], content: LiveContent, source: str, resets: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of a live part as in the app, except that figures are rounded, and objects instead of texts.

    Parts of objects can be shared with other files.
    """
    data = part_data(sliders, content, source, resets)
    rows = [
        [_small(picture, shown) for picture, shown in zip(row, of_row.values(), strict=True)]
        for row, of_row in zip(data["rows"], content.rows, strict=True)
    ]
    return data | {"rows": rows}


def _small(picture: dict[str, Any], shown: Picture) -> dict[str, Any]:
    """Return a picture with a rounded figure, and its text alternative in two parts: many pictures have the first."""
    figure = rounded(json.loads(picture["figure"]))
    for trace in figure["data"] if picture["key"] in CURVES else ():
        for axis in ("x", "y"):
            trace[axis] = rounded([*trace[axis][:-1:EVERY], trace[axis][-1]], CURVE_DIGITS)
    start = f"{picture['title']}. {plain_text(shown.caption)}"
    return picture | {"figure": figure, "alt": [start, picture["alt"].removeprefix(start)]}


def rounded(node: Any, digits: int = DIGITS) -> Any:
    """Round the numbers of a figure, or of a part of one, and replace the bytes of arrays by lists of numbers."""
    if isinstance(node, list):
        return [rounded(part, digits) for part in node]
    if isinstance(node, float):
        return None if node != node else float(f"{node:.{digits}g}")
    if not isinstance(node, dict):
        return node
    if "bdata" in node and node["dtype"] in ("f4", "f8", "i4") and "shape" not in node:
        return rounded(np.frombuffer(base64.b64decode(node["bdata"]), f"<{node['dtype']}").tolist(), digits)
    return {key: rounded(part, digits) for key, part in node.items()}


def share(files: list[Path], shared: Path) -> None:
    """Rewrite the files. Each shared part becomes {"~shared": index}, an index of the list in the file `shared`."""
    files_with: Counter[str] = Counter()
    for path in files:
        files_with.update(set(_parts(unpack(path.read_bytes()).about)))
    numbers: dict[str, int] = {}
    for path in files:
        package = unpack(path.read_bytes())
        path.write_bytes(pack(Package(package.arrays, _referring(package.about, files_with, numbers)), SMALLEST))
    shared.write_bytes(pack(Package({}, {"parts": [json.loads(part) for part in numbers]}), SMALLEST))


def _parts(node: Any) -> Iterator[str]:
    """Return every text, list and object of some size, as JSON.

    A long list is shared as a whole or not at all, because packing folds its similar parts.
    """
    if (written := _written(node)) is not None:
        yield written
    for part in node.values() if isinstance(node, dict) else node if _is_short(node) else ():
        yield from _parts(part)


def _referring(node: Any, files_with: Counter[str], numbers: dict[str, int]) -> Any:
    written = _written(node)
    if written is not None and files_with[written] >= FILES:
        return {SHARED: numbers.setdefault(written, len(numbers))}
    if isinstance(node, dict):
        return {key: _referring(part, files_with, numbers) for key, part in node.items()}
    return [_referring(part, files_with, numbers) for part in node] if _is_short(node) else node


def _is_short(node: Any) -> TypeGuard[list[Any]]:
    return isinstance(node, list) and len(node) < LONG


def _written(node: Any) -> str | None:
    if not isinstance(node, str | list | dict):
        return None
    written = json.dumps(node)
    return written if len(written) >= CHARACTERS else None
