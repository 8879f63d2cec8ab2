"""`python -m rlcorr gaps`: measured gaps between engines and trainers in text, and where yours lies among them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from rlcorr.analysis import published
from rlcorr.analysis.gap_size import total_size
from rlcorr.analysis.published import FORMATS, SYMBOLS, Format, Measure, OtherMeasure, Row, rows
from rlcorr.analysis.symptoms import percent
from rlcorr.analysis.verdicts import Look, verdict_lines
from rlcorr.command.printing import table_row, wrap_each, wrapped
from rlcorr.errors import UsageError, unknown

LABEL = 26
"""Characters before the axis."""
AXIS = 78
"""Characters of the axis."""
SHORT: dict[str, Format] = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8_weights", "int4": "int4_weights",
}  # fmt: skip
"""Other names of number formats."""
THEN = (
    "Which setting of your model makes how much of it: `attribute`. What a threshold keeps of your log-probs: `import` "
    "and `threshold`."
)


@dataclass(frozen=True)
class Gaps:
    """Show measured gaps between engines and trainers, and where yours lies among them.

    Each gap has its source: a published measurement, or a run of this project.
    """

    size: Annotated[float | None, tyro.conf.Positional] = None
    """Size of your gap; without it, all measured gaps are listed with their sources."""
    measure: Measure | OtherMeasure = "k3"
    """What the size is, with d = log π_trainer − log π_engine: k3, the mean of e^d - 1 - d; abs, the mean of |d|;
    token_mult_prob_error, the mean of e^|d|; ppl_ratio, the trainer's perplexity over the engine's; mean_ratio, the
    mean of e^d."""
    format: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="FORMAT",
            help="The coarsest number format of your run: of the arithmetic, of the engine's weights, or of its KV "
            f"cache. One of {', '.join(FORMATS)}.",
        ),
    ] = None
    experts: bool = False
    """Your model is a mixture of experts. Needs --format."""

    def __post_init__(self) -> None:
        if self.experts and self.format is None:
            raise UsageError("--experts needs --format: gaps are compared by number format first.")
        if self.format is not None and self.size is None:
            raise UsageError("--format needs a size to compare, as in `gaps 0.04 --format fp8_kv`.")
        if self.size is None and self.measure not in ("k3", "abs"):
            raise UsageError(f"--measure {self.measure} needs a size: gaps are listed by k3 or by abs.")
        if self.measure == "mean_ratio" and self.format is not None:
            raise UsageError("--format does not go with mean_ratio, which is no size: use k3 or abs.")
        self.number_format()

    def number_format(self) -> Format | None:
        """Return the number format under our name. Raises `UsageError` for a name that is unknown or ambiguous."""
        if self.format is None:
            return None
        if self.format == "fp8":
            raise UsageError(
                "fp8 of what: fp8_weights, fp8_kv (a cache in e4m3), e5m2_kv, fp8_training, or w8a8 (8 bits on both "
                "sides)?"
            )
        name = SHORT.get(self.format, self.format)
        if name not in FORMATS:
            raise unknown("number format", self.format, FORMATS)
        return name


def run_gaps(request: Gaps) -> int:
    """Print the measured gaps, with yours among them if it is given, and return the exit code."""
    size, measure, first = request.size, request.measure, []
    if size is not None and measure == "mean_ratio":
        print("\n".join(wrapped(published.about_mean_ratio(size))))
        return 0
    if size is not None and measure in ("token_mult_prob_error", "ppl_ratio"):
        size, measure, sentence = published.converted(size, measure)
        first = [sentence]
    assert measure in ("k3", "abs")
    if size is None:
        print("\n".join([*strip_lines(None, measure), "", *_listed(rows(measure))]))
        return 0
    said = [*first, *published.place(size, measure, request.number_format(), experts=request.experts)]
    print("\n".join(strip_lines(size, measure)) + "\n")
    for sentence in [*said, published.causes(size, measure), THEN] if size else said:
        print("\n".join(wrapped(sentence)))
    return 0


def details(looks: Sequence[Look], unit: str = "step") -> Iterator[str]:
    """Yield the diagnosis of every step, the place of the gap among measured gaps, and how much is near 1.

    The place is left out if the two sides are equal.
    """
    yield from wrap_each(verdict_lines(looks, unit))
    size = total_size(look.gap for look in looks)
    if size is None or not size.k3:
        return
    yield ""
    for sentence in published.place(size.k3):
        yield from wrapped(sentence)
    yield from ("", *strip_lines(size.k3, "k3"), "")
    widths = (-LABEL, 10, 28)
    yield table_row(["Ratios within", "tokens", "answers (geometric mean)"], widths)
    for band, tokens, answers in size.shares_within():
        yield table_row([f"±{100 * band:g} %", percent(tokens), percent(answers)], widths)


def strip_lines(size: float | None, measure: Measure) -> list[str]:
    """Draw the measured gaps in text: a line per kind, o at both ends of a measured range, | at the given size."""
    kinds = rows(measure)
    low, high = min(row.low for row in kinds), max(row.high for row in kinds)
    if size:
        low, high = min(low, size), max(high, size)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def column(x: float) -> int:
        return round((math.log10(x) - first) / (last - first) * (AXIS - 1))

    cursor = column(size) if size else None
    every = -(-(last - first) // 7)
    ticks = [" "] * (AXIS + 4)
    for decade in range(last, first - 1, -every):
        text, start = f"1e{decade}" if decade else "1", column(10.0**decade)
        ticks[start : start + len(text)] = text
    lines = [f"{SYMBOLS[measure]:>{LABEL}} {''.join(ticks)}".rstrip()]
    for row in kinds:
        cells = [" "] * AXIS
        for _, (smallest, largest) in row.gaps:
            start, end = column(smallest), column(largest)
            cells[start : end + 1] = ["-" if cell != "o" else cell for cell in cells[start : end + 1]]
            cells[start] = cells[end] = "o"
        if cursor is not None:
            cells[cursor] = "|"
        lines.append(f"{row.name:>{LABEL}} {''.join(cells).rstrip()}")
    return lines


def _listed(kinds: tuple[Row, ...]) -> Iterator[str]:
    for row in kinds:
        yield f"{row.name}:"
        for gap, size in row.gaps:
            yield from wrapped(published.described(gap, size), "  ")
