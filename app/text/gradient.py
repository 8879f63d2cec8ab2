"""What the gradient view says."""

from collections.abc import Sequence

from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import Target
from rlcorr.gradients.progress import Choice, units_needed
from rlcorr.gradients.sketch import Drawn, SampledSketch, Sketch
from rlcorr.types import TokenBatch
from text.formatting import percent

INTRO = "What the correction does to the gradient of this step, measured beside the on-policy gradient: on {what}."
ENUMERATED = (
    "all likely answers to {count:,} prompts (covering {old} of the probability in the trainer, {rollout} in the "
    "engine), "
)
OF_SOME_PROMPTS = (
    "so the prompts alone are a sample. The 95 % intervals are over them and over the random projections of the scores"
)
OF_ALL_PROMPTS = (
    "which are all that this run trains on: nothing is a sample but the random projections of the scores, and the "
    "95 % intervals are over those"
)
SAMPLED = (
    "{count:,} sampled answers. The 95 % intervals are over them and over the random projections of their scores; "
    "differences are measured on the same answers"
)
OF_THESE_PROMPTS = (
    "The numbers are for a training on these prompts. Of the squared length of their gradient {share} % "
    "[{low}, {high}] comes from the differences between them: over many more prompts like them it is shorter by that, "
    "and {example:,} answers in a batch there are worth {worth:,.0f} [{least:,.0f}, {most:,.0f}] here."
)
EXAMPLE = 4096
LITTLE_COVERED = (
    "The answers that are measured hold only {old} of the probability in the trainer and {rollout} in the engine. What "
    "the others would add is missing from every number here."
)

BATCH_SIZE = "Answers in a batch (B)"
BATCH_SIZE_IS = "The noise of a gradient falls with the answers in its batch, its bias does not."
WRONG_BATCH_SIZE = "answers={raw!r} is not offered; using {usual}. Offered: {allowed}."

NUMBERS = {
    "Progress (η)": "Of what one step of the best length along the exact gradient gains, the share that this gradient "
    "gains, with B answers in a batch: ⟨E g, g*⟩²/(‖g*‖² (‖E g‖² + V/B)), between 0 and 1. It leaves out Adam, the "
    "clipping of gradients, and what many steps add up to.",
    "Bias": "‖E[g] − on-policy gradient‖ over its length. 0 inside the interval: not to be told from noise.",
    "Noise": "Standard deviation of the gradient over batches of B answers, over the length of the on-policy gradient.",
    "Cosine": "Between the expected gradient and the on-policy one.",
    "Step length": "What the step along the on-policy gradient is multiplied by.",
    "Sequence ESS": "Effective sample size: (Σ w)²/Σ w² over the sequences, as a share of them.",
}
RECORDED = (
    "Progress over the first bound (dotted; the line can be pulled), with its 95 % band; grey: without a correction. "
    "Green: the bound that makes the most; grey ground: where the best one lies in 95 % of the bootstrap samples."
)
MADE = (
    "With {size:,} answers in a batch this makes {value} [{low}, {high}] of the progress that the exact gradient makes."
)
MOST = " The bound that makes most lies between {low} and {high}, most likely at {best}."
NOT_WHICH = " Which bound makes most, these data do not tell."
BEST = "At {best:.4g}: {over}"
BEST_BOUNDS = (
    "The bound that makes the most progress, with the 95 % interval from bootstrap samples. Dotted: the batch that is "
    "chosen. Where the band covers the whole height, these data do not tell which bound to take."
)
TOY_FOLDED = "The same on a toy where everything is exact"
TOY = (
    "The same correction, exactly: all 364 responses over four tokens, log-ratios as wide as here ({gap:.2g}), batches "
    "of {size:,}. Nothing is sampled, so there are no bands."
)
TOY_SOURCE = "toy, with log-ratios as wide as in {source}"
RANKING = "All presets by their progress"
RANKED = (
    "Every preset by its progress, with 95 % bars. On the same ground and in the same shade: not to be told from the "
    "first of them, by the difference on the same bootstrap samples."
)
MARKED = "Warm bar: the preset with its own numbers; warm line and band: with the bounds as they are now."
PLANE = (
    "Every preset on this step: the noise of a batch of {size:,} answers to the right, bias upwards, both in units of "
    "the on-policy gradient. A larger batch moves all points to the left, and none of them down. Warm cross: with the "
    "bounds as they are now."
)
PARTS = {
    "weights": "from exact product weights to this level of weights, or none",
    "truncation": "the bounds on the weights",
    "rejection": "the rules",
    "denominator": "dividing by kept tokens, normalised weights",
}
DECOMPOSED = "Where the gradient leaves the exact one, step by step; each measured on the same responses."
KL_ADVICE = (
    "As a loss: k2, or k3+, which has the value of k3 and the gradient of k2. Plain k3 is for measuring: its gradient "
    "is that of the other KL."
)
KL = (
    "KL penalties as losses, on {places} recorded places where all next tokens are known, so that the expectation over "
    "tokens is exact. k2 follows ∇KL(π_θ‖target); k3 follows the other KL, and k1 in expectation nothing at all. The "
    "number above the bars is the length of the gradient over that of ∇KL(π_θ‖target)."
)
KL_NUMBERS = {
    "cosine": "Between the loss's expected gradient and ∇KL(π_θ‖target).",
    "length": "Of the loss's expected gradient, over that of ∇KL(π_θ‖target).",
    "noise of a token": "Standard deviation of the gradient of one sampled token, in units of ∇KL(π_θ‖target).",
}
TARGETS: dict[str, Target] = {"the reference model": "ref", "the engine's policy": "rollout"}
NO_PLACES = "This run recorded no distribution of {target} at that step, so there is no truth to compare with."
NOISE_REFERENCE = (
    "The on-policy gradient of this step cannot be told from noise, so it is no unit. Record more of it with "
    "--sketch.reference-prompts."
)
GO = "Show step {step}"

TOLD = "It is {difference} above {other}."
EQUAL = "It is as good as {other}."
NOT_TOLD = "It cannot be told from {other} ({difference}): that would take {needed}; there are {count:,}."
MANY = 10**6


def answer(progress: Interval, size: int, best: Interval | None, tried: Sequence[float]) -> str:
    """What the shown correction makes, and where the best bound lies, if one moves; in plain text."""
    ends = {"value": short(progress.value), "low": short(progress.low), "high": short(progress.high)}
    made = MADE.format(size=size, **ends)
    if best is None:
        return made
    if best.low <= min(tried) and best.high >= max(tried):
        return made + NOT_WHICH
    return made + MOST.format(low=f"{best.low:.4g}", high=f"{best.high:.4g}", best=f"{best.value:.4g}")


def short(value: float) -> str:
    """Two digits after the point, or two that are not 0; a dash where there is nothing to show."""
    if value != value:
        return "–"
    return f"{value:.2f}" if abs(value) >= 0.1 or abs(value) < 5e-5 else f"{value:.2g}"


def measured_on(batch: TokenBatch, sketch: Sketch) -> str:
    """What the numbers stand on."""
    if isinstance(sketch, SampledSketch):
        return INTRO.format(what=SAMPLED.format(count=len(batch.response_mask)))
    answers = ENUMERATED.format(count=sketch.answers.prompt_count, **_percents(sketch.answers.coverage))
    return INTRO.format(what=answers + (OF_SOME_PROMPTS if sketch.unseen else OF_ALL_PROMPTS))


def of_these_prompts(noise: Interval) -> str:
    """Where the prompts are the task: what the numbers say of a training on more of them."""
    worth = {
        name: (1 - x) * EXAMPLE for name, x in (("worth", noise.value), ("least", noise.high), ("most", noise.low))
    }
    shares = {name: f"{100 * x:.0f}" for name, x in (("share", noise.value), ("low", noise.low), ("high", noise.high))}
    return OF_THESE_PROMPTS.format(example=EXAMPLE, **shares, **worth)


def little_covered(coverage: dict[str, float]) -> str:
    """Empty where enough is."""
    return LITTLE_COVERED.format(**_percents(coverage)) if min(coverage.values()) < ENOUGH_COVERED else ""


def best_preset(choice: Choice, names: Sequence[str], here: Drawn) -> str:
    """Markdown: which makes the most progress, how sure that is, and what would make it surer."""
    next_one = [number for group in choice.groups for number in group][1]
    alike, support = len(choice.groups[0]) - 1, f"{100 * choice.support[choice.best]:.0f} %"
    others = "no other" if not alike else "one other" if alike == 1 else f"{alike} others"
    return (
        f"With {choice.batch_size:,} answers in a batch, **`{names[choice.best]}`** makes the most progress; in "
        f"{support} of the bootstrap samples it is the best of the {len(names)} presets, and {others} cannot be "
        f"told from it. "
        f"{over(choice.over_next, f'the next, `{names[next_one]}`', here)} "
        f"{over(choice.over_nothing, 'no correction', here)}"
    )


def over(paired: Interval, other: str, here: Drawn) -> str:
    """By how much the best is above another; where that cannot be told, what it would take."""
    difference = f"{short(paired.value)} [{short(paired.low)}, {short(paired.high)}]"
    needed = units_needed(here.count, paired)
    if paired.tells:
        return TOLD.format(difference=difference, other=other)
    if needed is None:
        return EQUAL.format(other=other)
    would_tell = f"{_rounded(needed, here.count)} {here.of}"
    return NOT_TOLD.format(difference=difference, other=other, needed=would_tell, count=here.count)


def _rounded(needed: int, units: int) -> str:
    if needed < 1.1 * units:
        return "a few more"
    return f"about {float(f'{needed:.2g}'):,.0f}" if needed < MANY else "more than a million"


def _percents(coverage: dict[str, float]) -> dict[str, str]:
    return {name: percent(share) for name, share in coverage.items()}
