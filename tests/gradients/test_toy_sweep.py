import math
from typing import Any

import pytest
import torch

from rlcorr.config import CorrectionConfig
from rlcorr.figures.gradients import exact_curves
from rlcorr.gradients.toy import log_probs, probabilities
from rlcorr.gradients.toy_sweep import ToySweep, small_world, toy_sweep
from rlcorr.presets import preset


def test_the_world() -> None:
    """1 + 3 + 9 + 27 responses that end early and 81 · 4 of five tokens."""
    toy = small_world(0.1)
    assert len(toy.where.tokens) == 364
    d = log_probs(toy.where, toy.policies.old) - log_probs(toy.where, toy.policies.rollout)
    sampled = probabilities(toy.where, toy.policies.rollout)
    per_token = (sampled[:, None] * toy.where.mask * d.square()).sum() / (sampled[:, None] * toy.where.mask).sum()
    assert 0.05 < math.sqrt(float(per_token)) < 0.15  # the gap of the logits, less what the softmax takes off


def test_no_gap_is_no_bias() -> None:
    found = toy_sweep(small_world(0.0), preset("decoupled_token_is"), [2.0], 256)
    assert found.bias == pytest.approx([0], abs=1e-12)
    assert found.error == found.noise


def test_sequence_weights_lose_their_bias_as_the_cap_rises() -> None:
    """Product weights without a cap are unbiased; each cap below the largest ratio adds bias and takes noise."""
    found = toy_sweep(small_world(0.5), preset("decoupled_seq_is"), [1.1, 2.0, 5.0, 1e6], 256)
    assert found.bias == sorted(found.bias, reverse=True)
    assert found.bias[-1] == pytest.approx(0, abs=1e-12)
    assert found.noise == sorted(found.noise)
    assert found.error == pytest.approx([math.hypot(b, n) for b, n in zip(found.bias, found.noise, strict=True)])


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
    found = toy_sweep(small_world(0.5), preset("decoupled_geo_rs"), [1 + 1e-15], 64)
    assert (found.bias, found.noise) == ([pytest.approx(1)], [pytest.approx(0, abs=1e-12)])


def test_the_figure() -> None:
    toy = ToySweep([1.5, 2.0, 4.0], [0.4, 0.2, 0.1], [0.1, 0.1, 0.5], [0.41, 0.22, 0.51])
    figure: Any = exact_curves(toy, of_ratio=True, at=3.0)
    assert [list(trace.y) for trace in figure.data] == [toy.bias, toy.noise, toy.error]
    best, _, cursor = figure.layout.shapes
    assert (best.x0, cursor.x0) == (pytest.approx(math.log(2)), pytest.approx(math.log(3)))


def test_a_correction_without_a_bound_has_one_truth() -> None:
    """Weights without a cap do not care where it stands beyond the largest ratio."""
    raw = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    found = toy_sweep(small_world(0.2), raw, [1e4, 1e8], 64)
    assert torch.tensor(found.error).unique().numel() == 1
