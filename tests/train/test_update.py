"""Gradient steps: the same whatever the micro-batches, and none at all where the numbers are bad."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from learners import (
    EACH_ROW,
    ONE_STEP,
    gradient,
    learner,
    one_update,
    rows_alone,
    sampled_batch,
    scored_batch,
    small_policy,
    train_config,
    weights,
)
from torch import Tensor, nn

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import UNCLIPPED, Aggregation, LossConfig, LossType
from rlcorr.losses.objective import policy_loss, score_coefficients
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner import update as update_module
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.update import SKIPPED, minibatch, update
from rlcorr.train.loop import set_learning_rate

RULES = (RejectionRule.named("token_k1", lower=0.6, upper=1.5), RejectionRule.named("seq_mean_k1", lower=0.8))
EVERY_TERM = LossConfig(
    use_kl_loss=True, kl_loss_coef=0.1, use_rollout_kl_loss=True, rollout_kl_loss_coef=0.2,
    numbers={
        "clip_cov_ratio": 0.2, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0, "kl_cov_ratio": 0.2, "dppo_ratio_cap": 1.3,
    },
)  # fmt: skip
MODES: tuple[Aggregation, ...] = get_args(Aggregation)
LOSSES: tuple[LossType, ...] = get_args(LossType)


def of_loss(loss_type: LossType, bypass: bool) -> CorrectionConfig:
    """With rejection, and normalised weights where there may be some."""
    weighted = not bypass or loss_type in UNCLIPPED
    return CorrectionConfig(
        rollout_is="token" if weighted else None, rollout_is_batch_normalize=weighted, rollout_rs=RULES,
        bypass_mode=bypass, loss_type=loss_type,
    )  # fmt: skip


PAIRS = [(loss, loss == "reinforce" or number % 2 == 0) for number, loss in enumerate(LOSSES)]


def agree(policy: Policy, config: TrainConfig, batch: TokenBatch) -> tuple[dict[str, float], dict[str, float]]:
    """Every row by itself gives the gradient of the whole; returns the metrics of both."""
    apart = replace(config, optim=replace(config.optim, microbatch_tokens=EACH_ROW))
    (whole, row), (parts, split) = (one_update(policy, settings, batch) for settings in (config, apart))
    assert whole.abs().max() > 1e-2
    # What one entry loses to rounding grows with the whole gradient, which is 70 long where losses are summed.
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5 + 1e-6 * float(whole.norm()))
    return split, row


@pytest.mark.parametrize(("loss_type", "bypass"), PAIRS)
def test_micro_batches_change_nothing(monkeypatch: pytest.MonkeyPatch, loss_type: LossType, bypass: bool) -> None:
    policy = small_policy(critic=True)
    config = train_config(
        monkeypatch,
        of_loss(loss_type, bypass),
        loss=EVERY_TERM,
        advantage=AdvantageConfig(),
    )
    split, row = agree(policy, config, scored_batch(policy))
    assert split == pytest.approx(row, rel=1e-5, abs=1e-5)
    assert {"loss", "value_loss", "entropy", "grad_norm", "actor/kl_loss", "rollout_kl"} <= set(row)


def test_dr_grpos_constant_is_the_longest_response_that_may_be_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addition allows 5 tokens. An answer's token weighs A/(2 sequences · 5), whatever stands beside it."""
    norm: Aggregation = "seq-mean-token-sum-norm"
    config = train_config(monkeypatch, CorrectionConfig(), loss=LossConfig(loss_agg_mode=norm))
    updating = learner(small_policy(), config)
    for company in (4, 12):
        batch = sampled_batch((1, 1), (3, company))
        batch = batch.replace(old_log_probs=batch.rollout_log_probs, advantages=torch.ones(2, company))
        mini = minibatch(updating.config, batch, correct(batch, config.correction), torch.arange(2))
        coefficients = score_coefficients(
            batch.rollout_log_probs, mini.batch, mini.result, config.correction, mini.loss,
            tokens=mini.tokens, sequences=mini.sequences,
        )  # fmt: skip
        assert float(coefficients[0, 0]) == pytest.approx(1 / 2 / 5), company
    assert (
        replace(config, loss=LossConfig(loss_agg_mode=norm, loss_scale_factor=80)).policy_loss.loss_scale_factor == 80
    )
    of_kl = LossConfig(rollout_kl_loss_agg_mode=norm)
    assert replace(config, task="running_sum", loss=of_kl).policy_loss.loss_scale_factor == 80
    assert replace(config, task="jsonl", data=Path("x"), loss=of_kl).policy_loss.loss_scale_factor == 256
    assert replace(config, loss=LossConfig()).policy_loss == LossConfig()


def test_fewer_rows_than_mini_batches_make_a_step_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers may have been left out: two rows of six, four mini-batches asked for."""
    policy = small_policy()
    adam = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    steps = []
    adam.register_step_post_hook(lambda *_: steps.append(1))
    config = train_config(monkeypatch, CorrectionConfig(), optim=replace(ONE_STEP, minibatches=4))
    batch = scored_batch(policy).rows(slice(0, 2))
    row = update(learner(policy, config, adam), batch, correct(batch, config.correction))
    assert len(steps) == 2
    assert {row[name] for name in SKIPPED} == {0}


NOT_A_SUM = [
    of_loss("clip_cov", False),
    of_loss("kl_cov", True),
    of_loss("reinforce", True),
    CorrectionConfig(bypass_mode=True, denominator="kept", rollout_rs=RULES),
]


# A sum over rows, of which some are rejected as a whole and do not count.
OF_SOME_ROWS = CorrectionConfig(
    rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.9, upper=1.1),), denominator="kept"
)


@pytest.mark.parametrize(
    ("correction", "mode"),
    [
        *((correction, "seq-mean-token-sum") for correction in NOT_A_SUM),
        *itertools.product((OF_SOME_ROWS, CorrectionConfig(rollout_rs=RULES)), MODES),
    ],
)
def test_the_loss_of_single_rows_is_that_of_the_mini_batch(
    monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, mode: Aggregation
) -> None:
    """The gradient of each row by itself is that of the loss of all rows, in one graph, which counts them itself."""
    policy = small_policy()
    batch = scored_batch(policy)
    terms = replace(EVERY_TERM, loss_agg_mode=mode, rollout_kl_loss_agg_mode=mode, kl_loss_tokens="response")
    terms = replace(terms, loss_scale_factor=7.0)
    config = train_config(monkeypatch, correction, loss=terms, optim=replace(ONE_STEP, microbatch_tokens=EACH_ROW))
    got, row = one_update(policy, config, batch)
    policy.zero_grad()
    updating = learner(policy, config)
    order = torch.randperm(len(batch.response_mask), generator=updating.shuffle_rng)
    mini, result = batch.rows(order), correct(batch, correction).rows(order)
    loss, _ = policy_loss(policy(mini, 1.0).log_probs, mini, result, correction, terms, generator=updating.loss_rng)
    loss.backward()
    if correction is OF_SOME_ROWS:
        assert 0 < result.keep_mask.any(-1).sum() < len(order)
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    wanted = gradient(policy)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 + 1e-6 * float(wanted.norm()))


# --- other terms of the loss, the critic, and what the optimizer does ---


def test_the_value_loss_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """V = 1 everywhere, clip 0.2, three tokens, coefficient 0.1; nothing else has a gradient.

    V_old 1.0, R 0: clip(V) = 1.0, both errors are 1        loss ½         slope 1
    V_old 0.5, R 0: clip(V) = 0.7, the true error is larger loss ½         slope 1
    V_old 0.5, R 2: clip(V) = 0.7, error 1.3, and no slope  loss ½ · 1.69  slope 0
    """
    policy = small_policy(critic=True)
    assert policy.value_head is not None
    nn.init.zeros_(policy.value_head.weight)
    nn.init.ones_(policy.value_head.bias)
    batch = scored_batch(policy).rows(slice(0, 1))
    old, returns = ([x + [0.0] * 3] for x in ([1.0, 0.5, 0.5], [0.0, 0.0, 2.0]))
    batch = batch.replace(
        values=torch.tensor(old), returns=torch.tensor(returns), advantages=torch.zeros_like(batch.rollout_log_probs)
    )
    _, row = one_update(policy, train_config(monkeypatch, CorrectionConfig(), advantage=AdvantageConfig()), batch)
    assert row["value_loss"] == pytest.approx((0.5 + 0.5 + 0.5 * 1.69) / 3)
    assert policy.value_head.bias.grad is not None
    assert policy.value_head.bias.grad.item() == pytest.approx(0.1 * (1 + 1 + 0) / 3)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_entropy_is_only_measured(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    policy = small_policy()
    batch = scored_batch(policy)
    batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs))
    rollout = RolloutConfig(engine="transformers", dtype="float32", trainer_temperature=temperature)
    optim = replace(ONE_STEP, microbatch_tokens=20)
    got, row = one_update(policy, train_config(monkeypatch, CorrectionConfig(), rollout=rollout, optim=optim), batch)
    assert not got.any()
    entropy = torch.cat([entropies for _, entropies in rows_alone(policy, batch, temperature)]).mean()
    assert row["entropy"] == pytest.approx(entropy.item(), abs=1e-5)


@pytest.mark.parametrize("learn_policy", [True, False])
def test_the_critic_teaches_the_policy_s_own_trunk(monkeypatch: pytest.MonkeyPatch, learn_policy: bool) -> None:
    """Each of the two losses alone moves the trunk; the policy's does not reach the value head."""
    policy = small_policy(critic=True)
    batch = scored_batch(policy)
    if not learn_policy:
        batch = batch.replace(advantages=torch.zeros_like(batch.rollout_log_probs))
    monkeypatch.setattr(update_module, "VALUE_COEF", 0.0 if learn_policy else 1.0)
    one_update(policy, train_config(monkeypatch, CorrectionConfig(), advantage=AdvantageConfig()), batch)
    assert policy.value_head is not None
    assert gradient(policy.lm).any()
    assert bool(gradient(policy.value_head).any()) is not learn_policy


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


@pytest.mark.parametrize(("epochs", "minibatches"), [(3, 2), (2, 4)])
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


# --- bad numbers: the step is skipped and counted, the weights stay, the other mini-batches train ---


BOUNDED = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", lower=0.01, upper=100.0),))
BYPASS = replace(BOUNDED, bypass_mode=True)


def spoilt(batch: TokenBatch, fault: str, row: int) -> TokenBatch:
    """What makes a mini-batch of this row bad."""
    name = "rollout_log_probs" if fault == "bad/all_rejected" else "advantages"
    value = {"bad/all_rejected": -50.0, "bad/loss": math.nan, "bad/gradient": -1e38}[fault]
    changed = batch.tensors()[name].clone()
    changed[row] = value
    return batch.replace(**{name: changed})


@pytest.mark.parametrize("correction", [BOUNDED, BYPASS])
@pytest.mark.parametrize("fault", SKIPPED)
def test_a_bad_step_leaves_every_bit(monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, fault: str) -> None:
    """Also AdamW's momentum, of which the step before left some, moves nothing and stays as it was."""
    policy = small_policy(critic=True)
    good = scored_batch(policy)
    config = train_config(
        monkeypatch, correction, advantage=AdvantageConfig(), optim=OptimConfig(epochs=1, minibatches=1)
    )
    adam = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    steps = learner(policy, config, adam)
    start = weights(policy)
    update(steps, good, correct(good, correction))
    before, momentum = weights(policy), bits(adam)
    assert not torch.equal(start, before)
    bad = spoilt(good, fault, row=1)
    if fault == "bad/all_rejected":
        bad = good.replace(rollout_log_probs=torch.full_like(good.rollout_log_probs, -50.0))
    row = update(steps, bad, correct(bad, correction))
    assert row == {name: float(name == fault) for name in SKIPPED}
    assert torch.equal(weights(policy), before)
    assert torch.equal(bits(adam), momentum)
    update(steps, good, correct(good, correction))
    assert bool(weights(policy).isfinite().all())
    assert not torch.equal(weights(policy), before)


def bits(optimizer: torch.optim.Optimizer) -> Tensor:
    return torch.cat([x.flatten().clone() for state in optimizer.state.values() for x in state.values()])
