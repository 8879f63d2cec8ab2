"""The study as curves over the steps, one per preset with its band."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlcorr.drawing import ACROSS, Figure, Part, figure
from rlcorr.gradient_plots import banded
from rlcorr.gradients import Interval
from rlcorr.study import course

Row = dict[str, Any]
Curve = tuple[list[int], list[Interval]]


def preset_colours(rows: Sequence[Row]) -> dict[str, str]:
    """Preset → its colour, the same in every picture of the study."""
    names = dict.fromkeys(row["preset"] for row in rows)
    return {name: ACROSS[place % len(ACROSS)] for place, name in enumerate(names)}


def study_curves(rows: Sequence[Row], presets: Sequence[str], column: str, *, log: bool = False) -> Figure:
    """A measured column over the steps: the mean over the seeds, the band from the lowest seed to the highest. Rows
    without a finite number for it, and on a logarithmic axis those ≤ 0, are left out."""
    usable = [row for row in rows if _finite(row[column]) and (row[column] > 0 or not log)]
    return _figure({preset: course(usable, preset, column) for preset in presets}, preset_colours(rows), log=log)


def study_bias(rows: Sequence[Row], presets: Sequence[str]) -> Figure | None:
    """The relative bias of the gradient with its own 95 % interval, at the steps of the first seed that has sketches;
    None where no step has one."""
    columns = [f"relative_bias_{end}" for end in ("value", "low", "high")]
    sketched = sorted((row for row in rows if _finite(row[columns[0]])), key=lambda row: row["step"])
    if not sketched:
        return None
    seed = min(row["seed"] for row in sketched)
    curves = {}
    for preset in presets:
        own = [row for row in sketched if row["preset"] == preset and row["seed"] == seed]
        curves[preset] = [row["step"] for row in own], [Interval(*(row[name] for name in columns)) for row in own]
    return _figure(curves, preset_colours(rows), log=False)


def _figure(curves: Mapping[str, Curve], colours: Mapping[str, str], *, log: bool) -> Figure:
    traces = []
    for preset, (steps, values) in curves.items():
        if steps:
            traces += banded(preset, steps, values, colours[preset])
    y: Part = {"type": "log", "exponentformat": "power", "dtick": 1} if log else {}
    return figure(traces, height=280, x={"title_text": "step", "tickformat": "d"}, y=y)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
