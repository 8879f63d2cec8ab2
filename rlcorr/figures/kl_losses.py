"""Figures of KL estimators as losses: their gradients as arrows, and their values and slopes over a distance."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from rlcorr.figures.canvas import ACROSS, KEPT, REJECTED, WARM, Figure, Part, arrow, figure, line, vertical_line

POLICY, REFERENCE = "KL(policy‖reference)", "KL(reference‖policy)"
COLOURS = {POLICY: KEPT, REFERENCE: ACROSS[6]}
"""Colours of the two divergences. A loss is warm."""
LONGEST = 1.4
"""Arrows are drawn up to this length, in units of the gradient of KL(policy‖reference)."""
NO_LENGTH = 0.005
"""A shorter gradient is drawn as a point."""
HEIGHT = 260


def in_plane(gradient: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the parts of a gradient along the true one and across it, in units of the length of the true one."""
    along = float(gradient @ truth / truth.square().sum())
    return along, math.sqrt(max(float(gradient.square().sum() / truth.square().sum()) - along**2, 0.0))


def arrows(loss: str, truth: Tensor, reverse: Tensor, gradient: Tensor) -> Figure:
    """Draw the gradients of KL(policy‖reference), KL(reference‖policy) and a loss, (K,) each, from one point.

    The first one points to the right and has the length 1. The angle between it and another arrow is their angle in K
    dimensions. An arrow that is longer than the picture is cut, and that of the loss is dotted then.
    """
    ends = {POLICY: (1.0, 0.0), REFERENCE: in_plane(reverse, truth)}
    traces = [_arrow(name, end, COLOURS[name], 8) for name, end in ends.items()]
    traces.append(_arrow(loss, in_plane(gradient, truth), WARM, 3))
    axis: Part = {"showgrid": False, "showticklabels": False, "zeroline": True, "zerolinecolor": REJECTED}
    x = axis | {"range": [-1.1 * LONGEST, 1.1 * LONGEST], "title_text": "along the true gradient"}
    y = axis | {"range": [-0.15 * LONGEST, 1.1 * LONGEST], "scaleanchor": "x", "title_text": "across it"}
    return figure(traces, height=HEIGHT, x=x, y=y)


def _arrow(name: str, end: tuple[float, float], colour: str, width: int) -> Part:
    length = math.hypot(*end)
    if length < NO_LENGTH:
        point = {"symbol": "x", "size": 11, "color": colour}
        return line(name, [0.0], [0.0], colour, mode="markers", marker=point)
    share = min(1.0, LONGEST / length)
    dash, opacity = "dot" if share < 1 and width < 4 else "", 0.5 if width > 3 else 1
    return arrow(name, (share * end[0], share * end[1]), colour, width=width, dash=dash, opacity=opacity)


def over_distance(distances: Sequence[float], lines: Mapping[str, Sequence[float]], at: float, y: str) -> Figure:
    """Draw numbers over the distance of the policy from the reference. `lines` has the loss and both divergences."""
    traces = [
        line(name, list(distances), list(values), COLOURS.get(name, WARM), width=6 if name in COLOURS else 2)
        | {"opacity": 0.5 if name in COLOURS else 1}
        for name, values in lines.items()
    ]
    x: Part = {"title_text": "distance of the policy from the reference", "range": [distances[0], distances[-1]]}
    return figure(traces, height=HEIGHT, x=x, y={"title_text": y}, shapes=distance_line(at))


def distance_line(at: float) -> list[Part]:
    """Return the line of `over_distance` at this distance."""
    return [vertical_line(x=at, colour=REJECTED, dash="dot", width=2)]
