"""What a figure says about its axes: how the numbers of their labels come from their own."""

import math

import numpy as np
import pytest

from rlcorr import CorrectionConfig
from rlcorr.figures import axes
from rlcorr.figures.axes import RATIO_TICKS, power_axis, ratio_axis, stretched_axis, threshold_scale
from rlcorr.figures.canvas import digest, figure, text_summary
from rlcorr.figures.fates import fate_mask

UNDONE = {
    "exp": math.exp, "exp of −": lambda v: math.exp(-v), "−": lambda v: -v, "": lambda v: v,
    "exp of sinh": lambda v: math.exp(2e-4 * math.sinh(v)),
}  # fmt: skip


@pytest.mark.parametrize(
    "axis",
    [
        ratio_axis(0.3),
        ratio_axis(9.0),
        stretched_axis(1e-3),
        stretched_axis(2.3),
        stretched_axis(20.0),
        threshold_scale(list(RATIO_TICKS), of_ratio=True)[1],
        threshold_scale([1 / t for t in RATIO_TICKS], of_ratio=True)[1],
        threshold_scale([0.2, 1.0, 7.0], of_ratio=True)[1],
        threshold_scale([1e-4, 1e-2, 1.0], of_ratio=False)[1],
        threshold_scale([-1e-4, -1e-2, -1.0], of_ratio=False)[1],
    ],
)
def test_reading_an_axis_gives_what_its_labels_say(axis: dict) -> None:
    labels = [float(text) for text in axis["ticktext"]]
    assert len(labels) >= 3
    assert [UNDONE[axis["read"]](place) for place in axis["tickvals"]] == pytest.approx(labels, rel=1e-5)


def test_one_or_two_decades_have_labels_between_the_powers() -> None:
    """The gradient norm of a calm run lies within one decade, and its axis once had a single label."""
    axis = power_axis(0.02, 0.05)
    assert (axis["range"], axis["ticktext"]) == ([-2, -1], ["0.01", "0.02", "0.05", "0.1"])
    assert axis["tickvals"] == pytest.approx([0.01, 0.02, 0.05, 0.1])
    assert power_axis(2e-6, 3e-5)["ticktext"] == ["1e-6", "2e-6", "5e-6", "1e-5", "2e-5", "5e-5", "0.0001"]


def test_many_decades_have_powers_of_one_size() -> None:
    axis = power_axis(3e-7, 2.0)  # from 1e-7 to 10: eight decades, a label at every second power
    assert (axis["range"], axis["ticktext"]) == ([-7, 1], ["10⁻⁶", "10⁻⁴", "0.01", "1"])
    assert axis["tickvals"] == pytest.approx([1e-6, 1e-4, 0.01, 1])


def test_digest() -> None:
    lines = [{"type": "scatter", "name": "reward", "x": [0, 1, 2], "y": [0.25, None, 0.75]}]
    lines.append({"type": "scatter", "name": "nothing", "x": [0, 1, 2], "y": [None, None, None]})
    lines.append({"type": "scatter", "name": "lying", "x": [2, 4], "y": ["a", "b"]})
    assert digest(figure(lines, height=100, x={}, y={})) == (
        "reward (scatter, 3): sum=1 mean=0.5 min=0.25 max=0.75\nnothing (scatter, 3): nothing drawn\n"
        "lying (scatter, 2): sum=6 mean=3 min=2 max=4"
    )
    large = [{"type": "scatter", "name": "n", "x": [0, 1], "y": [1234.5, 2000.0]}]
    assert (
        digest(figure(large, height=100, x={}, y={}))
        == "n (scatter, 2): sum=3.234e+03 mean=1.617e+03 min=1.234e+03 max=2000"
    )
    cells = digest(fate_mask(np.array([[1, 4], [0, 1]], np.uint8), CorrectionConfig()))
    assert cells == "fate (heatmap, 2×2): sum=6 mean=1.5 min=0 max=4", "the keys of a legend draw nothing"


def test_a_figure_says_how_far_its_lines_and_bars_reach() -> None:
    """Bars that lie have their values across; what has no name, no finite value or a colour per cell is left out."""
    traces = [
        {"type": "scatter", "name": "k3", "x": [1, 2, 3], "y": np.array([0.25, math.nan, 0.5])},
        {"type": "bar", "name": "tokens", "orientation": "h", "x": [2, 7], "y": ["a", "b"]},
        {"type": "scatter", "y": [1, 2]},
        {"type": "scatter", "name": "nothing", "y": [math.nan]},
        {"type": "heatmap", "name": "cells", "z": [[1, 2]]},
    ]
    assert text_summary(figure(traces, height=100, x={}, y={})) == "k3 from 0.25 to 0.5; tokens from 2 to 7"


# --- ticks ---


@pytest.mark.parametrize("span", [1e-4, 3e-3, 0.05, 0.3, 0.79, 1.0, 3.0, 8.0, 20.0])
def test_ticks_are_few_and_within_the_axis(span: float) -> None:
    ticks = axes.ratio_ticks(span)
    assert 1 in ticks
    assert 3 <= len(ticks) <= 11
    assert all(abs(math.log(t)) <= span for t in ticks)
