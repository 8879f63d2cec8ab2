"""Arrows of gradients, from vectors made by hand."""

from typing import Any

import pytest
import torch

from rlcorr.figures import kl_losses as figures

TRUTH, REVERSE = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([0.0, 6.0, 8.0])


def ends(figure: Any) -> dict[str, tuple[float, float]]:
    """Name of an arrow → where it ends."""
    return {trace.name: (trace.x[-1], trace.y[-1]) for trace in figure.data}


def test_arrows_are_in_units_of_the_true_gradient() -> None:
    """The loss has 1.5 along the true one, which is 2 long, and 2 across it: (0.75, 1), which is short enough.

    The other KL, (3, 4), has the length 5 and is cut to 1.4: (0.84, 1.12).
    """
    loss = torch.tensor([-1.2, 1.5, 1.6])
    drawn: Any = figures.arrows("k3", TRUTH, REVERSE, loss)
    assert ends(drawn) == {
        figures.POLICY: pytest.approx((1, 0)),
        figures.REFERENCE: pytest.approx((0.84, 1.12)),
        "k3": pytest.approx((0.75, 1)),
    }
    assert drawn.data[-1].line.dash is None
    assert drawn.layout.yaxis.scaleanchor == "x"  # or the angles would not be those of the vectors


def test_a_gradient_without_a_length_has_no_direction() -> None:
    point: Any = figures.arrows("k1", TRUTH, REVERSE, torch.tensor([1e-6, 1e-6, 0.0])).data[-1]
    assert (list(point.x), list(point.y), point.mode) == ([0], [0], "markers")


def test_a_loss_that_is_longer_than_the_picture_is_dotted() -> None:
    drawn: Any = figures.arrows("k3", TRUTH, REVERSE, -5 * TRUTH)
    assert ends(drawn)["k3"] == pytest.approx((-1.4, 0))
    assert drawn.data[-1].line.dash == "dot"


def test_lines_over_the_distance() -> None:
    lines = {figures.POLICY: [0.0, 1.0], figures.REFERENCE: [0.0, 2.0], "k3": [0.0, 1.0]}
    drawn: Any = figures.over_distance([0.5, 1.0], lines, 0.75, "value")
    assert {trace.name: list(trace.y) for trace in drawn.data} == lines
    (mark,) = drawn.layout.shapes
    assert (mark.x0, mark.x1) == (0.75, 0.75)
