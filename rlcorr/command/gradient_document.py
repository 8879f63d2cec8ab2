"""The gradients of every preset as one JSON document: what `python -m rlcorr gradients RUN --json` prints."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.progress import difference
from rlcorr.gradients.report import BATCH_SIZES, Ranking, compare
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.presets import PRESETS, preset
from rlcorr.records.sketch_files import last_sketch, read_gradients

NOTHING = "disabled"
"""The preset that the others are compared with."""


def gradient_document(run: Path, step: int | None = None, names: Sequence[str] = ()) -> str:
    """A list with one object per preset, in the order asked for. An interval is [value, low, high], a number per batch
    size an object with the sizes as keys, and what is not known null.

    Raises `UsageError` without a sketch, and for an unknown preset.
    """
    batch, sketch = read_gradients(run, last_sketch(run) if step is None else step)
    chosen = list(names or PRESETS)
    ranking = compare(batch, sketch, [preset(name) for name in (*chosen, NOTHING)])
    measured: dict[str, Any] = {"coverage": None, "prompts": None, "task_prompts": None}
    measured |= {"reference_noise": _numbers(ranking.reports[0].reference_noise)}
    if isinstance(sketch, ExactSketch):
        measured |= {"coverage": sketch.answers.coverage, "prompts": sketch.answers.prompt_count}
        measured |= {"task_prompts": sketch.task_prompts}
    objects = [_of_preset(name, ranking, number) | measured for number, name in enumerate(chosen)]
    return json.dumps(objects, indent=2, allow_nan=False)


def _of_preset(name: str, ranking: Ranking, number: int) -> dict[str, Any]:
    report, nothing = ranking.reports[number], ranking.progress[-1]
    gained = [difference(a, b) for a, b in zip(ranking.progress[number], nothing, strict=True)]
    return {
        "preset": name,
        "bias": _numbers(report.relative_bias),
        "noise": _by_size([_numbers(noise) for noise in report.noise]),
        "cosine": _numbers(report.cosine),
        "eta": _by_size([_numbers(share) for share in report.progress]),
        "eta_minus_disabled": _by_size([_numbers(paired) for paired in gained]),
    }


def _by_size(values: list[list[float | None]]) -> dict[str, list[float | None]]:
    return {str(size): value for size, value in zip(BATCH_SIZES, values, strict=True)}


def _numbers(interval: Interval) -> list[float | None]:
    """JSON has neither NaN nor an infinity."""
    return [x if math.isfinite(x) else None for x in (interval.value, interval.low, interval.high)]
