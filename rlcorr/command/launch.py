"""Training runs that are started, followed and stopped from other processes, such as the app; one at a time.

runs/local/training.lock   locked by the training process while it lives, so that no other process is mistaken for it
runs/local/training.json   the run, process and command that were started last
runs/local/<run>/train.log the output of the training process
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from rlcorr.errors import UsageError
from rlcorr.records import runs
from rlcorr.records.disk import UNREADABLE, content_of, make_folder, naming, opened, write_whole
from rlcorr.records.run_folders import NO_FLOCK, start_of

FORBID = "RLCORR_NO_TRAINING"
"""Environment variable of the app. Unless it is 0, pages cannot start or stop training runs. `play` sets it to 0 if it
serves this machine alone; whoever hosts the app for others must say so."""
GRACE = 20.0
"""Seconds in which a training run may end by itself before it is killed."""

Outcome = Literal["running", "stopping", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Training:
    """The training run that was started last. `stop_asked` is the time of the first request to stop it, 0 if none."""

    run: str
    pid: int
    command: tuple[str, ...]
    started_by: int
    """Id of the process that started it."""
    stop_asked: float = 0.0
    start: str = ""
    """When the process started, see `start_of`: the lock of file systems that have none."""


# --- starting and stopping ---


def is_forbidden() -> bool:
    return os.environ.get(FORBID) != "0"


def start(options: Sequence[str], run: str = "", task: str = "training", *, log: bool = True) -> Training:
    """Start `python -m rlcorr train` with these options and `--run`, in a new session, and return at once.

    Args:
        options: options of `python -m rlcorr train`.
        run: name of the run; empty: the task and the next free number.
        task: name of the task.
        log: write its output to `log_path`, not to the output of this process.

    Raises `UsageError` if another training run is in progress.
    """
    with _lock() as lock:
        _description().unlink(missing_ok=True)  # otherwise a stop could reach the process of the previous run
        run = run or runs.free_name(task)
        command = train_command([*options, "--run", run])
        process = _spawn(command, run, lock, log)
        started = Training(run, process.pid, tuple(command), os.getpid(), start=start_of(process.pid))
        _describe(started)
    threading.Thread(target=process.wait, daemon=True).start()  # otherwise the ended process stays a zombie
    return started


def _spawn(command: Sequence[str], run: str, lock: IO[bytes], log: bool) -> "subprocess.Popen[Any]":
    """Start the process with the lock's file open: the lock is released when no process has that file open."""
    settings: dict[str, Any] = {"start_new_session": True, "pass_fds": [lock.fileno()], "stdin": subprocess.DEVNULL}
    settings["env"] = {**os.environ, "RLCORR_RUNS": str(runs.ROOT)}
    if not log:
        return subprocess.Popen(command, **settings)
    make_folder(runs.LOCAL / run)
    with log_path(run).open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **settings)


def train_command(options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rlcorr", "train", *options]


def stop() -> None:
    """Stop the training run in progress, if there is one.

    The first call sends SIGINT, so that the process closes its run. A call more than `GRACE` seconds later sends
    SIGKILL.
    """
    training = last()
    if training is None or not in_progress():
        return
    if not training.stop_asked:
        _ask_to_stop(training)
    elif may_kill(training):
        _signal(training, signal.SIGKILL)


def end(starters: Container[int]) -> None:
    """End the training run in progress if one of these processes started it, and wait for its end."""
    training = last()
    if training is None or training.started_by not in starters or not in_progress():
        return
    _ask_to_stop(training)
    deadline = time.monotonic() + GRACE
    while in_progress() and time.monotonic() < deadline:
        time.sleep(0.05)
    if in_progress():
        _signal(training, signal.SIGKILL)


def may_kill(training: Training) -> bool:
    """Check whether the run was asked to stop more than `GRACE` seconds ago."""
    return bool(training.stop_asked) and time.time() - training.stop_asked > GRACE


def _ask_to_stop(training: Training) -> None:
    _describe(replace(training, stop_asked=time.time()))
    _signal(training, signal.SIGINT)


def _signal(training: Training, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(training.pid, number)


# --- following ---


def in_progress() -> bool:
    """Check whether a training run in these runs is alive, whichever process started it."""
    try:
        with opened(runs.LOCAL / "training.lock", grows=True) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, UsageError) as error:  # none, of another user, or something else under its name
        training = last()
        without_locks = isinstance(error, OSError) and error.errno in NO_FLOCK
        return without_locks and training is not None and start_of(training.pid) == training.start
    return False


def last() -> Training | None:
    """Return the training run that was started last; None if there is none, or if its description is damaged."""
    try:
        training = Training(**json.loads(content_of(_description())))
    except (*UNREADABLE, TypeError, RecursionError):
        return None
    return replace(training, command=tuple(training.command))


def outcome(training: Training) -> Outcome:
    """Return whether the run is in progress, or how it ended."""
    if in_progress():
        return "stopping" if training.stop_asked else "running"
    try:
        if runs.read_manifest(runs.LOCAL / training.run).status == "complete":
            return "complete"
    except runs.DamagedFile:
        pass  # it ended before it wrote a manifest
    return "stopped" if training.stop_asked else "failed"


def log_path(run: str) -> Path:
    return runs.LOCAL / run / "train.log"


def last_lines(run: str, count: int = 12) -> str:
    """Return the last lines of the log as a terminal shows them: the text after the last carriage return."""
    try:
        with log_path(run).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - 20_000, 0))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = [line.rstrip("\r").split("\r")[-1] for line in text.split("\n") if line.strip()]
    return "\n".join(lines[-count:])


@dataclass(frozen=True)
class Progress:
    """Steps of a training run that are done, and the time for the rest at the pace of the last steps."""

    step: int
    steps: int
    seconds_left: float | None


def progress(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], last: int = 20) -> Progress | None:
    """Return the progress from a manifest's configuration and the rows of metrics; None if `steps` is missing."""
    steps = config.get("steps")
    if steps is None:
        return None
    if not rows:
        return Progress(0, steps, None)
    begin = [0.0] if len(rows) <= last else []  # `elapsed` counts from the start of the first step
    times = [*begin, *(row["elapsed"] for row in rows[-last - 1 :])]
    pace = (times[-1] - times[0]) / (len(times) - 1)
    step = rows[-1]["step"]
    return Progress(step, steps, pace * max(steps - step, 0))


# --- lock and description ---


def _description() -> Path:
    return runs.LOCAL / "training.json"


def _describe(training: Training) -> None:
    write_whole(_description(), json.dumps(asdict(training)).encode())


@contextmanager
def _lock() -> Iterator[IO[bytes]]:
    """Take the lock for a new training run. Raises `UsageError` if another run has it."""
    make_folder(runs.LOCAL, parents=True)
    path = runs.LOCAL / "training.lock"
    with naming(path):
        file = path.open("ab")
    with file as lock:
        if not _try_for_a_while(lock):
            other = last()
            name = f" ({other.run})" if other else ""
            raise UsageError(f"a training run is in progress already{name}: stop it, or wait for its end.")
        yield lock


def _try_for_a_while(lock: IO[bytes]) -> bool:
    """Try to take the lock for a fifth of a second, because `in_progress` holds it for a moment."""
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            return not in_progress()
        time.sleep(0.02)
    return False
