"""What a study decides, and its trainings as curves over the steps, one per preset with its band."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from rlcorr.figures.canvas import (
    ACROSS,
    KEPT,
    REJECTED,
    WARM,
    Figure,
    error_bars,
    fade,
    figure,
    vertical_line,
)
from rlcorr.figures.gradients import LETTER, PROGRESS, ROW, Band, banded
from rlcorr.figures.training import names_at_ends, room_for_names, value_axis
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import Outcome, course
from rlcorr.records.study_comparisons import Comparison

HEIGHT = 290
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

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


def differences(pairs: Sequence[Comparison]) -> Figure:
    """The reward at the end less that of the arm beside it, with the intervals that hold together; the largest on top.
    Green is surely more, orange surely less, grey cannot be told. Rewards lie between 0 and 1, so no bar goes on beyond
    a difference of 1."""
    order = sorted(pairs, key=lambda pair: -pair.difference.value)
    points = {
        "type": "scatter", "mode": "markers", "name": "difference", "y": [pair.arm for pair in order],
        "x": [pair.difference.value for pair in order],
        "marker": {"size": 8, "color": [_told(pair) for pair in order]},
        "error_x": error_bars([_within_one(pair.difference) for pair in order], REJECTED),
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }  # fmt: skip
    y = {"type": "category", "autorange": "reversed", "dtick": 1, "tickfont": {"size": 11}}
    x = {"title_text": "difference of the reward", "side": "top"}
    nothing = vertical_line(x=0, colour=REJECTED, dash="solid", width=1)
    made = figure([points], height=ROW * len(order) + 70, x=x, y=y, shapes=[nothing])
    room = 20 + LETTER * max((len(pair.arm) for pair in order), default=0)
    return made.update_layout({"margin.l": room, "margin.t": 44, "margin.b": 8})


def _told(pair: Comparison) -> str:
    if not pair.difference.tells:
        return REJECTED
    return KEPT if pair.difference.value > 0 else WARM


def _within_one(difference: Interval) -> Interval:
    return Interval(difference.value, max(difference.low, -1), min(difference.high, 1))


def foretelling(progress: Mapping[str, Interval], outcomes: Sequence[Outcome]) -> Figure:
    """One point per arm: η with its 95 % interval to the right, upwards the reward at the end, from the lowest seed to
    the highest."""
    reward = {outcome.preset: Interval(*astuple(outcome.reward)) for outcome in outcomes}
    arms = [arm for arm in progress if arm in reward]
    points = {
        "type": "scatter", "mode": "markers", "name": "arms", "text": arms, "marker": {"size": 8, "color": ACROSS[0]},
        "x": [progress[arm].value for arm in arms], "y": [reward[arm].value for arm in arms],
        "error_x": error_bars([progress[arm] for arm in arms], fade(ACROSS[0], 0.35)),
        "error_y": error_bars([reward[arm] for arm in arms], fade(ACROSS[0], 0.35)),
        "hovertemplate": "%{text}: η %{x:.2f}, reward %{y:.2f}<extra></extra>",
    }  # fmt: skip
    x = {"title_text": PROGRESS, "rangemode": "tozero"}
    return figure([points], height=HEIGHT, x=x, y={"title_text": "reward at the end", "rangemode": "tozero"})


def _figure(curves: Mapping[str, Curve], colours: Mapping[str, str], *, log: bool) -> Figure:
    """Every five presets have another dash: ten colours are too many to be told apart, and come again after ten."""
    traces, ends, places = [], {}, list(colours)
    for preset, (steps, values) in curves.items():
        if steps:
            band, line = banded(preset, steps, values, colours[preset], of="all seeds")
            line["line"]["dash"] = DASHES[places.index(preset) // 5 % len(DASHES)]
            traces += [band, line]
            ends[preset] = values[-1][0]
    y = value_axis([edge for _, values in curves.values() for _, *edges in values for edge in edges], log=log)
    notes = names_at_ends(ends, colours, y, height=HEIGHT)
    made = figure(traces, height=HEIGHT, x={"title_text": "step", "tickformat": "d"}, y=y, notes=notes)
    return made.update_layout({"margin.r": room_for_names(list(ends))})


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
