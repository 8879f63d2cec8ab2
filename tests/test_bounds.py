import math

import pytest
import torch
from ratio_batches import of_log_ratios

from rlcorr.bounds import BoundId, Side, at_threshold, useful_range, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.rules import RejectionRule

LOWER, UPPER = BoundId(side="lower"), BoundId(side="upper")


def one_bound(preset_name: str, threshold: float, rule: int | None = None) -> tuple[float | None, float]:
    moved = at_threshold(preset(preset_name), threshold, BoundId(rule))
    if rule is None and moved.rollout_is is not None:
        return moved.rollout_is_threshold_lower, moved.rollout_is_threshold
    return moved.rollout_rs[rule or 0].lower, moved.rollout_rs[rule or 0].upper


@pytest.mark.parametrize(
    ("name", "rule", "expected"),
    [
        ("decoupled_token_is", None, (None, 4)),  # weights with a cap only
        ("decoupled_token_icepop", None, (1 / 4, 4)),  # weights with a band
        ("decoupled_seq_is_rs", 0, (1 / 4, 4)),  # a rule on the product of ratios
        ("decoupled_geo_rs", None, (1 / 4, 4)),  # no weights: its rule
        ("decoupled_k3_rs", None, (None, 4)),  # a divergence has one side
        ("roll_diff_filter", None, (-4, 4)),  # a difference of probabilities
        ("trl_opsm", None, (1 / 4, math.inf)),  # bounded below only
        ("skyrl_outlier", 1, (None, 4)),  # the second of two rules
    ],
)
def test_bounds_at_a_threshold(name: str, rule: int | None, expected: tuple[float | None, float]) -> None:
    assert one_bound(name, 4.0, rule) == expected


@pytest.mark.parametrize(
    ("name", "side", "expected"),
    [
        ("decoupled_token_icepop", "upper", (0.5, 0.7)),
        ("decoupled_token_icepop", "lower", (0.7, 5.0)),
        ("decoupled_geo_rs", "lower", (0.7, 1 / 0.999)),
        ("roll_diff_filter", "upper", (-0.2, 0.7)),
    ],
)
def test_one_side_moves_alone(name: str, side: Side, expected: tuple[float, float]) -> None:
    moved = at_threshold(preset(name), 0.7, BoundId(side=side))
    weights = (moved.rollout_is_threshold_lower, moved.rollout_is_threshold)
    assert expected == (weights if moved.rollout_is else (moved.rollout_rs[0].lower, moved.rollout_rs[0].upper))


def test_usual_lower_bounds() -> None:
    """Log-ratios of ±0.01 and −1: from just below 1 down to just below 1/e."""
    log_ratios = torch.full((100, 1), 0.01)
    log_ratios[:5] = -1.0
    thresholds = usual_thresholds(of_log_ratios(log_ratios), preset("decoupled_token_icepop"), LOWER, count=2)
    assert thresholds == pytest.approx([math.exp(-0.01), math.exp(-1.001)], rel=1e-6)
    differences = usual_thresholds(of_log_ratios(log_ratios), preset("roll_diff_filter"), LOWER, count=2)
    assert differences[1] == pytest.approx(-1.001 * (math.exp(-1) - math.exp(-2)), rel=1e-5)


def test_the_rest_of_the_correction_stays() -> None:
    """The weights move, the rule and the mode do not."""
    was = preset("slime_mis")
    moved = at_threshold(was, 3.0)
    assert moved.rollout_is_threshold == 3
    assert (moved.rollout_rs, moved.rollout_is_batch_normalize) == (was.rollout_rs, was.rollout_is_batch_normalize)


def test_usual_thresholds_of_ratios() -> None:
    """Log-ratios of 0.01 and, rarely, −1: from exp(0.01) to just above exp(1), and the logarithms in between
    grow by the same factor."""
    log_ratios = torch.full((100, 1), 0.01)
    log_ratios[:5] = -1.0
    thresholds = usual_thresholds(of_log_ratios(log_ratios), preset("decoupled_token_is"), count=3)
    assert thresholds == pytest.approx([math.exp(0.01), math.exp(0.1 * math.sqrt(1.001)), math.exp(1.001)], rel=1e-6)


def test_usual_thresholds_of_a_divergence() -> None:
    """One token per sequence with |d| of 0.01 and 1: k3 = e^d − 1 − d of each is a threshold as it is."""
    log_ratios = torch.full((100, 1), 0.01)
    log_ratios[:5] = 1.0
    thresholds = usual_thresholds(of_log_ratios(log_ratios), preset("decoupled_k3_rs"), count=2)
    assert thresholds == pytest.approx([math.expm1(0.01) - 0.01, 1.001 * (math.e - 2)], rel=1e-3)


def test_usual_thresholds_of_a_factor() -> None:
    """e^|d| is never below 1, so its distance is |d|."""
    rule = RejectionRule.named("seq_mean_mult_error", upper=2.0)
    log_ratios = torch.tensor([[-0.02], [0.5]])
    thresholds = usual_thresholds(of_log_ratios(log_ratios), CorrectionConfig(rollout_rs=(rule,)), count=2)
    assert thresholds[0] == pytest.approx(math.exp(0.02 + 0.05 * 0.48), rel=1e-5)  # 5 % of the way between the two
    assert thresholds[1] == pytest.approx(math.exp(0.5005), rel=1e-5)


def test_endless_products_have_thresholds() -> None:
    log_ratios = torch.full((4, 100), 15.0)
    thresholds = usual_thresholds(of_log_ratios(log_ratios), preset("decoupled_seq_is_rs"), BoundId(0))
    assert all(math.isfinite(t) for t in thresholds)


def test_a_rule_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="rule must be below 1, the number of the correction's rejection rules; got 1"):
        at_threshold(preset("decoupled_seq_is_rs"), 2.0, BoundId(1))


def test_nothing_off_has_no_thresholds() -> None:
    with pytest.raises(UsageError, match="no token of this batch is off"):
        usual_thresholds(of_log_ratios(torch.zeros(4, 2)), preset("decoupled_token_is"))


def test_a_useful_range_leaves_out_what_hardly_differs() -> None:
    """900 tokens at 1e-6 hold 0.0009 of Σ|log r| = 0.0009 + 10·0.1 + 10·0.2, which is less than a hundredth: the
    tightest bound is at the next ones, exp(0.1), and the loosest just beyond exp(0.2). Each side has its own."""
    log_ratios = torch.full((920, 1), 1e-6)
    log_ratios[:10], log_ratios[10:20] = 0.1, -0.2
    batch, both = of_log_ratios(log_ratios), preset("decoupled_token_icepop")
    assert useful_range(batch, both) == pytest.approx((math.exp(0.1), math.exp(0.2002)))
    assert useful_range(batch, both, UPPER) == pytest.approx((math.exp(0.1), math.exp(0.11)))
    assert useful_range(batch, both, LOWER) == pytest.approx((math.exp(-0.2), math.exp(-0.22)))
    with pytest.raises(UsageError, match="off its ratio of 1"):
        useful_range(of_log_ratios(torch.full((3, 1), -0.1)), both, UPPER)


def test_a_useful_range_has_two_ends_if_all_items_are_equally_far() -> None:
    low, high = useful_range(of_log_ratios(torch.full((10, 1), 0.1)), preset("decoupled_token_is"))
    assert (low, high) == pytest.approx((math.exp(0.1), math.exp(0.11)))


def test_a_useful_range_needs_an_item_that_differs() -> None:
    with pytest.raises(UsageError, match="off its ratio of 1"):
        useful_range(of_log_ratios(torch.zeros(3, 1)), preset("decoupled_token_is"))
