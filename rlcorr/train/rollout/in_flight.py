"""Answers that are continued with newer weights while they are being generated.

With a staleness of S, the answers of step s begin with version s − 1 − S of the weights. Whenever the trainer has a new
version, the engine takes it and continues all waiting answers by the same number of tokens, so that an answer of the
longest length has tokens of S + 1 versions, the last of them the trained one. The keys and values of the earlier tokens
are computed again with the new weights. PipelineRL (arXiv:2509.19128) and the partial rollouts of other systems change
weights in the same way, at moments that depend on their speed.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import Example
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.batch_queue import BatchRequest, prompts_from, share_of
from rlcorr.train.rollout.collect import Collected, RolloutWorker, encode_example, judged
from rlcorr.train.rollout.engine import Samples

T = TypeVar("T")
CHUNK = 1 << 52
"""Added to the seed for every continuation, so that its tokens are drawn anew."""


@dataclass(frozen=True)
class Unfinished:
    """The answers of a request as far as they have been generated."""

    request: BatchRequest
    examples: list[Example]
    prompts: list[list[int]]  # one per answer
    samples: Samples  # with versions
    chunks: int
    seconds: dict[str, float]


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
        self._waiting.append(self._continued(self._begun(request), self._tokens))

    def get(self) -> tuple[BatchRequest, Collected]:
        """Finish the oldest answers with the newest weights, and return their request and their batch."""
        assert self._newest is not None
        self._worker.engine.sync(self._newest.weights)
        answers = self._continued(self._waiting.popleft(), self._worker.task.max_tokens)
        ids = answers.prompts[:: self._config.samples_per_prompt]
        collected = judged(
            self._worker, answers.examples, ids, answers.samples, version=answers.request.version,
            first_group=self._share.rows.start, seconds=answers.seconds,
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

    def _begun(self, request: BatchRequest) -> Unfinished:
        examples = next(self._steps)[self._share.rows]
        ids = [encode_example(self._worker.tokenizer, self._worker.task, example) for example in examples]
        prompts = [prompt for prompt in ids for _ in range(self._config.samples_per_prompt)]
        empty: list[list[int]] = [[] for _ in prompts]
        top = None
        if count := self._config.rollout.top_logprobs:
            top = [(torch.zeros(0, count, dtype=torch.int64), torch.zeros(0, count)) for _ in prompts]
        samples = Samples(empty, [[] for _ in prompts], None, top, [[] for _ in prompts])
        return Unfinished(request, examples, prompts, samples, 0, {"generate": 0.0, "sync": 0.0})

    def _continued(self, answers: Unfinished, tokens: int) -> Unfinished:
        """Continue the answers that have not ended by at most this many tokens, with the engine's present weights."""
        assert self._newest is not None
        most, start = self._worker.task.max_tokens, time.perf_counter()
        rows = [
            row for row, ids in enumerate(answers.samples.response_ids)
            if len(ids) < most and (not ids or ids[-1] not in self._worker.eos_ids)
        ]  # fmt: skip
        samples = answers.samples
        if rows:
            so_far = samples.response_ids
            more = self._worker.engine.generate(
                [answers.prompts[row] + so_far[row] for row in rows], n=1,
                max_tokens=min(tokens, most - len(so_far[rows[0]])), sampling=self._config.rollout.sampling,
                seed=self._share.seed(self._config, answers.request.step) + CHUNK * answers.chunks,
            )  # fmt: skip
            samples = extended(samples, rows, more, self._newest.version)
        seconds = answers.seconds | {"generate": answers.seconds["generate"] + time.perf_counter() - start}
        return replace(answers, samples=samples, chunks=answers.chunks + 1, seconds=seconds)


def extended(samples: Samples, rows: list[int], more: Samples, version: int) -> Samples:
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
