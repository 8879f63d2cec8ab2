"""Measured gaps between engine and trainer, from published work and by this project: `published.toml`.

A batch is compared with them, because the size of a gap alone proves nothing: depth, width and entropy of the model
change k3 tenfold within one number format, and old weights make gaps of the same size as 8 bits.
"""

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

from rlcorr.analysis.symptoms import listed, short
from rlcorr.errors import UsageError, unknown

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
_NAMES: dict[Format, tuple[str, str]] = {
    "float32": ("float32", "sums in float32"),
    "float16": ("float16", "rounding to float16"),
    "bfloat16": ("bfloat16", "rounding to bfloat16"),
    "int8_weights": ("weights int8", "weights in int8"),
    "fp8_weights": ("weights fp8", "weights in fp8"),
    "fp8_kv": ("KV cache e4m3", "a KV cache in fp8"),
    "e5m2_kv": ("KV cache e5m2", "a KV cache in e5m2"),
    "int4_weights": ("weights int4", "weights in int4"),
    "fp8_training": ("training in fp8", "training in fp8"),
    "w8a8": ("8 bits on both sides", "weights and activations in 8 bits"),
    "mxfp8": ("MXFP8", "computing in MXFP8"),
    "nvfp4": ("weights NVFP4", "weights in NVFP4"),
}
FORMATS: dict[Format, str] = {format: name for format, (name, _) in _NAMES.items()}
"""Number format → its name in a row of gaps."""
WORDS: dict[KnownCause, str] = {
    **{format: words for format, (_, words) in _NAMES.items()},
    "age": "weights a few updates old",
    "hidden": "updates of a float32 trainer that an engine in bfloat16 rounds away",
}
"""Cause → the words for it in a sentence."""
LAST: tuple[KnownCause, ...] = ("age", "hidden")
"""The causes that are no number format. They are named last."""
SYMBOLS: dict[Measure, str] = {"k3": "k3", "abs": "mean |d|"}
EIGHT_BITS: tuple[Format, ...] = ("int8_weights", "fp8_weights", "fp8_kv", "e5m2_kv", "fp8_training", "w8a8", "mxfp8")
OTHER_CAUSES: dict[Cause, str] = {"age": "old weights", "hidden": "hidden updates", "fault": "a bug"}
"""Causes that have rows of their own, whatever the number format is."""
EQUAL = (
    "{symbol} is 0: both sides give the same log-probs, and there is nothing to correct. That was measured with the "
    "same kernels on both sides. If yours are not the same, check that one side is no copy of the other."
)


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

    @property
    def ours(self) -> bool:
        return self.source.split()[0] == OURS


Sized = tuple[Gap, Range]
"""A gap with its size in one measure."""


@dataclass(frozen=True)
class Row:
    """The measured gaps of one kind, with their sizes."""

    name: str
    gaps: tuple[Sized, ...]

    @property
    def middle(self) -> float:
        """Return the median size; that of a range is its geometric mean."""
        return median(math.sqrt(low * high) for _, (low, high) in self.gaps)

    @property
    def low(self) -> float:
        return min(low for _, (low, _) in self.gaps)

    @property
    def high(self) -> float:
        return max(high for _, (_, high) in self.gaps)

    @property
    def words(self) -> str:
        """Return the name with the range."""
        return f"{self.name} ({range_text((self.low, self.high))})"

    def nearest(self, size: float) -> Sized:
        """Return the gap that is nearest to this size on a logarithmic scale.

        If several gaps contain the size, take a published one, and among those the one with the narrowest range.
        """

        def distance(candidate: Sized) -> tuple[float, bool, float]:
            gap, (low, high) = candidate
            # Distance as a factor, at least 1.05, because two printed digits are exact to 5 %.
            return max(low / max(size, 1e-300), size / high, 1.05), gap.ours, high / low

        return min(self.gaps, key=distance)


@cache
def gaps() -> tuple[Gap, ...]:
    """Return all measured gaps, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["gaps"]
    ranges = [{name: tuple(map(float, x)) for name, x in row.items() if isinstance(x, list)} for row in rows]
    return tuple(Gap(**{**row, **sizes}) for row, sizes in zip(rows, ranges, strict=True))


@cache
def measured(measure: Measure) -> tuple[Sized, ...]:
    """Return the gaps of which this was measured and is above 0, with it."""
    sizes = [(gap, gap.k3 if measure == "k3" else gap.abs) for gap in gaps()]
    return tuple((gap, size) for gap, size in sizes if size and size[0] > 0)


@cache
def by_cause(measure: Measure = "k3") -> dict[KnownCause, Row]:
    """Return cause → measured gaps: number formats, the one with the smallest gaps first, then `LAST`.

    Routing counts as rounding, because it is rounding that sends a token to another expert. Dense models and mixtures
    of experts count, with and without router replay.
    """
    sizes: dict[KnownCause, list[Sized]] = {}
    for gap, size in measured(measure):
        cause = gap.format if gap.cause in ("rounding", "routing") else gap.cause
        if cause in WORDS:
            sizes.setdefault(cause, []).append((gap, size))
    some: dict[KnownCause, Row] = {cause: Row(WORDS[cause], tuple(gaps_of)) for cause, gaps_of in sizes.items()}
    return dict(sorted(some.items(), key=lambda item: (item[0] in LAST, item[0] == LAST[-1], item[1].high)))


def rounding(format: str) -> Range:
    """Return the smallest and the largest k3 that was measured for rounding to this number format.

    Raises `UsageError` for a format without a measured k3.
    """
    formats = {str(cause): row for cause, row in by_cause().items() if cause not in LAST}
    if format not in formats:
        raise unknown("number format", format, formats)
    return formats[format].low, formats[format].high


def largest_rounding() -> Row:
    """Return the gaps of the number format with the largest measured gaps."""
    return [row for cause, row in by_cause().items() if cause not in LAST][-1]


def matching_causes(size: float, measure: Measure = "k3") -> dict[KnownCause, Row]:
    """Return the causes that were measured to make gaps of this size, with all their measured gaps.

    Number formats come first, from the finest to the coarsest, then old weights and hidden updates. A range contains
    the size if the size is at most a factor `SPREAD` outside.
    """
    return {c: row for c, row in by_cause(measure).items() if row.low / SPREAD <= size <= row.high * SPREAD}


def rows(measure: Measure = "k3") -> tuple[Row, ...]:
    """Return the measured gaps in rows: number formats, dense models and mixtures of experts apart; then other causes.

    The number format whose gaps have the smallest median is first. A gap whose source does not separate the causes is
    in the row of its number format.
    """
    by_name: dict[str, list[Sized]] = {}
    for gap, size in measured(measure):
        name = OTHER_CAUSES.get(gap.cause) or _format_name(gap.format, gap.experts)
        by_name.setdefault(name, []).append((gap, size))
    some = [Row(name, tuple(sizes)) for name, sizes in by_name.items()]
    return tuple(sorted(some, key=lambda row: (row.name in OTHER_CAUSES.values(), row.middle)))


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
    gap, near = Row("all", measured(measure)).nearest(size)
    said.append(f"The nearest one was measured with {described(gap, near)}.")
    return said


def among_published(k3: float | None) -> str:
    """Return the first thing that `place` says of a k3; nothing if there is none, or if the two sides are equal."""
    return f"{place(k3)[0].partition(';')[0].rstrip('.')}." if k3 else ""


def causes(size: float, measure: Measure = "k3") -> str:
    """Name the causes that were measured to make gaps of this size, with the range of each."""
    matches = matching_causes(size, measure).values()
    if not matches:
        return "No cause was measured to make gaps of this size."
    return f"Measured causes of gaps of this size: {listed([match.words for match in matches])}."


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
    """Say whether the size lies below, within or above those measured for the number format of the person's run.

    Gaps whose cause nobody knows do not count, because what made them may be a fault: that a question about such a gap
    was asked before does not make it normal.
    """
    name, kinds = _format_name(format, experts), rows(measure)
    explained = [pair for row in kinds if row.name == name for pair in row.gaps if pair[0].cause != "unknown"]
    if not explained:
        measured_kinds = listed([row.name for row in kinds])
        raise UsageError(
            f"no {SYMBOLS[measure]} with a known cause was measured for {name}. Measured: {measured_kinds}."
        )
    row = Row(name, tuple(explained))
    where = "below" if size < row.low else "above" if size > row.high else "within"
    return f"That is {where} the range measured with {row.words}."


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


def _format_name(format: Format, experts: bool) -> str:
    return f"{FORMATS[format]}, experts" if experts else FORMATS[format]


# --- measures that other systems print ---
# d = log π_trainer − log π_engine of tokens that the engine drew, and r = e^d.

Convertible = Literal["token_mult_prob_error", "ppl_ratio"]
OtherMeasure = Convertible | Literal["mean_ratio"]
"""`token_mult_prob_error` of NeMo RL: the mean of e^|d|. `ppl_ratio` of verl: the mean over answers of e^(mean of −d),
the perplexity of the trainer over that of the engine. `mean_ratio`: the mean of r."""
ACCEPTED = 1.05
"""The token_mult_prob_error above which NeMo RL's guide on tensor parallelism suspects a bug."""
NEAR_ONE = 0.01
"""Distance of a mean ratio from 1 that a batch of some thousand tokens has by chance."""


def converted(size: float, measure: Convertible) -> tuple[float, Measure, str]:
    """Return the mean |d| or k3 that follows from a token_mult_prob_error or a ppl_ratio, and a sentence about it.

    - By Jensen's inequality the mean of |d| is at most log(mean of e^|d|).
    - The mean of −d estimates KL(π_engine‖π_trainer), as k3 does, if no token was cut.

    Raises `UsageError` for a value below 1.
    """
    if not 1 <= size < math.inf:
        why = {
            "token_mult_prob_error": "it is a mean of e^|d|",
            "ppl_ratio": "below 1 the noise of the batch is larger than the gap; use k3, which has less noise",
        }[measure]
        raise UsageError(f"{measure} must be at least 1 and finite; got {size:g}: {why}.")
    log = math.log(size)
    if measure == "ppl_ratio":
        return log, "k3", (
            f"A perplexity ratio of {size:g} is a mean log-ratio of {short(log)}. It estimates the same KL divergence "
            "as k3, with more noise, if the engine drew its tokens without top-p or top-k."
        )  # fmt: skip
    verdict = "above" if size > ACCEPTED else "not above"
    return log, "abs", (
        f"token_mult_prob_error is {size:g}, {verdict} the {ACCEPTED} from which NeMo RL's guide suspects a bug. Mean "
        f"|d| is at most its logarithm, {short(log)}; a few tokens with a large d make it much smaller."
    )  # fmt: skip


def about_mean_ratio(size: float) -> str:
    """Explain a mean of r. Raises `UsageError` unless it is above 0 and finite."""
    if not 0 < size < math.inf:
        raise UsageError(f"mean_ratio must be above 0 and finite; got {size:g}.")
    if abs(size - 1) <= NEAR_ONE:
        return (
            f"A mean ratio of {size:g} says nothing about the size of the gap: it is 1 for any two policies. Use k3 "
            "or abs."
        )
    if size < 1:
        return (
            f"A mean ratio of {size:g} is below 1, so the trainer gives {100 * (1 - size):.3g} % of its probability to "
            "tokens that the engine cannot draw: top-p, top-k or min-p in the engine alone, or a batch "
            "without its rarest tokens. Qwen2.5-1.5B-Instruct with top-p 0.8 had 0.896, and 1.001 with top-p on both "
            "sides (GuoCheng24/batch-logprob-gap README T11)."
        )
    return (
        f"A mean ratio of {size:g} is above 1, which is impossible on average for tokens that the engine drew with "
        "these log-probs: look for another temperature, log-probs from before it, or shifted tokens. In a small batch, "
        "a few tokens with huge ratios can do it."
    )
