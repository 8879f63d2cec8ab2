"""`python -m rlcorr gradients RUN`: presets by the progress of one step, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcorr.analysis.budget import correction_named
from rlcorr.bounds import BoundId, usual_thresholds
from rlcorr.command.options import RunName
from rlcorr.command.printing import interval_text, table_row, wrap_each
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import BATCH_SIZES, Choice, GradientReport, compare, units_needed
from rlcorr.gradients.sketch import ExactSketch, SampledSketch, SampledUnits, Sketch, sampled_units
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.losses.score_centering import can_center
from rlcorr.presets import PRESETS, RANKED, preset
from rlcorr.records import runs
from rlcorr.records.sketch_files import last_sketch, read_gradients
from rlcorr.types import TokenBatch

RANKED_BY = 0
"""Index in BATCH_SIZES of the batch size by which the presets are ordered."""
INTERVAL_WIDTH = 23
COLUMNS = {"bias": INTERVAL_WIDTH, "noise": 8, "cosine": INTERVAL_WIDTH, "step length": INTERVAL_WIDTH, "ESS": 7} | {
    f"η({size})": INTERVAL_WIDTH for size in BATCH_SIZES
}
WIDTHS = (-28, *COLUMNS.values())
UNITS = (
    "bias: |E[g] − g*| in units of |g*|, the length of the on-policy gradient. noise: standard deviation over batches\n"
    f"of {BATCH_SIZES[RANKED_BY]} answers, in the same units. step length: factor on the step along g*. η(B): share of "
    "the progress\n"
    "of the exact gradient that a step of the best length makes on average, with B answers in a batch. It describes\n"
    "one step, without Adam and without gradient clipping. Brackets: 95 % of the bootstrap samples."
)
GROUPS = (
    "Lines separate groups. The first preset below a line differs significantly from the first one of the group above."
)
THRESHOLDS = 20


@dataclass(frozen=True)
class Gradients:
    """Rank presets by the progress that one step makes, with bias, noise and direction of their gradients.

    The numbers are computed from the score sketch of a recorded step.
    """

    run: RunName
    step: int | None = None
    """Step with a score sketch; by default the last one."""
    presets: tuple[str, ...] = ()
    """Names of presets; by default all, except those with score centering."""
    sweep: str = ""
    """Name of one preset, or of one rejection rule, such as token_k2. Prints it at twenty thresholds instead, and the
    best threshold with its 95 % interval."""
    rule: int | None = None
    """Index of the preset's rejection rule to move, from 0; by default its weights, or rule 0 if it has no weights."""
    score_centering: bool = False
    """Add score centering to the presets that it goes with: those without rules, with token weights or none. Needs a
    step on which every likely answer was sketched."""


def run_gradients(request: Gradients) -> int:
    """Print the table or the sweep, and return the exit code."""
    run = runs.find_run(request.run)
    if request.score_centering and request.sweep:
        raise UsageError("--score-centering prints a table of presets: leave out --sweep.")
    sweep = sweep_table(run, request.sweep, request.step, request.rule) if request.sweep else None
    print("\n".join(sweep or gradient_table(run, request.step, request.presets, request.score_centering)))
    return 0


def gradient_table(
    run: Path, step: int | None = None, names: Sequence[str] = (), score_centering: bool = False
) -> list[str]:
    """Return the lines of a table of presets, the one with the most progress first, with sentences about the best.

    All presets are measured on the same bootstrap samples.

    Args:
        run: directory of the run.
        step: a step with a score sketch; by default the last.
        names: names of presets; by default all, or with score centering all that it goes with.

    Raises `UsageError` without a sketch, for an unknown preset, and if the reference gradient is noise.
    """
    step = last_sketch(run) if step is None else step
    batch, sketch = read_gradients(run, step)
    if not score_centering and (centered := [name for name in names if name in PRESETS and name not in RANKED]):
        raise UsageError(f"{centered[0]} needs --score-centering, which is then on for all presets of the table.")
    names = list(names) or [name for name in RANKED if not score_centering or can_center(PRESETS[name].config)]
    loss = LossConfig(score_centering=score_centering)
    ranking = compare(batch, sketch, [preset(name) for name in names], loss)
    lines = [*_header(run, step, batch, sketch, ranking.reports[0]), "", _heading("preset")]
    for group in ranking.choices[RANKED_BY].groups:
        lines.append("-" * len(_heading("")))
        lines += [_row(names[index], ranking.reports[index]) for index in group]
    units = sampled_units(batch, sketch)
    orders = [[index for group in choice.groups for index in group] for choice in ranking.choices]
    seconds = [names[order[1]] if len(order) > 1 else "" for order in orders]
    sentences = [
        _best_sentence(choice, names[choice.best], ranking.reports[choice.best].progress[size], second)
        + (_difference_sentence(choice.over_next, f"the next preset, {second}", units) if second else "")
        + _difference_sentence(choice.over_nothing, "no correction", units)
        for size, (choice, second) in enumerate(zip(ranking.choices, seconds, strict=True))
    ]
    return [*lines, "", *wrap_each(sentences), "", GROUPS, UNITS]


def sweep_table(run: Path, name: str, step: int | None = None, rule: int | None = None) -> list[str]:
    """Return the lines of a table of one preset at ascending thresholds, with the best one and its 95 % interval.

    `name` may also be a rejection rule, which is then used alone. Raises as `gradient_table` does, and for a preset
    without a threshold.
    """
    step = last_sketch(run) if step is None else step
    batch, sketch = read_gradients(run, step)
    correction = correction_named(name)
    points = usual_thresholds(batch, correction, BoundId(rule), count=THRESHOLDS)
    units = sampled_units(batch, sketch)
    sweep = gradient_sweep(batch, sketch, correction, BoundId(rule), thresholds=points)
    sentences = [
        f"With {choice.batch_size} answers in a batch the most progress is made at {best.value:.6g}; in 95 % of "
        f"the bootstrap samples between {best.low:.6g} and {best.high:.6g}."
        + _difference_sentence(choice.over_nothing, "no correction", units)
        for choice, best in zip(sweep.ranking.choices, sweep.best, strict=True)
    ]
    return [
        *_header(run, step, batch, sketch, sweep.ranking.reports[0]),
        "",
        _heading(f"{name} at"),
        *(_row(f"{point:.9g}", report) for point, report in zip(points, sweep.ranking.reports, strict=True)),
        "",
        *wrap_each(sentences),
        "",
        UNITS,
    ]


def _header(run: Path, step: int, batch: TokenBatch, sketch: Sketch, report: GradientReport) -> list[str]:
    """Return the lines about the data. Raises `UsageError` if the reference gradient, the unit, is only noise."""
    length = report.reference_length
    if not length.value > 0:
        raise UsageError(
            f"step {step} of {run.name}: the on-policy gradient cannot be distinguished from its noise, so it cannot "
            "serve as the unit; record more of it with --sketch.exact-prompts, --sketch.reference-answers or "
            "--prompts-per-step."
        )
    size = f"{len(batch.response_mask)} answers, {len(sketch.scores)} tokens, {sketch.directions} directions"
    lines = [f"{run.name}, step {step}: {size}; the length of the on-policy gradient is {interval_text(length)}"]
    if not length.low > 0:
        lines.append("The reference may be noise (its interval contains 0): the units are uncertain.")
    if isinstance(sketch, SampledSketch) and sketch.reference is not None:
        count, blocks = int(sketch.reference.sequences.sum()), len(sketch.reference.sequences)
        lines.append(f"The on-policy gradient is that of {count} answers of the trained weights, in {blocks} blocks.")
    if isinstance(sketch, ExactSketch):
        answers, shares = sketch.answers, sketch.answers.coverage
        covered = f"{shares['old']:.2%} of the probability of π_old, {shares['rollout']:.2%} of the engine's."
        lines.append(f"These are the likely answers to {answers.prompt_count} prompts. They have {covered}")
        if min(shares.values()) < ENOUGH_COVERED:
            lines.append("WARNING: too much is left out: record with a lower --sketch.smallest-probability.")
    return lines


def _best_sentence(choice: Choice, name: str, progress: Interval, second: str) -> str:
    best = f"With {choice.batch_size} answers in a batch {name} makes the most progress, η {interval_text(progress)}."
    return f"{best} In {choice.support[choice.best]:.0%} of the bootstrap samples it is the best." if second else best


def _difference_sentence(paired: Interval, other: str, units: SampledUnits) -> str:
    """Return whether the difference in η from another preset is significant, and if not, how many units would tell."""
    significant = "differs" if paired.tells else "does not differ"
    said = f" Its η {significant} significantly from that of {other}: by {interval_text(paired)}."
    needed = units_needed(units.count, paired)
    if paired.tells or needed is None or needed <= units.count:  # η is at least 0, so an interval may end there
        return said
    return f"{said} That would take about {needed:,} {units.kind}."


def _heading(first: str) -> str:
    return table_row((first, *COLUMNS), WIDTHS)


def _row(name: str, report: GradientReport) -> str:
    step = (report.relative_bias, report.cosine, report.scale)
    bias, cosine, scale, *progress = map(interval_text, (*step, *report.progress))
    noise, ess = f"{report.noise[RANKED_BY].value:.2f}", f"{report.ess.value:.0%}"
    return table_row((name, bias, noise, cosine, scale, ess, *progress), WIDTHS)
