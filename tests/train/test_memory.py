"""What a correction may cost besides its arithmetic: temporaries as large as the batch."""

import pytest
import torch
from allocations import peak

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, measure, preset

CONFIGS = {name: preset(name) for name in ("decoupled_token_is", "decoupled_seq_is_rs", "decoupled_geo_rs_token_tis")}
CONFIGS["chain"] = CorrectionConfig(
    rollout_is="token",
    rollout_rs=(
        RejectionRule.named("token_binary_kl", upper=2.0),
        RejectionRule.named("token_prob_diff_outward", lower=-0.2, upper=0.2),
        RejectionRule.named("seq_mean_k3", upper=0.01),
    ),
)
TOKENS = 1024 * 1024


@pytest.fixture(scope="module")
def batch() -> TokenBatch:
    rng = torch.Generator().manual_seed(0)
    rollout = -torch.rand(1024, 1024, generator=rng) * 3 - 0.2
    old = rollout + 0.02 * torch.randn(1024, 1024, generator=rng)
    mask = torch.arange(1024) < torch.randint(1, 1025, (1024, 1), generator=rng)
    return TokenBatch(mask, rollout, old_log_probs=old, advantages=torch.randn(1024, 1024, generator=rng))


@pytest.mark.parametrize("name", CONFIGS)
def test_at_most_four_temporaries_of_full_size(batch: TokenBatch, name: str) -> None:
    """The result itself takes 10 bytes per token: log-ratio, weight, keep mask, rejecting rule."""
    config = CONFIGS[name]
    assert 10 * TOKENS <= peak(lambda: correct(batch, config)) <= (10 + 4 * 4) * TOKENS
    result = correct(batch, config)
    assert peak(lambda: measure(batch, result, config)) <= 4 * 4 * TOKENS
