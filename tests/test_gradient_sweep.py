import math

import pytest
import torch

from rlcorr.config import CorrectionConfig, RejectionRule
from rlcorr.errors import UsageError
from rlcorr.gradient_sweep import at_threshold, gradient_sweep, usual_thresholds
from rlcorr.gradients import report
from rlcorr.presets import PRESETS, preset
from rlcorr.score_sums import Reference, Sketch
from rlcorr.types import TokenBatch


def batch_of(log_ratios: torch.Tensor) -> TokenBatch:
    return TokenBatch(
        response_mask=torch.ones(log_ratios.shape, dtype=torch.bool),
        rollout_log_probs=torch.full(log_ratios.shape, -1.0),
        old_log_probs=-1.0 + log_ratios,
        advantages=torch.ones(log_ratios.shape),
    )


def one_bound(preset_name: str, threshold: float, rule: int | None = None) -> tuple[float | None, float]:
    moved = at_threshold(preset(preset_name), threshold, rule)
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
    found = usual_thresholds(batch_of(log_ratios), preset("decoupled_token_is"), count=3)
    assert found == pytest.approx([math.exp(0.01), math.exp(0.1 * math.sqrt(1.001)), math.exp(1.001)], rel=1e-6)


def test_usual_thresholds_of_a_divergence() -> None:
    """One token per sequence with |d| of 0.01 and 1: k3 = e^d − 1 − d of each is a threshold as it is."""
    log_ratios = torch.full((100, 1), 0.01)
    log_ratios[:5] = 1.0
    found = usual_thresholds(batch_of(log_ratios), preset("decoupled_k3_rs"), count=2)
    assert found == pytest.approx([math.expm1(0.01) - 0.01, 1.001 * (math.e - 2)], rel=1e-3)


def test_usual_thresholds_of_a_factor() -> None:
    """e^|d| is never below 1, so its distance is |d|."""
    rule = RejectionRule.named("seq_mean_mult_error", upper=2.0)
    log_ratios = torch.tensor([[-0.02], [0.5]])
    found = usual_thresholds(batch_of(log_ratios), CorrectionConfig(rollout_rs=(rule,)), count=2)
    assert found[0] == pytest.approx(math.exp(0.02 + 0.05 * 0.48), rel=1e-5)  # 5 % of the way between the two
    assert found[1] == pytest.approx(math.exp(0.5005), rel=1e-5)


def test_endless_products_have_thresholds() -> None:
    log_ratios = torch.full((4, 100), 15.0)
    found = usual_thresholds(batch_of(log_ratios), preset("decoupled_seq_is_rs"), 0)
    assert all(math.isfinite(t) for t in found)


def broken_share() -> tuple[TokenBatch, Sketch]:
    """1,000 answers of one token. Half have ratio 1 and score (1, 0); of the others the ratio is e² or e⁻², and the
    score (0, ±5), which is noise alone. The on-policy gradient is (½, 0), known without noise."""
    half = torch.arange(1000) < 500
    sign = torch.where(torch.arange(1000) % 2 == 0, 1.0, -1.0)
    log_ratios = torch.where(half, 0.0, 2 * torch.where(torch.arange(1000) % 4 < 2, 1.0, -1.0))
    scores = torch.where(half[:, None], torch.tensor([1.0, 0.0]), sign[:, None] * torch.tensor([0.0, 5.0]))
    by_token = torch.tensor([[16.0, 0.0]]).repeat(32, 1)
    reference = Reference(by_token, by_token, torch.full((32,), 32.0), torch.full((32,), 32.0))
    return batch_of(log_ratios[:, None]), Sketch(scores, reference)


def test_the_best_threshold_rejects_what_is_noise() -> None:
    """Without the broken half: bias 0, variance of the mean of a coin, ¼/1000. With it 25/2/1000 comes on top. So every
    threshold below e² has the same, smallest error, and the first of them is named."""
    batch, sketch = broken_share()
    rule = RejectionRule.named("token_k1", lower=0.5, upper=2.0)
    thresholds = (1.5, 3.0, 6.0, 8.0, 20.0)
    found = gradient_sweep(batch, sketch, CorrectionConfig(rollout_rs=(rule,)), thresholds=thresholds)
    errors = [each.error.value for each in found.choice.reports]
    assert errors[:3] == pytest.approx([math.sqrt(0.25 / 999) / 0.5] * 3, rel=1e-4)
    assert errors[3:] == pytest.approx([math.sqrt((0.25 + 12.5) / 999) / 0.5] * 2, rel=1e-4)
    assert (found.best.value, found.best.low, found.best.high) == (1.5, 1.5, 1.5)
    assert sum(found.choice.support) == pytest.approx(1)
    assert found.of_ratio


def test_a_point_is_the_report_at_that_threshold() -> None:
    """Thresholds are sorted, and sweeping changes nothing about any of them."""
    batch, sketch = broken_share()
    found = gradient_sweep(batch, sketch, preset("decoupled_token_icepop"), thresholds=(9.0, 2.0), replicates=20)
    assert found.thresholds == [2.0, 9.0]
    for threshold, got in zip(found.thresholds, found.choice.reports, strict=True):
        alone = report(batch, sketch, at_threshold(preset("decoupled_token_icepop"), threshold), replicates=20)
        assert got.error.value == pytest.approx(alone.error.value, rel=1e-5)
        assert got.ess == alone.ess


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_with_a_threshold_has_a_sweep(name: str) -> None:
    """Or is one without any threshold."""
    batch, sketch = broken_share()
    correction = preset(name)
    if correction.rollout_is is None and not correction.rollout_rs:
        with pytest.raises(UsageError, match="no threshold to move"):
            gradient_sweep(batch, sketch, correction)
        return
    found = gradient_sweep(batch, sketch, correction, loss=PRESETS[name].loss, replicates=20)
    assert len(found.choice.reports) == 60
    assert found.thresholds[0] <= found.best.low <= found.best.high <= found.thresholds[-1]
    assert all(math.isfinite(each.error.value) for each in found.choice.reports)


def test_a_rule_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="rule must be below 1, the number of the correction's rejection rules; got 1"):
        at_threshold(preset("decoupled_seq_is_rs"), 2.0, 1)


def test_nothing_off_has_no_thresholds() -> None:
    with pytest.raises(UsageError, match="no token of this batch is off"):
        usual_thresholds(batch_of(torch.zeros(4, 2)), preset("decoupled_token_is"))
