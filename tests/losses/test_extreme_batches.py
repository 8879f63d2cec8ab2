"""Generated batches of extreme log-probs, with every preset and every loss: no weight, loss or gradient is NaN."""

import itertools
import math
from dataclasses import replace
from typing import get_args

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlcorr import PRESETS, TokenBatch, correct
from rlcorr.config import LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss
from rlcorr.losses.per_token import geo_mean, kl_cov

LOG_PROBS = (0.0, -1e-8, -1e-3, -1.0, -20.0, -100.0, -5000.0, -6e4)
HALF, EXTREME = LOG_PROBS, (*LOG_PROBS, -1e30, -3e38, -math.inf)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROWS, WIDTH = 3, 6


@st.composite
def batches(draw: st.DrawFn) -> TokenBatch:
    """Pairs that `from_log_probs` accepts; −∞ is on one side at most."""
    dtype = draw(st.sampled_from(DTYPES))
    values = st.sampled_from(HALF if dtype == torch.float16 else EXTREME)
    row = st.lists(st.lists(values, min_size=WIDTH, max_size=WIDTH), min_size=ROWS, max_size=ROWS)
    old, rollout = (torch.tensor(draw(row), dtype=torch.float64).to(dtype) for _ in range(2))
    mask = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=WIDTH, max_size=WIDTH), min_size=ROWS, max_size=ROWS))
    )
    mask &= (old != -torch.inf) | (rollout != -torch.inf)
    batch = TokenBatch.from_log_probs(old, rollout, mask)
    return batch.replace(advantages=torch.linspace(-2, 2, ROWS * WIDTH).round().view(ROWS, WIDTH))


@oracle.examples(60)
@given(batches(), st.sampled_from(sorted(PRESETS)))
def test_no_weight_is_nan(batch: TokenBatch, name: str) -> None:
    result = correct(batch, PRESETS[name].config)
    assert bool(result.weights.isfinite().all())
    assert not bool(result.weights[~batch.response_mask].any())
    assert not bool(result.keep_mask[~batch.response_mask].any())


@oracle.examples(100)
@given(batches(), st.sampled_from(sorted(itertools.product(PRESETS, get_args(LossType)))))
def test_no_loss_and_no_gradient_is_nan(batch: TokenBatch, pair: tuple[str, LossType]) -> None:
    """The trainer's own log-probs are finite, as those of a softmax are. A gradient of fp16 log-probs above 65,504 is
    infinite in fp16, but never NaN."""
    name, loss_type = pair
    try:
        correction = replace(PRESETS[name].config, loss_type=loss_type)
    except UsageError:
        return  # the preset does not go with this loss
    theta = batch.rollout_log_probs.clamp(min=-6e4).flip(0).clone().requires_grad_()
    loss, _ = policy_loss(
        theta, batch, correct(batch, correction), correction, LossConfig(), generator=torch.Generator().manual_seed(0)
    )
    assert math.isfinite(loss.item())
    loss.backward()
    assert theta.grad is not None
    assert bool(theta.grad.isfinite().all()) or (theta.dtype == torch.float16 and not bool(theta.grad.isnan().any()))


def test_a_token_without_an_advantage_may_have_an_infinite_ratio() -> None:
    """Check geo_mean, which multiplies by the sign of the advantage: log ρ = ∞ · 0 counts as 0, and ρ is 1."""
    theta, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-torch.inf, -1.0]])
    loss = geo_mean(theta, old, torch.tensor([[0.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool), low=0.2, high=0.2)
    assert loss.tolist() == [[-1.0, -1.0]]


@pytest.mark.parametrize("old", [-3e38, -torch.inf])
def test_the_penalty_of_a_tiny_probability_is_finite(old: float) -> None:
    """Check kl_cov, whose penalty coef · |log ρ| is multiplied with a weight of up to e²⁰ afterwards."""
    theta = torch.tensor([[-1.0, -1.0]])
    keep = torch.ones(1, 2, dtype=torch.bool)
    loss = kl_cov(theta, torch.tensor([[old, -1.0]]), torch.zeros(1, 2), keep, share=0.5, coef=1.0)
    assert loss.tolist() == [[20.0, 0.0]]


def test_two_infinite_ratios_of_a_sequence_cancel() -> None:
    """Check one token that the trainer excludes and one that the engine excludes: the sum is 0, the weight 1."""
    old, rollout = torch.tensor([[-torch.inf, -1.0]]), torch.tensor([[-1.0, -torch.inf]])
    batch = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2))
    assert correct(batch, PRESETS["decoupled_seq_is"].config).weights.tolist() == [[1.0, 1.0]]
    lower = TokenBatch.from_log_probs(old, -torch.ones(1, 2), torch.ones(1, 2))
    weights = correct(lower, PRESETS["decoupled_seq_is"].config).weights
    assert weights[0].tolist() == pytest.approx([math.exp(-20)] * 2)
