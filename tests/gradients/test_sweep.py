import math

import pytest
import torch
from ratio_batches import of_log_ratios

from rlcorr.analysis.thresholds import at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import Reference, Sketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def broken_share() -> tuple[TokenBatch, Sketch]:
    """1,000 answers of one token. Half have ratio 1 and score (1, 0); of the others the ratio is e² or e⁻², and the
    score (0, ±5), which is noise alone. The on-policy gradient is (½, 0), known without noise."""
    half = torch.arange(1000) < 500
    sign = torch.where(torch.arange(1000) % 2 == 0, 1.0, -1.0)
    log_ratios = torch.where(half, 0.0, 2 * torch.where(torch.arange(1000) % 4 < 2, 1.0, -1.0))
    scores = torch.where(half[:, None], torch.tensor([1.0, 0.0]), sign[:, None] * torch.tensor([0.0, 5.0]))
    by_token = torch.tensor([[16.0, 0.0]]).repeat(32, 1)
    reference = Reference(by_token, by_token, torch.full((32,), 32.0), torch.full((32,), 32.0))
    return of_log_ratios(log_ratios[:, None]), Sketch(scores, reference)


def test_the_best_threshold_rejects_what_is_noise() -> None:
    """Without the broken half: bias 0, variance of the mean of a coin, ¼/1000. With it 25/2/1000 comes on top. So every
    threshold below e² has the same, smallest error, and the first of them is named."""
    batch, sketch = broken_share()
    rule = RejectionRule.named("token_k1", lower=0.5, upper=2.0)
    thresholds = (1.5, 3.0, 6.0, 8.0, 20.0)
    sweep = gradient_sweep(batch, sketch, CorrectionConfig(rollout_rs=(rule,)), thresholds=thresholds)
    errors = [report_at.error.value for report_at in sweep.ranking.reports]
    assert errors[:3] == pytest.approx([math.sqrt(0.25 / 999) / 0.5] * 3, rel=1e-4)
    assert errors[3:] == pytest.approx([math.sqrt((0.25 + 12.5) / 999) / 0.5] * 2, rel=1e-4)
    assert (sweep.best.value, sweep.best.low, sweep.best.high) == (1.5, 1.5, 1.5)
    assert sum(sweep.ranking.support) == pytest.approx(1)
    assert sweep.of_ratio


def test_a_point_is_the_report_at_that_threshold() -> None:
    """Thresholds are sorted, and sweeping changes nothing about any of them."""
    batch, sketch = broken_share()
    sweep = gradient_sweep(batch, sketch, preset("decoupled_token_icepop"), thresholds=(9.0, 2.0), replicates=20)
    assert sweep.thresholds == [2.0, 9.0]
    for threshold, got in zip(sweep.thresholds, sweep.ranking.reports, strict=True):
        alone = report(batch, sketch, at_threshold(preset("decoupled_token_icepop"), threshold), replicates=20)
        assert got.error.value == pytest.approx(alone.error.value, rel=1e-5)
        assert got.ess == alone.ess


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_with_a_threshold_has_a_sweep(name: str) -> None:
    """Or is one without any threshold."""
    batch, sketch = broken_share()
    correction = preset(name)
    if correction.rollout_is is None and not correction.rollout_rs:
        with pytest.raises(UsageError, match="no threshold to move"):
            gradient_sweep(batch, sketch, correction)
        return
    sweep = gradient_sweep(batch, sketch, correction, loss=PRESETS[name].loss, replicates=20)
    assert len(sweep.ranking.reports) == 60
    assert sweep.thresholds[0] <= sweep.best.low <= sweep.best.high <= sweep.thresholds[-1]
    assert all(math.isfinite(report_at.error.value) for report_at in sweep.ranking.reports)


# --- the toy ---


def test_no_gap_is_no_bias() -> None:
    sweep = toy_sweep(small_world(0.0), preset("decoupled_token_is"), [2.0], 256)
    assert sweep.bias == pytest.approx([0], abs=1e-12)
    assert sweep.error == sweep.noise


def test_sequence_weights_lose_their_bias_as_the_cap_rises() -> None:
    """Product weights without a cap are unbiased; each cap below the largest ratio adds bias and takes noise."""
    sweep = toy_sweep(small_world(0.5), preset("decoupled_seq_is"), [1.1, 2.0, 5.0, 1e6], 256)
    assert sweep.bias == sorted(sweep.bias, reverse=True)
    assert sweep.bias[-1] == pytest.approx(0, abs=1e-12)
    assert sweep.noise == sorted(sweep.noise)
    assert sweep.error == pytest.approx([math.hypot(b, n) for b, n in zip(sweep.bias, sweep.noise, strict=True)])


def test_noise_falls_with_the_batch() -> None:
    toy = small_world(0.5)
    small, large = (toy_sweep(toy, preset("decoupled_token_is"), [2.0], size) for size in (100, 400))
    assert small.noise[0] == pytest.approx(2 * large.noise[0])
    assert small.bias == large.bias


def test_one_side_of_a_band() -> None:
    """Below a lower bound that no ratio reaches, and below one that only the rest of the band reaches."""
    toy, band = small_world(0.3), preset("decoupled_geo_rs")
    loose, tight = toy_sweep(toy, band, [1e-6, 0.999], 64, side="lower").noise
    assert loose > tight
    assert toy_sweep(toy, band, [1e6], 64, side="upper").noise[0] > tight


def test_rejecting_everything_is_no_step() -> None:
    """The bias is then the whole gradient, and nothing is noisy."""
    sweep = toy_sweep(small_world(0.5), preset("decoupled_geo_rs"), [1 + 1e-15], 64)
    assert (sweep.bias, sweep.noise) == ([pytest.approx(1)], [pytest.approx(0, abs=1e-12)])


def test_a_correction_without_a_bound_has_one_truth() -> None:
    """Weights without a cap do not care where it stands beyond the largest ratio."""
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    sweep = toy_sweep(small_world(0.2), raw, [1e4, 1e8], 64)
    assert torch.tensor(sweep.error).unique().numel() == 1
