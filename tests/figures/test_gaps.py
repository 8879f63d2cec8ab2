"""The strip plot of measured gaps: every gap is a point with its source, and yours is a line."""

import math
from typing import Any

from rlcorr.analysis.published import gaps
from rlcorr.figures.canvas import text_summary
from rlcorr.figures.gaps import LANES, gap_strip


def test_every_measured_gap_is_a_point_with_its_source() -> None:
    traces: list[Any] = list(gap_strip(0.04).data)
    ranges, points = traces
    assert set(points.y) == set(LANES)
    drawn = {(round(math.log(x), 9), text) for x, text in zip(points.x, points.text, strict=True)}
    sizes = [(gap, gap.k3) for gap in gaps() if gap.k3 and gap.k3[0] > 0]
    assert len(points.x) == len(sizes)
    assert {x for x, _ in drawn} == {round(math.log(low * high) / 2, 9) for _, (low, high) in sizes}
    for gap, _ in sizes:
        assert any(gap.source in text for _, text in drawn), gap
    assert len(ranges.x) == 3 * len(sizes)


def test_yours_is_a_line_and_the_text_alternative_has_the_ranges() -> None:
    figure: Any = gap_strip(0.04)
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(0.04, 0.04)]
    assert "measured gaps from " in text_summary(figure)
    below, above = (10**note.x for note in figure.layout.annotations[1:])
    assert below <= 0.04 < above
    assert not [x for x in figure.data[1].x if below * 1.001 < x < above * 0.999]
    assert not gap_strip(0.0).layout.shapes
