"""Make the batch of a request: sync the weights, draw the prompts of the step, sample answers, judge them."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.rollout.collect import Collected, RolloutWorker, collect


def sampler(
    config: TrainConfig, ranks: Ranks, worker: RolloutWorker, first_step: int
) -> Callable[[BatchRequest], Collected]:
    """Return a function that samples the batches of consecutive steps, from `first_step` on.

    Its prompts and seeds depend only on the configuration's seed and the step.
    """
    stream = examples(worker.task, config.seed)
    engines = ranks.size // config.rollout.tensor_parallel_size or 1
    engine = ranks.rank // config.rollout.tensor_parallel_size  # ranks that share an engine sample the same prompts
    share = slice(*(config.prompts_per_step * edge // engines for edge in (engine, engine + 1)))
    skipped = (first_step - 1) * config.prompts_per_step
    next(itertools.islice(stream, skipped, skipped), None)

    def sample(request: BatchRequest) -> Collected:
        start = time.perf_counter()
        worker.engine.sync(request.weights)
        synced = time.perf_counter() - start
        step_examples = list(itertools.islice(stream, config.prompts_per_step))
        collected = collect(
            worker,
            step_examples[share],
            samples=config.samples_per_prompt,
            sampling=config.rollout.sampling,
            version=request.version,
            seed=(config.seed << 32) + (request.step << 8) + engine,
            first_group=share.start,
        )
        return replace(collected, seconds={**collected.seconds, "sync": synced})

    return sample
