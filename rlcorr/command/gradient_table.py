"""Tables as text: what `python -m rlcorr gradients RUN` prints."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rlcorr.adaptive import m2_at
from rlcorr.analysis.budget import correction_named
from rlcorr.bounds import usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.progress import Choice, units_needed
from rlcorr.gradients.report import BATCH_SIZES, GradientReport, compare
from rlcorr.gradients.sketch import ExactSketch, Sketch, drawn
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.presets import PRESETS, preset
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.types import TokenBatch

RANKED_BY = 0
"""The batch size that orders the presets: the first of BATCH_SIZES."""
WIDE = 23
COLUMNS = {"bias": WIDE, "noise": 8, "cosine": WIDE, "step length": WIDE, "ESS": 7} | {
    f"η({size})": WIDE for size in BATCH_SIZES
}
HEADING = "{:<28}" + "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
UNITS = (
    f"bias and noise in units of the on-policy gradient g*: |E[g] − g*|, and the standard deviation over batches of "
    f"{BATCH_SIZES[RANKED_BY]}\n"
    "answers. step length: what the step along g* is multiplied by. η(B): which share of the progress of the exact\n"
    "gradient a step of the best length makes on average, with B answers in a batch. It is about one step, without\n"
    "Adam and without clipping of gradients. Brackets: 95 % of the bootstrap samples."
)
GROUPS = "A line stands above each preset that can be told from the one that its group begins with."
MOST_UNITS = 1_000_000
"""More prompts or answers than anybody records."""
SHOWN = 0.0005
"""Smaller differences are 0 in the digits that are shown."""
WIDTH = 118


def gradient_table(run: Path, step: int | None = None, names: Sequence[str] = ()) -> list[str]:
    """Lines of text: what was measured, then the presets, the most progress first, all on the same bootstrap samples,
    and what the numbers say.

    Raises `UsageError` without a sketch, for an unknown preset, and where the reference is noise.
    """
    step = last_sketch(run) if step is None else step
    batch, sketch = read_gradients(run, step)
    chosen = list(names or PRESETS)
    ranking = compare(batch, sketch, [preset(name) for name in chosen])
    lines = [*_measured_on(run, step, batch, sketch, ranking.reports[0]), "", HEADING.format("preset")]
    for group in ranking.choices[RANKED_BY].groups:
        lines.append("-" * len(HEADING.format("")))
        lines += [_line(chosen[number], ranking.reports[number]) for number in group]
    orders = [[number for group in choice.groups for number in group] for choice in ranking.choices]
    seconds = [chosen[order[1]] if len(order) > 1 else "" for order in orders]
    sentences = [
        _best_preset(choice, chosen[choice.best], ranking.reports[choice.best].progress[place], second)
        + (_told(choice.over_next, f"the next, {second},", batch, sketch) if second else "")
        + _told(choice.over_nothing, "no correction", batch, sketch)
        for place, (choice, second) in enumerate(zip(ranking.choices, seconds, strict=True))
    ]
    return [*lines, "", *_wrapped(sentences), "", GROUPS, UNITS]


THRESHOLDS = 20
M2PO = "m2po"


def sweep_table(run: Path, name: str, step: int | None = None, rule: int | None = None) -> list[str]:
    """Lines of text: one preset at ascending thresholds, and the best with its 95 % interval; so is a rejection rule
    alone, and m2po over the bounds on k2 that its thresholds come to. Raises as `gradient_table` does, and for a preset
    without a threshold."""
    step = last_sketch(run) if step is None else step
    batch, sketch = read_gradients(run, step)
    correction = correction_named("token_k2" if name == M2PO else name)
    points = usual_thresholds(batch, correction, rule, count=THRESHOLDS)
    sweep = gradient_sweep(batch, sketch, correction, rule=rule, thresholds=points)
    counts = sketch.answers.sampled if isinstance(sketch, ExactSketch) else None
    said = (lambda bounds: m2_at(batch, bounds, counts)) if name == M2PO else list
    bests = [said([best.value, best.low, best.high]) for best in sweep.best]
    sentences = [
        f"With {choice.batch_size} answers in a batch the most progress is made at {best:.6g}; in 95 % of "
        f"the bootstrap samples between {low:.6g} and {high:.6g}."
        + _told(choice.over_nothing, "no correction", batch, sketch)
        for choice, (best, low, high) in zip(sweep.ranking.choices, bests, strict=True)
    ]
    return [
        *_measured_on(run, step, batch, sketch, sweep.ranking.reports[0]),
        "",
        HEADING.format(f"{name} at"),
        *(_line(f"{point:.9g}", report) for point, report in zip(said(points), sweep.ranking.reports, strict=True)),
        "",
        *_wrapped(sentences),
        "",
        UNITS,
    ]


def _measured_on(run: Path, step: int, batch: TokenBatch, sketch: Sketch, report: GradientReport) -> list[str]:
    """What the numbers are of. Raises `UsageError` where they have no unit."""
    length, exact = report.reference_length, isinstance(sketch, ExactSketch)
    if not length.value > 0:
        more = "--sketch.exact-prompts" if exact else "--sketch.reference-prompts"
        raise UsageError(
            f"step {step} of {run.name}: the on-policy gradient cannot be told from its noise, so it is no unit; "
            f"record more of it with {more}."
        )
    doubt = [] if length.low > 0 else ["The reference may be noise (0 is in its interval): read the units with care."]
    what = f"{run.name}, step {step}: {_what(batch, sketch)}, its length {interval_text(length)}"
    said = _wrapped([_of_these_prompts(report, sketch)]) if isinstance(sketch, ExactSketch) else []
    return [what, *doubt, *_covered(sketch), *said]


def _of_these_prompts(report: GradientReport, sketch: ExactSketch) -> str:
    if not sketch.unseen:
        return "The run trains on these prompts alone: nothing is a sample but the directions."
    share = report.reference_noise
    worth = bracketed(1 - share.value, 1 - share.high, 1 - share.low)
    return (
        f"The numbers are for training on these prompts. Of the squared length of their gradient "
        f"{bracketed(share.value, share.low, share.high)} comes from the differences between them: over many more "
        f"prompts like them it is shorter by that, and B answers are worth {worth} times B here."
    )


def _what(batch: TokenBatch, sketch: Sketch) -> str:
    of, rows = f"{len(sketch.scores)} tokens, {sketch.directions} directions", len(batch.response_mask)
    if isinstance(sketch, ExactSketch):
        answers = f"every likely answer to {sketch.answers.prompt_count} prompts, {rows} in all, {of}"
        return f"{answers}; the on-policy gradient is exact on these prompts"
    responses = int(sketch.reference.sequences.sum())
    return f"{rows} sequences, {of}; the reference is the mean of {responses} on-policy responses"


def _covered(sketch: Sketch) -> list[str]:
    if not isinstance(sketch, ExactSketch):
        return []
    shares = sketch.answers.coverage
    said = (
        f"These answers have {shares['old']:.2%} of the probability of π_old, {shares['rollout']:.2%} of the engine's."
    )
    if min(shares.values()) >= ENOUGH_COVERED:
        return [said]
    return [
        f"WARNING: {said}",
        f"Below {ENOUGH_COVERED:.0%} too much is left out: record with a lower --sketch.smallest-probability.",
    ]


def _best_preset(choice: Choice, name: str, progress: Interval, second: str) -> str:
    said = f"With {choice.batch_size} answers in a batch {name} makes the most progress, η {interval_text(progress)}."
    return f"{said} In {choice.support[choice.best]:.0%} of the bootstrap samples it is the best." if second else said


def _told(paired: Interval, other: str, batch: TokenBatch, sketch: Sketch) -> str:
    """Whether it can be told from another, or what that would take."""
    numbers = (paired.value, paired.low, paired.high)
    if all(abs(number) < SHOWN for number in numbers):
        return f" To three digits {other} makes the same progress."
    if paired.tells:
        return f" From {other} it can be told: η differs by {interval_text(paired)}."
    here = drawn(batch, sketch)
    needed = units_needed(here.count, paired)
    untold = f" From {other} it cannot be told: η differs by {interval_text(paired)}"
    if needed is None:
        return f"{untold}."
    count = f"about {needed:,}" if needed <= MOST_UNITS else f"more than {MOST_UNITS:,}"
    return f"{untold}. Of such a difference {count} {here.of} would tell; here are {here.count:,}."


def _wrapped(sentences: Sequence[str]) -> list[str]:
    """Lines of a readable length."""
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH)]


def _line(name: str, report: GradientReport) -> str:
    return (
        f"{name:<28}{interval_text(report.relative_bias):>{WIDE}}{report.noise[RANKED_BY].value:>8.2f}"
        f"{interval_text(report.cosine):>{WIDE}}{interval_text(report.scale):>{WIDE}}{report.ess.value:>7.0%}"
        + "".join(f"{interval_text(share):>{WIDE}}" for share in report.progress)
    )


def interval_text(interval: Interval) -> str:
    return bracketed(interval.value, interval.low, interval.high, "z.3f")


def bracketed(value: float, low: float, high: float, digits: str = ".2f") -> str:
    """`0.31 [0.28, 0.35]`, or `– […]` where the number itself is not known."""
    return f"{'–' if math.isnan(value) else f'{value:{digits}}'} [{low:{digits}}, {high:{digits}}]"
