import math

import pytest

from rlcorr.figures import axes


@pytest.mark.parametrize("span", [1e-4, 3e-3, 0.05, 0.3, 0.79, 1.0, 3.0, 8.0, 20.0])
def test_ticks_are_few_and_within_the_axis(span: float) -> None:
    ticks = axes.ratio_ticks(span)
    assert 1 in ticks
    assert 3 <= len(ticks) <= 11
    assert all(abs(math.log(t)) <= span for t in ticks)
