"""The figures of the lessons: what is given is drawn, and nothing else."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "lessons"))
from curves import bars, curves, rows


def test_lines_with_a_band_and_a_mark() -> None:
    lines = {"bias": [3.0, 2.0, 1.0], "noise": [1.0, 2.0, 4.0]}
    made: Any = curves(
        [1.0, 2.0, 4.0], lines, x_name="bound", y_name="error", bands={"noise": ([0, 1, 3], [2, 3, 5])}, marks=[2.0]
    )
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in made.data}
    assert drawn["bias"] == ([1, 2, 4], [3, 2, 1])
    assert drawn["noise"] == ([1, 2, 4], [1, 2, 4])
    assert drawn["noise, interval"] == ([1, 2, 4, 4, 2, 1], [2, 3, 5, 3, 1, 0])  # there and back: one closed outline
    assert [(shape.x0, shape.x1) for shape in made.layout.shapes] == [(2, 2)]
    assert (made.layout.xaxis.title.text, made.layout.yaxis.title.text) == ("bound", "error")
    assert made.layout.showlegend


@pytest.mark.parametrize(("log", "kinds"), [("", (None, None)), ("x", ("log", None)), ("xy", ("log", "log"))])
def test_logarithmic_axes(log: str, kinds: tuple[str | None, str | None]) -> None:
    made: Any = curves([1.0, 10.0], {"one": [1.0, 10.0]}, x_name="x", y_name="y", log=log)
    assert (made.layout.xaxis.type, made.layout.yaxis.type) == kinds
    assert not made.layout.showlegend


def test_bars_with_errors() -> None:
    made: Any = bars({"k1": 0.0, "k2": 1.5}, y_name="length", errors={"k2": 0.25})
    assert (list(made.data[0].x), list(made.data[0].y)) == (["k1", "k2"], [0.0, 1.5])
    assert list(made.data[0].error_y.array) == [0.0, 0.25]


def test_rows_have_the_names_beside_the_bars_and_the_first_on_top() -> None:
    made: Any = rows({"a long name": 40.0, "another": 100.0}, x_name="share")
    assert (list(made.data[0].x), list(made.data[0].y)) == ([40.0, 100.0], ["a long name", "another"])
    assert made.data[0].orientation == "h"
    assert (made.layout.xaxis.title.text, made.layout.yaxis.autorange) == ("share", "reversed")
    assert made.layout.margin.l > 6 * len("a long name")
    broken: Any = rows({"a long<br>name": 40.0, "another": 100.0}, x_name="share")
    assert broken.layout.margin.l < made.layout.margin.l
    assert broken.layout.height > made.layout.height
