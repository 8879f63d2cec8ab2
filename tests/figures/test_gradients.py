import math
from dataclasses import fields, replace
from typing import Any

import pytest

from rlcorr.figures import gradients
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import KLGradientReport
from rlcorr.gradients.report import GradientReport, Ranking
from rlcorr.gradients.sweep import GradientSweep, ToySweep


def report_of(**numbers: float) -> GradientReport:
    """All intervals 1 ± 0.1, but for the named ones."""
    names = [f.name for f in fields(GradientReport) if f.name != "projection_error"]
    values = {name: numbers.get(name, 1.0) for name in names}
    intervals = {name: Interval(value, 0.9 * value, 1.1 * value) for name, value in values.items()}
    return GradientReport(**intervals, projection_error=0.1)


def sweep_of(thresholds: list[float], *, of_ratio: bool) -> GradientSweep:
    reports = [report_of(relative_bias=0.5 * i, variance=4.0, reference_length=2.0) for i in range(len(thresholds))]
    return GradientSweep(thresholds, of_ratio, Ranking(reports, 1, [0.0, 1.0, 0.0]), Interval(*thresholds[1:2] * 3))


def test_curves_over_a_ratio() -> None:
    """Ratios stand at their logarithm; noise is √4/2 = 1."""
    figure: Any = gradients.threshold_curves(sweep_of([1.001, 1.1, 4.0], of_ratio=True), at=1.1)
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    assert list(lines) == ["bias", "noise", "error"]
    assert list(lines["bias"].x) == pytest.approx([0.0009995, 0.0953102, 1.3862944], rel=1e-5)
    assert list(lines["bias"].y) == [0, 0.5, 1]
    assert list(lines["noise"].y) == [1, 1, 1]
    assert list(figure.layout.xaxis.ticktext) == ["1.001", "1.01", "1.1", "1.3", "2", "4"]
    dots = [shape for shape in figure.layout.shapes if shape.line.dash == "dot"]
    assert [shape.x0 for shape in dots] == pytest.approx([0.0953102], rel=1e-5)


def test_curves_over_a_divergence() -> None:
    figure: Any = gradients.threshold_curves(sweep_of([0.001, 0.01, 0.1], of_ratio=False))
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    assert list(lines["error"].x) == [0.001, 0.01, 0.1]
    assert list(figure.layout.xaxis.range) == pytest.approx([-3, -1])


@pytest.mark.parametrize(("at", "expected"), [(0.0001, 0.001), (7.0, 0.1)])
def test_a_cursor_beyond_the_curve_stands_at_its_end(at: float, expected: float) -> None:
    figure: Any = gradients.threshold_curves(sweep_of([0.001, 0.01, 0.1], of_ratio=False), at=at)
    assert [shape.x0 for shape in figure.layout.shapes if shape.line.dash == "dot"] == [expected]


def test_a_band_surrounds_its_line() -> None:
    """Up along the high ends, back along the low ones."""
    figure: Any = gradients.threshold_curves(sweep_of([0.001, 0.01, 0.1], of_ratio=False))
    band = next(trace for trace in figure.data if trace.name == "bias, 95 %")
    assert list(band.x) == [0.001, 0.01, 0.1, 0.1, 0.01, 0.001]
    assert list(band.y) == pytest.approx([0, 0.55, 1.1, 0.9, 0.45, 0])


def test_the_plane() -> None:
    """noise = √variance/length to the right, bias upwards, bars to the ends of both."""
    a = report_of(relative_bias=0.3, variance=0.25, reference_length=0.5)
    figure: Any = gradients.bias_noise_plane({"a": a, "b": report_of(), "c": report_of()}, marked="b")
    others, marked = figure.data
    assert (list(others.text), list(others.x), list(others.y)) == (["a", "c"], [1, 1], [0.3, 1])
    assert list(others.error_y.array) == pytest.approx([0.03, 0.1])
    assert list(others.error_x.arrayminus) == pytest.approx([1 - 0.9**0.5] * 2)
    assert (list(marked.text), others.mode, marked.mode) == (["b"], "markers", "markers+text")
    assert marked.textposition == "top left"  # it stands at 1 of 1.27, and its name must not be cut off
    (arc,) = figure.layout.shapes
    assert (arc.type, arc.x1, arc.y1) == ("circle", 1, 1)


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
    toy = ToySweep([1.5, 2.0, 4.0], [0.4, 0.2, 0.1], [0.1, 0.1, 0.5], [0.41, 0.22, 0.51])
    figure: Any = gradients.exact_curves(toy, of_ratio=True, at=3.0)
    assert [list(trace.y) for trace in figure.data] == [toy.bias, toy.noise, toy.error]
    best, _, cursor = figure.layout.shapes
    assert (best.x0, cursor.x0) == (pytest.approx(math.log(2)), pytest.approx(math.log(3)))


def test_bounds_on_both_sides_of_one_do_not_fold() -> None:
    """½ is as far from 1 as 2; drawn by that distance alone, the two stood at the same place."""
    toy = ToySweep([0.5, 1.0, 2.0, 4.0], [0.4, 0.3, 0.2, 0.1], [0.1] * 4, [0.41, 0.32, 0.22, 0.14])
    figure: Any = gradients.exact_curves(toy, of_ratio=True, at=0.7)
    assert list(figure.data[0].x) == pytest.approx([-math.log(2), 0, math.log(2), math.log(4)])
    cursor = figure.layout.shapes[-1]
    assert cursor.x0 == pytest.approx(math.log(0.7))
    labels = dict(zip(figure.layout.xaxis.ticktext, figure.layout.xaxis.tickvals, strict=True))
    assert labels["0.5"] == pytest.approx(-math.log(2))
    assert labels["2"] == pytest.approx(math.log(2))


def test_a_cursor_on_the_other_side_of_one_stands_at_the_tight_end() -> None:
    toy = ToySweep([1.5, 4.0], [0.4, 0.1], [0.1, 0.1], [0.41, 0.14])
    figure: Any = gradients.exact_curves(toy, of_ratio=True, at=0.5)
    assert figure.layout.shapes[-1].x0 == pytest.approx(math.log(1.5))
