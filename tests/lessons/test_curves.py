"""The figures of the lessons: what is given is drawn, and nothing else."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "lessons"))
from curves import curves


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
