"""Sentences of the Gradient view."""

from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.sketch import SampledSketch, SampledUnits, Sketch
from rlcorr.types import TokenBatch
from text.formatting import percent

SAMPLED = "Measured on {count:,} sampled answers. The 95 % are over the answers and over projections of their scores."
ENUMERATED = (
    "Measured on all likely answers to {count:,} prompts, which cover {old} of the probability in the trainer and "
    "{rollout} in the sampler. The 95 % are over {what}projections of the scores."
)
LITTLE_COVERED = (
    "The measured answers have only {old} of the probability in the trainer and {rollout} in the sampler. Every number "
    "here lacks the part of the other answers."
)

BATCH_SIZE = "Answers in a batch (B)"
BATCH_SIZE_IS = "Larger batches cut the noise, not the bias."
WRONG_BATCH_SIZE = "answers={raw!r} is not offered; using {usual}. Offered: {allowed}."

NUMBERS = {
    "Progress (η)": "What one step of the best length along this gradient gains, as a share of what it gains along the "
    "exact gradient, with B answers in a batch: ⟨E g, g*⟩²/(‖g*‖² (‖E g‖² + V/B)), between 0 and 1. It ignores Adam, "
    "gradient clipping, and the combined effect of many steps.",
    "Bias": "‖E[g] − on-policy gradient‖ divided by the length of the on-policy gradient. If the interval contains 0, "
    "it may be noise.",
    "Noise": "Standard deviation of the gradient over batches of B answers, divided by the length of the on-policy "
    "gradient.",
    "Cosine": "Cosine between the expected gradient and the on-policy gradient.",
    "Step length": "The correction multiplies the step along the on-policy gradient by this factor.",
    "Sequence ESS": "Effective sample size: (Σ w)²/Σ w² over the sequences, as a share of the sequences.",
}
NO_CORRECTION = "no correction"
CURVE_TITLE = "Progress of this step at each threshold"
CURVE = (
    "Progress over the first threshold, with a 95 % band. Dotted: the present value; you can drag this line. Grey "
    "line: no correction."
)
CURVE_BEST = (
    "Dashed: the threshold with the most progress. Grey background: the best threshold is here in 95 % of the "
    "bootstrap samples."
)
MADE = "A step on {size:,} answers makes {value} % of the progress of a perfect step ({low} to {high} %)."
HERE = "This one makes {value} % ({low} to {high} %)."
CAP, THRESHOLD = "A cap", "A threshold"
BEST = "{what} between {low} and {high} gives the best step, and still only {share} % of a perfect one."
CANNOT_TELL = (
    "These {count:,} {kind} cannot tell which {what} is best, or whether any is better than no correction. {needed}"
)
CANNOT_TELL_WHICH = "These {count:,} {kind} cannot tell which {what} is best. They tell that some are better than none."
UNKNOWN = "unknown from these data"
NEEDED = "That would take {needed}."
NO_BOUND = "This configuration has no threshold to move."
RANKING = "Presets by the progress of one step"
RANKED = "With 95 % bars."
MARKED = "Orange: your preset with its own numbers; the line and its band: with the present thresholds."
TRAINED = "At the right: where training runs with such a correction ended (study {name})."
RED = "Red and last: they ended below no correction, although their step is better."
NOISE_REFERENCE = (
    "The on-policy gradient of this step cannot be distinguished from noise, so nothing can be measured in units of "
    "it. Record more answers with --prompts-per-step."
)
GO = "Show step {step}"

TIES, AHEAD = "It ties with the next one, {other}.", "The next one, {other}, is {difference} behind."
SEPARATE = "To separate them, record {needed} {kind} (this step has {count:,})."


def made(progress: Interval, size: int) -> str:
    """Return, in plain text, what one step with `size` answers in a batch gains."""
    return MADE.format(size=size, **_shares(progress))


def here(progress: Interval) -> str:
    """Return, in plain text, what one step with the present thresholds gains."""
    return HERE.format(**_shares(progress))


def best_between(what: str, best: Interval, progress: Interval, *, of_ratio: bool) -> str:
    """Return a sentence about the range of the best threshold, a cap or another one, and about its progress."""
    low, high = (threshold(end, of_ratio=of_ratio) for end in (best.low, best.high))
    return BEST.format(what=what, low=low, high=high, share=_share(progress.value))


def threshold(value: float, *, of_ratio: bool) -> str:
    """Format a threshold with two significant digits; the threshold of a ratio near 1 with two of its distance from 1.

    >>> [threshold(x, of_ratio=True) for x in (0.023456, 0.9991234, 1.002345, 1.97, 12345.0)]
    ['0.023', '0.99912', '1.0023', '2', '12000']
    """
    if of_ratio and 0.5 < value < 1.5:
        return f"{1 + float(f'{value - 1:.2g}'):.12g}"
    return f"{float(f'{value:.2g}'):g}"


def cannot_tell(what: str, over_nothing: Interval, units: SampledUnits, needed: int | None) -> str:
    """Return why the data show no best threshold, or no best preset (`what`).

    Args:
        what: threshold or preset.
        over_nothing: The progress of the best minus that of no correction.
        units: The units that were sampled.
        needed: How many of them would make this difference significant; None if it is 0 or unknown.
    """
    if over_nothing.tells:
        return CANNOT_TELL_WHICH.format(count=units.count, kind=units.kind, what=what)
    more = "" if needed is None else NEEDED.format(needed=_rounded(needed, units.count))
    return CANNOT_TELL.format(count=units.count, kind=units.kind, what=what, needed=more).strip()


def short(value: float) -> str:
    """Format a number with two decimals, a small one with two significant digits, a large one without decimals.

    NaN is a dash.
    """
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or abs(value) < 5e-5 else f"{value:.2g}"


def ends(interval: Interval) -> str:
    """Return the ends of an interval, or that the data do not determine its value."""
    if interval.value != interval.value:  # NaN
        return UNKNOWN
    return f"{short(interval.low)} to {short(interval.high)}"


def measured_on(batch: TokenBatch, sketch: Sketch) -> str:
    """Return a sentence about the answers and prompts that the numbers are measured on."""
    if isinstance(sketch, SampledSketch):
        return SAMPLED.format(count=len(batch.response_mask))
    what = "the prompts and over " if sketch.finite_population_factor else ""
    return ENUMERATED.format(count=sketch.answers.prompt_count, what=what, **_percents(sketch.answers.coverage))


def little_covered(coverage: dict[str, float]) -> str:
    """Return a warning if the measured answers cover little of the probability; else an empty text."""
    return LITTLE_COVERED.format(**_percents(coverage)) if min(coverage.values()) < ENOUGH_COVERED else ""


def best_preset(name: str, progress: Interval, *, others: bool) -> str:
    """Return, in Markdown, which preset makes the most progress; of the others, if training contradicts some."""
    best = f"**{name}** makes the most progress: η is {short(progress.value)} ({ends(progress)})."
    return f"Of the others, {best}" if others else best


def lead(paired: Interval, other: str, units: SampledUnits, needed: int | None) -> str:
    """Return whether the best is ahead of the next one, or how many samples would show a difference.

    Args:
        paired: The difference of their progress, on the same samples.
        other: The name of the next one.
        units: The units that were sampled.
        needed: How many of them would make the difference significant; None if the difference is 0 or unknown.
    """
    if paired.tells:
        return AHEAD.format(other=other, difference=f"{short(paired.value)} ({ends(paired)})")
    asked = "" if needed is None else _rounded(needed, units.count)
    more = SEPARATE.format(needed=asked, kind=units.kind, count=units.count) if asked else ""
    return f"{TIES.format(other=other)} {more}".strip()


def _rounded(needed: int, units: int) -> str:
    if needed < 1.1 * units:
        return "a few more"
    return f"about {float(f'{needed:.2g}'):,.0f}" if needed < 10**6 else "more than a million"


def _shares(progress: Interval) -> dict[str, str]:
    return {name: _share(getattr(progress, name)) for name in ("value", "low", "high")}


def _share(x: float) -> str:
    """Format a share in percent, without decimals unless it is below 1 %; return a dash for NaN."""
    if x != x:
        return "–"
    return f"{100 * x:.0f}" if x >= 0.01 or abs(x) < 5e-5 else f"{100 * x:.1g}"


def _percents(coverage: dict[str, float]) -> dict[str, str]:
    return {name: percent(share) for name, share in coverage.items()}
