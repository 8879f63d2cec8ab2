"""Metrics over the steps of a training run: one run, or several with the same axes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcorr.figures.axes import power_axis
from rlcorr.figures.canvas import REJECTED, Figure, Part, Parts, colours_of, figure, literal, vertical_line
from rlcorr.measuring.metric_definitions import PREFIX

SINGLE = ("#5f7a94", "#9a6cb4")
"""Colours of the metrics of a single run. They are different from the colours of the two sides of ratio 1."""
DASHES = ("solid", "dot")
"""Dashes of the first and the second metric, if the colours show the runs."""
FEW = 40
"""Up to this many points are marked one by one."""
_HEIGHT, _NAME_HEIGHT = 210, 13  # pixels

Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics.jsonl."""


@dataclass(frozen=True)
class Panel:
    """The content of one figure: metrics by their names on the page, and the kind of their axis."""

    metrics: Mapping[str, str]
    log: bool = False
    share: bool = False
    sparse: frozenset[str] = field(default=frozenset())
    """Metrics that are measured only at some steps. Their points are joined."""


PANELS = {
    "reward": Panel({"reward": "reward", "held-out accuracy": "accuracy"}, sparse=frozenset({"accuracy"})),
    "mismatch": Panel({"mean |Δ|": f"{PREFIX}abs_log_ratio", "k3": f"{PREFIX}k3_kl"}, log=True),
    "ess": Panel(
        {
            "as weighted": f"{PREFIX}rollout_is_eff_sample_size",
            "without thresholds": f"{PREFIX}ratio_eff_sample_size",
        },
        share=True,
    ),
    "kept": Panel({"kept": f"{PREFIX}kept_fraction"}, share=True),
    "entropy": Panel({"entropy": "entropy"}),
    "grad_norm": Panel({"gradient norm": "grad_norm"}, log=True),
}


Points = Sequence[tuple[int, float | None]]
"""Steps with one metric of one run; None if the step has no finite number for it."""


def _curves(panel: Panel, runs: Mapping[str, Rows]) -> dict[tuple[str, str], Points]:
    """Return (run, metric) → its points, if there is a value. A logarithmic panel leaves out values ≤ 0."""
    curves = {}
    for run, rows in runs.items():
        for metric, key in panel.metrics.items():
            points = [(row["step"], drawn(row.get(key), log=panel.log)) for row in rows]
            if key in panel.sparse:
                points = [(step, value) for step, value in points if value is not None]
            if any(value is not None for _, value in points):
                curves[run, metric] = points
    return curves


def drawn(value: object, *, log: bool) -> float | None:
    """Return a value that an axis can show: a finite number, above 0 if the axis is logarithmic. Else return None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if log and value <= 0 else float(value)


def over_steps(
    panel: Panel, runs: Mapping[str, Rows], *, at: int | None = None, recorded: Iterable[int] = ()
) -> Figure:
    """Draw the metrics of the panel for these runs over the steps.

    `at` draws a cursor, and rings mark the `recorded` steps of the first run. A single run has one colour per metric
    and a legend. Several runs have one colour each and their names next to their last points; the second metric is
    dotted. A click anywhere selects the step below it, so the whole width reacts.
    """
    curves = _curves(panel, runs)
    alone = len(runs) == 1
    names, metrics, colours = list(runs), list(panel.metrics), colours_of(runs)
    traces = []
    for (run, metric), points in curves.items():
        colour = SINGLE[metrics.index(metric)] if alone else colours[run]
        label = metric if alone else f"{run}: {metric}"
        traces.append(_line(label, points, colour, "solid" if alone else DASHES[metrics.index(metric)], alone))
    if curves and next(iter(curves))[0] == names[0]:
        traces += _rings(next(iter(curves.values())), set(recorded), traces[0]["line"]["color"])
    values = [value for points in curves.values() for _, value in points if value is not None]
    y = value_axis(values, log=panel.log, share=panel.share)
    ends = {run: _last(points) for (run, metric), points in curves.items() if metric == metrics[0]}
    notes = [] if alone else names_at_ends(ends, colours, y, height=_HEIGHT)
    shapes = [] if at is None else [vertical_line(x=at, colour=REJECTED, dash="dot", width=1)]
    steps = [step for points in curves.values() for step, _ in points] or [0]
    span = max(steps) - min(steps)
    room = max(0.02 * span, 0.5)
    ticks: Part = {"dtick": 1} if span < 6 else {"nticks": 6}  # no step has two ticks
    x = ticks | {"title_text": "step", "tickformat": "d", "range": [min(steps) - room, max(steps) + room]}
    legend = alone and len(curves) > 1
    made = figure(traces, height=_HEIGHT, x=x, y=y, shapes=shapes, notes=notes, legend=legend)
    margin = 12 if alone else room_for_names(names)
    return made.update_layout({"hovermode": "x", "margin.r": margin})


def _last(points: Points) -> float:
    return next(value for _, value in reversed(points) if value is not None)


def _line(name: str, points: Points, colour: str, dash: str, alone: bool) -> Part:
    many = sum(value is not None for _, value in points) > (FEW if alone else FEW / 4)
    return {
        "type": "scatter",
        "name": literal(name),
        "x": [step for step, _ in points],
        "y": [value for _, value in points],
        "mode": "lines" if many else "lines+markers",
        "line": {"color": colour, "dash": dash, "width": 1.6},
        "marker": {"color": colour, "size": 4},
        "hovertemplate": "%{y:.4g}",
    }


def _rings(points: Points, recorded: set[int], colour: str) -> list[Part]:
    """Draw rings on the first line at the steps that can be opened."""
    shown = [(step, value) for step, value in points if step in recorded and value is not None]
    if not shown:
        return []
    ring = {"symbol": "circle-open", "size": 9, "color": colour, "line": {"width": 1.5}}
    x, y = ([point[i] for point in shown] for i in (0, 1))
    look = {"mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip"}
    return [{"type": "scatter", "name": "recorded", "x": x, "y": y, **look}]


def value_axis(values: Sequence[float], *, log: bool = False, share: bool = False) -> Part:
    """Return an axis with a fixed range, so that names can be put next to the lines.

    The axis of a share ends at 1 and covers at least 5 %, so that noise in the fourth digit looks small.
    """
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
    """Return names to the right of the axes, at the height of their last values.

    Names that would overlap are moved apart.
    """
    low, high = y["range"]
    positions = [math.log10(end) if y.get("type") == "log" else end for end in ends.values()]
    heights = spread_apart([(position - low) / (high - low) for position in positions], _NAME_HEIGHT / (height - 50))
    return [
        {
            "xref": "paper", "x": 1, "xanchor": "left", "y": name_height, "yanchor": "middle",
            "text": f" {_short(name)}", "font": {"color": colours[name]},
        }
        for name, name_height in zip(ends, heights, strict=True)
    ]  # fmt: skip


def room_for_names(names: Sequence[str]) -> int:
    """Return the width of the names in pixels."""
    return 14 + 6 * max((len(_short(name)) for name in names), default=0)


def spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions in [0, 1] apart.

    They keep their order, get at least `gap` between them if there is room, and stay close to where they were.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    gap = min(gap, 1 / max(len(positions) - 1, 1))
    moved = [0.0] * len(positions)
    low = 0.0
    for i in order:
        moved[i] = low = max(min(positions[i], 1.0), low)
        low += gap
    high = 1.0
    for i in reversed(order):
        moved[i] = high = min(moved[i], high)
        high -= gap
    return moved


def _short(name: str, longest: int = 18) -> str:
    """Shorten a name that is too long by its first words: names of one family differ at their ends."""
    if len(name) <= longest:
        return literal(name)
    ends = [name[i + 1 :] for i, letter in enumerate(name) if letter == "_" and len(name) - i <= longest]
    return literal(f"…{ends[0]}" if ends else f"{name[: longest - 1]}…")


def nearest(steps: Sequence[int], x: float) -> int:
    """Return the step nearest to an x position; of two equally near steps, the earlier.

    Raises ValueError without steps.
    """
    return min(steps, key=lambda step: (abs(step - x), step))
