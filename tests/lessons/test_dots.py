"""The points of the lessons with their ranges, single values and labelled lines: what is given is drawn."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "lessons"))
from dots import dots

from rlcorr.gradients.bootstrap import Interval

ARMS = {"none": Interval(0.25, 0.0, 0.5), "token_cap": Interval(0.5, 0.375, 0.75)}


def test_values_have_their_ranges_and_lines_their_labels() -> None:
    made: Any = dots("reward", ARMS, x_name="reward", lines={"start": 0.125, "fresh": 0.875}, x_range=(0, 1))
    (points,) = made.data
    assert (list(points.x), list(points.y)) == ([0.25, 0.5], ["none", "token_cap"])
    assert list(points.error_x.array) == [0.25, 0.25]
    assert list(points.error_x.arrayminus) == [0.25, 0.125]
    assert [(shape.x0, shape.label.text) for shape in made.layout.shapes] == [(0.125, "start"), (0.875, "fresh")]
    assert len({shape.line.color for shape in made.layout.shapes}) == 2
    assert tuple(made.layout.xaxis.range) == (0, 1)
