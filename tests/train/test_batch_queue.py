"""Sampling ahead of training: which weights sample which batch, that both really work at once, and how it ends."""

import signal
import threading
from collections.abc import Iterable, Iterator
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
from rlcorr.train.rollout.batch_queue import BatchQueue, BatchRequest
from rlcorr.train.rollout.collect import Collected
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.rollout.transformers_engine import TransformersEngine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("rewarding")]  # a real engine, and training runs

STEPS = 5
PATIENCE = 60
"""Seconds after which a thread that waits for the other one gives up: the test has failed then."""


def ahead(model: Path, staleness: int, *, asynchronous: bool = True, **changes: Any) -> TrainConfig:
    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=staleness, asynchronous=asynchronous)
    small = {"steps": STEPS, "optim": OptimConfig(learning_rate=1e-2), "eval_prompts": 1, "tensorboard": False}
    return tiny_config(model, rollout=rollout, **small, **changes)


def trained_step(seed: int) -> int:
    """The step that an engine samples for: its seed is 256 times the step, and 0 for the proof and the evaluation."""
    return seed >> 8


# --- which weights ---


@pytest.mark.parametrize(
    ("staleness", "asynchronous"), [(0, False), (1, False), (2, False), (7, False), (1, True), (3, True)]
)
def test_batches_come_from_the_weights_of_that_version(
    staleness: int, asynchronous: bool, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version v is what v updates have made of the weights; the engine has it, whatever the trainer does meanwhile."""
    snapshots: list[Tensor] = []
    synced: list[Tensor] = []
    used: dict[int, Tensor] = {}
    true_request, true_sync, true_generate = loop.request_batches, TransformersEngine.sync, TransformersEngine.generate

    def request_batches(session: loop.Session, step: int) -> None:
        snapshots.append(session.policy.lm.state_dict()["model.embed_tokens.weight"].clone())
        true_request(session, step)

    def sync(self: TransformersEngine, weights: Iterable[tuple[str, Tensor]]) -> None:
        by_name = dict(weights)
        synced.append(by_name["model.embed_tokens.weight"].clone())
        true_sync(self, by_name.items())

    def generate(self: TransformersEngine, *given: Any, seed: int = 0, **named: Any) -> Samples:
        used[trained_step(seed)] = synced[-1]
        return true_generate(self, *given, seed=seed, **named)

    monkeypatch.setattr(loop, "request_batches", request_batches)
    monkeypatch.setattr(TransformersEngine, "sync", sync)
    monkeypatch.setattr(TransformersEngine, "generate", generate)
    run = train(ahead(tiny_model, staleness, asynchronous=asynchronous))
    assert sorted(used) == list(range(STEPS + 1))  # 0: the proof and the evaluations
    for step in range(1, STEPS + 1):
        version = max(0, step - 1 - staleness)
        assert runs.read_step(run, step).batch.tensors()["policy_versions"].unique().tolist() == [version]
        matches = [v for v, weights in enumerate(snapshots) if torch.equal(weights, used[step])]
        assert matches == [version]


@pytest.mark.parametrize("staleness", [1, 3])
def test_asynchronous_and_synchronous_runs_are_the_same(staleness: int, tiny_model: Path, local_runs: Path) -> None:
    asynchronous = train(ahead(tiny_model, staleness, run="asynchronous", eval_every=2))
    synchronous = train(ahead(tiny_model, staleness, run="synchronous", eval_every=2, asynchronous=False))
    assert outcome(asynchronous) == outcome(synchronous)
    assert outcome(asynchronous)[0][-1]["rollout_corr/k3_kl"] > 1e-7  # the older weights do differ


def test_waiting_weights_take_the_memory_of_the_engine(
    tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine rounds to bfloat16 anyway, so weights that wait in bfloat16 give the same run; nothing waits twice."""
    rollout = RolloutConfig(engine="transformers", dtype="bfloat16", staleness=3)
    config = replace(ahead(tiny_model, 3, eval_every=2), rollout=rollout)
    sizes: list[dict[int, int]] = []
    true_request = loop.request_batches

    def request_batches(session: loop.Session, step: int) -> None:
        true_request(session, step)
        tensors = [tensor for request in session.queue.requests for _, tensor in request.weights]
        sizes.append({tensor.data_ptr(): tensor.nbytes for tensor in tensors})

    monkeypatch.setattr(loop, "request_batches", request_batches)
    small = outcome(train(replace(config, run="small")))
    small_sizes = [sum(of_step.values()) for of_step in sizes]
    sizes.clear()
    monkeypatch.setattr(loop, "waiting_dtype", lambda _: torch.float32)
    assert small == outcome(train(replace(config, run="large")))
    assert [2 * size for size in small_sizes] == [sum(of_step.values()) for of_step in sizes]
    one, last = small_sizes[0], max(small_sizes)
    assert last == 2 * one  # after the first step two versions wait in five steps: 0 for steps 1 to 4, and 1 for step 5


def test_weights_wait_in_float32_for_a_float32_engine_or_a_sketch(tiny_model: Path) -> None:
    config = ahead(tiny_model, 2)
    bfloat16 = replace(config, rollout=RolloutConfig(staleness=2))
    assert loop.waiting_dtype(bfloat16) == torch.bfloat16
    assert loop.waiting_dtype(config) == torch.float32
    assert loop.waiting_dtype(replace(bfloat16, sketch=SketchConfig(every=1))) == torch.float32


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


@pytest.mark.parametrize("error", [RuntimeError("the engine broke"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_what_is_raised_in_the_engines_thread_ends_the_run(
    error: BaseException, tiny_model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_generate = TransformersEngine.generate

    def generate(self: TransformersEngine, *given: Any, seed: int = 0, **named: Any) -> Samples:
        if trained_step(seed) == 3:
            raise error
        return true_generate(self, *given, seed=seed, **named)

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    with pytest.raises(type(error)) as raised:
        train(ahead(tiny_model, 2))
    assert raised.value is error
    assert rollout_threads() == []
    report = verify(local_runs / "tiny")
    assert (report.status, report.problems, report.readable_steps) == ("interrupted", [], 2)


@pytest.mark.slow
def test_ctrl_c_ends_an_asynchronous_run_tidily(tiny_model: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "local" / "r", tmp_path / "log"
    arguments = (
        *("--model", str(tiny_model), "--run", "r", "--rollout.engine", "transformers", "--rollout.staleness", "2"),
        *("--rollout.asynchronous", "--steps", "100000", "--prompts-per-step", "4", "--eval-prompts", "4"),
    )
    with running("train", *arguments, runs_folder=tmp_path, log=log) as trainer:
        wait_for("four steps", lambda: len(runs.read_metrics(run)) >= 4, log)
        trainer.send_signal(signal.SIGINT)
        assert trainer.wait(60) == 130
    assert "Traceback" not in log.read_text()
    report = verify(run)
    assert (report.status, report.problems) == ("interrupted", [])
    assert report.readable_steps >= 4


# --- the queue ---


def batch_of_step(request: BatchRequest) -> Collected:
    return Collected([], Samples([], []), [], [], [], [], [], version=request.step, seconds={})


def requests(*steps: int) -> Iterator[BatchRequest]:
    return (BatchRequest(step, 0, []) for step in steps)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batches_are_taken_in_the_order_of_the_requests(asynchronous: bool) -> None:
    made: list[int] = []

    def make(request: BatchRequest) -> Collected:
        made.append(request.step)
        return batch_of_step(request)

    queue = BatchQueue(make, asynchronous=asynchronous)
    for request in requests(1, 2, 3):
        queue.put(request)
    assert [request.step for request in queue.requests] == [1, 2, 3]
    request, batch = queue.get()
    assert (request.step, batch.version) == (1, 1)
    assert [request.step for request in queue.requests] == [2, 3]
    assert queue.run_exclusive(made.copy) == [1, 2, 3]  # an evaluation finds the engine idle
    assert [(request.step, batch.version) for request, batch in (queue.get(), queue.get())] == [(2, 2), (3, 3)]
    assert queue.requests == []
    queue.close()


def test_closing_waits_for_the_batch_in_work_and_forgets_the_others() -> None:
    begun, goes_on, made = threading.Event(), threading.Event(), []

    def make(request: BatchRequest) -> Collected:
        begun.set()
        assert goes_on.wait(PATIENCE)
        made.append(request.step)
        return batch_of_step(request)

    queue = BatchQueue(make, asynchronous=True)
    for request in requests(1, 2, 3):
        queue.put(request)
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, goes_on.set).start()
    queue.close()
    assert made == [1]
    assert rollout_threads() == []


# --- answers that are continued with newer weights ---


STALENESS = 2
TOKENS = 2
"""Answers of at most 5 tokens from three versions: two, two and one."""
FLIGHT_STEPS = 6


def config_of(model: Path, run: str = "tiny", **changes: Any) -> TrainConfig:
    rollout = RolloutConfig(engine="transformers", dtype="float32", staleness=STALENESS, in_flight=True, top_logprobs=3)
    small = {"steps": FLIGHT_STEPS, "optim": OptimConfig(learning_rate=1e-2), "eval_prompts": 1, "tensorboard": False}
    return tiny_config(model, rollout=replace(rollout, **changes), run=run, prompts_per_step=8, **small)


def expected_versions(step: int, length: int) -> list[int]:
    """Two tokens of each version from step − 3 on, and from version 0 on in the first steps. The last request is made
    at step 4, so that no version after 3 reaches the engine."""
    first, last = max(0, step - 1 - STALENESS), min(step - 1, FLIGHT_STEPS - STALENESS - 1)
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
    for step in range(1, FLIGHT_STEPS + 1):
        batch = runs.read_step(path, step).batch
        mask, versions = batch.response_mask, batch.tensors()["policy_versions"]
        if versions.dim() == 1:  # a step whose answers have one version is recorded with one per row
            versions = versions[:, None].expand_as(mask)
        for row, real in zip(versions, mask, strict=True):
            assert row[real].tolist() == expected_versions(step, int(real.sum())), step
        for version in versions[mask].unique().tolist():
            policy = Policy(load_lm(tiny_model, CPU), False)
            policy.lm.load_state_dict(weights[version])
            with torch.no_grad():
                scores = policy(batch, 1.0)
            there = mask & (versions == version)
            torch.testing.assert_close(scores.log_probs[there], batch.rollout_log_probs[there], atol=1e-4, rtol=0)
            listed = batch.tensors()["rollout_top_log_probs"]
            torch.testing.assert_close(scores.top_log_probs[there], listed[there], atol=1e-4, rtol=0)
            seen.add(version)
    assert seen == set(range(FLIGHT_STEPS - STALENESS))


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
