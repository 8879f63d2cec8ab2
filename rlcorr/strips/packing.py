"""The wire format of strips, version 3: bytes that a browser reads without a library (`strips.js`).

zlib ("deflate" of DecompressionStream) over

    uint32    n, little-endian as everything here
    n bytes   JSON, filled up with spaces so that 4 + n is a multiple of 8:
              {"version": 3, "about": {…}, "arrays": {name: {"dtype", "shape", "at", "differences"}}}
    arrays    each starts `at` bytes after the JSON, a multiple of 8, and is stored row by row; u1 u2 i4 are Uint8Array,
              Uint16Array, Int32Array. If `differences` is true, each row but the first holds its difference to the row
              before: most bars do not change from one slider value to the next.

A strip with K slider values and histograms of 81 bars has the arrays

    weights/counts/TRACE      i4 (K, 81) as differences; the same under `statistic` if a rule moves
    cells/base                u1 (H, W)
    cells/until/CODE          u2 (H, W), and cells/since/CODE: see `Cells`

and in `about` what the page shows at each slider value:

    numbers, beside           headline → K texts: its value, and its interval if it has one
    texts, tables             name → K texts
    shapes                    a list of K lists of lines and notes, as plotly's `layout.shapes`
    pictures                  key → {"bars": {trace: array}, "cells": whether it is the mask, "shapes": index into
                              `shapes` or null, "figures": K whole figures as JSON or null}
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlcorr.errors import UsageError
from rlcorr.strips.strip import Strip

VERSION = 3
DTYPES = ("u1", "u2", "i4")
LEVEL, SMALLEST = 6, 9
"""Levels of zlib: for a strip that somebody waits for, and for one that is kept."""


@dataclass(frozen=True)
class Package:
    """Named arrays, and everything else as JSON."""

    arrays: Mapping[str, np.ndarray]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class PictureStrip:
    """What a slider changes in a picture."""

    bars: Mapping[str, str] = field(default_factory=dict)
    """Trace → name of the array with its heights."""
    cells: bool = False
    """Whether the picture shows the cells of the mask."""
    shapes: Sequence[Sequence[Mapping[str, Any]]] | None = None
    """The lines of the picture for each slider value."""
    figures: Sequence[str] | None = None
    """The whole picture for each slider value, as JSON; for small pictures, or if everything in them changes."""


def strip_package(
    arrays: Mapping[str, np.ndarray],
    numbers: Sequence[Mapping[str, tuple[str, str | None]]],
    texts: Mapping[str, Sequence[str]],
    pictures: Mapping[str, PictureStrip],
    tables: Mapping[str, Sequence[str]],
) -> Package:
    """Put everything that moves with a slider into one package.

    Args:
        arrays: the arrays that pictures draw.
        numbers: label → the text of a number and of its interval, for each slider value.
        texts: name → text for each slider value.
        pictures: key → what the slider changes in the picture. Pictures may share their lines.
        tables: name → HTML for each slider value.
    """
    first, shapes = numbers[0], []
    for picture in pictures.values():
        if picture.shapes is not None and picture.shapes not in shapes:
            shapes.append(picture.shapes)
    about = {
        "numbers": {label: [one[label][0] for one in numbers] for label in first},
        "beside": {label: [one[label][1] for one in numbers] for label, (_, beside) in first.items() if beside},
        "texts": dict(texts),
        "tables": dict(tables),
        "shapes": [[[_rounded(line) for line in lines] for lines in of_picture] for of_picture in shapes],
        "pictures": {
            key: vars(picture) | {"shapes": None if picture.shapes is None else shapes.index(picture.shapes)}
            for key, picture in pictures.items()
        },
    }
    return Package(arrays, about)


def _rounded(line: Mapping[str, Any]) -> dict[str, Any]:
    """Round the ends of a line to the resolution of a pixel. Unrounded they would be most of a strip's size."""
    return {**line, **{end: float(f"{line[end]:.6g}") for end in ("x0", "x1") if end in line}}


def pack(package: Package, level: int = LEVEL) -> bytes:
    """Return the bytes of a package, compressed at this level of zlib. Two-dimensional int32 arrays are written as
    differences. Raises `UsageError` for another dtype than the three."""
    listed, parts, at = {}, [], 0
    for name, array in package.arrays.items():
        dtype = array.dtype.str[1:]
        if dtype not in DTYPES:
            raise UsageError(f"{name} has dtype {array.dtype}; a strip holds {', '.join(DTYPES)}.")
        differences = dtype == "i4" and array.ndim == 2
        written = np.diff(array, axis=0, prepend=np.zeros_like(array[:1])) if differences else array
        raw = np.ascontiguousarray(written, dtype=f"<{dtype}").tobytes()
        listed[name] = {"dtype": dtype, "shape": list(array.shape), "at": at, "differences": differences}
        parts.append(raw + bytes(-len(raw) % 8))
        at += len(parts[-1])
    head = json.dumps({"version": VERSION, "about": dict(package.about), "arrays": listed}).encode()
    head += b" " * (-(4 + len(head)) % 8)
    return zlib.compress(b"".join([struct.pack("<I", len(head)), head, *parts]), level)


def unpack(data: bytes) -> Package:
    """Return the package that was packed. Raises `UsageError` for another version."""
    whole = zlib.decompress(data)
    (length,) = struct.unpack_from("<I", whole)
    head = json.loads(whole[4 : 4 + length])
    if head["version"] != VERSION:
        raise UsageError(f"this strip has version {head['version']}; this program reads version {VERSION}.")
    arrays = {}
    for name, listed in head["arrays"].items():
        count = int(np.prod(listed["shape"]))
        array = np.frombuffer(whole, f"<{listed['dtype']}", count, 4 + length + listed["at"])
        array = array.reshape(listed["shape"])
        arrays[name] = array.cumsum(0, dtype=array.dtype) if listed["differences"] else array
    return Package(arrays, head["about"])


def arrays_of(strip: Strip) -> dict[str, np.ndarray]:
    """Return the arrays of a strip by the names above."""
    histograms = {"weights": strip.weights} | ({} if strip.statistic is None else {"statistic": strip.statistic})
    bars = {f"{name}/counts/{trace}": c for name, bars in histograms.items() for trace, c in bars.counts.items()}
    return bars | strip.cells.arrays()
