"""Queue of batches that were requested ahead. They are made at once, or in a thread while the trainer works.

The staleness alone decides which weights sample a batch, never the speed of the engine. So an asynchronous run has the
same numbers as a synchronous one, and a resumed run the same as an uninterrupted one. The prompts and seeds of a step
depend only on the configuration's seed and the step.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.collect import Collected, RolloutWorker, collect

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


# --- making a batch: sync the weights, draw the prompts of the step, sample answers, judge them ---


@dataclass(frozen=True)
class Share:
    """This engine's share of the prompts of every step."""

    engine: int  # ranks that share an engine sample the same prompts
    rows: slice

    def seed(self, config: TrainConfig, step: int) -> int:
        """Return the seed of this engine's samples at a step."""
        return (config.seed << 32) + (step << 8) + self.engine


def share_of(config: TrainConfig, ranks: Ranks) -> Share:
    """Return the share of the engine of this rank."""
    engines = ranks.size // config.rollout.tensor_parallel_size or 1
    engine = ranks.rank // config.rollout.tensor_parallel_size
    return Share(engine, slice(*(config.prompts_per_step * edge // engines for edge in (engine, engine + 1))))


def prompts_from(config: TrainConfig, worker: RolloutWorker, first_step: int) -> Iterator[list[Example]]:
    """Yield the prompts of each step for all engines, from `first_step` on."""
    stream = examples(worker.task, config.seed)
    skipped = (first_step - 1) * config.prompts_per_step
    next(itertools.islice(stream, skipped, skipped), None)
    while True:
        yield list(itertools.islice(stream, config.prompts_per_step))


def sampler(
    config: TrainConfig, ranks: Ranks, worker: RolloutWorker, first_step: int
) -> Callable[[BatchRequest], Collected]:
    """Return a function that samples the batches of consecutive steps, from `first_step` on."""
    share, prompts = share_of(config, ranks), prompts_from(config, worker, first_step)

    def sample(request: BatchRequest) -> Collected:
        start = time.perf_counter()
        worker.engine.sync(request.weights)
        synced = time.perf_counter() - start
        collected = collect(
            worker,
            next(prompts)[share.rows],
            samples=config.samples_per_prompt,
            sampling=config.rollout.sampling,
            version=request.version,
            seed=share.seed(config, request.step),
            first_group=share.rows.start,
        )
        return replace(collected, seconds={**collected.seconds, "sync": synced})

    return sample
