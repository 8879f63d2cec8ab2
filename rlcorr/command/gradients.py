"""`python -m rlcorr gradients RUN`: presets by the progress of one step, as tables or as a JSON document."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcorr.analysis.budget import correction_named
from rlcorr.bounds import BoundId, usual_thresholds
from rlcorr.command.options import RunName
from rlcorr.command.printing import bracketed, interval_text, table_row, wrap_each
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.answers import ENOUGH_COVERED
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import BATCH_SIZES, Choice, GradientReport, Ranking, compare, difference, units_needed
from rlcorr.gradients.sketch import ExactSketch, Sketch, sampled_units
from rlcorr.gradients.sweep import gradient_sweep
from rlcorr.losses.score_centering import can_center
from rlcorr.m2po import m2_at
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
LARGEST_SHOWN = 1_000_000
"""Larger numbers of prompts or answers are not printed: nobody records so many."""
SMALLEST_SHOWN = 0.0005
"""Smaller differences are 0 in the printed digits."""
THRESHOLDS = 20
M2PO = "m2po"
NO_CORRECTION = "disabled"
"""The preset with which the JSON document compares the others."""


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
    """Name of one preset, one rejection rule (such as token_prefix_gap_outward, the rule of CPPO), or m2po. Prints it
    at twenty thresholds instead, and the best threshold with its 95 % interval."""
    rule: int | None = None
    """Index of the preset's rejection rule to move, from 0; by default its weights, or rule 0 if it has no weights."""
    score_centering: bool = False
    """Add score centering to the presets that it goes with: those without rules, with token weights or none. Needs a
    step on which every likely answer was sketched."""
    json: bool = False
    """Print the numbers of the presets as JSON, for other programs."""


def run_gradients(request: Gradients) -> int:
    """Print the table, the sweep or the document, and return the exit code."""
    run = runs.find_run(request.run)
    if request.score_centering and (request.sweep or request.json):
        raise UsageError("--score-centering prints a table of presets: leave out --sweep and --json.")
    if request.json:
        if request.sweep:
            raise UsageError("--json prints presets, not a sweep: leave out --sweep or --json.")
        print(gradient_document(run, request.step, request.presets))
        return 0
    sweep = sweep_table(run, request.sweep, request.step, request.rule) if request.sweep else None
    print("\n".join(sweep or gradient_table(run, request.step, request.presets, request.score_centering)))
    return 0


# --- tables ---


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
    if not score_centering:
        _refuse_centering(names)
    names = list(names) or [name for name in RANKED if not score_centering or can_center(PRESETS[name].config)]
    loss = LossConfig(score_centering=score_centering)
    ranking = compare(batch, sketch, [preset(name) for name in names], loss)
    lines = [*_header(run, step, batch, sketch, ranking.reports[0]), "", _heading("preset")]
    for group in ranking.choices[RANKED_BY].groups:
        lines.append("-" * len(_heading("")))
        lines += [_row(names[index], ranking.reports[index]) for index in group]
    orders = [[index for group in choice.groups for index in group] for choice in ranking.choices]
    seconds = [names[order[1]] if len(order) > 1 else "" for order in orders]
    sentences = [
        _best_sentence(choice, names[choice.best], ranking.reports[choice.best].progress[size], second)
        + (_difference_sentence(choice.over_next, f"the next preset, {second}", batch, sketch) if second else "")
        + _difference_sentence(choice.over_nothing, "no correction", batch, sketch)
        for size, (choice, second) in enumerate(zip(ranking.choices, seconds, strict=True))
    ]
    return [*lines, "", *wrap_each(sentences), "", GROUPS, UNITS]


def sweep_table(run: Path, name: str, step: int | None = None, rule: int | None = None) -> list[str]:
    """Return the lines of a table of one preset at ascending thresholds, with the best one and its 95 % interval.

    `name` may also be a rejection rule, which is then used alone, or m2po, whose thresholds are moved through the bound
    on k2 that they amount to on this batch. Raises as `gradient_table` does, and for a preset without a threshold.
    """
    step = last_sketch(run) if step is None else step
    batch, sketch = read_gradients(run, step)
    correction = correction_named("token_k2" if name == M2PO else name)
    points = usual_thresholds(batch, correction, BoundId(rule), count=THRESHOLDS)
    sweep = gradient_sweep(batch, sketch, correction, BoundId(rule), thresholds=points)
    counts = sketch.answers.sampled if isinstance(sketch, ExactSketch) else None
    shown = (lambda bounds: m2_at(batch, bounds, counts)) if name == M2PO else list
    bests = [shown([best.value, best.low, best.high]) for best in sweep.best]
    sentences = [
        f"With {choice.batch_size} answers in a batch the most progress is made at {best:.6g}; in 95 % of "
        f"the bootstrap samples between {low:.6g} and {high:.6g}."
        + _difference_sentence(choice.over_nothing, "no correction", batch, sketch)
        for choice, (best, low, high) in zip(sweep.ranking.choices, bests, strict=True)
    ]
    return [
        *_header(run, step, batch, sketch, sweep.ranking.reports[0]),
        "",
        _heading(f"{name} at"),
        *(_row(f"{point:.9g}", report) for point, report in zip(shown(points), sweep.ranking.reports, strict=True)),
        "",
        *wrap_each(sentences),
        "",
        UNITS,
    ]


def _refuse_centering(names: Sequence[str]) -> None:
    """Raise `UsageError` if a preset has score centering, which is no part of a correction."""
    for name in names:
        if name in PRESETS and name not in RANKED:
            raise UsageError(
                f"{name} needs --score-centering, and a step on which every likely answer was sketched; the table is "
                "then with score centering for all presets."
            )


def _header(run: Path, step: int, batch: TokenBatch, sketch: Sketch, report: GradientReport) -> list[str]:
    """Return the lines about the data. Raises `UsageError` if the reference gradient, the unit, is only noise."""
    length, exact = report.reference_length, isinstance(sketch, ExactSketch)
    if not length.value > 0:
        more = "--sketch.exact-prompts" if exact else "--prompts-per-step"
        raise UsageError(
            f"step {step} of {run.name}: the on-policy gradient cannot be distinguished from its noise, so it cannot "
            f"serve as the unit; record more of it with {more}."
        )
    doubt = [] if length.low > 0 else ["The reference may be noise (its interval contains 0): the units are uncertain."]
    data = f"{run.name}, step {step}: {_data_description(batch, sketch)}, its length {interval_text(length)}"
    prompts = wrap_each([_prompts_sentence(report, sketch)]) if isinstance(sketch, ExactSketch) else []
    return [data, *doubt, *_coverage_lines(sketch), *prompts]


def _prompts_sentence(report: GradientReport, sketch: ExactSketch) -> str:
    if not sketch.finite_population_factor:
        return "The run trains on exactly these prompts: only the random directions are a sample."
    share = report.reference_noise
    worth = bracketed(1 - share.value, 1 - share.high, 1 - share.low)
    return (
        f"The numbers are for training on these prompts only. Differences between the prompts make up the share "
        f"{bracketed(share.value, share.low, share.high)} of the squared length of their gradient. Over many more "
        f"such prompts the gradient lacks this share, and B answers there are worth {worth} times B here."
    )


def _data_description(batch: TokenBatch, sketch: Sketch) -> str:
    size, rows = f"{len(sketch.scores)} tokens, {sketch.directions} directions", len(batch.response_mask)
    if isinstance(sketch, ExactSketch):
        answers = f"every likely answer to {sketch.answers.prompt_count} prompts, {rows} in all, {size}"
        return f"{answers}; the on-policy gradient is exact on these prompts"
    if sketch.reference is None:
        return f"{rows} sequences, {size}; the reference is their gradient with exact sequence weights"
    responses = int(sketch.reference.sequences.sum())
    return f"{rows} sequences, {size}; the reference is the mean of {responses} on-policy responses"


def _coverage_lines(sketch: Sketch) -> list[str]:
    if not isinstance(sketch, ExactSketch):
        return []
    shares = sketch.answers.coverage
    sentence = (
        f"These answers have {shares['old']:.2%} of the probability of π_old, {shares['rollout']:.2%} of the engine's."
    )
    if min(shares.values()) >= ENOUGH_COVERED:
        return [sentence]
    return [
        f"WARNING: {sentence}",
        f"Below {ENOUGH_COVERED:.0%} too much is left out: record with a lower --sketch.smallest-probability.",
    ]


def _best_sentence(choice: Choice, name: str, progress: Interval, second: str) -> str:
    best = f"With {choice.batch_size} answers in a batch {name} makes the most progress, η {interval_text(progress)}."
    return f"{best} In {choice.support[choice.best]:.0%} of the bootstrap samples it is the best." if second else best


def _difference_sentence(paired: Interval, other: str, batch: TokenBatch, sketch: Sketch) -> str:
    """Return whether the difference in η from another preset is significant, and if not, what would be needed."""
    numbers = (paired.value, paired.low, paired.high)
    if all(abs(number) < SMALLEST_SHOWN for number in numbers):
        return f" To three digits {other} makes the same progress."
    if paired.tells:
        return f" Its η differs significantly from that of {other}: by {interval_text(paired)}."
    here = sampled_units(batch, sketch)
    needed = units_needed(here.count, paired)
    not_significant = f" Its η does not differ significantly from that of {other}: by {interval_text(paired)}"
    if needed is None:
        return f"{not_significant}."
    count = f"about {needed:,}" if needed <= LARGEST_SHOWN else f"more than {LARGEST_SHOWN:,}"
    return f"{not_significant}. To make it significant, {count} {here.kind} are needed; here are {here.count:,}."


def _heading(first: str) -> str:
    return table_row((first, *COLUMNS), WIDTHS)


def _row(name: str, report: GradientReport) -> str:
    step = (report.relative_bias, report.cosine, report.scale)
    bias, cosine, scale, *progress = map(interval_text, (*step, *report.progress))
    noise, ess = f"{report.noise[RANKED_BY].value:.2f}", f"{report.ess.value:.0%}"
    return table_row((name, bias, noise, cosine, scale, ess, *progress), WIDTHS)


# --- JSON ---


def gradient_document(run: Path, step: int | None = None, names: Sequence[str] = ()) -> str:
    """Return the gradients of presets as a JSON list with one object per preset, in the order of `names`.

    An interval is [value, low, high], a number per batch size is an object with the sizes as keys, and unknown numbers
    are null. Raises `UsageError` without a sketch, and for an unknown preset.
    """
    batch, sketch = read_gradients(run, last_sketch(run) if step is None else step)
    _refuse_centering(names)
    names = list(names or RANKED)
    ranking = compare(batch, sketch, [preset(name) for name in (*names, NO_CORRECTION)])
    shared: dict[str, Any] = {"coverage": None, "prompts": None, "task_prompts": None}
    shared |= {"reference_noise": _numbers(ranking.reports[0].reference_noise)}
    if isinstance(sketch, ExactSketch):
        shared |= {"coverage": sketch.answers.coverage, "prompts": sketch.answers.prompt_count}
        shared |= {"task_prompts": sketch.task_prompts}
    objects = [_preset_object(name, ranking, index) | shared for index, name in enumerate(names)]
    return json.dumps(objects, indent=2, allow_nan=False)


def _preset_object(name: str, ranking: Ranking, index: int) -> dict[str, Any]:
    report, nothing = ranking.reports[index], ranking.progress[-1]
    gains = [difference(a, b) for a, b in zip(ranking.progress[index], nothing, strict=True)]
    return {
        "preset": name,
        "bias": _numbers(report.relative_bias),
        "noise": _by_size([_numbers(noise) for noise in report.noise]),
        "cosine": _numbers(report.cosine),
        "eta": _by_size([_numbers(share) for share in report.progress]),
        "eta_minus_disabled": _by_size([_numbers(gain) for gain in gains]),
    }


def _by_size(values: list[list[float | None]]) -> dict[str, list[float | None]]:
    return {str(size): value for size, value in zip(BATCH_SIZES, values, strict=True)}


def _numbers(interval: Interval) -> list[float | None]:
    """Return value, low and high, with None for NaN and infinities, which JSON lacks."""
    return [x if math.isfinite(x) else None for x in (interval.value, interval.low, interval.high)]
