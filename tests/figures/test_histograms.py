"""Against numbers counted by hand or with plain numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from figure_parts import SMALL, batch_of, trace

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.figures import canvas, cells, histograms
from rlcorr.figures.fates import fate_mask, token_fates


def test_weight_histogram_counts_every_kept_token_once() -> None:
    """The sides of ratio 1 have their colours. Weights of 0 are counted in a note."""
    config = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5)
    bars = trace(histograms.weight_histogram(SMALL, correct(SMALL, config), config), "kept")
    assert bars.y.sum() == 7
    middle = histograms.BINS // 2
    assert bars.y[:middle].sum() == 2  # −0.2 and −1
    assert bars.y[middle] == 2  # the two zeros
    assert bars.y[middle + 1 :].sum() == 3
    drawn = bars.x[np.nonzero(bars.y)[0][-1]]
    assert drawn == pytest.approx(math.log(1.5), abs=bars.width)  # 1.0 was truncated to log 1.5
    colours = np.array(bars.marker.color)
    assert {*colours[bars.x < -bars.width]} == {canvas.COOL}
    assert {*colours[bars.x > bars.width]} == {canvas.WARM}
    config = CorrectionConfig(
        rollout_is="token", rollout_is_mode="mask", rollout_is_threshold=2, rollout_is_threshold_lower=0.5
    )
    figure = histograms.weight_histogram(SMALL, correct(SMALL, config), config)
    assert trace(figure, "kept").y.sum() == 5
    assert "2 tokens have weight 0" in [shape.label.text for shape in figure.layout.shapes]


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        (RejectionRule.named("token_k1", lower=0.5, upper=2.0), 5, 2),
        (RejectionRule.named("seq_sum_k1", lower=0.9, upper=1.2), 1, 1),  # sums −0.1 and 0.3
        (RejectionRule.named("seq_max_k1", upper=1.2), 1, 1),  # largest 0.1 and 1.0
        (RejectionRule.named("seq_mean_k2", upper=0.05), 1, 1),  # means 0.0083 and 0.26
        (RejectionRule.named("token_k3", upper=0.01), 3, 4),
    ],
)
def test_statistic_histogram_counts_both_sides_of_the_bound(rule: RejectionRule, inside: int, outside: int) -> None:
    config = CorrectionConfig(rollout_rs=(rule,))
    figure = histograms.statistic_histogram(SMALL, correct(SMALL, config), rule)
    assert trace(figure, "inside").y.sum() == inside
    assert trace(figure, "outside").y.sum() == outside


def test_fates() -> None:
    config = CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=1.5,
        rollout_is_threshold_lower=0.9,
        rollout_rs=(RejectionRule.named("token_k1", lower=0.5, upper=100.0),),
    )
    fates = token_fates(SMALL, correct(SMALL, config), config)
    assert fates.tolist() == [[1, 1, 2, 0], [3, 4, 1, 1]]
    assert fates.dtype == np.uint8


def test_close_bounds_of_a_geometric_mean_are_far_apart() -> None:
    """Among answers with means from 1/10 to 10, 0.999 and 1.001 are 2·asinh(0.001/2e-4) = 4.6 of 20 apart."""
    batch = batch_of([[math.log(0.1)], [0.0], [math.log(10)]])
    rule = RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001)
    config = CorrectionConfig(rollout_rs=(rule,))
    figure: Any = histograms.statistic_histogram(batch, correct(batch, config), rule)
    lower, upper = (shape.x0 for shape in figure.layout.shapes)
    low, high = figure.layout.xaxis.range
    assert (upper - lower) / (high - low) == pytest.approx(
        4.62 / (2.04 * math.asinh(1.1 * math.log(10) / 2e-4)), rel=0.01
    )
    assert (trace(figure, "inside").y.sum(), trace(figure, "outside").y.sum()) == (1, 2)
    assert {"0.5", "0.99", "1", "1.01", "2"} <= {*figure.layout.xaxis.ticktext}


def legend(figure: Any) -> list[str]:
    return [t.name for t in figure.data if t.showlegend is not False and t.type != "heatmap"]


def test_legends_have_only_what_is_possible() -> None:
    """A rule alone cuts no weight, a cap alone rejects nothing."""
    capped = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.5)
    ruled = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k3", upper=0.01),))
    for config, fates, weights in (
        (capped, ["kept", "above threshold"], ["before the thresholds", "below 1", "about 1", "above 1"]),
        (ruled, ["kept", "rejected"], ["rejected", "token ratios", "below 1", "about 1", "above 1"]),
    ):
        result = correct(SMALL, config)
        assert legend(fate_mask(token_fates(SMALL, result, config), config)) == fates
        assert legend(histograms.weight_histogram(SMALL, result, config)) == weights


@pytest.mark.parametrize(("rows", "width"), [(0, 0), (2, 0), (3, 5)])
@pytest.mark.parametrize("fill", [0.0, math.nan])
def test_empty_and_nan_batches_still_draw(rows: int, width: int, fill: float) -> None:
    rule = RejectionRule.named("seq_mean_k3", upper=0.01)
    config = CorrectionConfig(rollout_is="sequence", rollout_rs=(rule,))
    zeros = torch.zeros(rows, width)
    batch = TokenBatch(zeros == 0, zeros, zeros + fill)  # not from_log_probs, which refuses NaN
    result = correct(batch, config)
    for figure in (
        histograms.weight_histogram(batch, result, config),
        histograms.statistic_histogram(batch, result, rule),
        fate_mask(token_fates(batch, result, config), config),
        cells.probability_density(batch),
        cells.ratio_density(batch),
    ):
        assert figure.to_json()
