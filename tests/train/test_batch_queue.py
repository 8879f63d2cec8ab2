"""Batches that are requested ahead: from which weights they come, that both threads work at once, and how it ends."""

import signal
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from outcome import outcome
from processes import running, wait_for
from tiny import CPU, tiny_config
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.score import corrected
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.rollout.transformers_engine import TransformersEngine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rewarding")]  # a real engine, and training runs

STEPS = 5
PATIENCE = 60
"""Seconds after which a thread that waits for the other one gives up: the test has failed then."""
SMALL: dict[str, Any] = {"optim": OptimConfig(learning_rate=1e-2), "eval_prompts": 1, "tensorboard": False}


def ahead(model: Path, staleness: int, *, asynchronous: bool = True, **changes: Any) -> TrainConfig:
    rollout = RolloutConfig(engine="transformers", dtype="bfloat16", staleness=staleness, asynchronous=asynchronous)
    return tiny_config(model, rollout=rollout, steps=STEPS, **SMALL, **changes)


def trained_step(seed: int) -> int:
    """The step that an engine samples for: its seed is 256 times the step, and 0 for the proof and the evaluation."""
    return seed >> 8


# --- which weights ---


def check_versions(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version v is what v updates have made of the weights; the engine has it, whatever the trainer does meanwhile.
    Weights wait in the engine's number format, to which it rounds them anyway."""
    snapshots: list[Tensor] = []
    synced: list[Tensor] = []
    used: dict[int, Tensor] = {}
    true_request, true_sync, true_generate = loop.request_batches, TransformersEngine.sync, TransformersEngine.generate

    def request_batches(session: loop.Session, step: int) -> None:
        snapshots.append(session.policy.lm.state_dict()["model.embed_tokens.weight"].bfloat16())
        true_request(session, step)
        waiting = [tensor for request in session.queue.requests for _, tensor in request.weights]
        assert {tensor.dtype for tensor in waiting} <= {torch.bfloat16} or not config.rollout.staleness

    def sync(self: TransformersEngine, weights: Iterable[tuple[str, Tensor]]) -> None:
        by_name = dict(weights)
        synced.append(by_name["model.embed_tokens.weight"].bfloat16())
        true_sync(self, by_name.items())

    def generate(self: TransformersEngine, *given: Any, seed: int = 0, **named: Any) -> Samples:
        used[trained_step(seed)] = synced[-1]
        return true_generate(self, *given, seed=seed, **named)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "request_batches", request_batches)
        patch.setattr(TransformersEngine, "sync", sync)
        patch.setattr(TransformersEngine, "generate", generate)
        run = train(config)
    assert sorted(used) == list(range(STEPS + 1))  # 0: the proof and the evaluations
    for step in range(1, STEPS + 1):
        version = max(0, step - 1 - config.rollout.staleness)
        assert runs.read_step(run, step).batch.tensors()["policy_versions"].unique().tolist() == [version]
        assert [v for v, weights in enumerate(snapshots) if torch.equal(weights, used[step])] == [version]
    return run


def test_batches_come_from_the_weights_of_that_version(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous run is the same as a synchronous one."""
    check_versions(ahead(tiny_model, 0, asynchronous=False, run="in step"), monkeypatch)
    both = [
        check_versions(ahead(tiny_model, 2, asynchronous=value, run=f"r{value}", eval_every=2), monkeypatch)
        for value in (False, True)
    ]
    assert outcome(both[0]) == outcome(both[1])


# --- at once ---


def test_the_next_batch_is_sampled_while_the_trainer_updates(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update of step s and the sampling for step s + 1 wait for each other in the middle of their work: one after
    the other they would wait for ever."""
    meetings = {step: threading.Barrier(2) for step in range(2, STEPS + 1)}
    true_update, true_generate, steps = loop.update, TransformersEngine.generate, iter(range(1, STEPS + 1))

    def update(*given: Any) -> dict[str, float]:
        step = next(steps)
        if step < STEPS:
            meetings[step + 1].wait(PATIENCE)
        return true_update(*given)

    def generate(self: TransformersEngine, *given: Any, seed: int = 0, **named: Any) -> Samples:
        if trained_step(seed) > 1:
            meetings[trained_step(seed)].wait(PATIENCE)
        return true_generate(self, *given, seed=seed, **named)

    monkeypatch.setattr(loop, "update", update)
    monkeypatch.setattr(TransformersEngine, "generate", generate)
    report = verify(train(ahead(tiny_model, 1)))
    assert (report.status, report.metric_rows) == ("complete", STEPS)


# --- how it ends ---


def rollout_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rollout")]


def test_what_is_raised_in_the_engines_thread_ends_the_run(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, true_generate = RuntimeError("the engine broke"), TransformersEngine.generate

    def generate(self: TransformersEngine, *given: Any, seed: int = 0, **named: Any) -> Samples:
        if trained_step(seed) == 3:
            raise error
        return true_generate(self, *given, seed=seed, **named)

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    with pytest.raises(RuntimeError) as raised:
        train(ahead(tiny_model, 2))
    assert raised.value is error
    assert rollout_threads() == []
    report = verify(local_runs / "tiny")
    assert (report.status, report.problems, report.readable_steps) == ("interrupted", [], 2)


def test_ctrl_c_ends_an_asynchronous_run_tidily(tiny_model: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "local" / "r", tmp_path / "log"
    arguments = (
        *("--model", str(tiny_model), "--run", "r", "--rollout.engine", "transformers", "--rollout.staleness", "2"),
        *("--rollout.asynchronous", "--steps", "100000", "--prompts-per-step", "4", "--eval-prompts", "4"),
    )
    with running("train", *arguments, runs_folder=tmp_path, log=log) as trainer:
        wait_for("four steps", lambda: len(runs.read_metrics(run)) >= 4, log)
        trainer.send_signal(signal.SIGINT)
        assert trainer.wait(300) == 130
    assert "Traceback" not in log.read_text()
    report = verify(run)
    assert (report.status, report.problems) == ("interrupted", [])
    assert report.readable_steps >= 4


# --- answers that are continued with newer weights ---


STALENESS, TOKENS, FLIGHT_STEPS = 2, 2, 6
"""Answers of at most 5 tokens from three versions: two, two and one."""


def in_flight(model: Path, run: str = "tiny", **changes: Any) -> TrainConfig:
    """Tokens that are two updates old are left out of the loss."""
    flight = RolloutConfig(
        engine="transformers", dtype="float32", staleness=STALENESS, in_flight=True, max_lag=1, top_logprobs=3
    )
    return tiny_config(
        model, rollout=replace(flight, **changes), run=run, steps=FLIGHT_STEPS, prompts_per_step=8, **SMALL
    )


def expected_versions(step: int, length: int) -> list[int]:
    """Two tokens of each version from step − 3 on, and from version 0 on in the first steps."""
    return [min(max(0, step - 1 - STALENESS) + token // TOKENS, step - 1) for token in range(length)]


def check_tokens(path: Path, step: int, model: Path, weights: list[dict[str, Tensor]]) -> None:
    """The engine's log-prob of each token is that of the weights after as many updates."""
    batch = runs.read_step(path, step).batch
    mask, versions = batch.response_mask, batch.tensors()["policy_versions"]
    if versions.dim() == 1:  # a step whose answers have one version is recorded with one per row
        versions = versions[:, None].expand_as(mask)
    for row, real in zip(versions, mask, strict=True):
        assert row[real].tolist() == expected_versions(step, int(real.sum())), step
    for version in versions[mask].unique().tolist():
        policy = Policy(load_lm(model, CPU), False)
        policy.lm.load_state_dict(weights[version])
        with torch.no_grad():
            scores = policy(batch, 1.0)
        there = mask & (versions == version)
        torch.testing.assert_close(scores.log_probs[there], batch.rollout_log_probs[there], atol=1e-4, rtol=0)
        listed = batch.tensors()["rollout_top_log_probs"]
        torch.testing.assert_close(scores.top_log_probs[there], listed[there], atol=1e-4, rtol=0)


def test_each_token_comes_from_the_version_that_it_has(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was trained meanwhile; old tokens are left out of the loss; and a resumed run is the same."""
    weights: list[dict[str, Tensor]] = []
    request_batches, one_step = loop.request_batches, loop.one_step

    def keep(session: loop.Session, step: int) -> None:
        weights.append({name: tensor.clone() for name, tensor in session.policy.lm.state_dict().items()})
        request_batches(session, step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "request_batches", keep)
        path = train(in_flight(tiny_model))
    for step in range(1, FLIGHT_STEPS + 1):
        check_tokens(path, step, tiny_model, weights)
    batch = runs.read_step(path, 4).batch
    _, result, _ = corrected(batch, in_flight(tiny_model), 4)
    lags = 3 - batch.tensors()["policy_versions"]
    assert torch.equal(result.keep_mask, batch.response_mask & (lags <= 1))
    kept = float(result.keep_mask.sum() / batch.response_mask.sum())
    assert runs.read_metrics(path)[3]["rollout_corr/kept_fraction"] == pytest.approx(kept, abs=1e-4)

    def stop(session: loop.Session, writer: Any, step: int) -> dict[str, Any]:
        if step == 4:
            raise KeyboardInterrupt
        return one_step(session, writer, step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "one_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(in_flight(tiny_model, "cut"))
    assert outcome(train(in_flight(tiny_model, "cut"), resume=True)) == outcome(path)


def test_settings_that_do_not_fit_are_refused(tiny_model: Path) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"staleness": 0}, "staleness of at least 1"),
        ({"asynchronous": True}, "staleness of at least 1"),
        ({"score_sampled": True}, "staleness of at least 1"),
    )
    for changes, why in refused:
        with pytest.raises(UsageError, match=why):
            in_flight(tiny_model, **changes)
    with pytest.raises(UsageError, match="the weights that sampled a step"):
        replace(in_flight(tiny_model), sketch=SketchConfig(every=1))
    with pytest.raises(UsageError, match="bypass mode in it"):
        replace(in_flight(tiny_model), preset="bypass_ppo_clip")
