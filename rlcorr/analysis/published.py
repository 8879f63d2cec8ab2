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
from rlcorr.validated import check

Format = Literal[
    "float32", "float16", "bfloat16", "int8_weights", "fp8_weights", "fp8_kv", "e5m2_kv", "int4_weights",
    "fp8_training", "w8a8", "mxfp8", "nvfp4",
]  # fmt: skip
"""The coarsest number format of the two sides: of the arithmetic, of the engine's weights, or of its KV cache. `fp8_kv`
is e4m3. `fp8_training`: both sides compute in fp8. `w8a8`: weights and activations in 8 bits on both sides. `mxfp8` and
`nvfp4`: blocks of numbers in 8 and in 4 bits, each block with a scale."""
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
Measure = Literal["k3", "abs"]
"""How the size of a gap is measured: the mean of e^d − 1 − d, or the mean of |d|."""
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
    "mxfp8": "computing in MXFP8",
    "nvfp4": "weights in NVFP4",
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
    experts: bool = False  # a mixture of experts
    k3: Range | None = None  # mean of e^d − 1 − d: smallest and largest
    abs: Range | None = None  # mean of |d|
    rms: Range | None = None  # root of the mean of d²
    kl: Range | None = None  # a KL divergence by another estimator than k3, or by one that is not stated
    other: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        check(bool(self.source), f"the source of the gap of {self.model}", self.source, "a repository or a file")

    @property
    def ours(self) -> bool:
        return self.source.split()[0] == OURS


@dataclass(frozen=True)
class CauseMatch:
    """One cause of gaps, the range measured for it, and the measured gap that is nearest to a given size."""

    cause: KnownCause
    low: float
    high: float
    example: Gap
    example_range: Range


@cache
def gaps() -> tuple[Gap, ...]:
    """Return all measured gaps, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["gaps"]
    return tuple(_gap(row) for row in rows)


def rounding(format: str) -> Range:
    """Return the smallest and the largest k3 that was measured for rounding to this number format.

    Dense models and mixtures of experts count, with and without router replay, because it is rounding that sends a
    token to another expert. Raises `UsageError` for a format without a measured k3.
    """
    ranges = _rounded()
    if format not in ranges:
        raise unknown("number format", format, ranges)
    return _extremes(ranges[format])


def matching_causes(size: float, measure: Measure = "k3") -> tuple[CauseMatch, ...]:
    """Return the causes that were measured to make gaps of this size.

    Number formats come first, from the finest to the coarsest, then old weights and hidden updates. A range contains
    the size if the size is at most a factor `SPREAD` outside.
    """
    matches = [match_cause(cause, size, measure) for cause in _by_cause(measure)]
    return tuple(match for match in matches if match.low / SPREAD <= size <= match.high * SPREAD)


def match_cause(cause: KnownCause, size: float, measure: Measure = "k3") -> CauseMatch:
    """Return the range measured for this cause, and its gap that is nearest to this size on a logarithmic scale.

    If several gaps contain the size, take a published one, and among those the one with the narrowest range. Raises
    `UsageError` for a cause for which this was not measured.
    """
    causes = _by_cause(measure)
    if cause not in causes:
        raise unknown("cause", cause, causes)
    gap, nearest = min(causes[cause], key=lambda candidate: _distance(size, *candidate))
    return CauseMatch(cause, *_extremes(causes[cause]), gap, nearest)


def nearest_gap(size: float, measure: Measure = "k3") -> tuple[Gap, Range]:
    """Return the measured gap that is nearest to this size, chosen as in `match_cause`, whatever its cause."""
    return min(measured(measure), key=lambda candidate: _distance(size, *candidate))


def _distance(size: float, gap: Gap, measured_range: Range) -> tuple[float, bool, float]:
    """Return what orders gaps by their distance from a size, which must be above 0."""
    low, high = measured_range
    # Distance as a factor, at least 1.05, because two printed digits are exact to 5 %.
    return max(low / max(size, 1e-300), size / high, 1.05), gap.ours, high / low


def largest_rounding() -> CauseMatch:
    """Return the number format with the largest measured gaps, and its run with the largest gap."""
    format, measured = list(_rounded().items())[-1]
    return match_cause(format, _extremes(measured)[1])


@cache
def _rounded(measure: Measure = "k3") -> dict[KnownCause, list[tuple[Gap, Range]]]:
    """Return number format → measured gaps from rounding with their size; the format with the smallest is first."""
    by_format: dict[KnownCause, list[tuple[Gap, Range]]] = {}
    for gap, size in measured(measure):
        if gap.cause in ("rounding", "routing"):
            by_format.setdefault(gap.format, []).append((gap, size))
    return dict(sorted(by_format.items(), key=lambda item: _extremes(item[1])[1]))


def _by_cause(measure: Measure) -> dict[KnownCause, list[tuple[Gap, Range]]]:
    """Return cause → measured gaps: every number format, then old weights and hidden updates."""
    by_cause = dict(_rounded(measure))
    others: tuple[KnownCause, ...] = ("age", "hidden")
    for cause in others:
        if gaps_of := [(gap, size) for gap, size in measured(measure) if gap.cause == cause]:
            by_cause[cause] = gaps_of
    return by_cause


@cache
def measured(measure: Measure) -> tuple[tuple[Gap, Range], ...]:
    """Return the gaps of which this was measured and is above 0, with it."""
    sizes = [(gap, gap.k3 if measure == "k3" else gap.abs) for gap in gaps()]
    return tuple((gap, size) for gap, size in sizes if size and size[0] > 0)


def _extremes(gaps_of: list[tuple[Gap, Range]]) -> Range:
    """Return the smallest and the largest size of some gaps."""
    return min(size[0] for _, size in gaps_of), max(size[1] for _, size in gaps_of)


def _gap(row: dict[str, Any]) -> Gap:
    """Return a row of the file as a gap; its lists become ranges. Raises `UsageError` for a row without a source."""
    fields = {name: tuple(map(float, value)) if isinstance(value, list) else value for name, value in row.items()}
    return Gap(**{"source": "", **fields})
