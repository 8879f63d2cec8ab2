"""Answers that are continued with newer weights: whose weights sampled which token, and what resuming changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.score import corrected
from rlcorr.train.loop import train

pytestmark = pytest.mark.slow  # trainings

STALENESS = 2
TOKENS = 2
"""Answers of at most 5 tokens from three versions: two, two and one."""
STEPS = 6


@pytest.fixture(autouse=True)
def rewarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never answers right, and without rewards nothing would move: long answers are good here."""
    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: len(response) / 5))


def config_of(model: Path, run: str = "tiny", **changes: Any) -> TrainConfig:
    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=STALENESS, in_flight=True, top_logprobs=3)
    small = {"steps": STEPS, "optim": OptimConfig(learning_rate=1e-2), "eval_prompts": 1, "tensorboard": False}
    return tiny_config(model, rollout=replace(rollout, **changes), run=run, prompts_per_step=8, **small)


def expected_versions(step: int, length: int) -> list[int]:
    """Two tokens of each version from step − 3 on, and from version 0 on in the first steps. The last request is made
    at step 4, so that no version after 3 reaches the engine."""
    first, last = max(0, step - 1 - STALENESS), min(step - 1, STEPS - STALENESS - 1)
    return [min(first + token // TOKENS, last) for token in range(length)]


def test_each_token_comes_from_the_version_that_it_has(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's log-prob is that of the weights after as many updates, whatever was trained meanwhile."""
    weights: list[dict[str, Tensor]] = []
    request_batches = loop.request_batches

    def keep(session: loop.Session, step: int) -> None:
        weights.append({name: tensor.clone() for name, tensor in session.policy.lm.state_dict().items()})
        request_batches(session, step)

    monkeypatch.setattr(loop, "request_batches", keep)
    path = train(config_of(tiny_model))
    seen: set[int] = set()
    for step in range(1, STEPS + 1):
        batch = runs.read_step(path, step).batch
        mask, versions = batch.response_mask, batch.tensors()["policy_versions"]
        if versions.dim() == 1:  # a step whose answers have one version is recorded with one per row
            versions = versions[:, None].expand_as(mask)
        for row, real in zip(versions, mask, strict=True):
            assert row[real].tolist() == expected_versions(step, int(real.sum())), step
        for version in versions[mask].unique().tolist():
            policy = Policy(load_lm(tiny_model, CPU), None)
            policy.lm.load_state_dict(weights[version])
            with torch.no_grad():
                scores = policy(batch, 1.0)
            there = mask & (versions == version)
            torch.testing.assert_close(scores.log_probs[there], batch.rollout_log_probs[there], atol=1e-4, rtol=0)
            listed = batch.tensors()["rollout_top_log_probs"]
            torch.testing.assert_close(scores.top_log_probs[there], listed[there], atol=1e-4, rtol=0)
            seen.add(version)
    assert seen == set(range(STEPS - STALENESS))


def test_a_resumed_run_is_the_same(tiny_model: Path, local_runs: Path) -> None:
    whole = outcome(train(config_of(tiny_model, "whole")))
    parts = config_of(tiny_model, "cut")
    with pytest.MonkeyPatch.context() as patch:
        one_step = loop.one_step

        def stop(session: loop.Session, writer: Any, step: int) -> dict[str, Any]:
            if step == 4:
                raise KeyboardInterrupt
            return one_step(session, writer, step)

        patch.setattr(loop, "one_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(parts)
    assert outcome(train(parts, resume=True)) == whole


def test_old_tokens_are_left_out_of_the_loss(tiny_model: Path, local_runs: Path) -> None:
    path = train(config_of(tiny_model, max_lag=1))
    batch = runs.read_step(path, 4).batch
    config = config_of(tiny_model, max_lag=1)
    _, result, _ = corrected(batch, config, 4)
    lags = 3 - batch.tensors()["policy_versions"]
    assert torch.equal(result.keep_mask, batch.response_mask & (lags <= 1))
    rows = runs.read_metrics(path)
    kept = float(result.keep_mask.sum() / batch.response_mask.sum())
    assert rows[3]["rollout_corr/kept_fraction"] == pytest.approx(kept, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"staleness": 0}, "staleness of at least 1"),
        ({"asynchronous": True}, "goes without asynchronous"),
        ({"score_sampled": True}, "goes without asynchronous, score_sampled"),
        ({"max_lag": -1}, "max_lag must be ≥ 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tiny_model: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        config_of(tiny_model, **changes)


def test_sketches_and_bypass_mode_do_not_go_with_it(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="leave out sketch"):
        replace(config_of(tiny_model), sketch=SketchConfig(every=1))
    with pytest.raises(UsageError, match="bypass mode inside it"):
        replace(config_of(tiny_model, max_lag=1), preset="bypass_ppo_clip")
