import math

import pytest
import torch
from ratio_batches import of_log_ratios

from rlcorr.bounds import at_threshold
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import Reference, SampledSketch
from rlcorr.gradients.sweep import gradient_sweep, toy_sweep
from rlcorr.gradients.toy import small_world
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def broken_share() -> tuple[TokenBatch, SampledSketch]:
    """1,000 answers of one token. Half have ratio 1 and score (1, 0). Of the others the ratio is e² or 1 − (e² − 1)/9,
    nine times as often, so that ratios are 1 on average, and the score (0, ±5), which is noise alone, with whatever
    weight. The on-policy gradient is (½, 0), known without noise."""
    half = torch.arange(1000) < 500
    sign = torch.where(torch.arange(1000) // 10 % 2 == 0, 1.0, -1.0)
    rare = torch.arange(1000) % 10 == 0
    ratios = torch.where(half, 1.0, torch.where(rare, math.exp(2), 1 - (math.exp(2) - 1) / 9))
    scores = torch.where(half[:, None], torch.tensor([1.0, 0.0]), sign[:, None] * torch.tensor([0.0, 5.0]))
    by_token = torch.tensor([[16.0, 0.0]]).repeat(32, 1)
    reference = Reference(by_token, by_token, torch.full((32,), 32.0), torch.full((32,), 32.0))
    return of_log_ratios(ratios.log()[:, None]), SampledSketch(scores, reference)


def test_the_best_threshold_rejects_what_is_noise() -> None:
    """Exact weights leave the mean (½, 0), and no correction does, because the noise cancels. Rejecting all ratios but
    1, no bias either, and V = ¼, the variance of a coin. With those of .29, nine in twenty of the answers, 25 · .45
    come on top; with those of e², a twentieth, 25/20 more; all times 1000/999. Of the best, the first is named."""
    batch, sketch = broken_share()
    rule = RejectionRule.named("token_k1", lower=0.2, upper=9.0)
    thresholds = (1.5, 2.0, 6.0, 8.0, 20.0)
    sweep = gradient_sweep(
        batch, sketch, CorrectionConfig(rollout_rs=(rule,)), thresholds=thresholds, batch_sizes=(16, 64)
    )
    variances = [0.25] * 2 + [0.25 + 25 * 0.45] + [0.25 + 12.5] * 2
    for report_at, variance in zip(sweep.ranking.reports, variances, strict=True):
        assert report_at.variance.value == pytest.approx(variance * 1000 / 999, rel=1e-3)
        for size, noise in zip((16, 64), report_at.noise, strict=True):
            assert noise.value == pytest.approx(math.sqrt(variance * 1000 / 999 / size) / 0.5, rel=1e-3)
    for best, choice in zip(sweep.best, sweep.ranking.choices, strict=True):
        assert (best.value, best.low, best.high) == (1.5, 1.5, 1.5)
        assert sum(choice.support) == pytest.approx(1)
    shares = [report_at.progress[0].value for report_at in sweep.ranking.reports]
    assert shares[0] > 1.1 * shares[2] > 1.1 * shares[3]
    assert sweep.of_ratio


def test_a_point_is_the_report_at_that_threshold() -> None:
    """Thresholds are sorted, and sweeping changes nothing about any of them."""
    batch, sketch = broken_share()
    sweep = gradient_sweep(batch, sketch, preset("decoupled_token_icepop"), thresholds=(9.0, 2.0), replicates=20)
    assert sweep.thresholds == [2.0, 9.0]
    for threshold, got in zip(sweep.thresholds, sweep.ranking.reports, strict=True):
        alone = report(batch, sketch, at_threshold(preset("decoupled_token_icepop"), threshold), replicates=20)
        assert got.progress[0].value == pytest.approx(alone.progress[0].value, rel=1e-5)
        assert got.ess == alone.ess


def test_a_preset_without_a_threshold_has_no_sweep() -> None:
    batch, sketch = broken_share()
    without = [n for n, entry in PRESETS.items() if entry.config.rollout_is is None and not entry.config.rollout_rs]
    assert {"disabled", "bypass_ppo_clip", "verl_dppo_tv"} <= set(without)
    for name in without:
        with pytest.raises(UsageError, match="no threshold to move"):
            gradient_sweep(batch, sketch, preset(name))


# --- the toy ---


def test_sequence_weights_lose_their_bias_as_the_cap_rises() -> None:
    """Product weights without a cap are unbiased; each cap below the largest ratio adds bias and takes noise."""
    sweep = toy_sweep(small_world(0.5), preset("decoupled_seq_is"), [1.1, 2.0, 5.0, 1e6], 256)
    assert sweep.bias == sorted(sweep.bias, reverse=True)
    assert sweep.bias[-1] == pytest.approx(0, abs=1e-12)
    assert sweep.noise == sorted(sweep.noise)
    assert sweep.progress[-1] == pytest.approx(1 / (1 + sweep.noise[-1] ** 2))


def test_larger_batches_want_looser_bounds() -> None:
    """Of few answers a tight cap makes the most progress, of many none at all: then noise is cheap, bias is not."""
    thresholds = [1.05, 1.5, 2.0, 4.0, 8.0, 1e6]
    best = []
    for size in (4, 64, 1024, 10**7):
        shares = toy_sweep(small_world(1.0), preset("decoupled_seq_is"), thresholds, size).progress
        best.append(thresholds[max(range(len(thresholds)), key=shares.__getitem__)])
    assert best == sorted(best)
    assert best[0] < best[-1] == 1e6
