"""Live parts as files of the static site.

Figures have as many digits as a screen shows, because the site has a thousand of them.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from components.live_part import LiveContent, Slider, part_data
from state.fields import Bound
from text import phrases

from rlcorr.strips.packing import Package

DIGITS = 4
"""Significant digits of the numbers in figures."""
CURVES, EVERY = ("shares_over", "mismatch_over"), 3
"""Curves of 200 points, of which a file has every third: one for each eight pixels."""
RESETS = {"": phrases.RESET}


def bound_slider(b: Bound, values: Sequence[float], plays_to: float | None = None) -> Slider:
    """Return a slider of these values. A typed number goes to the nearest of them."""
    return Slider(
        b.key, b.label, values, b.value, generation=0, address=None, strip=None, exact=(min(values), max(values)),
        plays_to=plays_to, help=b.help,
    )  # fmt: skip


def with_part(
    strip: Package,
    content: LiveContent,
    sliders: Sequence[Slider],
    source: str,
    resets: Mapping[str, str] = RESETS,
) -> Package:
    """Return a strip together with the live part that it moves.

    The heights of bars and the cells of masks are left out of the figures: the strip has them.
    """
    data = part(sliders, content, source, resets)
    for picture in (picture for row in data["rows"] for picture in row):
        moves = strip.about["pictures"].get(picture["key"], {"bars": {}, "cells": False})
        for trace in picture["figure"]["data"] if "figure" in picture else ():
            if trace["type"] == "bar" and trace["name"] in moves["bars"]:
                del trace["y"]
            elif trace["type"] == "heatmap" and moves["cells"]:
                del trace["z"]
    return Package(strip.arrays, _rounded_shapes(strip) | {"part": data})


def with_rows(strip: Package, content: LiveContent, source: str, bound: str) -> Package:
    """Return a strip together with rows of pictures, which replace those of another live part.

    The keys of the pictures end with the bound's key, so that a strip moves no line in curves over another bound.
    """
    data, about = part([], content, source, {}), _rounded_shapes(strip)
    for picture in (picture for row in data["rows"] for picture in row):
        picture["key"] = f"{picture['key']}.{bound}"
    moves = {f"{key}.{bound}" if key in CURVES else key: move for key, move in about["pictures"].items()}
    return Package(strip.arrays, about | {"pictures": moves, "rows": data["rows"], "refused": data["refused"]})


def _rounded_shapes(strip: Package) -> dict[str, Any]:
    return {**strip.about, "shapes": rounded(strip.about["shapes"])}


def part(sliders: Sequence[Slider], content: LiveContent, source: str, resets: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of a live part as in the app, except that figures are rounded, and objects instead of texts.

    Parts of objects can be shared with other files.
    """
    data = part_data(sliders, content, source, resets)
    rows = [[_rounded_figure(picture) for picture in row] for row in data["rows"]]
    return data | {"rows": rows}


def _rounded_figure(picture: dict[str, Any]) -> dict[str, Any]:
    return picture | {"figure": _figure(picture)} if "figure" in picture else picture  # words have no figure


def _figure(picture: Mapping[str, Any]) -> dict[str, Any]:
    figure = rounded(json.loads(picture["figure"]))
    for trace in figure["data"] if picture["key"] in CURVES else ():
        for axis in ("x", "y"):
            trace[axis] = [*trace[axis][:-1:EVERY], trace[axis][-1]]
    return figure


def rounded(node: Any) -> Any:
    """Round the numbers of a figure, or of a part of one, and replace the bytes of floats by lists of numbers."""
    if isinstance(node, list):
        return [rounded(part) for part in node]
    if not isinstance(node, dict):
        return float(f"{node:.{DIGITS}g}") if isinstance(node, float) else node
    if "bdata" in node and node["dtype"] in ("f4", "f8") and "shape" not in node:
        values = np.frombuffer(base64.b64decode(node["bdata"]), f"<{node['dtype']}").tolist()
        return [None if value != value else float(f"{value:.{DIGITS}g}") for value in values]
    return {key: rounded(part) for key, part in node.items()}
