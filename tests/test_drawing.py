"""What a figure says about its axes: how the numbers of their labels come from their own."""

import math

import pytest

from rlcorr.axes import RATIO_TICKS, ratio_axis, threshold_axis
from rlcorr.drawing import Figure, figure

UNDONE = {"exp": math.exp, "exp of −": lambda v: math.exp(-v), "−": lambda v: -v, "": lambda v: v}


@pytest.mark.parametrize(
    "axis",
    [
        ratio_axis(0.3),
        ratio_axis(9.0),
        threshold_axis(list(RATIO_TICKS), of_ratio=True),
        threshold_axis([1 / t for t in RATIO_TICKS], of_ratio=True),
        threshold_axis([1e-4, 1e-2, 1.0], of_ratio=False),
        threshold_axis([-1e-4, -1e-2, -1.0], of_ratio=False),
    ],
)
def test_reading_an_axis_gives_what_its_labels_say(axis: dict) -> None:
    labels = [float(text) for text in axis["ticktext"]]
    assert len(labels) >= 3
    assert [UNDONE[axis["read"]](place) for place in axis["tickvals"]] == pytest.approx(labels, rel=1e-5)


def test_only_figures_with_relabelled_axes_say_how_to_read_them() -> None:
    def meta(x: dict, y: dict) -> object:
        made: Figure = figure([], height=100, x=x, y=y)
        return made.layout.meta

    assert meta({}, {"read": ""}) is None
    assert meta({"read": "exp"}, {}) == {"read": {"x": "exp"}}
    assert meta({"read": "10^"}, {"read": "exp"}) == {"read": {"x": "10^", "y": "exp"}}
