import math

import pytest
import torch
from ratio_batches import of_log_ratios

from rlcorr import CorrectionConfig
from rlcorr.gradients.bootstrap import cosine, interval_of, resampled
from rlcorr.gradients.report import report
from rlcorr.gradients.sketch import Reference, Sketch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_interval_of_any_precision(dtype: torch.dtype) -> None:
    """0 … 100 without the first: 2.5 % of the way from 1 to 100 is 1 + 0.025 · 99 = 3.475."""
    interval = interval_of(torch.arange(101, dtype=dtype), signed=True)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0, 3.475, 97.525))


def test_a_bootstrap_sample_without_a_length_counts_with_the_sign_of_its_inner_product() -> None:
    """As its length goes to 0 the clamped quotient goes to ±1; only the sample itself, row 0, has no direction then."""
    inner, lengths = torch.tensor([2.0, 1.0, 1.0, -1.0, 0.0]), torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0])
    assert cosine(inner, lengths).tolist() == pytest.approx([1, 0.5, 1, -1, math.nan], nan_ok=True)
    assert math.isnan(cosine(inner, torch.zeros(5))[0])


def weak_gradient(turned: float, seed: int, sequences: int = 128, directions: int = 16) -> tuple[float, Sketch]:
    """The cosine between a gradient of length 1 and an on-policy one that is known exactly, and a sketch whose noise in
    the mean gradient has a variance of 20: one batch hardly tells whether there is a gradient at all."""
    g = torch.Generator().manual_seed(seed)
    mean = torch.zeros(directions)
    mean[0], mean[1] = math.cos(turned), math.sin(turned)
    spread = math.sqrt(20 * sequences / directions)
    scores = mean + spread * torch.randn(sequences, directions, generator=g)
    by_token = 32 * torch.eye(directions)[:1].repeat(32, 1)
    blocks = torch.full((32,), 32.0)
    return math.cos(turned), Sketch(scores, Reference(by_token, by_token, blocks, blocks))


@pytest.mark.parametrize("turned", [0.0, math.pi / 4])
def test_the_interval_of_a_weak_gradients_direction_holds_the_truth(turned: float) -> None:
    """Of 60 intervals of 95 % at least 54 do, with a probability of 0.97. Made only of the bootstrap samples that have
    a length, they missed a truth of 1 more often than that."""
    batch, held = of_log_ratios(torch.zeros(128, 1)), 0
    for seed in range(60):
        truth, sketch = weak_gradient(turned, seed)
        direction = report(batch, sketch, CorrectionConfig(), seed=seed).cosine
        held += direction.low - 1e-6 <= truth <= direction.high + 1e-6
        assert math.isnan(direction.value) or direction.low <= direction.value <= direction.high
    assert held >= 54


def test_row_zero_is_the_sample_itself() -> None:
    counts = resampled(7, 3, seed=0)
    assert counts[0].tolist() == [1] * 7
    assert counts.sum(1).tolist() == [7] * 4
