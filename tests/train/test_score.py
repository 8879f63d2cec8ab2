"""Scores of the trainer's own models, and the advantages that follow from rewards, KL and rejection."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from learners import ONE_STEP, rows_alone, sampled_batch, small_policy, train_config

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.policy import engine_weights
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import corrected, score, score_sampled, whitened, with_advantages

# --- scores ---


def test_what_a_score_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """π_old of the policy, π_ref of the reference, the critic's values; at the trainer's temperature."""
    policy, reference = small_policy(critic=True), small_policy()
    with torch.no_grad():
        for p in reference.parameters():
            p.mul_(1.2)
    rollout = RolloutConfig(engine="transformers", dtype="float32", temperature=0.8, trainer_temperature=0.5)
    optim = replace(ONE_STEP, microbatch_tokens=20)
    config = train_config(monkeypatch, CorrectionConfig(), rollout=rollout, optim=optim)
    batch = sampled_batch()
    scored = score(batch, policy, reference, config, ALONE)
    assert set(scored.tensors()) - set(batch.tensors()) == {"old_log_probs", "ref_log_probs", "values"}
    mask = batch.response_mask
    for name, model in (("old_log_probs", policy), ("ref_log_probs", reference)):
        expected = torch.cat([log_p.detach() for log_p, _ in rows_alone(model, batch, 0.5)])
        torch.testing.assert_close(scored.tensors()[name][mask], expected, rtol=0, atol=1e-5)
    assert not torch.allclose(scored.tensors()["old_log_probs"], scored.tensors()["ref_log_probs"], atol=0.1)
    with torch.no_grad():
        torch.testing.assert_close(scored.tensors()["values"][mask], policy(batch, 0.5).values[mask])
    bare = score(batch, small_policy(), None, config, ALONE)
    assert set(bare.tensors()) - set(batch.tensors()) == {"old_log_probs"}


def test_the_sampling_weights_score_in_the_trainers_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a second policy that has these weights does; the first one keeps its own."""
    policy, sampler = small_policy(critic=True), small_policy(critic=True)
    with torch.no_grad():
        for p in sampler.parameters():
            p.mul_(1.1)
    optim = replace(ONE_STEP, microbatch_tokens=20)
    config = train_config(monkeypatch, CorrectionConfig(), optim=optim)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    weights = engine_weights(sampler.state_dict(), sampler.lm)
    batch = score_sampled(sampled_batch(), policy, weights, config, ALONE)
    assert batch.sampled_log_probs is not None
    expected = torch.cat([log_p.detach() for log_p, _ in rows_alone(sampler, batch, 1.0)])
    torch.testing.assert_close(batch.sampled_log_probs[batch.response_mask], expected, rtol=0, atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


# --- advantages ---

# Two prompts with two responses each. The last reward is out of place on purpose: groups are interleaved.
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]]).bool()
GROUPS, REWARDS = [0, 1, 0, 1], [1.0, 2.0, 0.0, 6.0]


def judged(**fields: Any) -> TokenBatch:
    zeros = torch.zeros(MASK.shape)
    return TokenBatch(
        MASK, zeros, old_log_probs=zeros, rewards=torch.tensor(REWARDS), group_ids=torch.tensor(GROUPS)
    ).replace(**fields)


def advantages(batch: TokenBatch, **settings: Any) -> list[list[float]]:
    advantages = with_advantages(batch, AdvantageConfig(**settings)).advantages
    assert advantages is not None
    return advantages.tolist()


def test_gae_by_hand() -> None:
    """λ = ¼; on the first row values 1 2 3 and the reward 1 at the end: δ = 1, 1, −2."""
    nan = float("nan")
    values = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, nan], [4.0, nan, nan], [0.0, 2.0, nan]])
    judged_batch = with_advantages(judged(values=values), AdvantageConfig(gae_lambda=0.25))
    assert judged_batch.advantages is not None
    assert judged_batch.returns is not None
    # Row 1: A₁ = 1 − ¼ · 2, A₀ = 1 + ¼ · ½. Row 2: A₀ = ¼ · 2. Row 3: 0 − 4. Row 4: A₁ = 6 − 2, A₀ = 2 + ¼ · 4.
    assert judged_batch.advantages.tolist() == [[1.125, 0.5, -2], [0.5, 2, 0], [-4, 0, 0], [3, 4, 0]]
    assert judged_batch.returns.tolist() == [[2.125, 2.5, 1], [0.5, 2, 0], [0, 0, 0], [3, 6, 0]]


HALF = 0.5**0.5
BY_HAND: list[tuple[dict[str, Any], list[list[float]]]] = [
    # Rewards to go, which all come at the end; whitened later, over what is kept.
    ({"estimator": "reinforce_pp"}, [[1, 1, 1], [2, 2, 0], [0, 0, 0], [6, 6, 0]]),
    # 1 against 0, 2 against 6, on every token of the response.
    ({"estimator": "rloo"}, [[1, 1, 1], [-4, -4, 0], [-1, 0, 0], [4, 4, 0]]),
    # Of two rewards each is 1/√2 deviations from their mean; Dr. GRPO leaves the difference, ½ and 2.
    ({"estimator": "grpo"}, [[HALF] * 3, [-HALF, -HALF, 0], [-HALF, 0, 0], [HALF, HALF, 0]]),
    ({"estimator": "grpo", "norm_by_std": False}, [[0.5] * 3, [-2, -2, 0], [-0.5, 0, 0], [2, 2, 0]]),
]


def test_advantages_by_hand() -> None:
    for settings, expected in BY_HAND:
        got = torch.tensor(advantages(judged(), **settings))
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=0)


# --- rejection and advantages ---

SEQUENCES = CorrectionConfig(rollout_rs=(RejectionRule.named("seq_max_k1", upper=2.0),))
TOKENS = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=2.0),))


def of_three(last_reward: float) -> TokenBatch:
    """One prompt, three responses of two tokens; the second token of the last has r = e."""
    mask, old = torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, 2)
    rollout = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, -1.0]])
    return TokenBatch(
        mask, rollout, old_log_probs=old, rewards=torch.tensor([1.0, 0.0, last_reward]), group_ids=torch.tensor([4] * 3)
    )


def kept_advantages(
    monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, batch: TokenBatch, **settings: Any
) -> list[list[float]]:
    config = train_config(monkeypatch, correction, advantage=AdvantageConfig(**settings))
    batch, result, _ = corrected(batch, config, 1)
    assert batch.advantages is not None
    return torch.where(result.keep_mask, batch.advantages, 0).tolist()


@pytest.mark.parametrize("reward", [5.0, -1.0])
def test_a_rejected_sequence_does_not_move_its_siblings(monkeypatch: pytest.MonkeyPatch, reward: float) -> None:
    """1 against 0, whatever the reward of the third is."""
    batch = of_three(reward)
    out = kept_advantages(monkeypatch, SEQUENCES, batch, estimator="rloo")
    assert out == [[1, 1], [-1, -1], [0, 0]]
    grpo = kept_advantages(monkeypatch, SEQUENCES, batch, estimator="grpo")
    assert [row[0] for row in grpo] == pytest.approx([0.5**0.5, -(0.5**0.5), 0], rel=1e-5)


def test_a_rule_for_negative_advantages_sees_them_before_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third response is below its group's mean only while it belongs to the group, and is rejected for it."""
    rule = RejectionRule.named("seq_max_k1_negative", upper=2.0)
    config = CorrectionConfig(rollout_rs=(rule,))
    assert kept_advantages(monkeypatch, config, of_three(-1.0), estimator="rloo") == [[1, 1], [-1, -1], [0, 0]]
    assert kept_advantages(monkeypatch, config, of_three(5.0), estimator="rloo") == [[-1.5] * 2, [-3] * 2, [4.5] * 2]


def test_advantages_are_whitened_over_the_kept_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept: 1 1 0 0 4 of rewards to go, mean 1.2, variance (2 · 0.04 + 2 · 1.44 + 7.84)/5 = 2.16."""
    config = train_config(monkeypatch, TOKENS, advantage=AdvantageConfig(estimator="reinforce_pp"))
    batch, result, _ = corrected(of_three(4.0), config, 1)
    white = whitened(batch, result, config.advantage).advantages
    assert white is not None
    expected = [(x - 1.2) / 2.16**0.5 for x in (1, 1, 0, 0, 4)]
    assert white.flatten().tolist() == pytest.approx([*expected, 0], rel=1e-5)
    assert batch.advantages is not None
    assert batch.advantages.tolist() == [[1, 1], [0, 0], [4, 4]]
