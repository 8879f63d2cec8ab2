"""Bad numbers: the step is skipped and counted, the weights stay, the other mini-batches train."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from learners import (
    NO_CRITIC,
    learner,
    one_update,
    scored_batch,
    small_policy,
    train_config,
    weights,
)
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.config import LossConfig
from rlcorr.errors import UsageError
from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.update import SKIPPED, update

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
def test_a_bad_mini_batch_is_skipped_and_the_others_train(
    monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, fault: str
) -> None:
    """Row 1 has one token; its loss of about 1e38 is finite, its gradient is not."""
    policy = small_policy()
    batch = spoilt(scored_batch(policy), fault, row=1)
    config = train_config(monkeypatch, correction, optim=OptimConfig(epochs=2, minibatches=6))
    adam = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    steps = []
    adam.register_step_post_hook(lambda *_: steps.append(weights(policy)))
    row = update(learner(policy, config, adam), batch, correct(batch, correction))
    assert {name: row[name] for name in SKIPPED} == {name: 2 * (name == fault) for name in SKIPPED}
    assert len(steps) == 10
    assert all(math.isfinite(value) for value in row.values())
    assert all(bool(step.isfinite().all()) for step in steps)
    assert all((a != b).any() for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize("correction", [BOUNDED, BYPASS])
@pytest.mark.parametrize("fault", SKIPPED)
def test_a_bad_step_leaves_every_bit(monkeypatch: pytest.MonkeyPatch, correction: CorrectionConfig, fault: str) -> None:
    """Also AdamW's momentum, of which the step before left some, moves nothing and stays as it was."""
    policy = small_policy("shared")
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


def test_missing_fields_are_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy("shared")
    batch = scored_batch(policy).replace(ref_log_probs=None, returns=None)
    loss = LossConfig(use_kl_loss=True)
    config = train_config(monkeypatch, CorrectionConfig(), loss=loss, advantage=AdvantageConfig())
    policy.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(UsageError, match="the batch lacks returns, ref_log_probs; it has"):
        one_update(policy, config, batch)
    replay = RolloutConfig(engine="transformers", dtype="float32", router_replay=True)
    with pytest.raises(UsageError, match="the batch lacks routed_experts"):
        one_update(policy, train_config(monkeypatch, CorrectionConfig(), rollout=replay, advantage=NO_CRITIC), batch)
