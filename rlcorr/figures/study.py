"""The study as curves over the steps, one per preset with its band."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from rlcorr.figures.canvas import ACROSS, Figure, figure
from rlcorr.figures.gradients import Band, banded
from rlcorr.figures.training import names_at_ends, room_for_names, value_axis
from rlcorr.records.study import course

HEIGHT = 290
SMALLEST_BIAS = 0.1

Row = dict[str, Any]
Curve = tuple[list[int], list[Band]]


def preset_colours(rows: Sequence[Row]) -> dict[str, str]:
    """Preset → its colour, the same in every picture of the study."""
    names = dict.fromkeys(row["preset"] for row in rows)
    return {name: ACROSS[place % len(ACROSS)] for place, name in enumerate(names)}


def study_curves(rows: Sequence[Row], presets: Sequence[str], column: str, *, log: bool = False) -> Figure:
    """A measured column over the steps: the mean over the seeds, the band from the lowest seed to the highest. Rows
    without a finite number for it, and on a logarithmic axis those ≤ 0, are left out."""
    usable = [row for row in rows if _finite(row[column]) and (row[column] > 0 or not log)]
    curves = {}
    for preset in presets:
        steps, ranges = course(usable, preset, column)
        curves[preset] = steps, [astuple(over_seeds) for over_seeds in ranges]
    return _figure(curves, preset_colours(rows), log=log)


def study_bias(rows: Sequence[Row], presets: Sequence[str]) -> Figure | None:
    """The relative bias of the gradient with its 95 % interval, at the steps of the first seed that has sketches,
    from `SMALLEST_BIAS` upwards; None where no step has one."""
    columns = [f"relative_bias_{end}" for end in ("value", "low", "high")]
    sketched = sorted((row for row in rows if _finite(row[columns[0]])), key=lambda row: row["step"])
    if not sketched:
        return None
    seed = min(row["seed"] for row in sketched)
    curves = {}
    for preset in presets:
        trained = [row for row in sketched if row["preset"] == preset and row["seed"] == seed]
        value, low, high = ([max(row[name], SMALLEST_BIAS) for row in trained] for name in columns)
        curves[preset] = [row["step"] for row in trained], list(zip(value, low, high, strict=True))
    return _figure(curves, preset_colours(rows), log=True)


def _figure(curves: Mapping[str, Curve], colours: Mapping[str, str], *, log: bool) -> Figure:
    """Presets of the second half of the colours are dashed: ten colours are too many to be told apart."""
    traces, ends, dashed = [], {}, list(colours)[len(ACROSS) // 2 :]
    for preset, (steps, values) in curves.items():
        if steps:
            band, line = banded(preset, steps, values, colours[preset], of="all seeds")
            line["line"]["dash"] = "dash" if preset in dashed else "solid"
            traces += [band, line]
            ends[preset] = values[-1][0]
    y = value_axis([edge for _, values in curves.values() for _, *edges in values for edge in edges], log=log)
    notes = names_at_ends(ends, colours, y, height=HEIGHT)
    made = figure(traces, height=HEIGHT, x={"title_text": "step", "tickformat": "d"}, y=y, notes=notes)
    return made.update_layout({"margin.r": room_for_names(list(ends))})


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
