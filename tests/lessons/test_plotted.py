"""What of a figure's numbers is drawn, and when two figures show the same."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "lessons"))
from plotted import difference, fingerprint, rounded

ONE_PIXEL = 1 / 640


def figure(y: Any, *, error: Any = None, kind: str = "linear") -> dict[str, Any]:
    trace = {"type": "scatter", "x": [1, 2], "y": y, "name": "a line"} | (
        {"error_y": {"array": error}} if error else {}
    )
    return {"data": [trace], "layout": {"yaxis": {"type": kind, "range": [0, 10]}}}


def packed(y: list[float]) -> Any:
    return go.Figure(go.Scatter(y=np.array(y))).to_plotly_json()["data"][0]["y"]


# --- what is drawn ---


def test_four_digits_are_drawn_and_nothing_below_a_millionth_of_the_axis() -> None:
    assert rounded(figure([12.3456, -1.2e-5]))["data"][0]["y"] == [12.35, 0.0]
    assert rounded(figure([12.3456, -1.3e-5]))["data"][0]["y"] == [12.35, -1.3e-5]


# --- what is the same ---


@pytest.mark.parametrize("value", [1.0, 1.001, 0.9995])
def test_a_step_in_the_fourth_digit_is_no_difference(value: float) -> None:
    assert difference(figure([5.0, 1.0]), figure([5.0, value])) is None


@pytest.mark.parametrize("value", [0.0, 6e-8, 5e-6, -5e-6])
def test_beside_5_a_millionth_is_0(value: float) -> None:
    assert difference(figure([5.0, 0.0]), figure([5.0, value])) is None


def test_a_step_of_a_pixel_is_a_difference() -> None:
    assert difference(figure([5.0, 1.0]), figure([5.0, 1.0 + 5 * ONE_PIXEL])) == "data[0].y[1]: 1 became 1.00781"
    assert difference(figure([5.0, 0.0]), figure([5.0, 5 * ONE_PIXEL])) == "data[0].y[1]: 0 became 0.0078125"
    assert difference(figure(packed([5.0, 1.0])), figure(packed([5.0, 1.1]))) == "data[0].y.values[1]: 1 became 1.1"


def test_on_a_logarithmic_axis_a_share_counts() -> None:
    assert difference(figure([1.0, 1e-12], kind="log"), figure([1.0, 1.001e-12], kind="log")) is None
    assert difference(figure([1.0, 1e-12], kind="log"), figure([1.0, 1.1e-12], kind="log"))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda f: f["data"][0].update(name="another line"), "data[0].name"),
        (lambda f: f["data"][0].update(text=["new", "new"]), "data[0].text"),
        (lambda f: f["data"][0]["y"].append(1.0), "data[0].y"),
        (lambda f: f["data"][0].update(y=[float("nan"), 1.0]), "data[0].y[0]"),
        (lambda f: f["layout"]["yaxis"].update(range=[0, 11]), "figure.layout.yaxis.range[1]"),
        (lambda f: f["layout"].update(height=100), "figure.layout"),
        (lambda f: f["data"].append({"type": "bar"}), "1 traces became 2"),
    ],
)
def test_everything_else_must_be_equal(change: Any, place: str) -> None:
    changed = figure([5.0, 1.0])
    change(changed)
    assert str(difference(figure([5.0, 1.0]), changed)).startswith(place)


def test_a_fingerprint_changes_with_any_digit() -> None:
    assert fingerprint(figure([1, 2])) == fingerprint(figure([1, 2]))
    assert fingerprint(figure([1, 2])) != fingerprint(figure([1, 2.001]))
