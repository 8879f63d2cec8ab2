"""Queue of batches that were requested ahead. They are made at once, or in a thread while the trainer works.

The staleness alone decides which weights sample a batch, never the speed of the engine. So an asynchronous run has the
same numbers as a synchronous one, and a resumed run the same as an uninterrupted one. The prompts and seeds of a step
depend only on the configuration's seed and the step.

With in-flight weights and a staleness of S, the answers of step s begin with version s − 1 − S of the weights. Whenever
the trainer has a new version, the engine takes it and continues all waiting answers by the same number of tokens, so
that an answer of the longest length has tokens of S + 1 versions, the last of them the trained one. The keys and values
of the earlier tokens are computed again with the new weights. PipelineRL (arXiv:2509.19128) and the partial rollouts of
other systems change weights in the same way, at moments that depend on their speed.
"""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.collect import Collected, RolloutWorker, collect, encode_example, judged
from rlcorr.train.rollout.engine import Samples

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


# --- answers that are continued with newer weights while they are being generated ---

CHUNK = 1 << 52
"""Added to the seed for every continuation, so that its tokens are drawn anew."""


@dataclass(frozen=True)
class Unfinished:
    """The answers of a request as far as they have been generated."""

    request: BatchRequest
    examples: list[Example]
    prompts: list[list[int]]  # one per answer
    samples: Samples  # with versions
    chunks: int = 0
    seconds: float = 0.0


class InFlightQueue:
    """Batches that were requested but not taken yet, whose answers grow with every new version of the weights.

    It has the methods of `BatchQueue`, and samples in the trainer's thread.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks, worker: RolloutWorker, first_step: int) -> None:
        self._config, self._worker, self._share = config, worker, share_of(config, ranks)
        self._steps = prompts_from(config, worker, first_step)
        self._tokens = math.ceil(worker.task.max_tokens / (config.rollout.staleness + 1))
        self._newest: BatchRequest | None = None
        self._waiting: deque[Unfinished] = deque()

    def put(self, request: BatchRequest) -> None:
        """Continue the waiting answers if the request has newer weights, and begin those of its step."""
        newer = self._newest is None or request.version > self._newest.version
        self._newest = request
        self._worker.engine.sync(request.weights)
        if newer:
            self._waiting = deque(self._continued(answers, self._tokens) for answers in self._waiting)
        examples = next(self._steps)[self._share.rows]
        ids = [encode_example(self._worker.tokenizer, self._worker.task, example) for example in examples]
        prompts = [prompt for prompt in ids for _ in range(self._config.samples_per_prompt)]
        begun = Unfinished(request, examples, prompts, _nothing(len(prompts), self._config.rollout.top_logprobs))
        self._waiting.append(self._continued(begun, self._tokens))

    def get(self) -> tuple[BatchRequest, Collected]:
        """Finish the oldest answers with the newest weights, and return their request and their batch."""
        assert self._newest is not None
        self._worker.engine.sync(self._newest.weights)
        answers = self._continued(self._waiting.popleft(), self._worker.task.max_tokens)
        ids = answers.prompts[:: self._config.samples_per_prompt]
        collected = judged(
            self._worker, answers.examples, ids, answers.samples, version=answers.request.version,
            first_group=self._share.rows.start, seconds={"generate": answers.seconds},
        )  # fmt: skip
        return answers.request, collected

    def run_exclusive(self, work: Callable[[], T]) -> T:
        """Run other work on the engine, and return its result."""
        return work()

    @property
    def requests(self) -> list[BatchRequest]:
        """Return the requests that were not taken yet, the oldest first."""
        return [answers.request for answers in self._waiting]

    def close(self) -> None:
        """Drop the batches that were not taken."""
        self._waiting.clear()

    def _continued(self, answers: Unfinished, tokens: int) -> Unfinished:
        """Continue the answers that have not ended by at most this many tokens, with the engine's present weights."""
        assert self._newest is not None
        most, start, so_far = self._worker.task.max_tokens, time.perf_counter(), answers.samples.response_ids
        rows = [
            row for row, ids in enumerate(so_far)
            if len(ids) < most and (not ids or ids[-1] not in self._worker.eos_ids)
        ]  # fmt: skip
        samples = answers.samples
        if rows:
            more = self._worker.engine.generate(
                [answers.prompts[row] + so_far[row] for row in rows], n=1,
                max_tokens=min(tokens, most - len(so_far[rows[0]])), sampling=self._config.rollout.sampling,
                seed=self._share.seed(self._config, answers.request.step) + CHUNK * answers.chunks,
            )  # fmt: skip
            samples = _extended(samples, rows, more, self._newest.version)
        seconds = answers.seconds + time.perf_counter() - start
        return replace(answers, samples=samples, chunks=answers.chunks + 1, seconds=seconds)


def _nothing(rows: int, top: int) -> Samples:
    """Return samples without tokens; with lists of the `top` likeliest tokens, if it is above 0."""
    no_lists = (torch.zeros(0, top, dtype=torch.int64), torch.zeros(0, top))
    empty: list[list[int]] = [[] for _ in range(rows)]
    return Samples(empty, [[] for _ in empty], None, [no_lists for _ in empty] if top else None, empty)


def _extended(samples: Samples, rows: list[int], more: Samples, version: int) -> Samples:
    """Return the samples with these rows continued by the tokens of `more`, which weights of this version sampled."""
    assert samples.versions is not None
    response_ids, log_probs = [*samples.response_ids], [*samples.log_probs]
    versions, top = [*samples.versions], None if samples.top is None else [*samples.top]
    for index, row in enumerate(rows):
        response_ids[row] = response_ids[row] + more.response_ids[index]
        log_probs[row] = log_probs[row] + more.log_probs[index]
        versions[row] = versions[row] + [version] * len(more.response_ids[index])
        if top is not None and more.top is not None:
            top[row] = torch.cat([top[row][0], more.top[index][0]]), torch.cat([top[row][1], more.top[index][1]])
    return Samples(response_ids, log_probs, None, top, versions)
