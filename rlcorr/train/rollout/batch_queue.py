"""Queue of batches that were requested ahead. They are made at once, or in a thread while the trainer works.

The staleness alone decides which weights sample a batch, never the speed of the engine. So an asynchronous run has the
same numbers as a synchronous one, and a resumed run the same as an uninterrupted one.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from rlcorr.train.rollout.collect import Collected

T = TypeVar("T")

Weights = list[tuple[str, Tensor]]
"""Every tensor that an engine needs, with its name; for a sharded policy, this rank's shards."""


@dataclass(frozen=True)
class BatchRequest:
    """Request to sample the batch of `step` with the weights of `version` (0: before the first update)."""

    step: int
    version: int
    weights: Weights


class BatchQueue:
    """Batches that were requested but not taken yet. `make` samples the batch of one request; calls never overlap."""

    def __init__(self, make: Callable[[BatchRequest], Collected], *, asynchronous: bool) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "rollout") if asynchronous else None
        self._waiting: deque[tuple[BatchRequest, Future[Collected]]] = deque()

    def put(self, request: BatchRequest) -> None:
        self._waiting.append((request, self._start(lambda: self._make(request))))

    def get(self) -> tuple[BatchRequest, Collected]:
        """Return the oldest request and its batch. An error that occurred while it was made is raised here."""
        request, batch = self._waiting.popleft()
        return request, batch.result()

    def run_exclusive(self, work: Callable[[], T]) -> T:
        """Run other work on the engine after all requested batches are made, and return its result."""
        return self._start(work).result()

    @property
    def requests(self) -> list[BatchRequest]:
        """Return the requests that were not taken yet, the oldest first."""
        return [request for request, _ in self._waiting]

    def close(self) -> None:
        """Wait for the batch that is being made, and drop the others."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _start(self, work: Callable[[], T]) -> Future[T]:
        if self._thread is not None:
            return self._thread.submit(work)
        done: Future[T] = Future()
        done.set_result(work())
        return done
