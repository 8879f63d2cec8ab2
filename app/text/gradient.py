"""Sentences of the Gradient view."""

from collections.abc import Sequence

from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import Choice
from rlcorr.gradients.sketch import SampledSketch, SampledUnits, Sketch
from rlcorr.types import TokenBatch
from text.formatting import percent

INTRO = "The gradient of this step with the correction, compared with the on-policy gradient. Measured on {what}."
ENUMERATED = (
    "all likely answers to {count:,} prompts. They cover {old} of the probability in the trainer and {rollout} in the "
    "sampler. "
)
OF_SOME_PROMPTS = (
    "Only the prompts are a sample. The 95 % intervals are over the prompts and over the random projections of the "
    "scores"
)
OF_ALL_PROMPTS = (
    "The run trains on these prompts only, so only the projections of the scores are random. The 95 % intervals are "
    "over these projections"
)
SAMPLED = (
    "{count:,} sampled answers. The 95 % intervals are over the answers and over the random projections of their "
    "scores. Differences are measured on the same answers"
)
OF_THESE_PROMPTS = (
    "The numbers are for a training run on these prompts. The differences between the prompts make {share} % [{low}, "
    "{high}] of the squared length of their gradient. With many more such prompts the gradient would lack this part, "
    "and {example:,} answers in a batch would be worth as much as {worth:,.0f} [{least:,.0f}, {most:,.0f}] here."
)
EXAMPLE = 4096
LITTLE_COVERED = (
    "The measured answers have only {old} of the probability in the trainer and {rollout} in the sampler. Every number "
    "here lacks the part of the other answers."
)

BATCH_SIZE = "Answers in a batch (B)"
BATCH_SIZE_IS = "A larger batch has less noise in its gradient, but not less bias."
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
CURVE_TITLE = "Progress of this step at each threshold"
CURVE = (
    "Progress over the first threshold, with a 95 % band. Dotted: the present value; you can drag this line. Grey "
    "line: no correction."
)
CURVE_BEST = (
    "Dashed: the threshold with the most progress. Grey background: the best threshold is here in 95 % of the "
    "bootstrap samples."
)
MADE = (
    "With {size:,} answers in a batch, one step gains {value} % of what an exact, noise-free step gains (95 %: {low} "
    "to {high} %)."
)
MOST = " The best threshold is between {low} and {high}."
CANNOT_TELL = (
    "These {count:,} {kind} cannot tell which {what} is best, or whether any is better than no correction. {needed}"
)
CANNOT_TELL_WHICH = "These {count:,} {kind} cannot tell which {what} is best. They tell that some are better than none."
UNKNOWN = "unknown from these data"
NEEDED = "That would take {needed}."
BEST_THRESHOLDS_TITLE = "Best threshold for each batch size"
BEST_THRESHOLDS = (
    "The threshold with the most progress, and its 95 % interval from bootstrap samples. Dotted: the present batch "
    "size. If the band covers the whole height, these data cannot tell which threshold is best."
)
NO_BOUND = "This configuration has no threshold to move."
TOY_FOLDED = "The same on a toy where everything is exact"
TOY_TITLE = "The toy, exactly"
TOY = (
    "The same correction on all 364 responses over four tokens, with log-ratios as wide as here ({gap:.2g}), in "
    "batches of {size:,}. Nothing is sampled, so there are no bands."
)
TOY_SOURCE = "toy, with log-ratios as wide as in {source}"
RANKING = "All presets by their progress"
RANKED = (
    "Every preset by its progress, with 95 % bars. Bars with the same background and shade are statistically tied with "
    "the first of them, by the difference on the same samples."
)
MARKED = "Orange bar: the preset with its own numbers. Orange line and band: with the present thresholds."
PLANE_TITLE = "Bias and noise of all presets"
PLANE = (
    "Each point is a preset; point at it for its name. Horizontal: noise with {size:,} answers in a batch. Vertical: "
    "bias. Both are in units of the on-policy gradient. A larger batch moves all points to the left by the same "
    "distance, but none down. Orange cross: the correction with the present thresholds, and its 95 % intervals."
)
PARTS_TITLE = "Where the bias comes from"
PARTS = ("weights", "truncation", "rejection", "denominator")
DECOMPOSED = (
    "How far each part of the correction moves the gradient, measured on the same responses. weights: from exact "
    "product weights to this level of weights, or to none. truncation: the thresholds of the weights. rejection: the "
    "rules. denominator: dividing by the kept tokens, and normalised weights."
)
NOISE_REFERENCE = (
    "The on-policy gradient of this step cannot be distinguished from noise, so nothing can be measured in units of "
    "it. Record more answers with --prompts-per-step."
)
GO = "Show step {step}"

BEST_PRESET = (
    "With {size:,} answers in a batch, **{best}** makes the most progress. It is the best of the {count} presets in "
    "{support} of the bootstrap samples. {tied}"
)
NONE_TIED = "Every other preset differs significantly from it."
ONE_TIED = "One other preset does not differ significantly from it."
SOME_TIED = "{count} other presets do not differ significantly from it."
NEXT_PRESET, NO_CORRECTION = "the next preset, {name}", "no correction"
SIGNIFICANT = "Its progress is {difference} above that of {other}."
EQUAL = "Its progress is the same as that of {other}."
NOT_SIGNIFICANT = (
    "Its progress does not differ significantly from that of {other} ({difference}). That would take {needed}; there "
    "are {count:,}."
)


def gains(progress: Interval, size: int) -> str:
    """Return, in plain text, what one step with `size` answers in a batch gains."""
    value, low, high = map(_share, (progress.value, progress.low, progress.high))
    return MADE.format(size=size, value=value, low=low, high=high)


def best_between(best: Interval, *, of_ratio: bool) -> str:
    """Return a sentence about the range of the best threshold."""
    low, high = (threshold(end, of_ratio=of_ratio) for end in (best.low, best.high))
    return MOST.format(low=low, high=high)


def threshold(value: float, *, of_ratio: bool) -> str:
    """Format a threshold with two significant digits; the threshold of a ratio near 1 with two of its distance from 1.

    >>> [threshold(x, of_ratio=True) for x in (0.023456, 0.9991234, 1.002345, 2.5534, 12345.0)]
    ['0.023', '0.99912', '1.0023', '2.6', '12000']
    """
    if of_ratio and 0.5 < value < 10:
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
        return INTRO.format(what=SAMPLED.format(count=len(batch.response_mask)))
    answers = ENUMERATED.format(count=sketch.answers.prompt_count, **_percents(sketch.answers.coverage))
    return INTRO.format(what=answers + (OF_SOME_PROMPTS if sketch.finite_population_factor else OF_ALL_PROMPTS))


def of_these_prompts(noise: Interval) -> str:
    """Return a sentence about how the numbers would change with more prompts.

    `noise` is the share of the squared length of the gradient that comes from the differences between the prompts.
    """
    share, low, high = (f"{100 * x:.0f}" for x in (noise.value, noise.low, noise.high))
    worth, most, least = ((1 - x) * EXAMPLE for x in (noise.value, noise.low, noise.high))
    return OF_THESE_PROMPTS.format(
        example=EXAMPLE, share=share, low=low, high=high, worth=worth, least=least, most=most
    )


def little_covered(coverage: dict[str, float]) -> str:
    """Return a warning if the measured answers cover little of the probability; else an empty text."""
    return LITTLE_COVERED.format(**_percents(coverage)) if min(coverage.values()) < ENOUGH_COVERED else ""


def best_preset(choice: Choice, names: Sequence[str]) -> str:
    """Return, in Markdown, which preset makes the most progress, and how certain this is."""
    size, count, tied = choice.batch_size, len(names), len(choice.groups[0]) - 1
    others = (NONE_TIED, ONE_TIED)[tied] if tied < 2 else SOME_TIED.format(count=tied)
    support = f"{100 * choice.support[choice.best]:.0f} %"
    return BEST_PRESET.format(size=size, best=names[choice.best], count=count, support=support, tied=others)


def lead(paired: Interval, other: str, units: SampledUnits, needed: int | None) -> str:
    """Return by how much the best is ahead of another, or how many more samples would show a difference.

    Args:
        paired: The difference of their progress, on the same samples.
        other: The name of the other.
        units: The units that were sampled.
        needed: How many of them would make the difference significant; None if the difference is 0 or unknown.
    """
    difference = f"{short(paired.value)} [{short(paired.low)}, {short(paired.high)}]"
    if paired.tells:
        return SIGNIFICANT.format(difference=difference, other=other)
    if needed is None:
        return EQUAL.format(other=other)
    more = f"{_rounded(needed, units.count)} {units.kind}"
    return NOT_SIGNIFICANT.format(difference=difference, other=other, needed=more, count=units.count)


def _rounded(needed: int, units: int) -> str:
    if needed < 1.1 * units:
        return "a few more"
    return f"about {float(f'{needed:.2g}'):,.0f}" if needed < 10**6 else "more than a million"


def _share(x: float) -> str:
    """Format a share in percent, without decimals unless it is below 1 %; return a dash for NaN."""
    if x != x:
        return "–"
    return f"{100 * x:.0f}" if x >= 0.01 or abs(x) < 5e-5 else f"{100 * x:.1g}"


def _percents(coverage: dict[str, float]) -> dict[str, str]:
    return {name: percent(share) for name, share in coverage.items()}
