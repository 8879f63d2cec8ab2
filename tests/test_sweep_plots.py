"""Curves over a threshold, and the budget of effective sample size that a threshold is chosen by."""

import math
from typing import Any

import pytest
import torch

from rlcorr import sweep_plots
from rlcorr.config import RejectionRule
from rlcorr.errors import UsageError
from rlcorr.sweep import sweep_rule, sweep_weights
from rlcorr.types import TokenBatch

RATIOS = (0.5, 1.0, 1.0, 2.0, 8.0)


def batch() -> TokenBatch:
    """Five sequences of one token, with these ratios."""
    d = torch.tensor([[math.log(r)] for r in RATIOS], dtype=torch.float64)
    rollout = torch.full(d.shape, -3.0, dtype=torch.float64)
    return TokenBatch.from_log_probs(rollout + d, rollout, torch.ones(d.shape, dtype=torch.bool))


def ess(cap: float) -> float:
    w = [min(r, cap) for r in RATIOS]
    return sum(w) ** 2 / (len(w) * sum(x * x for x in w))


@pytest.mark.parametrize("share", [0.95, 0.8, 0.7, 0.6])
def test_the_largest_cap_of_a_budget(share: float) -> None:
    """ESS falls as the cap rises; found by bisection of the loop above. A grid of 2,000 points between log ½ and log 8
    is 0.14 % apart."""
    low, high = 0.5, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) >= share else (low, middle)
    found = sweep_weights(batch(), "token").upper_for_ess(share)
    assert found <= low * (1 + 1e-9)
    assert found == pytest.approx(low, rel=1.5e-3)


def test_a_budget_that_no_cap_breaks() -> None:
    """Without a cap the ESS is 12.5²/(5 · 70.25) = 0.445, so a budget of 0.4 allows the largest ratio."""
    assert ess(8.0) == pytest.approx(12.5**2 / (5 * 70.25))
    assert sweep_weights(batch(), "token").upper_for_ess(0.4) == pytest.approx(8)


def test_a_budget_that_nothing_meets() -> None:
    """A rule has as its ESS what it keeps: no more than all."""
    index = sweep_rule(batch(), RejectionRule.named("token_k1", upper=2.0))
    assert index.upper_for_ess(0.2) == pytest.approx(8)
    with pytest.raises(UsageError, match=r"no bound has an effective sample size of 0.5; the tightest has 0.2"):
        index.upper_for_ess(0.5)
    empty = TokenBatch.from_log_probs(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool))
    with pytest.raises(UsageError, match="there is no token"):
        sweep_weights(empty, "token").upper_for_ess(0.5)


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
    assert [shape.x0 for shape in mismatch.layout.shapes] == [1.0]
