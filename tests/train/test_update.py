"""Gradient steps: the same whatever the micro-batches, and none at all where the numbers are bad."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import oracle
import pytest
import torch
from learners import (
    EACH_ROW,
    ONE_STEP,
    gradient,
    hand_gradient,
    learner,
    one_update,
    rows_alone,
    sampled_batch,
    scored_batch,
    small_policy,
    tokens_of,
    train_config,
)

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import UNCLIPPED, Aggregation, Denominator, LossConfig, LossType
from rlcorr.losses.objective import policy_loss, score_coefficients
from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.update import SKIPPED, minibatch, optimizer_step, update

RULES = (RejectionRule.named("token_k1", lower=0.6, upper=1.5), RejectionRule.named("seq_mean_k1", lower=0.8))
EVERY_TERM = LossConfig(
    use_kl_loss=True, kl_loss_coef=0.1, use_rollout_kl_loss=True, rollout_kl_loss_coef=0.2,
    clip_cov_ratio=0.2, clip_cov_lb=-9.0, clip_cov_ub=9.0, kl_cov_ratio=0.2, dppo_ratio_cap=1.3,
)  # fmt: skip
MODES: tuple[Aggregation, ...] = get_args(Aggregation)
DENOMINATORS: tuple[Denominator, ...] = get_args(Denominator)
LOSSES: tuple[LossType, ...] = get_args(LossType)


def of_loss(loss_type: LossType, bypass: bool) -> CorrectionConfig:
    """With rejection, and normalised weights where there may be some."""
    weighted = not bypass or loss_type in UNCLIPPED
    return CorrectionConfig(
        rollout_is="token" if weighted else None, rollout_is_batch_normalize=weighted, rollout_rs=RULES,
        bypass_mode=bypass, loss_type=loss_type,
    )  # fmt: skip


PAIRS = [p for p in itertools.product(LOSSES, (False, True)) if p != ("reinforce", False)]
WAYS = list(itertools.product(MODES, DENOMINATORS, (False, True)))


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
    policy = small_policy("shared")
    config = train_config(
        monkeypatch,
        of_loss(loss_type, bypass),
        loss=EVERY_TERM,
        advantage=AdvantageConfig(),
        optim=replace(ONE_STEP, entropy_coef=0.1),
    )
    split, row = agree(policy, config, scored_batch(policy))
    assert split == pytest.approx(row, rel=1e-5, abs=1e-5)
    assert {"loss", "value_loss", "entropy", "grad_norm", "actor/kl_loss", "rollout_kl"} <= set(row)


@pytest.mark.parametrize(("mode", "denominator", "bypass"), WAYS)
def test_micro_batches_change_no_aggregation(
    monkeypatch: pytest.MonkeyPatch, mode: Aggregation, denominator: Denominator, bypass: bool
) -> None:
    policy = small_policy()
    correction = CorrectionConfig(rollout_rs=RULES, denominator=denominator, bypass_mode=bypass)
    terms = replace(EVERY_TERM, loss_agg_mode=mode, rollout_kl_loss_agg_mode=mode, kl_loss_tokens="response")
    config = train_config(monkeypatch, correction, loss=terms)
    split, row = agree(policy, config, scored_batch(policy))
    assert split == pytest.approx(row, rel=1e-5, abs=1e-5)


def test_dr_grpos_constant_is_the_longest_response_that_may_be_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addition allows 5 tokens. An answer's token weighs A/(2 sequences · 5), whatever stands beside it."""
    norm: Aggregation = "seq-mean-token-sum-norm"
    config = train_config(monkeypatch, CorrectionConfig(), loss=LossConfig(loss_agg_mode=norm))
    for company in (4, 12):
        batch = sampled_batch((1, 1), (3, company))
        batch = batch.replace(old_log_probs=batch.rollout_log_probs, advantages=torch.ones(2, company))
        mini = minibatch(config, batch, correct(batch, config.correction), torch.arange(2))
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


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("correction", [*NOT_A_SUM, OF_SOME_ROWS])
def test_the_loss_of_single_rows_is_that_of_the_mini_batch(
    monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, mode: Aggregation
) -> None:
    """The gradient of each row by itself is that of the loss of all rows, in one graph, which counts them itself."""
    policy = small_policy()
    batch = scored_batch(policy)
    terms = replace(EVERY_TERM, loss_agg_mode=mode)
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
    assert row["loss"] == pytest.approx(loss.item(), abs=1e-5)
    torch.testing.assert_close(got, gradient(policy), rtol=0, atol=1e-5)


# --- what selects tokens does so in the mini-batch ---


def covariances(theta: list[list[float]], advantages: list[list[float]]) -> list[list[float]]:
    """(A − mean A)(log π_θ − mean log π_θ), means over all tokens."""
    a, t = (oracle.mean([x for row in rows for x in row]) for rows in (advantages, theta))
    return [
        [(x - a) * (y - t) for x, y in zip(*rows, strict=True)] for rows in zip(advantages, theta, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("loss_type", ["kl_cov", "clip_cov"])
@pytest.mark.parametrize("rows", [[0, 2, 4], [1, 3, 5]])
def test_one_token_of_the_mini_batch_is_selected(
    monkeypatch: pytest.MonkeyPatch, loss_type: LossType, rows: list[int]
) -> None:
    """The one of the largest covariance: kl_cov adds 0.5 |log ρ| to its loss, clip_cov takes it out. π_θ is 5 % above
    π_old, so no clip binds and |log ρ| has slope 1."""
    policy = small_policy()
    batch = scored_batch(policy)
    with torch.no_grad():
        log_probs = policy(batch, 1.0).log_probs
    batch = batch.replace(old_log_probs=log_probs - math.log(1.05), rollout_log_probs=log_probs)
    mini = batch.rows(torch.tensor(rows))
    theta = [log_p.tolist() for log_p, _ in rows_alone(policy, mini)]
    advantages = tokens_of(mini.advantages, mini.response_mask)
    cov = covariances(theta, advantages)
    ranked = sorted((x for row in cov for x in row), reverse=True)
    tokens = len(ranked)
    factors = [[-1.05 * a / tokens for a in row] for row in advantages]
    for b, t in ((b, t) for b, row in enumerate(cov) for t, x in enumerate(row) if x == ranked[0]):
        factors[b][t] = factors[b][t] + 0.5 / tokens if loss_type == "kl_cov" else 0.0
    between = (ranked[0] + ranked[1]) / 2
    loss = LossConfig(kl_cov_ratio=0.0, ppo_kl_coef=0.5, clip_cov_ratio=0.0, clip_cov_lb=between, clip_cov_ub=99.0)
    config = train_config(
        monkeypatch,
        CorrectionConfig(loss_type=loss_type),
        loss=loss,
        optim=replace(ONE_STEP, microbatch_tokens=EACH_ROW),
    )
    result = correct(batch, config.correction)
    optimizer_step(learner(policy, config), minibatch(config, batch, result, torch.tensor(rows)))
    torch.testing.assert_close(gradient(policy), hand_gradient(policy, mini, factors), rtol=1e-4, atol=1e-6)
