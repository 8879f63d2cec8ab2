"""`python -m rlcorr gradients RUN`: every preset's gradient on a recorded step, or one over its threshold, as text."""

import math
from collections.abc import Sequence
from pathlib import Path

from rlcorr.analysis.thresholds import usual_thresholds
from rlcorr.errors import UsageError
from rlcorr.gradients.contributions import Sketch
from rlcorr.gradients.report import Choice, GradientReport, Interval, compare
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.presets import PRESETS, preset
from rlcorr.records.sketch_files import last_sketch, read_sketch, updated_batch
from rlcorr.types import TokenBatch

COLUMNS = {"bias": 22, "noise": 8, "error": 8, "cosine": 22, "step length": 22, "ESS": 7, "best in": 9}
HEADING = "{:<28}" + "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
UNITS = (
    "bias, noise and error in units of the on-policy gradient: |E[g] − reference|, the standard deviation over\n"
    "batches of this size, and both together. Brackets: 95 % of the bootstrap samples. best in: share of them in\n"
    "which the error is the smallest. A gradient that is always 0 has error 1.\n"
    "The projection adds {projection:.0%} to every squared length, for all alike."
)


def gradient_table(run: Path, step: int | None = None, names: Sequence[str] = ()) -> list[str]:
    """Lines of text: what was measured, then the presets, the smallest error first, all on the same bootstrap samples.

    Raises `UsageError` without a sketch, for an unknown preset, and where the reference is noise.
    """
    step = last_sketch(run) if step is None else step
    sketch, batch = read_sketch(run, step), updated_batch(run, step)
    chosen = list(names or PRESETS)
    choice = compare(batch, sketch, [preset(name) for name in chosen])
    lines = _measured_on(run, step, batch, sketch, choice.reports[0])
    order = sorted(range(len(chosen)), key=lambda number: choice.reports[number].error.value)
    return [
        *lines,
        "",
        HEADING.format("preset"),
        *(_line(chosen[number], choice, number) for number in order),
        "",
        UNITS.format(projection=choice.reports[0].projection_error),
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
        *_measured_on(run, step, batch, sketch, sweep.choice.reports[0]),
        "",
        HEADING.format(f"{name} at"),
        *(_line(f"{threshold:.9g}", sweep.choice, number) for number, threshold in enumerate(points)),
        "",
        f"The smallest error is at {best.value:.6g}; in 95 % of the bootstrap samples between {best.low:.6g} and "
        f"{best.high:.6g}.",
        UNITS.format(projection=sweep.choice.reports[0].projection_error),
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
        f"{int(sketch.reference.sequences.sum())} on-policy responses, its length {_with_interval(length)}",
        *doubt,
    ]


def _line(name: str, choice: Choice, number: int) -> str:
    report = choice.reports[number]
    return (
        f"{name:<28}{_with_interval(report.relative_bias):>22}{report.noise.value:>8.2f}{report.error.value:>8.2f}"
        f"{_with_interval(report.cosine):>22}{_with_interval(report.scale):>22}{report.ess.value:>7.0%}"
        f"{choice.support[number]:>9.0%}"
    )


def _with_interval(interval: Interval) -> str:
    value = "–" if math.isnan(interval.value) else f"{interval.value:.2f}"
    return f"{value} [{interval.low:.2f}, {interval.high:.2f}]"
