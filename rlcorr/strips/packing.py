"""A strip as bytes that a browser reads without a library: version 2.

zlib ("deflate" of DecompressionStream) over

    uint32    n, little-endian as everything here
    n bytes   JSON, filled up with spaces so that 4 + n is a multiple of 8, `about` as in folding.py:
              {"version": 2, "about": {…}, "arrays": {name: {"dtype", "shape", "at", "differences"}}}
    arrays    each `at` so many bytes after the JSON, a multiple of 8, in rows: u1 u2 i4 f8 are Uint8Array, Uint16Array,
              Int32Array, Float64Array. Where `differences` is true, each row but the first holds what it has more than
              the row before it: most bars do not change from one place to the next.

Of a strip with K places and 81 bars: `places` f8 (K); `numbers/METRIC` f8 (K); of each histogram, `weights` and where a
rule moves `statistic`, HISTOGRAM`/counts/`TRACE i4 (K, 81) as differences, with the ends of its axis and its K lists of
shapes in `about`; `cells/base` u1 (H, W), `cells/until/`CODE and `cells/since/`CODE u2 (H, W): see `Cells`.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlcorr.errors import UsageError
from rlcorr.strips.bars import Bars
from rlcorr.strips.cells import Cells
from rlcorr.strips.folding import folded, unfolded
from rlcorr.strips.strip import Strip

VERSION = 2
DTYPES = ("u1", "u2", "i4", "f8")
LEVEL, SMALLEST = 6, 9
"""Of zlib: a strip that somebody waits for, and one that is kept."""


@dataclass(frozen=True)
class Package:
    """Named arrays, and what else there is to know, as JSON."""

    arrays: Mapping[str, np.ndarray]
    about: Mapping[str, Any]


def pack(package: Package, level: int = LEVEL) -> bytes:
    """The bytes of a package, compressed at this level of zlib. Two-dimensional int32 arrays are written as
    differences. Raises `UsageError` for another dtype than the four."""
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
    head = json.dumps({"version": VERSION, "about": folded(dict(package.about)), "arrays": listed}).encode()
    head += b" " * (-(4 + len(head)) % 8)
    return zlib.compress(b"".join([struct.pack("<I", len(head)), head, *parts]), level)


def unpack(data: bytes) -> Package:
    """What was packed. Raises `UsageError` for another version."""
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
    return Package(arrays, unfolded(head["about"]))


def pack_strip(strip: Strip) -> bytes:
    """Of a strip."""
    return pack(package_of(strip))


def package_of(strip: Strip) -> Package:
    """Its arrays by the names above."""
    arrays = {"places": np.array(strip.places)}
    arrays |= {f"numbers/{name}": values.numpy() for name, values in strip.numbers.items()}
    histograms = {"weights": strip.weights} | ({} if strip.statistic is None else {"statistic": strip.statistic})
    for name, bars in histograms.items():
        arrays |= {f"{name}/counts/{trace}": counts for trace, counts in bars.counts.items()}
    arrays |= strip.cells.arrays()
    axes = {name: [bars.low, bars.high] for name, bars in histograms.items()}
    return Package(arrays, {"axes": axes, "marks": {name: bars.marks for name, bars in histograms.items()}})


def read_strip(data: bytes) -> Strip:
    """The strip that was packed. Raises `UsageError` for another version."""
    package = unpack(data)
    arrays, axes, marks = package.arrays, package.about["axes"], package.about["marks"]
    histograms = {
        name: Bars(low, high, _below(f"{name}/counts/", arrays), marks[name]) for name, (low, high) in axes.items()
    }
    until, since = (
        {int(code): array for code, array in _below(f"cells/{when}/", arrays).items()} for when in ("until", "since")
    )
    return Strip(
        places=tuple(arrays["places"].tolist()),
        numbers={name: torch.tensor(values) for name, values in _below("numbers/", arrays).items()},
        weights=histograms["weights"],
        statistic=histograms.get("statistic"),
        cells=Cells(arrays["cells/base"], until, since),
    )


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
