"""One run of a training's pairs, a step at a time, written beside the training, which it never breaks.

with Recorder("my_run") as recorder:
    recorder.add(step=step, batch={"rollout_log_probs": …, "old_log_probs": …, "response_mask": …})
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.arrays import tensor_column
from rlcorr.foreign.columns import Column
from rlcorr.foreign.imported import write_one
from rlcorr.foreign.pairs import parts_of, record_of
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.types import TokenBatch

Batch = TokenBatch | Mapping[str, Tensor | Sequence[str]]
"""Tensors (B, T), or per response (B,), and texts, under our names or those of a system whose dumps are read."""


class Recorder:
    """A run in runs/local/<name>, or in `folder`. A step appears whole or not at all, so the run can be followed.

    `add` copies the tensors and returns; a thread looks at them and writes them, and the next `add` waits for it, so
    that one step at most is held. What goes wrong there becomes one warning: after an error of the disk nothing more is
    written, and a batch that cannot be read is left out. Raises `UsageError` on entering where there is such a run.
    """

    def __init__(self, name: str, *, story: str = "", folder: Path | None = None, nan_is_ratio_one: bool = False):
        if Path(name).name != name or name == "..":
            raise UsageError(f"the name of a run must be plain, without folders; got {name!r}.")
        self.run = (folder or runs.LOCAL) / name
        self._manifest = RunManifest(slug=name, story=story or "Recorded during a training.", engine="unknown")
        self._nan_is_ratio_one = nan_is_ratio_one
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="rlcorr-recorder")
        self._pending: Future[None] | None = None
        self._stopped = self._warned = False

    def __enter__(self) -> Self:
        runs.start_run(self.run, self._manifest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("complete" if kind is None else "interrupted")

    def add(self, *, step: int, batch: Batch) -> None:
        """Record the pairs of a step, from before any correction."""
        if self._stopped:
            return
        tensors = batch.tensors() if isinstance(batch, TokenBatch) else batch
        copied = {name: x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x for name, x in tensors.items()}
        self._wait()
        if not self._stopped:
            self._pending = self._writer.submit(self._write, step, copied)

    def close(self, status: str = "complete") -> None:
        """Write what is left, and the hashes of all files."""
        self._wait()
        self._writer.shutdown()
        if not self._stopped:
            self._guarded(lambda: runs.finish_run(self.run, replace(self._manifest, status=status)))
        self._stopped = True

    def _write(self, step: int, batch: Mapping[str, Tensor | Sequence[str]]) -> None:
        if step in runs.list_steps(self.run):
            raise UsageError(f"step {step} is recorded already.")
        columns = {name: _column(name, x) for name, x in batch.items()}
        parts = parts_of(columns, list(columns), None, nan_is_ratio_one=self._nan_is_ratio_one)
        write_one(self.run, record_of(parts, step))

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._guarded(pending.result)

    def _guarded(self, work: Callable[[], object]) -> None:
        """A training must not end because its record cannot be written."""
        try:
            work()
        except UsageError as error:
            self._warn(f"a step is left out: {error}")
        except OSError as error:
            self._stopped = True
            for unfinished in self.run.rglob("*.tmp"):
                unfinished.unlink(missing_ok=True)
            self._warn(f"nothing more is written: {error.strerror or error}.")

    def _warn(self, what: str) -> None:
        if not self._warned:
            warnings.warn(f"rlcorr: of the run {self.run.name}, {what} The training goes on.", stacklevel=4)
        self._warned = True


def _column(name: str, values: Tensor | Sequence[str]) -> Column:
    return tensor_column(name, values) if isinstance(values, Tensor) else [str(text) for text in values]
