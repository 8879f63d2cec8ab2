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
from tiny import tiny_config
from torch import Tensor

from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train import loop
from rlcorr.train.config.learning import OptimConfig, SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.loop import train
from rlcorr.train.rollout.batch_queue import BatchQueue, BatchRequest
from rlcorr.train.rollout.collect import Collected
from rlcorr.train.rollout.engine import Samples
from rlcorr.train.rollout.transformers_engine import TransformersEngine

pytestmark = pytest.mark.slow  # a real engine, and trainings

STEPS = 5
PATIENCE = 60
"""Seconds after which a thread that waits for the other one gives up: the test has failed then."""


@pytest.fixture(autouse=True)
def rewarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never answers right, and without rewards nothing would move: long answers are good here."""
    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lambda _, response: len(response) / 5))


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
