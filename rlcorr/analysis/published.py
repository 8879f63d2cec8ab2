"""Gaps between engine and trainer that were measured, in published work and by this project: `published.toml`.

A batch is compared with them, because the size of a gap alone proves nothing: depth, width and entropy of the model
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
"""The coarsest number format of the two sides: of the arithmetic, of the engine's weights, or of its KV cache. `fp8_kv`
is e4m3. `fp8_training`: both sides compute in fp8. `w8a8`: weights and activations in 8 bits on both sides."""
Cause = Literal["rounding", "routing", "age", "hidden", "cut", "fault", "none", "unknown"]
"""The cause of a gap, according to its source. `routing`: rounding sends tokens to other experts, and router replay
reduces the gap. `hidden`: the trainer's updates are smaller than the steps of the engine's number format, so that they
add up in the trainer alone. `none`: both sides run the same kernels, and there is no gap. `unknown`: the source does
not separate the causes."""
SPREAD = 1.5
"""Factor by which k3 may be outside a measured range and still have this size.

Batches of one model in one setting differ as much: SmolLM2-135M with an fp8 KV cache had 0.026, 0.029 and 0.038, and
with bfloat16 on both sides 0.0013 to 0.0022. A range measured on few models is not a limit.
"""
OURS = "rlcorr"
Range = tuple[float, float]
KnownCause = Format | Literal["age", "hidden"]
"""A cause whose k3 was measured: rounding to a number format, old weights, or hidden updates."""
WORDS: dict[KnownCause, str] = {
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
    "hidden": "updates of a float32 trainer that an engine in bfloat16 rounds away",
}


@dataclass(frozen=True)
class Gap:
    """One measured gap, d = log π_trainer − log π_engine of sampled tokens. It has at least one of the five ranges."""

    model: str
    engine: str  # software of the engine, then of the trainer
    format: Format
    cause: Cause
    hardware: str
    source: str  # repository with issue number or file; begins with `OURS` if this project measured it
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
class CauseMatch:
    """One cause of gaps, the range of k3 measured for it, and the measured gap that is nearest to a given k3."""

    cause: KnownCause
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
    """Return the smallest and the largest k3 that was measured for rounding to this number format.

    Dense models and mixtures of experts count, with and without router replay, because it is rounding that sends a
    token to another expert. Raises `UsageError` for a format without a measured k3.
    """
    ranges = _rounded()
    if format not in ranges:
        raise unknown("number format", format, ranges)
    return _extremes(ranges[format])


def matching_causes(k3: float) -> tuple[CauseMatch, ...]:
    """Return the causes that were measured to make gaps of this size.

    Number formats come first, from the finest to the coarsest, then old weights and hidden updates. A range contains k3
    if k3 is at most a factor `SPREAD` outside.
    """
    matches = [match_cause(cause, k3) for cause in (*_rounded(), "age", "hidden")]
    return tuple(match for match in matches if match.low / SPREAD <= k3 <= match.high * SPREAD)


def match_cause(cause: KnownCause, k3: float) -> CauseMatch:
    """Return the k3 range measured for this cause, and its gap that is nearest to k3 on a logarithmic scale.

    If several gaps contain k3, take a published one, and among those the one with the narrowest range. Raises
    `UsageError` for a cause without a measured k3.
    """
    causes = _rounded() | {"age": _with_k3("age"), "hidden": _with_k3("hidden")}
    if cause not in causes:
        raise unknown("cause", cause, causes)

    def order(candidate: tuple[Gap, Range]) -> tuple[float, bool, float]:
        gap, (low, high) = candidate
        # Distance as a factor, at least 1.05, because two printed digits are exact to 5 %.
        return max(low / max(k3, 1e-300), k3 / high, 1.05), gap.ours, high / low

    gap, nearest = min(causes[cause], key=order)
    return CauseMatch(cause, *_extremes(causes[cause]), gap, nearest)


def largest_rounding() -> CauseMatch:
    """Return the number format with the largest measured gaps, and its run with the largest gap."""
    format, measured = list(_rounded().items())[-1]
    return match_cause(format, _extremes(measured)[1])


@cache
def _rounded() -> dict[KnownCause, list[tuple[Gap, Range]]]:
    """Return number format → measured gaps from rounding with their k3; the format with the smallest gaps is first."""
    measured: dict[KnownCause, list[tuple[Gap, Range]]] = {}
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
    """Convert a value of the file to a field of `Gap`. A list becomes a range."""
    return (float(value[0]), float(value[1])) if isinstance(value, list) else value
