"""Curves over the steps against numbers set by hand."""

import math
from typing import Any

import pytest
from figure_parts import trace

from rlcorr.figures import study
from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, WARM, colours_of
from rlcorr.figures.training import PANELS, Panel, over_steps, spread_apart
from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study_comparisons import Comparison

K3 = Panel({"k3": "rollout_corr/k3_kl"}, log=True)
TWO = Panel({"first": "a", "second": "b"}, sparse=frozenset({"b"}))


def rows_of(key: str, values: list[Any]) -> list[dict[str, Any]]:
    return [{"step": step, key: value} for step, value in enumerate(values)]


def test_a_logarithm_leaves_out_what_it_cannot_show() -> None:
    figure: Any = over_steps(K3, {"alpha": rows_of("rollout_corr/k3_kl", [1e-3, 0.0, math.nan, "x", True, -1.0])})
    assert list(trace(figure, "k3").y) == [1e-3, None, None, None, None, None]
    assert list(figure.layout.yaxis.range) == [-3, -2]


def test_axes_show_noise_as_noise_and_no_step_twice() -> None:
    """The axis of a share does not fit its values. Whole numbers at every half step would read 1, 1, 2, 2."""
    figure: Any = over_steps(PANELS["kept"], {"alpha": rows_of("rollout_corr/kept_fraction", [0.9999, 0.9998])})
    low, high = figure.layout.yaxis.range
    assert low == 0.95
    assert high > 1
    few: Any = over_steps(TWO, {"alpha": rows_of("a", [1.0, 2.0])})
    many: Any = over_steps(TWO, {"alpha": rows_of("a", [1.0] * 40)})
    assert (few.layout.xaxis.dtick, many.layout.xaxis.dtick, many.layout.xaxis.nticks) == (1, None, 6)


def test_what_is_measured_now_and_then_is_joined_and_the_rest_has_gaps() -> None:
    rows = [{"step": 1, "a": 0.5}, {"step": 2, "a": None, "b": 0.25}, {"step": 3}, {"step": 4, "a": 0.75, "b": 0.5}]
    figure: Any = over_steps(TWO, {"alpha": rows})
    assert list(trace(figure, "first").y) == [0.5, None, None, 0.75]
    assert (list(trace(figure, "second").x), list(trace(figure, "second").y)) == ([2, 4], [0.25, 0.5])


def test_rings_on_the_recorded_steps_and_a_cursor_on_the_shown_one() -> None:
    figure: Any = over_steps(TWO, {"alpha": rows_of("a", [1.0, 2.0, 3.0])}, at=2, recorded=(0, 2, 9))
    rings = trace(figure, "recorded")
    assert (list(rings.x), list(rings.y)) == ([0, 2], [1.0, 3.0])
    assert [shape.x0 for shape in figure.layout.shapes] == [2]


def test_several_runs_have_a_colour_each_and_their_names() -> None:
    rows = {
        "alpha": [{"step": 1, "a": 1.0, "b": 5.0}, {"step": 2, "a": 9.0, "b": 5.0}],
        "<b>beta</b>": [{"step": 1, "a": 2.0}],
    }
    figure: Any = over_steps(TWO, rows)
    looks = {t.name: (t.line.color, t.line.dash) for t in figure.data}
    assert looks == {
        "alpha: first": (ACROSS[0], "solid"),
        "alpha: second": (ACROSS[0], "dot"),
        "&lt;b>beta&lt;/b>: first": (ACROSS[1], "solid"),
    }
    assert colours_of(rows) == {"alpha": ACROSS[0], "<b>beta</b>": ACROSS[1]}
    names = [(note.text.strip(), note.font.color) for note in figure.layout.annotations]
    assert names == [("alpha", ACROSS[0]), ("&lt;b>beta&lt;/b>", ACROSS[1])]
    high, low = (note.y for note in figure.layout.annotations)
    assert 0 <= low < high <= 1  # 9 and 2


@pytest.mark.parametrize(
    ("places", "gap", "expected"),
    [
        ([0.2, 0.8], 0.1, [0.2, 0.8]),
        ([0.5, 0.5], 0.1, [0.5, 0.6]),
        ([1.0, 1.0, 1.0], 0.2, [0.6, 0.8, 1.0]),  # no room above: pushed down
        ([0.9, 0.0, 0.95], 0.1, [0.9, 0.0, 1.0]),
        ([0.0, 0.0, 0.0], 0.9, [0.0, 0.5, 1.0]),  # no room at all: evenly
        ([2.0, -1.0], 0.1, [1.0, 0.0]),
        ([], 0.1, []),
    ],
)
def test_names_move_apart(places: list[float], gap: float, expected: list[float]) -> None:
    assert spread_apart(places, gap) == pytest.approx(expected)


# --- the study ---


def study_row(preset: str, seed: int, step: int, reward: float | None, bias: float | None = None) -> dict[str, Any]:
    ends = {"value": bias, "low": None if bias is None else bias / 2, "high": None if bias is None else bias * 2}
    return {"preset": preset, "seed": seed, "step": step, "reward": reward} | {
        f"relative_bias_{end}": value for end, value in ends.items()
    }


STUDY = [
    study_row("a", 0, 1, 0.0, 1.0),
    study_row("a", 0, 2, 1.0, 0.1),
    study_row("a", 1, 1, 0.5),
    study_row("a", 1, 2, 3.0),
    study_row("b", 0, 1, 9.0),
    study_row("b", 0, 2, None),
]


def test_a_study_has_the_mean_of_the_seeds_and_their_band() -> None:
    """a: 0 and 0.5, then 1 and 3. b has no number at step 2. A logarithm leaves rows of 0 out before the mean."""
    figure: Any = study.study_curves(STUDY, ["a", "b"], "reward")
    assert (list(trace(figure, "a").x), list(trace(figure, "a").y)) == ([1, 2], [0.25, 2.0])
    assert list(figure.data[0].y) == [0.5, 3.0, 1.0, 0.0]  # upwards to the right, then back
    assert (list(trace(figure, "b").x), list(trace(figure, "b").y)) == ([1], [9.0])
    assert list(trace(study.study_curves(STUDY, ["a"], "reward", log=True), "a").y) == [0.5, 2.0]
    colours = colours_of(row["preset"] for row in STUDY)  # the same when others are left out
    assert trace(study.study_curves(STUDY, ["b"], "reward"), "b").line.color == colours["b"] != colours["a"]


def test_differences_have_the_largest_on_top_and_end_where_rewards_do() -> None:
    pairs = [
        Comparison("low", "none", 3, Interval(-0.2, -0.3, -0.1), 0.01),
        Comparison("open", "none", 1, Interval(0.1, -math.inf, math.inf), 0.01),
        Comparison("high", "none", 3, Interval(0.4, 0.1, 0.7), 0.01),
    ]
    figure: Any = study.differences(pairs)
    (points,) = figure.data
    assert list(points.y) == ["high", "open", "low"]
    assert list(points.marker.color) == [KEPT, REJECTED, WARM]
    assert list(points.error_x.array) == pytest.approx([0.3, 0.9, 0.1])
    assert list(points.error_x.arrayminus) == pytest.approx([0.3, 1.1, 0.1])
    assert (figure.layout.yaxis.ticktext, figure.layout.xaxis.range) == (None, None)
    # From -0.3 to 0.7, and a twentieth of that on both sides: a title above its row must not change the axis.
    titled: Any = study.differences([pairs[0], pairs[2]], {"low": "Cap at 2", "high": "Reject"})
    assert list(titled.layout.yaxis.ticktext) == ["Reject", "Cap at 2"]
    assert list(titled.layout.xaxis.range) == pytest.approx([-0.35, 0.75])
    assert titled.data[0].hovertext[1] == "Cap at 2<br>low"
