"""A training over its steps: one run, or several in the same axes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcorr.figures.axes import power_axis
from rlcorr.figures.canvas import ACROSS, REJECTED, Figure, Part, Parts, figure, vertical_line
from rlcorr.measuring.metric_definitions import PREFIX

SINGLE = ("#5f7a94", "#9a6cb4")
"""Colours of a lone run's metrics: they mean neither side of ratio 1."""
DASHES = ("solid", "dot")
"""Of the first and the second metric, where the colours tell the runs."""
MOST_RUNS = len(ACROSS)
FEW = 40
"""Up to so many points are marked one by one."""
_HEIGHT, _NAME_HEIGHT = 210, 13  # pixels

Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics.jsonl."""


@dataclass(frozen=True)
class Panel:
    """What one picture shows: metrics by their names on the page, and the kind of their axis."""

    metrics: Mapping[str, str]
    log: bool = False
    share: bool = False
    sparse: frozenset[str] = field(default=frozenset())
    """Metrics that are measured at some steps only: their points are joined."""


PANELS = {
    "reward": Panel({"reward": "reward", "held-out accuracy": "accuracy"}, sparse=frozenset({"accuracy"})),
    "mismatch": Panel({"mean |Δ|": f"{PREFIX}abs_log_ratio", "k3": f"{PREFIX}k3_kl"}, log=True),
    "ess": Panel(
        {
            "as weighted": f"{PREFIX}rollout_is_eff_sample_size",
            "without bounds": f"{PREFIX}ratio_eff_sample_size",
        },
        share=True,
    ),
    "kept": Panel({"kept": f"{PREFIX}kept_fraction"}, share=True),
    "entropy": Panel({"entropy": "entropy"}),
    "grad_norm": Panel({"gradient norm": "grad_norm"}, log=True),
}


@dataclass(frozen=True)
class Course:
    """One metric of one run; None where a step has no finite number for it."""

    run: str
    metric: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]


def courses(panel: Panel, runs: Mapping[str, Rows]) -> list[Course]:
    """One per run and metric that has anything to show. A logarithmic panel leaves values ≤ 0 out."""
    drawable = []
    for run, rows in runs.items():
        for metric, key in panel.metrics.items():
            points = [(row["step"], _number(row.get(key), panel.log)) for row in rows]
            if key in panel.sparse:
                points = [(step, value) for step, value in points if value is not None]
            if any(value is not None for _, value in points):
                steps, values = zip(*points, strict=True)
                drawable.append(Course(run, metric, steps, values))
    return drawable


def _number(value: object, log: bool) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if log and value <= 0 else float(value)


def run_colours(runs: Sequence[str]) -> dict[str, str]:
    """Run → its colour, where several share a picture."""
    return {run: ACROSS[place % MOST_RUNS] for place, run in enumerate(runs)}


def over_steps(
    panel: Panel, runs: Mapping[str, Rows], *, at: int | None = None, recorded: Iterable[int] = ()
) -> Figure:
    """The panel's metrics of these runs; `at` draws a cursor, rings mark the `recorded` steps of the first run.

    A lone run has a colour per metric and a legend. Several have a colour each and their names beside their last
    points; the second metric is dotted. A click anywhere means the step below it, so the whole width answers.
    """
    drawn = courses(panel, runs)
    alone = len(runs) == 1
    names, metrics = list(runs), list(panel.metrics)
    traces = []
    for course in drawn:
        run, metric = names.index(course.run), metrics.index(course.metric)
        colour = SINGLE[metric] if alone else ACROSS[run % MOST_RUNS]
        traces.append(_line(course, colour, "solid" if alone else DASHES[metric], alone))
    first = next((course for course in drawn if course.run == names[0]), None) if names else None
    if first is not None:
        traces += _rings(first, set(recorded), traces[drawn.index(first)]["line"]["color"])
    y = value_axis([v for course in drawn for v in course.values if v is not None], log=panel.log, share=panel.share)
    ends = {course.run: _last(course) for course in drawn if course.metric == metrics[0]}
    notes = [] if alone else names_at_ends(ends, run_colours(names), y, height=_HEIGHT)
    shapes = [] if at is None else [vertical_line(x=at, colour=REJECTED, dash="dot", width=1)]
    every = [step for course in drawn for step in course.steps] or [0]
    room = max(0.02 * (max(every) - min(every)), 0.5)
    x: Part = {"title_text": "step", "tickformat": "d", "nticks": 6, "range": [min(every) - room, max(every) + room]}
    legend = alone and len(drawn) > 1
    made = figure(traces, height=_HEIGHT, x=x, y=y, shapes=shapes, notes=notes, legend=legend)
    margin = 12 if alone else room_for_names(names)
    return made.update_layout({"hovermode": "x", "margin.r": margin})


def _last(course: Course) -> float:
    return next(value for value in reversed(course.values) if value is not None)


def _line(course: Course, colour: str, dash: str, alone: bool) -> Part:
    many = sum(value is not None for value in course.values) > (FEW if alone else FEW / 4)
    named = course.metric if alone else f"{course.run}: {course.metric}"
    return {
        "type": "scatter",
        "name": _literal(named),
        "x": list(course.steps),
        "y": list(course.values),
        "mode": "lines" if many else "lines+markers",
        "line": {"color": colour, "dash": dash, "width": 1.6},
        "marker": {"color": colour, "size": 4},
        "hovertemplate": "%{y:.4g}",
    }


def _rings(course: Course, recorded: set[int], colour: str) -> list[Part]:
    """On the first line: the steps that can be opened."""
    points = [(s, v) for s, v in zip(course.steps, course.values, strict=True) if s in recorded and v is not None]
    if not points:
        return []
    ring = {"symbol": "circle-open", "size": 9, "color": colour, "line": {"width": 1.5}}
    x, y = ([point[i] for point in points] for i in (0, 1))
    look = {"mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip"}
    return [{"type": "scatter", "name": "recorded", "x": x, "y": y, **look}]


def value_axis(values: Sequence[float], *, log: bool = False, share: bool = False) -> Part:
    """A fixed range, so that names find their places. The axis of a share ends at 1 and covers at least 5 %: noise in
    the fourth digit then looks like what it is."""
    if not values:
        return {"range": [0, 1]}
    low, high = min(values), max(values)
    if log:
        return power_axis(low, high)
    if share:
        return {"range": [min(low - 0.01, 0.95), 1.005]}
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return {"range": [low - room, high + room]}


def names_at_ends(ends: Mapping[str, float], colours: Mapping[str, str], y: Part, *, height: int) -> Parts:
    """Names to the right of the axes, as high as their last values, moved apart where they would lie on each other."""
    low, high = y["range"]
    places = [math.log10(end) if y.get("type") == "log" else end for end in ends.values()]
    heights = spread([(place - low) / (high - low) for place in places], _NAME_HEIGHT / (height - 50))
    return [
        {
            "xref": "paper", "x": 1, "xanchor": "left", "y": at, "yanchor": "middle",
            "text": f" {_short(name)}", "font": {"size": 10, "color": colours[name]},
        }
        for name, at in zip(ends, heights, strict=True)
    ]  # fmt: skip


def room_for_names(names: Sequence[str]) -> int:
    """Pixels."""
    return 14 + 6 * max((len(_short(name)) for name in names), default=0)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Places in [0, 1], in their order, at least `gap` apart as far as there is room, and close to where they were."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(gap, 1 / max(len(places) - 1, 1))
    moved = [0.0] * len(places)
    low = 0.0
    for i in order:
        moved[i] = low = max(min(places[i], 1.0), low)
        low += gap
    high = 1.0
    for i in reversed(order):
        moved[i] = high = min(moved[i], high)
        high -= gap
    return moved


def _short(name: str, longest: int = 16) -> str:
    """Without its first words if it is too long: names of one family differ at their ends."""
    if len(name) <= longest:
        return _literal(name)
    ends = [name[i + 1 :] for i, letter in enumerate(name) if letter == "_" and len(name) - i <= longest]
    return _literal(f"…{ends[0]}" if ends else f"{name[: longest - 1]}…")


def _literal(text: str) -> str:
    """Plotly reads tags in a text, and the name of a run may hold anything."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def nearest(steps: Sequence[int], place: float) -> int:
    """The step next to a place on the axis; of two as near, the earlier. Raises ValueError without steps."""
    return min(steps, key=lambda step: (abs(step - place), step))
