"""Gaps between engine and trainer that have been measured, in published work and by this project: `published.toml`.

A batch is placed among them, because the size of a gap alone decides nothing: depth, width and entropy of the model
change k3 tenfold within one number format, and old weights make gaps of the same size as 8 bits.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rlcorr.errors import unknown

Format = Literal[
    "float32", "float16", "bfloat16", "int8_weights", "fp8_weights", "fp8_kv", "e5m2_kv", "int4_weights",
    "fp8_training", "w8a8",
]  # fmt: skip
"""The coarsest number format of the two sides: of the arithmetic, or of the engine's weights or KV cache. `fp8_kv` is
e4m3. `fp8_training`: both sides compute in fp8. `w8a8`: weights and activations in 8 bits on both sides."""
Cause = Literal["rounding", "routing", "age", "cut", "fault", "none", "unknown"]
"""The cause of a gap, as its source says. `routing`: rounding sends tokens to other experts, and a router replay
shrinks it. `none`: both sides run the same kernels, and nothing is left. `unknown`: the source does not separate the
causes."""
SPREAD = 1.5
"""Factor by which k3 may lie outside a measured range and still be of this size.

Batches of one model in one setting differ by as much: SmolLM2-135M with an fp8 KV cache had 0.026, 0.029 and 0.038, and
with bfloat16 on both sides 0.0013 to 0.0022. A range from few models is no limit.
"""
OURS = "rlcorr"
Range = tuple[float, float]
Known = Format | Literal["age"]
"""A cause whose k3 is known: rounding to a number format, or old weights."""
WORDS: dict[Known, str] = {
    "float32": "sums in float32",
    "float16": "rounding to float16",
    "bfloat16": "rounding to bfloat16",
    "int8_weights": "weights in int8",
    "fp8_weights": "weights in fp8",
    "fp8_kv": "a KV cache in fp8",
    "e5m2_kv": "a KV cache in e5m2",
    "int4_weights": "weights in int4",
    "fp8_training": "training in fp8",
    "w8a8": "weights and activations in 8 bits",
    "age": "weights a few updates old",
}


@dataclass(frozen=True)
class Gap:
    """One measured gap, d = log π_trainer − log π_engine of sampled tokens. It has at least one of the five values."""

    model: str
    engine: str  # engine and trainer
    format: Format
    cause: Cause
    hardware: str
    source: str  # repository with number or file; what this project measured begins with `OURS`
    billions: float | None = None  # parameters, if the name of the model says so
    k3: Range | None = None  # mean of e^d − 1 − d: smallest and largest
    abs: Range | None = None  # mean of |d|
    rms: Range | None = None  # root of the mean of d²
    kl: Range | None = None  # a KL divergence by another estimator than k3, or by one that is not stated
    other: str = ""
    note: str = ""

    @property
    def ours(self) -> bool:
        return self.source.split()[0] == OURS


@dataclass(frozen=True)
class Likeness:
    """One known cause of gaps, the k3 that it has been measured to make, and the gap that is nearest to a given k3."""

    cause: Known
    low: float
    high: float
    example: Gap
    example_k3: Range


@cache
def gaps() -> tuple[Gap, ...]:
    """Return all measured gaps, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["gaps"]
    return tuple(Gap(**{name: _field(value) for name, value in row.items()}) for row in rows)


def rounding(format: str) -> Range:
    """Return the smallest and the largest k3 that rounding in this number format has been measured to make.

    Dense models and mixtures of experts count, with and without router replay: that a token goes to another expert is
    the work of rounding, too. Raises `UsageError` for a format of which no k3 has been measured.
    """
    ranges = _rounded()
    if format not in ranges:
        raise unknown("number format", format, ranges)
    return _extremes(ranges[format])


def like(k3: float) -> tuple[Likeness, ...]:
    """Return what has been measured to make gaps of this size: number formats, the finest first, then old weights.

    A range contains k3 if k3 is at most a factor `SPREAD` outside.
    """
    places = [placed(cause, k3) for cause in (*_rounded(), "age")]
    return tuple(place for place in places if place.low / SPREAD <= k3 <= place.high * SPREAD)


def placed(cause: Known, k3: float) -> Likeness:
    """Return the k3 that this cause has been measured to make, and its gap that is nearest on a logarithmic scale.

    Of several gaps that contain k3, take a published one, and of those the one with the narrowest range. Raises
    `UsageError` for a cause of which no k3 has been measured.
    """
    causes = _rounded() | {"age": _with_k3("age")}
    if cause not in causes:
        raise unknown("cause", cause, causes)

    def order(one: tuple[Gap, Range]) -> tuple[float, bool, float]:
        gap, (low, high) = one
        return max(low / max(k3, 1e-300), k3 / high, 1.05), gap.ours, high / low  # two digits are known to 5 %

    gap, nearest = min(causes[cause], key=order)
    return Likeness(cause, *_extremes(causes[cause]), gap, nearest)


def largest_rounding() -> Likeness:
    """Return the number format that has been measured to make the largest gaps, with the run that has the largest."""
    format, measured = list(_rounded().items())[-1]
    return placed(format, _extremes(measured)[1])


@cache
def _rounded() -> dict[Known, list[tuple[Gap, Range]]]:
    """Return number format → the gaps that rounding made, with their k3; the format with the smallest gaps first."""
    measured: dict[Known, list[tuple[Gap, Range]]] = {}
    for gap, k3 in _with_k3("rounding", "routing"):
        measured.setdefault(gap.format, []).append((gap, k3))
    return dict(sorted(measured.items(), key=lambda item: _extremes(item[1])[1]))


def _with_k3(*causes: Cause) -> list[tuple[Gap, Range]]:
    """Return the gaps of these causes that have a k3, with it."""
    return [(gap, gap.k3) for gap in gaps() if gap.k3 and gap.cause in causes]


def _extremes(measured: list[tuple[Gap, Range]]) -> Range:
    """Return the smallest and the largest k3 of some gaps."""
    return min(k3[0] for _, k3 in measured), max(k3[1] for _, k3 in measured)


def _field(value: Any) -> Any:
    """Return a value of the file as a field of `Gap`: a list is a range."""
    return (float(value[0]), float(value[1])) if isinstance(value, list) else value
