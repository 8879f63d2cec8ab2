"""Figures of gradients, from numbers made by hand."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from rlcorr.figures import gradients
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import KLGradientReport
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


def test_best_thresholds_over_the_batch() -> None:
    """The bounds themselves are on the axis, whose coordinates are their distances."""
    figure: Any = gradients.best_thresholds(sweep_of([0.9, 0.99], of_ratio=True), batch_size=4096)
    band, line = figure.data
    assert list(line.x) == [256, 4096]
    assert list(line.y) == pytest.approx([-math.log(0.99)] * 2)
    assert list(band.y) == pytest.approx([-math.log(end) for end in (0.99, 0.99, 0.99, 0.9)])
    assert [shape.x0 for shape in figure.layout.shapes] == [4096]
    assert set(figure.layout.yaxis.ticktext) <= {"0.99", "0.909091", "0.999"}


def ranking() -> Ranking:
    """The second and the fourth cannot be told apart, nor can the third and the first; at 4096 no two can."""
    reports = [report_of(progress=progress) for progress in (0.1, 0.8, 0.3, 0.7)]
    choices = choice_of(256, 1, [[1, 3], [2, 0]]), choice_of(4096, 1, [[1, 3, 2, 0]])
    return Ranking(reports, choices, torch.empty(0))


def test_presets_are_ranked_in_groups() -> None:
    figure: Any = gradients.ranking_bars(NAMES, ranking(), marked="third")
    (bars,) = figure.data
    assert list(bars.y) == ["second", "fourth", "third", "first"]
    assert list(figure.layout.yaxis.categoryarray) == list(bars.y)
    assert list(bars.x) == [0.8, 0.7, 0.3, 0.1]
    assert list(bars.error_x.array) == pytest.approx([0.08, 0.07, 0.03, 0.01])
    strong, same, marked, faint = bars.marker.color
    assert strong == same != faint
    assert marked == gradients.WARM
    (ground,) = figure.layout.shapes  # behind the third and the fourth bar from the top
    assert (ground.y0, ground.y1) == (1.5, 3.5)
    assert figure.layout.xaxis.range == (0, pytest.approx(1.05 * 0.88))

    whole: Any = gradients.ranking_bars(NAMES, ranking(), 4096)
    assert list(whole.data[0].x) == pytest.approx([1.2, 1.05, 0.45, 0.15])
    assert len(set(whole.data[0].marker.color)) == 1
    assert not whole.layout.shapes
    assert whole.layout.yaxis.ticktext is None


def test_titles_label_the_rows_of_the_ranking_and_hover_texts_keep_the_names() -> None:
    titles = {name: f"Title of {name}" for name in NAMES} | {"first": "first"}
    figure: Any = gradients.ranking_bars(NAMES, ranking(), titles=titles)
    (bars,) = figure.data
    assert list(bars.y) == list(figure.layout.yaxis.tickvals) == ["second", "fourth", "third", "first"]
    assert list(figure.layout.yaxis.ticktext) == ["Title of second", "Title of fourth", "Title of third", "first"]
    assert bars.hovertext[0] == "Title of second<br><span style='font-size:12px'>second</span>"
    assert bars.hovertext[3] == "first", "once"
    assert bars.hovertemplate == "%{hovertext}: η %{x:.3f}<extra></extra>"


def test_what_is_shown_lies_over_the_bars() -> None:
    """A line at its η with the band of its interval, over the ground; the strip has the same for each place."""
    shown = report_of(progress=0.5)
    figure: Any = gradients.ranking_bars(NAMES, ranking(), marked="third", shown=shown)
    assert list(figure.data[0].y) == ["second", "fourth", "third", "first"]
    _, band, line = figure.layout.shapes
    assert (band.x0, band.x1) == (shown.progress[0].low, shown.progress[0].high)
    assert (line.x0, line.x1, line.line.color) == (0.5, 0.5, gradients.WARM)
    here, elsewhere = gradients.ranking_shapes(ranking(), 256, [shown, report_of(progress=0.2)])
    assert here == figure.to_dict()["layout"]["shapes"]
    assert [mark["x0"] for mark in elsewhere[1:]] == [pytest.approx(0.18), 0.2]


def plane(reports: dict[str, GradientReport], size: int = 256, *, marked: str = "", shown: str = "a") -> Any:
    titles = {name: f"Title <{name}>" for name in reports}
    return gradients.bias_noise_plane(reports, size, titles=titles, marked=marked, shown=reports[shown])


def test_the_plane() -> None:
    """Noise of the batch to the right, bias upwards, both logarithmic; the intervals are in the hover texts."""
    reports = {"a": report_of(relative_bias=0.3, noise=2.0), "b": report_of(), "c": report_of()}
    figure = plane(reports, marked="b")
    others, marked = figure.data
    assert (list(others.text), list(others.x), list(others.y)) == (["a", "c"], [2, 1], [0.3, 1])
    assert list(others.customdata[0]) == pytest.approx([2, 1.8, 2.2, 0.3, 0.27, 0.33])
    assert others.hovertext[1] == "Title &lt;c><br><span style='font-size:12px'>c</span>"
    assert (marked.name, list(marked.text)) == ("Title &lt;b>", ["b"])
    middle = math.log10(2) / 2, math.log10(0.3) / 2  # of a decade, because the values need less
    assert list(figure.layout.xaxis.range) == pytest.approx([middle[0] - 0.5, middle[0] + 0.5])
    assert list(figure.layout.yaxis.range) == pytest.approx([middle[1] - 0.5, middle[1] + 0.5])
    across, up = figure.layout.shapes
    assert (across.y0, across.y1, up.x0, up.x1) == (0.3, 0.3, 2, 2)
    assert (across.x0, across.x1, up.y0, up.y1) == pytest.approx((1.8, 2.2, 0.27, 0.33))
    larger = plane(reports, 4096, marked="a")
    assert (list(larger.data[0].text), list(larger.data[0].x)) == (["b, c"], [0.5])  # both lie there


def test_a_bias_of_0_is_at_the_edge_of_the_plane() -> None:
    """A logarithmic axis has no 0. It ends a tenth of a decade below 1/1000 of the largest bias, 2."""
    figure = plane({"a": report_of(relative_bias=0.0), "b": report_of(relative_bias=2.0)})
    edge = math.log10(0.002) - 0.1
    assert figure.layout.yaxis.range[0] == pytest.approx(edge)
    assert list(figure.data[0].y) == pytest.approx([10**edge, 2])
    assert all(end > 0 for shape in figure.layout.shapes for end in (shape.x0, shape.y0))


def test_kl_directions() -> None:
    forward = KLGradientReport(*[Interval(0.5, 0.4, 0.7)] * 4)
    other = replace(forward, cosine=Interval(1.0, 1.0, 1.0), length=Interval(0.06, 0.05, 0.07))
    figure: Any = gradients.kl_directions({"k2": other, "k3": forward})
    first, second = figure.data
    assert (list(first.x), list(first.y)) == (["k2", "k3"], [1, 0.5])
    assert list(first.error_y.array) == pytest.approx([0, 0.2])
    assert list(second.y) == [0.5, 0.5]
    assert [note.text for note in figure.layout.annotations] == ["×0.06", "×0.5"]


def test_exact_curves() -> None:
    toy = ToySweep([1.5, 2.0, 4.0], [0.4, 0.2, 0.1], [0.1, 0.1, 0.5], [0.6, 0.8, 0.7])
    figure: Any = gradients.exact_curves(toy, of_ratio=True, at=3.0)
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "progress": toy.progress, "bias": toy.bias, "noise": toy.noise,
    }  # fmt: skip
    best, cursor = figure.layout.shapes
    assert (best.x0, cursor.x0) == (pytest.approx(math.log(2)), pytest.approx(math.log(3)))
