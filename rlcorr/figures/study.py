"""Results of a study, and its training runs as curves over the steps: one line per preset, with its band."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from rlcorr.figures import canvas
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, WARM, Figure, Part
from rlcorr.figures.gradients import banded
from rlcorr.figures.training import drawn, names_at_ends, room_for_names, value_axis
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import course
from rlcorr.records.study_comparisons import Comparison

HEIGHT, FEW = 290, 4
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

Row = dict[str, Any]


def study_curves(
    rows: Sequence[Row], presets: Sequence[str], column: str, *, log: bool = False,
    levels: Mapping[str, float] | None = None,
) -> Figure:  # fmt: skip
    """Draw a column over the steps: the mean over the seeds, with a band from the lowest seed to the highest.

    Rows without a finite number in the column are left out, and on a logarithmic axis those ≤ 0. `levels` are dotted
    horizontal lines by their names. Every five presets have another dash: ten colours are too many to distinguish, and
    they repeat after ten.
    """
    usable, levels = [row for row in rows if drawn(row[column], log=log) is not None], levels or {}
    colours = canvas.colours_of(row["preset"] for row in rows)  # the same in every figure of the study
    traces, ends, edges = [], {}, [*levels.values()]
    for preset in presets:
        steps, ranges = course(usable, preset, column)
        if not steps:
            continue
        values = [astuple(over_seeds) for over_seeds in ranges]
        band, line = banded(preset, steps, values, colours[preset], of="all seeds")
        line["line"]["dash"] = DASHES[list(colours).index(preset) // 5 % len(DASHES)]
        traces += [band, line]
        ends[preset] = values[-1][0]
        # The policies have not moved apart at the first steps, which would make a logarithmic axis decades longer.
        edges += [edge for _, *of_step in values[FEW if log else 0 :] or values for edge in of_step]
    y = value_axis(edges, log=log, share=column == "kept_fraction")
    notes = names_at_ends(ends, colours, y, height=HEIGHT)
    lines = [canvas.horizontal_line(y=level, label=name) for name, level in levels.items()]
    x: Part = {"title_text": "step", "tickformat": "d"}
    made = canvas.figure(traces, height=HEIGHT, x=x, y=y, shapes=lines, notes=notes)
    return made.update_layout({"margin.r": room_for_names(list(ends))})


def endpoint_dots(means: Mapping[str, Interval], titles: Mapping[str, str], measure: str) -> Figure:
    """Draw the planned endpoint of each arm with its interval and its number, the highest on top."""
    order = sorted(means, key=lambda arm: -means[arm].value)
    look = {
        "type": "scatter", "mode": "markers+text", "marker": {"size": 11, "color": ACROSS[0]},
        "text": [f"{means[arm].value:.2f}" for arm in order], "textposition": "top center", "textfont": {"size": 12},
    }  # fmt: skip
    in_order = {arm: means[arm] for arm in order}
    rows = canvas.rows_with_errors("endpoint", in_order, ACROSS[0], "%{x:.2f}", thickness=2, **look)
    ends = [end for mean in means.values() for end in (_within_one(mean).low, _within_one(mean).high)]
    x: Part = {"title_text": measure, "range": [min(0.0, *ends), 1.05 * max(ends)]}
    made = canvas.row_plot(rows, titles, x=x, y={"range": [len(order) - 0.4, -0.9]}, shapes=[], room=60)
    return made.update_layout(height=60 + 36 * len(order))


def differences(pairs: Sequence[Comparison], titles: Mapping[str, str] | None = None) -> Figure:
    """Draw the final reward of each arm minus that of the arm it is compared with, the largest on top.

    The intervals are simultaneous. Green is significantly more, orange significantly less, grey is not significant.
    Rewards are between 0 and 1, so no bar goes beyond a difference of 1. `titles` label the arms; by default, their
    names do.
    """
    order = sorted(pairs, key=lambda pair: -pair.difference.value)
    marker = {"size": 8, "color": [_significance_colour(pair) for pair in order]}
    values = {pair.arm: _within_one(pair.difference) for pair in order}
    look = {"type": "scatter", "mode": "markers", "marker": marker}
    rows = canvas.rows_with_errors("difference", values, REJECTED, "%{x:.2f}", **look)
    x: Part = {"title_text": "difference of the reward"}
    zero = canvas.vertical_line(x=0, colour=REJECTED, dash="solid", width=1)
    if titles and order:
        x["range"] = _range_of(order)  # of Plotly's own choice, a title above its row would be part
    return canvas.row_plot(rows, titles, x=x, y={"range": [len(order) - 0.5, -0.75]}, shapes=[zero], room=70)


def _significance_colour(pair: Comparison) -> str:
    if not pair.difference.tells:
        return REJECTED
    return KEPT if pair.difference.value > 0 else WARM


def _range_of(pairs: Sequence[Comparison]) -> list[float]:
    """Return the range of an axis for all intervals, with a twentieth of their range free on both sides."""
    ends = [_within_one(pair.difference) for pair in pairs]
    low, high = min(0.0, *(end.low for end in ends)), max(0.0, *(end.high for end in ends))
    room = (high - low) / 20 or 0.05
    return [low - room, high + room]


def _within_one(interval: Interval) -> Interval:
    """Return an interval of a reward, an accuracy or a difference within ± 1. For one seed it is infinite."""
    return Interval(interval.value, max(interval.low, -1), min(interval.high, 1))
