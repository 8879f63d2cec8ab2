import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from ratio_batches import of_log_ratios

from rlcorr.bounds import BoundId, at_threshold, m2po, useful_range, usual_thresholds
from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

LOWER, UPPER = BoundId(side="lower"), BoundId(side="upper")


@pytest.mark.parametrize(
    ("name", "threshold", "bound", "expected"),
    [
        ("decoupled_token_is", 4.0, BoundId(), (None, 4)),  # weights with a cap only
        ("decoupled_token_icepop", 4.0, BoundId(), (1 / 4, 4)),  # weights with a band
        ("decoupled_seq_is_rs", 4.0, BoundId(0), (1 / 4, 4)),  # a rule on the product of ratios
        ("decoupled_geo_rs", 4.0, BoundId(), (1 / 4, 4)),  # no weights: its rule
        ("decoupled_k3_rs", 4.0, BoundId(), (None, 4)),  # a divergence has one side
        ("roll_diff_filter", 4.0, BoundId(), (-4, 4)),  # a difference of probabilities
        ("trl_opsm", 4.0, BoundId(), (1 / 4, math.inf)),  # bounded below only
        ("skyrl_outlier", 4.0, BoundId(1), (None, 4)),  # the second of two rules
        ("decoupled_token_icepop", 0.7, UPPER, (0.5, 0.7)),  # one side moves alone
        ("decoupled_token_icepop", 0.7, LOWER, (0.7, 5.0)),
        ("decoupled_geo_rs", 0.7, LOWER, (0.7, 1 / 0.999)),
        ("roll_diff_filter", 0.7, UPPER, (-0.2, 0.7)),
    ],
)
def test_bounds_at_a_threshold(
    name: str, threshold: float, bound: BoundId, expected: tuple[float | None, float]
) -> None:
    """The rest of the correction stays."""
    was, moved = preset(name), at_threshold(preset(name), threshold, bound)
    if bound.rule_index is None and moved.rollout_is is not None:
        assert (moved.rollout_is_threshold_lower, moved.rollout_is_threshold) == expected
        bounds = {"rollout_is_threshold": was.rollout_is_threshold}
        assert replace(moved, **bounds, rollout_is_threshold_lower=was.rollout_is_threshold_lower) == was
    else:
        index = bound.rule_index or 0
        assert (moved.rollout_rs[index].lower, moved.rollout_rs[index].upper) == expected
        assert replace(moved, rollout_rs=was.rollout_rs) == was


MULT_ERROR = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_mult_error", upper=2.0),))
FAR = math.exp(-1) - math.exp(-2)  # of π_old from π_rollout = 1/e at a log-ratio of −1


@pytest.mark.parametrize(
    ("config", "rare", "bound", "expected"),
    [
        # from exp(0.01) to just above exp(1); the logarithms in between grow by the same factor
        (preset("decoupled_token_is"), -1.0, BoundId(), [math.exp(x) for x in (0.01, 0.1 * 1.001**0.5, 1.001)]),
        (preset("decoupled_token_icepop"), -1.0, LOWER, [math.exp(-x) for x in (0.01, 0.1 * 1.001**0.5, 1.001)]),
        (preset("roll_diff_filter"), -1.0, LOWER, [None, None, -1.001 * FAR]),
        # k3 = e^d − 1 − d of each is a threshold as it is
        (preset("decoupled_k3_rs"), 1.0, BoundId(), [math.expm1(0.01) - 0.01, None, 1.001 * (math.e - 2)]),
        # e^|d| is never below 1, so its distance is |d|
        (MULT_ERROR, 0.5, BoundId(), [math.exp(0.01), None, math.exp(0.5005)]),
    ],
)
def test_usual_thresholds(config: CorrectionConfig, rare: float, bound: BoundId, expected: list[float | None]) -> None:
    """Log-ratios of 0.01 and, rarely, another: thresholds go from the 5 % closest to just beyond the farthest."""
    log_ratios = torch.full((100, 1), 0.01)
    log_ratios[:5] = rare
    thresholds = usual_thresholds(of_log_ratios(log_ratios), config, bound, count=3)
    for threshold, number in zip(thresholds, expected, strict=True):
        assert number is None or threshold == pytest.approx(number, rel=1e-3)


def test_endless_products_have_thresholds() -> None:
    thresholds = usual_thresholds(of_log_ratios(torch.full((4, 100), 15.0)), preset("decoupled_seq_is_rs"), BoundId(0))
    assert all(math.isfinite(t) for t in thresholds)


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(UsageError, match="rule must be below 1, the number of the correction's rejection rules; got 1"):
        at_threshold(preset("decoupled_seq_is_rs"), 2.0, BoundId(1))
    for function in (usual_thresholds, useful_range):
        with pytest.raises(UsageError, match="no token of this batch is off its ratio of 1"):
            function(of_log_ratios(torch.zeros(4, 2)), preset("decoupled_token_is"))


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
    equal = useful_range(of_log_ratios(torch.full((10, 1), 0.1)), preset("decoupled_token_is"))
    assert equal == pytest.approx((math.exp(0.1), math.exp(0.11)))


def test_a_band_at_zero_is_refused() -> None:
    """Its lower bound would be 1/0."""
    rule = RejectionRule.named("token_k1", lower=0.5, upper=2.0)
    for settings in (CorrectionConfig(rollout_is="token"), CorrectionConfig(rollout_rs=(rule,))):
        with pytest.raises(UsageError, match="the upper bound must be > 0"):
            at_threshold(settings, 0.0)


# --- M2PO, against a loop that drops the largest square until the rest is small enough ---


def kept_by_dropping(squares: list[float], threshold: float) -> list[float]:
    """As AReaL does (areal/trainer/ppo/actor.py:935-1010): the largest goes until the mean of the rest is below."""
    left = sorted(squares)
    while len(left) > 1 and not sum(left) / len(left) < threshold:
        left.pop()
    return left


# No two squares are equal but those of one value: among equals AReaL keeps some and a bound all.
DIFFERENCES = st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True)


@examples(60)
@given(DIFFERENCES, st.sampled_from([0.01, 0.04, 0.5]))
def test_the_bound_keeps_what_dropping_the_largest_keeps(steps: list[int], threshold: float) -> None:
    d = [step / 64 * (-1) ** i for i, step in enumerate(steps)]
    rollout = torch.full((1, len(d)), -2.0)
    batch = TokenBatch.from_log_probs(rollout + torch.tensor([d]), rollout, torch.ones(1, len(d)))
    rule = m2po(batch, threshold)
    result = correct(batch, CorrectionConfig(rollout_rs=(rule,)))
    expected = kept_by_dropping([x * x for x in d], threshold)
    assert sorted(x * x for x, keep in zip(d, result.keep_mask[0].tolist(), strict=True) if keep) == expected


def test_what_it_cannot_do_is_said() -> None:
    one = TokenBatch.from_log_probs(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    with pytest.raises(UsageError, match="must be > 0; got 0"):
        m2po(one, 0.0)
    with pytest.raises(UsageError, match="the batch has none"):
        m2po(TokenBatch.from_log_probs(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1)))
