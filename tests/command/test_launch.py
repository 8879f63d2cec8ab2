"""Training runs that the app starts: requests, the lock, and real processes with real signals."""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny import save_tiny_model

from rlcorr.command import launch
from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.verify import verify


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty folder of runs, and end a training run that a test left behind."""
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    yield tmp_path
    left = launch.last()
    if left is not None and launch.in_progress():
        os.killpg(left.pid, signal.SIGKILL)


def wait_for(what: str, happened: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        training = launch.last()
        assert time.monotonic() < deadline, f"{what}: {training and launch.last_lines(training.run, 40)}"
        time.sleep(0.05)


# --- the state of a training run ---


def test_progress() -> None:
    """Predict 5 s for each of the seven remaining steps, from the last two (4 s and 6 s). The first took 2 s."""
    rows = [{"step": step, "elapsed": elapsed} for step, elapsed in ((1, 2.0), (2, 6.0), (3, 12.0))]
    assert launch.progress({"steps": 10}, rows, last=2) == launch.Progress(3, 10, 35.0)
    assert launch.progress({"steps": 10}, rows) == launch.Progress(3, 10, 28.0)  # 12 s for three steps
    assert launch.progress({"steps": 10}, rows[:1]) == launch.Progress(1, 10, 18.0)
    assert launch.progress({"steps": 10}, []) == launch.Progress(0, 10, None)
    assert launch.progress({}, rows) is None


def test_the_end_of_a_log_is_what_a_terminal_would_show(folder: Path) -> None:
    assert launch.last_lines("mine") == ""
    (runs.LOCAL / "mine").mkdir(parents=True)
    launch.log_path("mine").write_bytes(b"one\n\n1/3|\r2/3|\r3/3| done\ntwo \xff\n")
    assert launch.last_lines("mine") == "one\n3/3| done\ntwo \N{REPLACEMENT CHARACTER}"
    assert launch.last_lines("mine", 1) == "two \N{REPLACEMENT CHARACTER}"


def test_a_second_start_is_refused_while_the_lock_is_held(folder: Path) -> None:
    assert not launch.in_progress()
    runs.LOCAL.mkdir()
    (runs.LOCAL / "training.json").write_text(json.dumps({"run": "a", "pid": 99, "command": [], "started_by": 1}))
    with (runs.LOCAL / "training.lock").open("wb") as lock:
        assert not launch.in_progress()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert launch.in_progress()
        with pytest.raises(UsageError, match=r"a training run is in progress already \(a\)"):
            launch.start([])
    assert not launch.in_progress()


def test_without_a_training_run_there_is_nothing_to_stop(folder: Path) -> None:
    launch.stop()
    launch.end({os.getpid()})
    assert launch.last() is None


# --- real training runs ---

OPTIONS = (
    *("--rollout.engine", "transformers", "--rollout.dtype", "float32"),
    *("--prompts-per-step", "4", "--eval-prompts", "4", "--steps", "10000"),
)  # fmt: skip


@pytest.mark.slow
def test_a_training_is_started_followed_and_stopped(folder: Path) -> None:
    save_tiny_model(folder / "warm_start" / "checkpoint")
    started = launch.start(OPTIONS, task="addition")
    assert (started.run, started.started_by) == ("addition_1", os.getpid())
    assert launch.last() == started
    assert launch.outcome(started) == "running"
    assert os.getpgid(started.pid) == os.getsid(started.pid) == started.pid
    with pytest.raises(UsageError, match=r"in progress already \(addition_1\)"):
        launch.start(OPTIONS)
    run = runs.LOCAL / started.run
    wait_for("two steps", lambda: len(runs.read_metrics(run)) >= 2)
    progress = launch.progress(runs.read_manifest(run).config, runs.read_metrics(run))
    assert progress is not None
    assert progress.step >= 2
    assert progress.steps == 10_000
    launch.stop()
    asked = launch.last()
    assert asked is not None
    assert asked.stop_asked > 0
    assert not launch.may_kill(asked)
    wait_for("the end", lambda: not launch.in_progress())
    assert launch.outcome(asked) == "stopped"
    report = verify(run)
    assert (report.status, report.problems) == ("interrupted", [])
    assert "Traceback" not in launch.last_lines(started.run, 100)


@pytest.mark.slow
def test_a_training_that_does_not_listen_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ignores SIGINT, here any process that has the lock: a second stop after GRACE kills it."""
    code = "import signal, time; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(launch, "train_command", lambda options: command)
    launch.start([], run="deaf")
    wait_for("its first line", lambda: launch.last_lines("deaf") == "deaf")
    launch.stop()
    launch.stop()  # before the end of GRACE nothing more happens
    assert launch.in_progress()
    monkeypatch.setattr(launch, "GRACE", 0.0)
    launch.stop()
    wait_for("the end", lambda: not launch.in_progress())
    last = launch.last()
    assert last is not None
    assert launch.outcome(last) == "stopped"


@pytest.mark.slow
def test_a_finished_training_and_one_that_fails(folder: Path) -> None:
    save_tiny_model(folder / "warm_start" / "checkpoint")
    done = launch.start([*OPTIONS, "--steps", "1"], run="one")
    wait_for("the end", lambda: not launch.in_progress())
    assert launch.outcome(done) == "complete"
    failed = launch.start(["--model", str(folder / "nowhere")], run="two")
    wait_for("the end", lambda: not launch.in_progress())
    assert launch.outcome(failed) == "failed"
    assert "nowhere" in launch.last_lines("two")
