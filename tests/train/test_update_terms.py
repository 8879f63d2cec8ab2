"""The other terms of the loss, the two kinds of critic, and what the optimizer does."""

from dataclasses import replace

import pytest
import torch
from learners import (
    ONE_STEP,
    gradient,
    hand_gradient,
    learner,
    one_update,
    rows_alone,
    scored_batch,
    small_policy,
    tokens_of,
    train_config,
    weights,
)
from torch import nn

from rlcorr import CorrectionConfig, RejectionRule, correct
from rlcorr.train.config.learning import AdvantageConfig, Critic, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.update import update
from rlcorr.train.loop import set_learning_rate


def test_the_value_loss_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """V = 1 everywhere, clip 0.2, three tokens, value_coef 0.5; nothing else has a gradient.

    V_old 1.0, R 0: clip(V) = 1.0, both errors are 1        loss ½         slope 1
    V_old 0.5, R 0: clip(V) = 0.7, the true error is larger loss ½         slope 1
    V_old 0.5, R 2: clip(V) = 0.7, error 1.3, and no slope  loss ½ · 1.69  slope 0
    """
    policy = small_policy("shared")
    assert policy.value_head is not None
    nn.init.zeros_(policy.value_head.weight)
    nn.init.ones_(policy.value_head.bias)
    batch = scored_batch(policy).rows(slice(0, 1))
    old, returns = ([x + [0.0] * 3] for x in ([1.0, 0.5, 0.5], [0.0, 0.0, 2.0]))
    batch = batch.replace(
        values=torch.tensor(old), returns=torch.tensor(returns), advantages=torch.zeros_like(batch.rollout_log_probs)
    )
    advantage = AdvantageConfig(value_coef=0.5)
    _, row = one_update(policy, train_config(monkeypatch, CorrectionConfig(), advantage=advantage), batch)
    assert row["value_loss"] == pytest.approx((0.5 + 0.5 + 0.5 * 1.69) / 3)
    assert policy.value_head.bias.grad is not None
    assert policy.value_head.bias.grad.item() == pytest.approx(0.5 * (1 + 1 + 0) / 3)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_entropy_bonus(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """Without advantages −coef · (Σ H / N) is the whole loss, at the temperature of the trainer."""
    policy = small_policy()
    batch = scored_batch(policy)
    batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs))
    rollout = RolloutConfig(engine="transformers", dtype="float32", trainer_temperature=temperature)
    optim = replace(ONE_STEP, entropy_coef=0.3, microbatch_tokens=20)
    got, row = one_update(policy, train_config(monkeypatch, CorrectionConfig(), rollout=rollout, optim=optim), batch)
    policy.zero_grad()
    entropy = torch.cat([entropies for _, entropies in rows_alone(policy, batch, temperature)]).mean()
    (-0.3 * entropy).backward()
    assert row["entropy"] == pytest.approx(entropy.item(), abs=1e-5)
    torch.testing.assert_close(got, gradient(policy), rtol=1e-4, atol=1e-6)


def test_the_entropy_bonus_is_that_of_the_kept_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 1 to 5 are rejected, so only the first has an entropy to learn from."""
    policy = small_policy()
    batch = scored_batch(policy)
    batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs), rollout_log_probs=batch.old_log_probs)
    far = torch.where(torch.arange(6)[:, None] > 0, 5.0, 0.0)
    batch = batch.replace(rollout_log_probs=batch.rollout_log_probs - far)
    rules = (RejectionRule.named("seq_mean_k1", upper=2.0),)
    config = train_config(monkeypatch, CorrectionConfig(rollout_rs=rules), optim=replace(ONE_STEP, entropy_coef=0.3))
    got, _ = one_update(policy, config, batch)
    policy.zero_grad()
    (-0.3 * rows_alone(policy, batch)[0][1].sum() / 21).backward()
    torch.testing.assert_close(got, gradient(policy), rtol=1e-4, atol=1e-6)


def test_without_a_coefficient_the_entropy_is_only_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    batch = scored_batch(policy)
    batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs))
    got, row = one_update(policy, train_config(monkeypatch, CorrectionConfig()), batch)
    assert not got.any()
    assert row["entropy"] > 0.5


def test_the_trainer_s_temperature_is_that_of_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """π_old is π_θ at the temperature 0.7, so ρ = 1 and the gradient is −A/N ∇log π_θ there."""
    policy = small_policy()
    batch = scored_batch(policy)
    with torch.no_grad():
        batch = batch.replace(old_log_probs=policy(batch, 0.7).log_probs)
    rollout = RolloutConfig(engine="transformers", dtype="float32", trainer_temperature=0.7)
    got, _ = one_update(policy, train_config(monkeypatch, CorrectionConfig(), rollout=rollout), batch)
    factors = [[-a / 21 for a in row] for row in tokens_of(batch.advantages, batch.response_mask)]
    torch.testing.assert_close(got, hand_gradient(policy, batch, factors, 0.7), rtol=1e-4, atol=1e-6)


# --- critics ---


def parts_with_gradient(
    monkeypatch: pytest.MonkeyPatch, critic: Critic, *, learn_policy: bool
) -> tuple[bool, bool, bool]:
    """Whether the policy, the value trunk and the value head get a gradient from one of the two losses alone."""
    policy = small_policy(critic)
    batch = scored_batch(policy)
    if not learn_policy:
        batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs))
    advantage = AdvantageConfig(critic=critic, value_coef=0.0 if learn_policy else 1.0)
    one_update(policy, train_config(monkeypatch, CorrectionConfig(), advantage=advantage), batch)
    assert policy.value_head is not None
    trunk = policy.value_trunk is not None and bool(gradient(policy.value_trunk).any())
    return bool(gradient(policy.lm).any()), trunk, bool(gradient(policy.value_head).any())


def test_a_separate_critic_and_the_policy_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_with_gradient(monkeypatch, "separate", learn_policy=True) == (True, False, False)
    assert parts_with_gradient(monkeypatch, "separate", learn_policy=False) == (False, True, True)


def test_a_shared_critic_teaches_the_policy_s_own_trunk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_with_gradient(monkeypatch, "shared", learn_policy=True) == (True, False, False)
    assert parts_with_gradient(monkeypatch, "shared", learn_policy=False) == (True, False, True)


# --- the optimizer ---


def test_the_gradient_is_clipped_to_its_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain gradient descent with rate 1 moves by the clipped gradient."""
    policy = small_policy()
    batch = scored_batch(policy)
    plain = train_config(monkeypatch, CorrectionConfig())
    unclipped, row = one_update(policy, plain, batch)
    norm = float(unclipped.norm())
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for limit, moved in ((norm / 4, unclipped / 4), (2 * norm, unclipped)):
        moving = small_policy()
        before = weights(moving)
        config = replace(plain, optim=replace(ONE_STEP, max_grad_norm=limit))
        sgd = torch.optim.SGD(moving.parameters(), lr=1.0)
        row = update(learner(moving, config, sgd), batch, correct(batch, config.correction))
        torch.testing.assert_close(before - weights(moving), moved, rtol=1e-3, atol=1e-5)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)  # before the clip


def test_the_learning_rate_by_hand() -> None:
    """From 1 to 0.2 in five steps: 1, 0.8, 0.6, 0.4, 0.2."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=7.0)

    def rates(steps: int) -> list[float]:
        optim = OptimConfig(learning_rate=1.0, final_learning_rate=0.2)
        rates = []
        for step in range(1, steps + 1):
            set_learning_rate(optimizer, optim, step, steps)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    assert rates(5) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert rates(1) == [1.0]


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (3, 2), (2, 4), (1, 6)])
def test_epochs_times_mini_batches(monkeypatch: pytest.MonkeyPatch, epochs: int, minibatches: int) -> None:
    """So many optimizer steps; every epoch sees every row once; mini-batches differ by one row at most."""
    policy = small_policy()
    batch = scored_batch(policy)
    optim = OptimConfig(epochs=epochs, minibatches=minibatches, microbatch_tokens=20)
    config = train_config(monkeypatch, CorrectionConfig(), optim=optim)
    sgd = torch.optim.SGD(policy.parameters(), lr=1e-3)
    seen: list[list[float]] = [[]]
    policy.register_forward_pre_hook(lambda _, given: seen[-1].extend(given[0].rewards.tolist()))
    sgd.register_step_post_hook(lambda *_: seen.append([]))
    update(learner(policy, config, sgd), batch, correct(batch, config.correction))
    assert len(seen) == epochs * minibatches + 1  # the last one is empty
    for epoch in range(epochs):
        rows = seen[epoch * minibatches : (epoch + 1) * minibatches]
        assert sorted(row for minibatch in rows for row in minibatch) == [0, 1, 2, 3, 4, 5]
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
