import math
from typing import Any

import pytest
import torch
from figure_parts import trace
from ratio_batches import effective_share, of_ratios

from rlcorr import CorrectionConfig
from rlcorr.analysis.bound_curve import bound_curve
from rlcorr.bounds import BoundId
from rlcorr.figures import thresholds as sweep_plots
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

RATIOS = (0.5, 1.0, 1.0, 2.0, 8.0)


def batch() -> TokenBatch:
    return of_ratios(RATIOS)


def ess(cap: float) -> float:
    return effective_share([min(r, cap) for r in RATIOS])


def numbers(config: CorrectionConfig, thresholds: list[float], rule: int | None = None) -> dict[str, torch.Tensor]:
    return bound_curve(batch(), config, thresholds, BoundId(rule, "upper")).numbers


def test_shares_over_a_cap() -> None:
    """Caps of 1.5 and 4: two and one of five ratios are cut, none is left out; the cursor stands at log 2."""
    thresholds = [1.5, 4.0]
    shown = numbers(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), thresholds)
    figure: Any = sweep_plots.shares_over(thresholds, shown, of_ratio=True, at=2.0)
    assert [t.name for t in figure.data] == ["effective sample size", "weights clipped"]
    assert list(trace(figure, "weights clipped").y) == pytest.approx([0.4, 0.2])
    assert list(trace(figure, "effective sample size").y) == pytest.approx([ess(1.5), ess(4.0)])
    assert list(trace(figure, "weights clipped").x) == pytest.approx([math.log(1.5), math.log(4)])
    assert [shape.x0 for shape in figure.layout.shapes] == pytest.approx([math.log(2)])


def test_what_a_cap_takes_and_leaves() -> None:
    """Caps of 1 and 4: the weights ½ 1 1 1 1 and ½ 1 1 2 4 have means 0.9 and 1.7, so 0.1 is missing to 1, and nothing;
    their mean squares less 1 are −0.15, which a logarithmic axis leaves out, and 3.45."""
    thresholds = [1.0, 4.0]
    curve = bound_curve(batch(), CorrectionConfig(rollout_is="token"), thresholds)
    figure: Any = sweep_plots.mismatch_over(curve, of_weights=True, of_ratio=True)
    missing, spread = (list(trace(figure, name).y) for name in ("bias: 1 − mean weight", "noise: χ² of the weights"))
    assert missing[0] == pytest.approx(0.1)
    assert spread[1] == pytest.approx(3.45)
    assert math.isnan(missing[1])
    assert math.isnan(spread[0])


def test_shares_and_mismatch_over_a_rule() -> None:
    """k3 of each ratio is r − 1 − log r: 0.193 of ½, 0 twice, 0.307 of 2; so with bounds of 0.2 the mean of three, with
    1 the mean of four; at 0.1 it is 0, which a logarithmic axis leaves out."""
    thresholds = [0.1, 0.2, 1.0]
    rule = RejectionRule.named("token_k3", upper=1.0)
    shares: Any = sweep_plots.shares_over(
        thresholds, numbers(CorrectionConfig(rollout_rs=(rule,)), thresholds, 0), of_ratio=False
    )
    assert list(trace(shares, "kept tokens").y) == pytest.approx([0.4, 0.6, 0.8])
    curve = bound_curve(batch(), CorrectionConfig(rollout_rs=(rule,)), thresholds)
    mismatch: Any = sweep_plots.mismatch_over(curve, of_weights=False, of_ratio=False, at=100.0)
    half, two = math.log(2) - 0.5, 1 - math.log(2)
    drawn = list(trace(mismatch, "k3 of the kept tokens").y)
    assert math.isnan(drawn[0])
    assert drawn[1:] == pytest.approx([half / 3, (half + two) / 4], rel=1e-5)
    assert [shape.x0 for shape in mismatch.layout.shapes] == [1.0]
