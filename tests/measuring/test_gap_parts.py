"""The two parts of a gap: their sum is the whole, their numbers follow from the policies."""

import math

import pytest
import torch

from rlcorr import CorrectionConfig, TokenBatch, correct
from rlcorr.errors import UsageError
from rlcorr.measuring.gap_parts import PARTS, age_part, correlation_of_parts, engine_part, part_metrics

ENGINE = torch.tensor([[math.log(2.0), 0.0, math.log(0.5)], [math.log(1.1), math.log(4.0), 0.0]]).double()
AGE = torch.tensor([[0.0, math.log(3.0), math.log(2.0)], [math.log(0.9), math.log(0.25), 0.0]]).double()
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()


def batch(engine: torch.Tensor = ENGINE, age: torch.Tensor = AGE, mask: torch.Tensor = MASK) -> TokenBatch:
    rollout = torch.full(mask.shape, -3.0, dtype=torch.float64)
    return TokenBatch(mask, rollout, rollout + engine + age, sampled_log_probs=rollout + engine)


def test_the_log_ratios_of_the_parts_add_up_to_that_of_the_whole() -> None:
    plain, whole = CorrectionConfig(), batch()
    parts = [correct(part, plain).log_ratio for part in (engine_part(whole), age_part(whole))]
    torch.testing.assert_close(parts[0], torch.where(MASK, ENGINE, 0))
    torch.testing.assert_close(parts[1], torch.where(MASK, AGE, 0))
    torch.testing.assert_close(sum(parts), correct(whole, plain).log_ratio)


def test_the_numbers_of_each_part_worked_out_by_hand() -> None:
    """Ratios of the engine 2, 1, 1/2, 1.1, 4; of the age 1, 3, 2, 0.9, 1/4. Padding is left out."""
    numbers = part_metrics(batch())
    for name, ratios in zip(PARTS, ([2, 1, 0.5, 1.1, 4], [1, 3, 2, 0.9, 0.25]), strict=True):
        expected = {
            "k3_kl": sum(r - 1 - math.log(r) for r in ratios) / 5,
            "abs_log_ratio": sum(abs(math.log(r)) for r in ratios) / 5,
            "abs_log_ratio_max": max(abs(math.log(r)) for r in ratios),
            "is_ratio_mean": sum(ratios) / 5,
            "ratio_eff_sample_size": sum(ratios) ** 2 / sum(r * r for r in ratios) / 5,
        }
        for metric, value in expected.items():
            assert numbers[f"rollout_corr/{name}_{metric}"] == pytest.approx(value, rel=1e-6), (name, metric)
    engine, age = ENGINE[MASK], AGE[MASK]
    assert correlation_of_parts(batch()) == pytest.approx(float(torch.corrcoef(torch.stack([engine, age]))[0, 1]))
    assert correlation_of_parts(batch(age=-ENGINE)) == pytest.approx(-1.0)
    assert correlation_of_parts(batch(age=torch.zeros_like(AGE))) == 0.0


def test_a_batch_without_a_third_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="need old_log_probs and sampled_log_probs"):
        engine_part(batch().replace(sampled_log_probs=None))
    with pytest.raises(UsageError, match="must share one dtype"):
        batch().replace(sampled_log_probs=torch.zeros(2, 3))
