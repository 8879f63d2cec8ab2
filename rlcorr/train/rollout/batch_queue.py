"""Batches in the order in which they were asked for: made at once, or in a thread while the trainer goes on.

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


@dataclass(frozen=True)
class Order:
    """Sample the batch of `step` with the weights of `version` (0: before the first update)."""

    step: int
    version: int
    weights: list[tuple[str, Tensor]]


class Supply:
    """The orders that wait, and the worker that fills them one after the other."""

    def __init__(self, make: Callable[[Order], Collected], *, asynchronous: bool) -> None:
        self._make = make
        self._worker = ThreadPoolExecutor(1, "rollout") if asynchronous else None
        self._waiting: deque[tuple[Order, Future[Collected]]] = deque()

    def order(self, order: Order) -> None:
        self._waiting.append((order, self._start(lambda: self._make(order))))

    def take(self) -> Collected:
        """The oldest batch. What went wrong while it was made is raised here."""
        return self._waiting.popleft()[1].result()

    def between(self, work: Callable[[], T]) -> T:
        """Use the engine when everything that was ordered is done."""
        return self._start(work).result()

    @property
    def orders(self) -> list[Order]:
        """Not taken yet, oldest first."""
        return [order for order, _ in self._waiting]

    def close(self) -> None:
        """Let the batch in work end, and forget the others."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)

    def _start(self, work: Callable[[], T]) -> Future[T]:
        if self._worker is not None:
            return self._worker.submit(work)
        done: Future[T] = Future()
        done.set_result(work())
        return done
