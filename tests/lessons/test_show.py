"""Pictures with a slider: every place has its figure, and the one it starts at is seen without the slider."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from rlcorr.figures.canvas import figure, vertical_line

LESSONS = Path(__file__).resolve().parent.parent.parent / "lessons"


def drawn(at: float) -> Any:
    traces = [{"type": "scatter", "name": name, "x": [0, 1], "y": [at, at]} for name in ("a", "b")]
    shapes = [vertical_line(x=at, colour="red", dash="dot", width=1)]
    return figure(traces, height=200, x={}, y={}, shapes=shapes)


def test_a_slider_shows_the_traces_and_lines_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(LESSONS)
    show = importlib.import_module("show")
    displayed: list[Any] = []
    monkeypatch.setattr(show, "display", lambda data, raw, metadata: displayed.extend((data, metadata)))
    show.moving_picture("cap", {"2": drawn(2.0), "3": drawn(3.0)}, "3")
    (shown,) = displayed[0].values()
    assert [(trace["name"], trace["visible"], trace["y"][0]) for trace in shown["data"]] == [
        ("a", False, 2.0), ("b", False, 2.0), ("a", True, 3.0), ("b", True, 3.0),
    ]  # fmt: skip
    assert shown["layout"]["shapes"][0]["x0"] == 3.0
    (slider,) = shown["layout"]["sliders"]
    assert [step["label"] for step in slider["steps"]] == ["2", "3"]
    assert slider["active"] == 1
    visible, moved = slider["steps"][0]["args"]
    assert visible == {"visible": [True, True, False, False]}
    assert moved["shapes"][0]["x0"] == 2.0
    text = displayed[1]["image/png"]["alt"]
    assert text.startswith("slider cap, at 3. ")
    assert text.count("mean=3") == 2  # the numbers of the figure that it starts at
