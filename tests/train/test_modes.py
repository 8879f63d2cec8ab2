"""Which policies enter which ratio in each operating mode, on the path that training takes."""

from dataclasses import replace

import pytest
import torch
from learners import (
    EACH_ROW,
    ONE_STEP,
    hand_gradient,
    one_update,
    sampled_batch,
    scored_batch,
    small_policy,
    train_config,
)
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.train import loop
from rlcorr.train.learner.policy import Policy

DECOUPLED = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)
BYPASS_CLIP = CorrectionConfig(bypass_mode=True)
BYPASS_GRADIENT = CorrectionConfig(
    rollout_is="token", rollout_is_threshold=1.2, bypass_mode=True, loss_type="reinforce"
)

# Constants that no two ratios share, one pair per row: π_θ/π_old, π_old/π_rollout. Their products, π_θ/π_rollout, are
# 1.65, 0.77 and 0.78. The first three rows have A = 1, the others A = −1.
THETA_OLD = [1.1, 0.7, 1.3] * 2
OLD_ROLLOUT = [1.5, 1.1, 0.6] * 2
ADVANTAGE = [1.0] * 3 + [-1.0] * 3
# What multiplies −A/N ∇log π_θ. The clip is 1 ± 0.2; it stops a ratio above 1.2 where A > 0 and one below 0.8 where
# A < 0. Weights are at most 1.2.
FACTORS = {
    # min(π_old/π_rollout, 1.2) · clipped π_θ/π_old
    "decoupled": (DECOUPLED, [1.2 * 1.1, 1.1 * 0.7, 0.0, 1.2 * 1.1, 0.0, 0.6 * 1.3]),
    # clipped π_θ/π_rollout
    "bypass with PPO-clip": (BYPASS_CLIP, [0.0, 0.77, 0.78, 1.65, 0.0, 0.0]),
    # min(π_θ/π_rollout, 1.2), and no ratio in the loss
    "bypass with policy gradient": (BYPASS_GRADIENT, [1.2, 0.77, 0.78, 1.2, 0.77, 0.78]),
}


def with_constants(policy: Policy) -> TokenBatch:
    """A batch in which every ratio is the same on all tokens of a row."""
    batch = sampled_batch()
    with torch.no_grad():
        theta = policy(batch, 1.0).log_probs

    def column(xs: list[float]) -> Tensor:
        return torch.tensor(xs)[:, None].expand_as(theta)

    old = theta - column(THETA_OLD).log()
    return batch.replace(
        old_log_probs=old, rollout_log_probs=old - column(OLD_ROLLOUT).log(), advantages=column(ADVANTAGE)
    )


@pytest.mark.parametrize("budget", [EACH_ROW, 10_000])
@pytest.mark.parametrize("mode", FACTORS)
def test_the_gradient_holds_the_ratios_of_its_mode(monkeypatch: pytest.MonkeyPatch, mode: str, budget: int) -> None:
    correction, factors = FACTORS[mode]
    policy = small_policy()
    batch = with_constants(policy)
    config = train_config(monkeypatch, correction, optim=replace(ONE_STEP, microbatch_tokens=budget))
    got, _ = one_update(policy, config, batch)
    lengths = batch.response_mask.sum(-1).tolist()
    tokens = sum(lengths)
    rows = [[-a * f / tokens] * n for a, f, n in zip(ADVANTAGE, factors, lengths, strict=True)]
    torch.testing.assert_close(got, hand_gradient(policy, batch, rows), rtol=1e-4, atol=1e-6)


RULES = (RejectionRule.named("token_k1", lower=0.7, upper=1.4), RejectionRule.named("seq_mean_k1", upper=1.3))
KEPT = {"rollout_rs": RULES, "denominator": "kept"}
UNWEIGHTED = CorrectionConfig()
# What the gradient depends on, π_θ aside.
READS = [
    (DECOUPLED, {"old_log_probs", "rollout_log_probs"}),
    (replace(DECOUPLED, **KEPT), {"old_log_probs", "rollout_log_probs"}),
    (replace(DECOUPLED, loss_type="gpg"), {"old_log_probs", "rollout_log_probs"}),
    (UNWEIGHTED, {"old_log_probs"}),
    (replace(UNWEIGHTED, **KEPT), {"old_log_probs", "rollout_log_probs"}),
    (replace(UNWEIGHTED, loss_type="gpg"), set()),
    (BYPASS_CLIP, {"rollout_log_probs"}),
    (replace(BYPASS_CLIP, **KEPT), {"rollout_log_probs"}),
    (replace(BYPASS_CLIP, loss_type="kl_cov"), {"rollout_log_probs"}),
    (BYPASS_GRADIENT, {"rollout_log_probs"}),
    (replace(BYPASS_GRADIENT, rollout_is_batch_normalize=True, **KEPT), {"rollout_log_probs"}),
    (replace(BYPASS_GRADIENT, rollout_is=None, rollout_rs=RULES), {"rollout_log_probs"}),
    (replace(BYPASS_GRADIENT, rollout_is=None), set()),
]


@pytest.mark.parametrize(("correction", "reads"), READS)
@pytest.mark.parametrize("field", ["old_log_probs", "rollout_log_probs"])
def test_what_a_mode_reads(
    monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, reads: set[str], field: str
) -> None:
    """A policy that a mode reads moves the gradient; the other one, moved just as far, leaves every bit of it."""
    policy = small_policy()
    batch = scored_batch(policy)
    noise = torch.randn(batch.response_mask.shape, generator=torch.Generator().manual_seed(7))
    moved = batch.replace(**{field: batch.tensors()[field] + 0.5 * noise})
    config = train_config(monkeypatch, correction)
    before, after = (one_update(policy, config, updated)[0] for updated in (batch, moved))
    assert before.abs().max() > 1e-3
    assert torch.equal(before, after) == (field not in reads)


DECOUPLED_TAKES = "Mode decoupled, three policies: the correction takes π_old/π_rollout, the loss"
BYPASS_GRADIENT_TAKES = "Mode bypass with policy gradient, two policies: the correction takes π_θ/π_rollout, the loss"
SENTENCES = [
    (DECOUPLED, f"{DECOUPLED_TAKES} π_θ/π_old."),
    (replace(DECOUPLED, loss_type="gpg"), f"{DECOUPLED_TAKES} no ratio."),
    (BYPASS_CLIP, "Mode bypass with ppo_clip, two policies: the correction and the loss take π_θ/π_rollout."),
    (BYPASS_GRADIENT, f"{BYPASS_GRADIENT_TAKES} no ratio."),
]


def test_the_mode_as_a_sentence() -> None:
    assert [(correction, loop.mode_of(correction)) for correction, _ in SENTENCES] == SENTENCES
