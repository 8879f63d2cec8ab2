import math
from typing import Any

import pytest
import torch
from ratio_batches import effective_share, of_ratios

from rlcorr.analysis.sweep import sweep_rule, sweep_weights
from rlcorr.figures import thresholds as sweep_plots
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

RATIOS = (0.5, 1.0, 1.0, 2.0, 8.0)


def batch() -> TokenBatch:
    return of_ratios(RATIOS)


def ess(cap: float) -> float:
    return effective_share([min(r, cap) for r in RATIOS])


def trace(figure: Any, name: str) -> Any:
    return next(t for t in figure.data if t.name == name)


def test_shares_over_a_cap() -> None:
    """Caps of 1.5 and 4: two and one of five ratios are beyond; the cursor stands at log 2."""
    thresholds, index = [1.5, 4.0], sweep_weights(batch(), "token")
    swept = index.curve(torch.tensor(thresholds, dtype=torch.float64))
    figure: Any = sweep_plots.shares_over(index, thresholds, swept, of_ratio=True, at=2.0)
    assert [t.name for t in figure.data] == ["effective sample size", "beyond the bounds"]
    assert list(trace(figure, "beyond the bounds").y) == pytest.approx([0.4, 0.2])
    assert list(trace(figure, "effective sample size").y) == pytest.approx([ess(1.5), ess(4.0)])
    assert list(trace(figure, "beyond the bounds").x) == pytest.approx([math.log(1.5), math.log(4)])
    assert [shape.x0 for shape in figure.layout.shapes] == pytest.approx([math.log(2)])


def test_shares_over_a_band() -> None:
    thresholds, index = [1.5, 4.0], sweep_weights(batch(), "token", "mask")
    swept = index.curve(torch.tensor(thresholds, dtype=torch.float64))
    figure: Any = sweep_plots.shares_over(index, thresholds, swept, of_ratio=True)
    assert list(trace(figure, "kept tokens").y) == pytest.approx([0.6, 0.8])
    assert not figure.layout.shapes


def test_shares_and_mismatch_over_a_rule() -> None:
    """k3 of each ratio is r − 1 − log r: 0.193 of ½, 0 twice, 0.307 of 2; so with bounds of 0.2 the mean of three, with
    1 the mean of four; at 0.1 it is 0, which a logarithmic axis leaves out."""
    thresholds = [0.1, 0.2, 1.0]
    index = sweep_rule(batch(), RejectionRule.named("token_k3", upper=1.0))
    swept = index.curve(torch.tensor(thresholds, dtype=torch.float64))
    shares: Any = sweep_plots.shares_over(index, thresholds, swept, of_ratio=False)
    assert list(trace(shares, "kept tokens").y) == pytest.approx([0.4, 0.6, 0.8])
    mismatch: Any = sweep_plots.mismatch_over(thresholds, swept, of_ratio=False, at=100.0)
    half, two = math.log(2) - 0.5, 1 - math.log(2)
    drawn = list(trace(mismatch, "k3 of the kept tokens").y)
    assert math.isnan(drawn[0])
    assert drawn[1:] == pytest.approx([half / 3, (half + two) / 4], rel=1e-5)
    assert list(mismatch.layout.yaxis.range) == [-2, 0]  # from 0.01 to 1, and not the 0
    assert [shape.x0 for shape in mismatch.layout.shapes] == [1.0]
