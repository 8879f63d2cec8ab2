"""A training beside the app: one at a time, started, followed and stopped by whoever looks at these runs.

runs/local/training.lock   locked by the training itself as long as it lives, so that no process is mistaken for it
runs/local/training.json   what was started last: its run, its process, its command
runs/local/<run>/train.log what it printed
"""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from rlcorr.errors import UsageError
from rlcorr.records import runs

FORBID = "RLCORR_NO_TRAINING"
"""Environment variable of the app: anything but nothing or 0 forbids to start and to stop trainings from its pages."""
GRACE = 20.0
"""Seconds that a training gets to end by itself before it may be killed."""

Outcome = Literal["running", "stopping", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Training:
    """What was started last. `stop_asked` is the time at which somebody asked it to stop, 0 if nobody did."""

    run: str
    pid: int
    command: tuple[str, ...]
    started_by: int
    """The process that started it."""
    stop_asked: float = 0.0


# --- starting and stopping ---


def is_forbidden() -> bool:
    return os.environ.get(FORBID, "") not in ("", "0")


def start(options: Sequence[str], run: str = "", task: str = "training") -> Training:
    """What a page does: `launch` under the name `run`, or that of the task and the next free number, with its output in
    `log_path`. Raises `UsageError` while another training is in progress, and where starting is forbidden."""
    _refuse_if_forbidden()
    return launch(options, run, task)


def launch(options: Sequence[str], run: str = "", task: str = "training", *, log: bool = True) -> Training:
    """`python -m rlcorr train` with these options and `--run`, in a session of its own. Raises `UsageError` while
    another training is in progress. Without `log` it prints where this process prints."""
    with _lock() as lock:
        _description().unlink(missing_ok=True)  # nobody must stop the process of the training before
        run = run or runs.free_name(task)
        command = train_command([*options, "--run", run])
        process = _spawn(command, run, lock, log)
        started = Training(run, process.pid, tuple(command), os.getpid())
        _describe(started)
    threading.Thread(target=process.wait, daemon=True).start()  # else it stays in the process table when it has ended
    return started


def _spawn(command: Sequence[str], run: str, lock: IO[bytes], log: bool) -> "subprocess.Popen[Any]":
    """Start it with the lock's file open: the lock is free again once no process has that file open."""
    settings: dict[str, Any] = {"start_new_session": True, "pass_fds": [lock.fileno()], "stdin": subprocess.DEVNULL}
    settings["env"] = {**os.environ, "RLCORR_RUNS": str(runs.ROOT)}
    if not log:
        return subprocess.Popen(command, **settings)
    (runs.LOCAL / run).mkdir(exist_ok=True)
    with log_path(run).open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **settings)


def train_command(options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rlcorr", "train", *options]


def as_typed(command: Sequence[str]) -> str:
    """A command as one types it into a shell."""
    return shlex.join(command)


def stop() -> None:
    """Ask the training in progress to end: SIGINT, so that it closes its run; SIGKILL if that was `GRACE` seconds ago
    and it does not listen. Without one in progress nothing happens. Raises `UsageError` where it is forbidden."""
    _refuse_if_forbidden()
    training = last()
    if training is None or not in_progress():
        return
    if not training.stop_asked:
        _describe(replace(training, stop_asked=time.time()))
        _signal(training, signal.SIGINT)
    elif may_kill(training):
        _signal(training, signal.SIGKILL)


def end(starters: Container[int]) -> None:
    """End the training in progress, and wait, if one of these processes started it."""
    training = last()
    if training is None or training.started_by not in starters or not in_progress():
        return
    _describe(replace(training, stop_asked=time.time()))
    _signal(training, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    while in_progress() and time.monotonic() < deadline:
        time.sleep(0.05)
    if in_progress():
        _signal(training, signal.SIGKILL)


def may_kill(training: Training) -> bool:
    return bool(training.stop_asked) and time.time() - training.stop_asked > GRACE


def _signal(training: Training, number: signal.Signals) -> None:
    try:
        os.killpg(training.pid, number)
    except ProcessLookupError:
        return  # it has ended at this very moment


def _refuse_if_forbidden() -> None:
    if is_forbidden():
        raise UsageError(f"trainings cannot be started or stopped here: {FORBID} is set.")


# --- what is known of it ---


def in_progress() -> bool:
    """Whether a training that was started here is alive, whoever started it."""
    try:
        lock = (runs.LOCAL / "training.lock").open("rb")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def last() -> Training | None:
    """What was started last, in progress or not; None if nothing was, or its description cannot be read."""
    try:
        training = Training(**json.loads(_description().read_text(encoding="utf-8")))
        plain = Path(training.run).name == training.run and training.run not in ("", "..")
        a_process = isinstance(training.pid, int) and training.pid > 1
        right = plain and a_process and isinstance(training.stop_asked, int | float)
        return replace(training, command=tuple(training.command)) if right else None
    except (OSError, ValueError, TypeError):
        return None


def outcome(training: Training) -> Outcome:
    """Whether it runs, or how it ended: after its last step, because somebody stopped it, or otherwise."""
    if in_progress():
        return "stopping" if training.stop_asked else "running"
    try:
        if runs.read_manifest(runs.LOCAL / training.run).status == "complete":
            return "complete"
    except runs.DamagedFile:
        pass  # it ended before it wrote one
    return "stopped" if training.stop_asked else "failed"


def log_path(run: str) -> Path:
    return runs.LOCAL / run / "train.log"


def last_lines(run: str, count: int = 12) -> str:
    """The end of its log, each line as a terminal shows it: what came after its last carriage return."""
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
    """How far a training is, and how long the rest takes at the pace of its last steps."""

    step: int
    steps: int
    seconds_left: float | None


def progress(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], last: int = 20) -> Progress | None:
    """From a manifest's configuration and the rows of metrics; None where they do not say."""
    steps = config.get("steps")
    if not isinstance(steps, int) or steps < 1:
        return None
    if not rows:
        return Progress(0, steps, None)
    step, elapsed = rows[-1]["step"], [row.get("elapsed") for row in rows[-last - 1 :]]
    begin = [0.0] if len(rows) <= last else []  # `elapsed` counts from the start of the first step
    times = [*begin, *(seconds for seconds in elapsed if isinstance(seconds, int | float))]
    if len(times) < 2:
        return Progress(step, steps, None)
    pace = (times[-1] - times[0]) / (len(times) - 1)
    return Progress(step, steps, pace * max(steps - step, 0))


# --- parts ---


def _description() -> Path:
    return runs.LOCAL / "training.json"


def _describe(training: Training) -> None:
    runs.write_whole(_description(), json.dumps(asdict(training)).encode())


@contextmanager
def _lock() -> Iterator[IO[bytes]]:
    """The lock of the training to be started. Raises `UsageError` if another one holds it."""
    runs.LOCAL.mkdir(parents=True, exist_ok=True)
    with (runs.LOCAL / "training.lock").open("ab") as lock:
        if not _locked_soon(lock):
            other = last()
            named = f" ({other.run})" if other else ""
            raise UsageError(f"a training is in progress already{named}: stop it, or wait for its end.")
        yield lock


def _locked_soon(lock: IO[bytes]) -> bool:
    """Tried for a fifth of a second, because `in_progress` holds the lock for the moment in which it looks."""
    for _ in range(10):
        if _locked(lock):
            return True
        time.sleep(0.02)
    return False


def _locked(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
