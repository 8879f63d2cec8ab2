"""Record the pairs of a training run, step by step, in a thread. Errors never stop the training run.

with Recorder("my_run") as recorder:
    recorder.add(step=step, batch={"rollout_log_probs": …, "old_log_probs": …, "response_mask": …})
"""

import atexit
import itertools
import operator
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.columns import Columns
from rlcorr.foreign.import_run import write_step_with_metrics
from rlcorr.foreign.steps import merge_parts, to_parts
from rlcorr.foreign.trainer_batch import copy_columns
from rlcorr.records import runs
from rlcorr.records.disk import CannotWrite
from rlcorr.records.run_folders import require_run_name, take_lock
from rlcorr.records.runs import RunManifest
from rlcorr.types import TokenBatch

Batch = TokenBatch | Mapping[str, Any]
"""Tensors (B, T), or (B,) with one number per response, jagged tensors, arrays, lists with one entry per response, and
texts. Names are ours, or those of a system whose dumps can be read. Values that are None and unknown names are
ignored."""

LEFT_OUT = "a step is left out"
PATIENCE = 600.0
"""Seconds that a training run waits at most until a step is written."""


class Recorder:
    """A run in runs/local/<name>, or in `folder`. Steps are written atomically, so the run can be read at any time.

    `add` copies the columns and returns. A thread checks and writes them, and the next `add` waits for it, so at most
    one step is in memory. `add` and `close` raise nothing. An error becomes a warning, once per kind: after a disk
    error nothing more is written, and a batch or an additional column that cannot be read is left out. Threads may
    share a recorder; in a forked process it does nothing. Entering raises `UsageError` if there is a run with this name
    already, unless it is to be `continued`, as after a preemption: then the first step replaces the recorded steps from
    its number on.
    """

    def __init__(
        self,
        name: str,
        *,
        story: str = "",
        folder: Path | None = None,
        continued: bool = False,
        nan_is_ratio_one: bool = False,
        clamp_rounding: bool = False,
    ):
        require_run_name(name)
        self.run = (folder or runs.LOCAL).absolute() / name  # the working directory may change
        self.last_step = 0
        """The last recorded step of a run that is continued."""
        self._manifest = RunManifest(slug=name, story=story or "Recorded during a training run.", engine="unknown")
        self._options = {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="rlcorr-recorder")
        self._pending: Future[tuple[str, ...]] | None = None
        self._stopped = self._closed = False
        self._continued, self._rewinds = continued, False
        self._release: Callable[[], None] = lambda: None
        self._turn = threading.RLock()
        self._process = os.getpid()
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except (CannotWrite, OSError) as error:  # a disk that fails must not keep the training run from its start
            self._stop(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("complete" if kind is None else "interrupted")

    def start(self) -> None:
        """Enter without raising, for hooks that are called in a training run. After an error, nothing is recorded.

        If there is a run with this name already, and it is not to be continued, this one gets the next free name.
        """
        if not self.attempt(lambda: self._begin(may_rename=True), "nothing is recorded"):
            self._stopped = True

    def _begin(self, *, may_rename: bool = False) -> None:
        release = take_lock(self.run)
        try:
            recorded = (self.run / "manifest.json").exists()
            if recorded and self._continued:
                self._manifest = replace(runs.read_manifest(self.run), status="running", files={})
                runs.write_manifest(self.run, self._manifest)
                self.last_step, self._rewinds = max(runs.list_steps(self.run), default=0), True
            elif not (recorded and may_rename):
                runs.start_run(self.run, self._manifest)
        except BaseException:
            release()
            raise
        if not recorded or self._continued:
            self._release, self._process = release, os.getpid()
            atexit.register(self.close, "interrupted")
            return
        release()
        names = (f"{self.run.name}_{n}" for n in itertools.count(2))
        name = next(name for name in names if not self.run.with_name(name).exists())
        reason = f"it exists already, so this is the run {name}; the option continued=True adds to the first one"
        self._warn("nothing is changed", reason)
        self.run, self._manifest = self.run.with_name(name), replace(self._manifest, slug=name)
        self._begin()

    def add(self, *, step: SupportsIndex, batch: Batch) -> None:
        """Record the pairs of a step. The log-probs must be from before any correction."""
        if os.getpid() == self._process:  # the thread that writes does not exist in a forked process
            with self._turn:
                self.attempt(lambda: self._add(step, batch), LEFT_OUT)

    def close(self, status: str = "complete") -> None:
        """Write the last step, and the hashes of all files."""
        if os.getpid() == self._process:
            with self._turn:
                self.attempt(lambda: self._close(status), "the run stays unfinished")
                self.attempt(self._release, "the run stays locked")
                self._closed = True
            atexit.unregister(self.close)

    def attempt(self, work: Callable[[], object], consequence: str) -> bool:
        """Do the work, and return whether it succeeded. An error becomes a warning, if it is the first of its kind."""
        try:
            work()
        # Only here is every error caught: the training run is worth more than its record, and the errors of a trainer's
        # tensors or of a future torch cannot be listed. The warning contains the class of the error.
        # KeyboardInterrupt and SystemExit are not caught.
        except Exception as error:
            reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {first_line(error)}"
            self._warn(consequence, reason.rstrip("."))
            return False
        return True

    def _add(self, step: SupportsIndex, batch: Batch) -> None:
        if self._stopped:
            return
        if self._closed:
            raise UsageError(f"step {step} came after the run was closed.")
        number = operator.index(step)  # also accepts integers of numpy and torch
        if number < 0:
            raise UsageError(f"a step is a number ≥ 0; got {number}.")
        tensors = batch.tensors() if isinstance(batch, TokenBatch) else batch
        columns, names = copy_columns(tensors), [str(name) for name, x in tensors.items() if x is not None]
        self._wait()
        if not self._stopped:
            self._pending = self._writer.submit(self._write, number, columns, names)

    def _close(self, status: str) -> None:
        self._wait()
        self._writer.shutdown(wait=False)
        if not self._stopped and not self._closed:
            runs.finish_run(self.run, replace(self._manifest, status=status))

    def _write(self, step: int, columns: Columns, names: list[str]) -> tuple[str, ...]:
        if self._rewinds:
            runs.rewind(self.run, step - 1)
            self._rewinds = False
        if step in runs.list_steps(self.run):
            raise UsageError(f"step {step} is recorded already.")
        record = merge_parts(to_parts(columns, names, None, **self._options), step)
        write_step_with_metrics(self.run, record)
        return record.notes

    def _wait(self) -> None:
        """Wait for the step that is being written, and warn if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.attempt(lambda: self._check_written(pending), LEFT_OUT)

    def _check_written(self, pending: Future[tuple[str, ...]]) -> None:
        try:
            notes = pending.result(PATIENCE)
        except (CannotWrite, OSError) as error:  # TimeoutError is among the latter
            self._stop(error)
            return
        if notes:
            self._warn("not all is recorded", " ".join(notes).rstrip("."))

    def _stop(self, error: Exception) -> None:
        self._stopped = True
        self._warn("nothing more is written", (str(error) or f"the disk takes more than {PATIENCE:g} s").rstrip("."))

    def _warn(self, consequence: str, reason: str) -> None:
        if consequence in self._warned:
            return
        self._warned.add(consequence)
        message = f"rlcorr: in the run {self.run.name}, {consequence}: {reason}. The training run continues."
        try:
            warnings.warn(message, stacklevel=5)
        except Exception:  # with -W error a warning raises; everything is caught for the same reason as in `attempt`
            with suppress(OSError, ValueError):  # a closed stream
                print(message, file=sys.stderr)
