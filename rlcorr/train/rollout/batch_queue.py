"""The queue of batches that were requested ahead: made at once, or in a thread while the trainer goes on.

The weights that a batch is sampled with are fixed by the staleness, never by who is faster: an asynchronous run has the
same numbers as a synchronous one, and a resumed run as an uninterrupted one.
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
"""Every tensor that an engine needs, by name; of a sharded policy this rank's shards."""


@dataclass(frozen=True)
class BatchRequest:
    """Sample the batch of `step` with the weights of `version` (0: before the first update)."""

    step: int
    version: int
    weights: Weights


class BatchQueue:
    """Batches that were requested and not taken yet. `make` samples one; it is called for one request at a time."""

    def __init__(self, make: Callable[[BatchRequest], Collected], *, asynchronous: bool) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "rollout") if asynchronous else None
        self._waiting: deque[tuple[BatchRequest, Future[Collected]]] = deque()

    def put(self, request: BatchRequest) -> None:
        self._waiting.append((request, self._start(lambda: self._make(request))))

    def get(self) -> tuple[BatchRequest, Collected]:
        """The oldest request and its batch. What went wrong while it was made is raised here."""
        request, batch = self._waiting.popleft()
        return request, batch.result()

    def when_idle(self, work: Callable[[], T]) -> T:
        """Use the engine for something else, once all requested batches are made."""
        return self._start(work).result()

    @property
    def requests(self) -> list[BatchRequest]:
        """Not taken yet, oldest first."""
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
