"""Make the batch of a request: sync the weights, draw the prompts of the step, sample answers, judge them.

The prompts and seeds of a step depend only on the configuration's seed and the step.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.rollout.collect import Collected, RolloutWorker, collect


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
