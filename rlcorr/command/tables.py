"""Tables as text: what `python -m rlcorr gradients RUN` and `python -m rlcorr study NAME` print."""

import math
from collections.abc import Sequence
from pathlib import Path

from rlcorr.analysis.thresholds import usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientReport, Ranking, compare
from rlcorr.gradients.sketch import Sketch
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.presets import PRESETS, preset
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.records.study import SeedRange, find_study, outcomes, read_study
from rlcorr.types import TokenBatch

# --- gradients: every preset on a recorded step, or one preset over its threshold ---

COLUMNS = {"bias": 22, "noise": 8, "error": 8, "cosine": 22, "step length": 22, "ESS": 7, "best in": 9}
HEADING = "{:<28}" + "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
UNITS = (
    "bias, noise and error in units of the on-policy gradient: |E[g] − reference|, the standard deviation over\n"
    "batches of this size, and both together. Brackets: 95 % of the bootstrap samples. best in: share of them in\n"
    "which the error is the smallest. A shorter step has a smaller error, and one of length 0 has 1, so the error\n"
    "compares presets of like step length; of others see the cosine.\n"
    "The projection adds {projection:.0%} to every squared length, for all alike."
)


def gradient_table(run: Path, step: int | None = None, names: Sequence[str] = ()) -> list[str]:
    """Lines of text: what was measured, then the presets, the smallest error first, all on the same bootstrap samples.

    Raises `UsageError` without a sketch, for an unknown preset, and where the reference is noise.
    """
    step = last_sketch(run) if step is None else step
    sketch, batch = read_sketch(run, step), updated_batch(run, step)
    chosen = list(names or PRESETS)
    ranking = compare(batch, sketch, [preset(name) for name in chosen])
    lines = _measured_on(run, step, batch, sketch, ranking.reports[0])
    order = sorted(range(len(chosen)), key=lambda number: ranking.reports[number].error.value)
    return [
        *lines,
        "",
        HEADING.format("preset"),
        *(_line(chosen[number], ranking, number) for number in order),
        "",
        UNITS.format(projection=ranking.reports[0].projection_error),
    ]


THRESHOLDS = 20


def sweep_table(run: Path, name: str, step: int | None = None, rule: int | None = None) -> list[str]:
    """Lines of text: one preset at ascending thresholds, and which of them should have been chosen. Raises as
    `gradient_table` does, and for a preset without a threshold."""
    step = last_sketch(run) if step is None else step
    sketch, batch = read_sketch(run, step), updated_batch(run, step)
    points = usual_thresholds(batch, preset(name), rule, count=THRESHOLDS)
    sweep = gradient_sweep(batch, sketch, preset(name), rule=rule, thresholds=points)
    best = sweep.best
    return [
        *_measured_on(run, step, batch, sketch, sweep.ranking.reports[0]),
        "",
        HEADING.format(f"{name} at"),
        *(_line(f"{threshold:.9g}", sweep.ranking, number) for number, threshold in enumerate(points)),
        "",
        f"The smallest error is at {best.value:.6g}; in 95 % of the bootstrap samples between {best.low:.6g} and "
        f"{best.high:.6g}.",
        UNITS.format(projection=sweep.ranking.reports[0].projection_error),
    ]


def _measured_on(run: Path, step: int, batch: TokenBatch, sketch: Sketch, report: GradientReport) -> list[str]:
    """What the numbers are of. Raises `UsageError` where they have no unit."""
    length = report.reference_length
    if length.value == 0:
        raise UsageError(
            f"step {step} of {run.name}: the on-policy gradient cannot be told from its noise, so it is no unit; "
            "record more of it with --sketch.reference-prompts."
        )
    doubt = [] if length.low > 0 else ["The reference may be noise (0 is in its interval): read the units with care."]
    return [
        f"{run.name}, step {step}: {len(batch.response_mask)} sequences, {len(sketch.scores)} tokens, "
        f"{sketch.directions} directions; the reference is the mean of "
        f"{int(sketch.reference.sequences.sum())} on-policy responses, its length {interval_text(length)}",
        *doubt,
    ]


def _line(name: str, ranking: Ranking, number: int) -> str:
    report = ranking.reports[number]
    return (
        f"{name:<28}{interval_text(report.relative_bias):>22}{report.noise.value:>8.2f}{report.error.value:>8.2f}"
        f"{interval_text(report.cosine):>22}{interval_text(report.scale):>22}{report.ess.value:>7.0%}"
        f"{ranking.support[number]:>9.0%}"
    )


# --- the study: what became of every preset ---

STUDY_WIDTH = 22
STUDY_COLUMNS = ("reward at the end", "highest on the way", "k3 at the end", "kept")
STUDY_HEADING = f"{'preset':<24}" + "".join(f"{name:>{STUDY_WIDTH}}" for name in STUDY_COLUMNS)
STUDY_UNITS = (
    "Mean over the seeds [lowest, highest]. At the end: the last quarter of the steps; of k3 the median. Highest on "
    "the way: five steps together."
)


def study_table(name: str) -> list[str]:
    """Lines of text: the story, then the presets, the highest reward at the end first."""
    study = find_study(name)
    rows, origin = read_study(name)
    seeds, steps = len({row["seed"] for row in rows}), max(row["step"] for row in rows)
    lines = [
        f"{name}: {study.story}",
        study.look,
        f"{seeds} seeds, {steps} steps; {origin['engine']}, {origin['hardware']}",
        "",
        STUDY_HEADING,
    ]
    for outcome in outcomes(rows):
        cells = [
            _seeds_text(outcome.reward),
            _seeds_text(outcome.best_reward),
            _seeds_text(outcome.k3, ".0e"),
            _seeds_text(outcome.kept_fraction),
        ]
        lines.append(f"{outcome.preset:<24}" + "".join(f"{cell:>{STUDY_WIDTH}}" for cell in cells))
    return [*lines, "", STUDY_UNITS]


def _seeds_text(seeds: SeedRange, digits: str = ".2f") -> str:
    return bracketed(seeds.mean, seeds.lowest, seeds.highest, digits)


# --- both ---


def interval_text(interval: Interval) -> str:
    return bracketed(interval.value, interval.low, interval.high)


def bracketed(value: float, low: float, high: float, digits: str = ".2f") -> str:
    """`0.31 [0.28, 0.35]`, or `– […]` where the number itself is not known."""
    return f"{'–' if math.isnan(value) else f'{value:{digits}}'} [{low:{digits}}, {high:{digits}}]"
