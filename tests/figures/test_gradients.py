"""Figures of gradients, from numbers made by hand."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from rlcorr.figures import canvas, gradients
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import Choice, GradientReport, Ranking
from rlcorr.gradients.sweep import GradientSweep, ToySweep

NAMES = ("first", "second", "third", "fourth")


def around(value: float) -> Interval:
    return Interval(value, 0.9 * value, 1.1 * value)


def report_of(progress: float = 0.5, **numbers: float) -> GradientReport:
    """All intervals 1 ± 0.1, but for the named ones; η is a half more for the larger of the two batches, and noise half
    as much."""
    names = [f.name for f in fields(GradientReport) if f.name not in ("batch_sizes", "noise", "progress")]
    noise = numbers.pop("noise", 1.0)
    return GradientReport(
        **{name: around(numbers.get(name, 1.0)) for name in names},
        batch_sizes=(256, 4096),
        noise=(around(noise), around(noise / 2)),
        progress=(around(progress), around(1.5 * progress)),
    )


def choice_of(batch_size: int, best: int, groups: list[list[int]], above_nothing: float = 0.25) -> Choice:
    return Choice(batch_size, best, [1.0], groups, around(0.1), around(above_nothing))


def sweep_of(thresholds: list[float], *, of_ratio: bool) -> GradientSweep:
    """Each threshold makes more progress than the one before; the best one is the last, for the larger batch too."""
    places = list(range(len(thresholds)))
    reports = [report_of(progress=0.1 * (i + 1), relative_bias=0.5 * i, noise=3.0) for i in places]
    choices = tuple(choice_of(size, places[-1], [places]) for size in (256, 4096))
    best = tuple(Interval(thresholds[-1], thresholds[i], thresholds[-1]) for i in (0, 1))
    return GradientSweep(thresholds, of_ratio, Ranking(reports, choices, torch.empty(0)), best)


def lines_of(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.mode == "lines"}


def test_progress_over_a_ratio() -> None:
    """Ratios stand at their logarithm; no correction makes 0.25 less than the best."""
    figure: Any = gradients.progress_curves(sweep_of([1.001, 1.1, 4.0], of_ratio=True), at=1.1)
    lines = lines_of(figure)
    assert list(lines) == ["progress", "no correction"]
    assert list(lines["progress"].x) == pytest.approx([0.0009995, 0.0953102, 1.3862944], rel=1e-5)
    assert list(lines["progress"].y) == pytest.approx([0.1, 0.2, 0.3])
    assert list(lines["no correction"].y) == pytest.approx([0.05, 0.05])
    assert list(figure.layout.xaxis.ticktext) == ["1.001", "1.01", "1.1", "1.3", "2", "4"]
    dots = [shape for shape in figure.layout.shapes if shape.line.dash == "dot"]
    assert [shape.x0 for shape in dots] == pytest.approx([0.0953102], rel=1e-5)


def test_a_best_threshold_that_the_data_do_not_show_is_not_drawn() -> None:
    """With a lead over no correction whose interval contains 0, or with a range that contains every threshold."""
    sweep = sweep_of([1.001, 1.1, 4.0], of_ratio=True)
    assert not sweep.shows_best(0), "its range is from the first threshold to the last"
    assert sweep.shows_best(1)
    figure: Any = gradients.progress_curves(sweep, 256, at=1.1)
    assert [shape.line.dash for shape in figure.layout.shapes] == ["dot"]
    unknown = replace(sweep.ranking.choices[1], over_nothing=Interval(0.2, -0.1, 0.5))
    ranking = replace(sweep.ranking, choices=(sweep.ranking.choices[0], unknown))
    assert not replace(sweep, ranking=ranking).shows_best(1)


PROGRESS = {"second": around(0.8), "third": around(0.3), "first": around(0.1)}
TITLES = {name: f"Title of {name}" for name in NAMES} | {"first": "first"}


def test_the_ranking_has_a_bar_for_each_correction() -> None:
    """Rows keep their order, hover texts have the names, and the line at the shown η has the band of its interval."""
    figure: Any = gradients.ranking_bars(PROGRESS, TITLES, marked="third", shown=around(0.5))
    (bars,) = figure.data
    assert list(bars.y) == list(figure.layout.yaxis.categoryarray) == ["second", "third", "first"]
    assert list(bars.x) == [0.8, 0.3, 0.1]
    assert list(bars.error_x.array) == pytest.approx([0.08, 0.03, 0.01])
    assert bars.marker.color[1] == gradients.WARM
    assert figure.layout.xaxis.range == (0, pytest.approx(1.05 * 0.88))
    assert list(figure.layout.yaxis.ticktext) == ["Title of second", "Title of third", "first"]
    assert bars.hovertext[0] == "Title of second<br>second"
    band, line = figure.layout.shapes
    assert (band.x0, band.x1) == pytest.approx((0.45, 0.55))
    assert (line.x0, line.x1, line.line.color) == (0.5, 0.5, gradients.WARM)
    assert gradients.shown_line(around(0.5)) == figure.to_dict()["layout"]["shapes"]


def test_training_stands_beside_the_bars_and_what_it_contradicts_is_red() -> None:
    trained = {"second": "0.02 to 0.06", "first": "0.11"}
    figure: Any = gradients.ranking_bars(PROGRESS, TITLES, trained=trained, against=["second"])
    notes = {note.text: note for note in figure.layout.annotations}
    assert [*notes] == ["0.02 to 0.06", "0.11", "in training"]
    assert (notes["0.02 to 0.06"].y, notes["0.02 to 0.06"].font.color) == ("second", canvas.RED)
    assert (notes["0.11"].y, notes["0.11"].font.color) == ("first", None)
    assert figure.data[0].marker.color[0] == canvas.RED != figure.data[0].marker.color[1]


def test_exact_curves() -> None:
    toy = ToySweep([1.5, 2.0, 4.0], [0.4, 0.2, 0.1], [0.1, 0.1, 0.5], [0.6, 0.8, 0.7])
    figure: Any = gradients.exact_curves(toy, of_ratio=True)
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "progress": toy.progress, "bias": toy.bias, "noise": toy.noise,
    }  # fmt: skip
    (best,) = figure.layout.shapes
    assert best.x0 == pytest.approx(math.log(2))
