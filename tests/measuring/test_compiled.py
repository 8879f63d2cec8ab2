"""torch.compile takes correction and measuring whole, and gives the numbers of the plain functions."""

import pytest
import torch

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct, evaluate, metrics, preset
from rlcorr.measuring.measure import FUSE, correct_and_measure

# PyTorch's own compiler still uses what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
CHAIN = CorrectionConfig(
    rollout_is="geometric",
    rollout_is_mode="mask",
    rollout_is_threshold_lower=0.9,
    rollout_rs=(
        RejectionRule.named("token_binary_kl", upper=0.05),
        RejectionRule.named("token_prob_diff_outward", lower=-0.2, upper=0.2),
        RejectionRule.named("seq_mean_k3", upper=0.05),
        RejectionRule.named("seq_min_k1", lower=0.3),
    ),
)
CONFIGS = {"token": preset("decoupled_token_is"), "chain": CHAIN}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_is_plain(name: str) -> None:
    rng = torch.Generator().manual_seed(1)
    rollout = -torch.rand(33, 70, generator=rng) * 3 - 0.7
    old = rollout + 0.3 * torch.randn(33, 70, generator=rng)
    mask = torch.arange(70) < torch.randint(0, 71, (33, 1), generator=rng)
    old[0, 0], rollout[1, 1] = float("-inf"), float("nan")
    given = TokenBatch(mask, rollout, old_log_probs=old.clamp(max=0), advantages=torch.randn(33, 70, generator=rng))
    result, measured = torch.compile(correct_and_measure, options=FUSE, fullgraph=True)(given, CONFIGS[name])
    plain = correct(given, CONFIGS[name])
    for field in ("log_ratio", "weights", "keep_mask", "rejected_by"):
        torch.testing.assert_close(getattr(result, field), getattr(plain, field), equal_nan=True)
    _, expected = evaluate(given, CONFIGS[name])
    assert metrics(measured) == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True)
