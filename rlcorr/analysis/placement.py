"""Where a gap lies among the measured ones of `published.toml`: rows for a strip plot, and what the place says."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rlcorr.analysis.published import (
    WORDS,
    Cause,
    Format,
    Gap,
    Measure,
    Range,
    gaps,
    matching_causes,
    measured,
    nearest_gap,
)
from rlcorr.analysis.symptoms import listed, short
from rlcorr.errors import UsageError

SYMBOLS: dict[Measure, str] = {"k3": "k3", "abs": "mean |d|"}
FORMATS: dict[Format, str] = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8_weights": "weights int8",
    "fp8_weights": "weights fp8",
    "fp8_kv": "KV cache e4m3",
    "e5m2_kv": "KV cache e5m2",
    "int4_weights": "weights int4",
    "fp8_training": "training in fp8",
    "w8a8": "8 bits on both sides",
    "mxfp8": "MXFP8",
    "nvfp4": "weights NVFP4",
}
EIGHT_BITS: tuple[Format, ...] = ("int8_weights", "fp8_weights", "fp8_kv", "e5m2_kv", "fp8_training", "w8a8", "mxfp8")
OTHER_CAUSES: dict[Cause, str] = {"age": "old weights", "hidden": "hidden updates", "fault": "a bug"}
"""Causes that have rows of their own, whatever the number format is."""
EQUAL = (
    "{symbol} is 0: both sides give the same log-probs, and there is nothing to correct. That was measured with the "
    "same kernels on both sides. If yours are not the same, check that one side is no copy of the other."
)


@dataclass(frozen=True)
class Row:
    """The measured gaps of one kind, with their sizes."""

    name: str
    gaps: tuple[tuple[Gap, Range], ...]

    @property
    def low(self) -> float:
        return min(low for _, (low, _) in self.gaps)

    @property
    def high(self) -> float:
        return max(high for _, (_, high) in self.gaps)


def rows(measure: Measure = "k3") -> tuple[Row, ...]:
    """Return the measured gaps in rows: number formats, dense models and mixtures of experts apart; then other causes.

    The number format whose gaps have the smallest median is first. A gap whose source does not separate the causes is
    in the row of its number format.
    """
    by_name: dict[str, list[tuple[Gap, Range]]] = {}
    for gap, size in measured(measure):
        by_name.setdefault(_row_name(gap), []).append((gap, size))
    found_rows = [Row(name, tuple(gaps)) for name, gaps in by_name.items()]
    return tuple(sorted(found_rows, key=lambda row: (row.name in OTHER_CAUSES.values(), _middle(row.gaps))))


def place(size: float, measure: Measure = "k3", format: Format | None = None, *, experts: bool = False) -> list[str]:
    """Say where a gap of this size lies among the measured ones, and which of them is nearest, in a few sentences.

    Args:
        size: k3 or the mean of |d|, at least 0.
        format: the coarsest number format of the two sides, if it is known.
        experts: with `format`: the model is a mixture of experts.

    Returns:
        One sentence per item. A size of 0 has one only, because there is nothing to compare.

    Raises:
        UsageError: if the size is negative or not a number, or no gap above 0 was measured in this format.
    """
    if not 0 <= size < math.inf:
        raise UsageError(f"{SYMBOLS[measure]} must be at least 0 and finite; got {size:g}.")
    if size == 0:
        return [EQUAL.format(symbol=SYMBOLS[measure])]
    published, ours = (_counts(size, measure, ours=ours) for ours in (False, True))
    said = [
        f"{SYMBOLS[measure]} is {short(size)}. It is larger than {published}; of the gaps of this project, than {ours}."
    ]
    if format is not None:
        said.append(_within(size, measure, format, experts))
    gap, near = nearest_gap(size, measure)
    said.append(f"The nearest one was measured with {described(gap, near)}.")
    return said


def causes(size: float, measure: Measure = "k3") -> str:
    """Name the causes that were measured to make gaps of this size, with the range of each."""
    matches = matching_causes(size, measure)
    if not matches:
        return "No cause was measured to make gaps of this size."
    names = [f"{WORDS[match.cause]} ({range_text((match.low, match.high))})" for match in matches]
    return f"Measured causes of gaps of this size: {listed(names)}."


def described(gap: Gap, size: Range) -> str:
    """Describe a measured gap in a line: model, size of the model, number format, size of the gap, note and source."""
    kind = ", mixture of experts" if gap.experts else ""
    note = f"; {gap.note}" if gap.note else ""
    note += "; cause unknown" if gap.cause == "unknown" else ""
    return f"{gap.model}{kind} ({FORMATS[gap.format]}, {gap.engine}): {range_text(size)}{note} ({gap.source})"


def range_text(size: Range) -> str:
    """Write a range of sizes, or one number if both ends are the same."""
    low, high = size
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def _within(size: float, measure: Measure, format: Format, experts: bool) -> str:
    """Say whether the size lies within those measured for the number format of the person's run.

    Gaps whose cause nobody knows do not count, because what made them may be a fault: that a question about such a gap
    was asked before does not make it normal. They are named if the size is among them.
    """
    name = _format_name(format, experts)
    row = next((row for row in rows(measure) if row.name == name), None)
    if row is None:
        return _by_another_measure(measure, format, name)
    explained = Row(name, tuple(pair for pair in row.gaps if pair[0].cause != "unknown"))
    if not explained.gaps:
        return f"{_position(size, row)}, and nobody knows the cause there."
    unexplained = [near for gap, near in row.gaps if gap.cause == "unknown" and near[1] >= size]
    also = f" A gap as large was reported with {name}, too, but nobody has found its cause." if unexplained else ""
    return f"{_position(size, explained)}.{also if size > explained.high else ''}"


def _by_another_measure(measure: Measure, format: Format, name: str) -> str:
    """Name what was measured in this format instead. Raises `UsageError` if nothing was, or only gaps of 0."""
    others = [(gap, gap.kl) for gap in gaps() if gap.format == format and gap.kl is not None and gap.kl[0] > 0]
    if not others:
        kinds = listed([row.name for row in rows(measure)])
        raise UsageError(f"no {SYMBOLS[measure]} was measured for {name}. Measured: {kinds}.")
    said = "; ".join(f"a KL divergence of {described(gap, size)}" for gap, size in others)
    return f"No {SYMBOLS[measure]} was measured for {name}, only {said}."


def _position(size: float, row: Row) -> str:
    """Say whether a size lies below, within or above the gaps of a row, without a full stop."""
    inside = "as large as" if row.low == row.high else "within"
    place = "below" if size < row.low else "above" if size > row.high else inside
    count = f"the {len(row.gaps)} gaps" if len(row.gaps) > 1 else "the only gap"
    return f"That is {place} {count} measured with {row.name} ({range_text((row.low, row.high))})"


def _counts(size: float, measure: Measure, *, ours: bool) -> str:
    """Count the gaps below this size in 16 bits, in 8 bits and from old weights: published ones, or this project's."""
    some = [(gap, high) for gap, (_, high) in measured(measure) if gap.ours == ours]
    rounded = [(gap, high) for gap, high in some if gap.cause not in OTHER_CAUSES]
    published = "" if ours else "published gaps "
    families = {
        f"{published}in 16 bits": [high for gap, high in rounded if gap.format in ("float16", "bfloat16")],
        "in 8 bits": [high for gap, high in rounded if gap.format in EIGHT_BITS],
        "from old weights": [high for gap, high in some if gap.cause == "age"],
    }
    return listed([f"{sum(high < size for high in highs)} of the {len(highs)} {where}"
                   for where, highs in families.items() if highs])  # fmt: skip


def _row_name(gap: Gap) -> str:
    return OTHER_CAUSES.get(gap.cause) or _format_name(gap.format, gap.experts)


def _format_name(format: Format, experts: bool) -> str:
    return f"{FORMATS[format]}, experts" if experts else FORMATS[format]


def _middle(gaps: Iterable[tuple[Gap, Range]]) -> float:
    return median(math.sqrt(low * high) for _, (low, high) in gaps)
