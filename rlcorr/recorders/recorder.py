"""One run of a training's pairs, a step at a time, written beside the training, which it never breaks.

with Recorder("my_run") as recorder:
    recorder.add(step=step, batch={"rollout_log_probs": …, "old_log_probs": …, "response_mask": …})
"""

import operator
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.columns import Columns
from rlcorr.foreign.held import copied
from rlcorr.foreign.imported import write_one
from rlcorr.foreign.pairs import parts_of, record_of
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.types import TokenBatch

Batch = TokenBatch | Mapping[str, Any]
"""Tensors (B, T), or per response (B,), jagged tensors, arrays, lists with an entry per response, and texts, under our
names or those of a system whose dumps are read. What is None is not there, and names that nobody reads are ignored."""

LEFT_OUT = "a step is left out"


class Recorder:
    """A run in runs/local/<name>, or in `folder`. A step appears whole or not at all, so the run can be followed.

    `add` copies the columns and returns; a thread looks at them and writes them, and the next `add` waits for it, so
    that one step at most is held. Nothing that goes wrong in `add` or `close` is raised. It becomes a warning, one of
    each kind: after an error of the disk nothing more is written, a batch that cannot be read is left out, and so is a
    column beside the pair. Raises `UsageError` on entering where there is such a run.
    """

    def __init__(
        self,
        name: str,
        *,
        story: str = "",
        folder: Path | None = None,
        nan_is_ratio_one: bool = False,
        clamp_rounding: bool = False,
    ):
        if Path(name).name != name or name == "..":
            raise UsageError(f"the name of a run must be plain, without folders; got {name!r}.")
        self.run = (folder or runs.LOCAL) / name
        self._manifest = RunManifest(slug=name, story=story or "Recorded during a training.", engine="unknown")
        self._options = {"nan_is_ratio_one": nan_is_ratio_one, "clamp_rounding": clamp_rounding}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="rlcorr-recorder")
        self._pending: Future[tuple[str, ...]] | None = None
        self._stopped = self._closed = False
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        runs.start_run(self.run, self._manifest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("complete" if kind is None else "interrupted")

    def start(self) -> None:
        """Enter, for hooks that are called when a training runs already: without a run, nothing is recorded."""
        if not self.attempt(self.__enter__, "nothing is recorded"):
            self._stopped = True

    def add(self, *, step: SupportsIndex, batch: Batch) -> None:
        """Record the pairs of a step, from before any correction."""
        self.attempt(lambda: self._add(step, batch), LEFT_OUT)

    def close(self, status: str = "complete") -> None:
        """Write what is left, and the hashes of all files."""
        self.attempt(lambda: self._close(status), "the run stays unfinished")
        self._closed = True

    def attempt(self, work: Callable[[], object], consequence: str) -> bool:
        """Do the work, and return whether it was done. What it raises becomes a warning, the first of its kind."""
        try:
            work()
        # Only here: a training run is worth more than its record, and what a trainer's tensors or a future torch may
        # raise cannot be listed. The warning has the error's class. KeyboardInterrupt and SystemExit pass.
        except Exception as error:
            said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {first_line(error)}"
            self._warn(consequence, said.rstrip("."))
            return False
        return True

    def _add(self, step: SupportsIndex, batch: Batch) -> None:
        if self._stopped:
            return
        if self._closed:
            raise UsageError(f"step {step} came after the run was closed.")
        number = operator.index(step)  # also of numpy and torch
        if number < 0:
            raise UsageError(f"a step is a number ≥ 0; got {number}.")
        tensors = batch.tensors() if isinstance(batch, TokenBatch) else batch
        columns, names = copied(tensors), [str(name) for name, x in tensors.items() if x is not None]
        self._wait()
        if not self._stopped:
            self._pending = self._writer.submit(self._write, number, columns, names)

    def _close(self, status: str) -> None:
        self._wait()
        self._writer.shutdown()
        if not self._stopped and not self._closed:
            runs.finish_run(self.run, replace(self._manifest, status=status))

    def _write(self, step: int, columns: Columns, names: list[str]) -> tuple[str, ...]:
        if step in runs.list_steps(self.run):
            raise UsageError(f"step {step} is recorded already.")
        record = record_of(parts_of(columns, names, None, **self._options), step)
        write_one(self.run, record)
        return record.notes

    def _wait(self) -> None:
        """Wait for the step that is being written, and say what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.attempt(lambda: self._written(pending), LEFT_OUT)

    def _written(self, pending: Future[tuple[str, ...]]) -> None:
        try:
            notes = pending.result()
        except OSError as error:
            self._stopped = True
            for unfinished in self.run.rglob("*.tmp"):
                unfinished.unlink(missing_ok=True)
            self._warn("nothing more is written", str(error.strerror or error))
            return
        if notes:
            self._warn("not all is recorded", " ".join(notes).rstrip("."))

    def _warn(self, consequence: str, why: str) -> None:
        if consequence in self._warned:
            return
        self._warned.add(consequence)
        said = f"rlcorr: of the run {self.run.name}, {consequence}: {why}. The training goes on."
        try:
            warnings.warn(said, stacklevel=5)
        except Exception:  # as a warning is with -W error; and for the same reason as in `attempt`
            print(said, file=sys.stderr)
