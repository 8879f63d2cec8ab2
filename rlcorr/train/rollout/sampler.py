"""From an order to its samples: take the weights, draw the prompts of that step, sample, judge."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from transformers import PreTrainedTokenizerFast

from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import Task, examples
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.rollout.batch_queue import Order
from rlcorr.train.rollout.collect import Collected, collect
from rlcorr.train.rollout.engine import RolloutEngine


def sampler(
    config: TrainConfig,
    ranks: Ranks,
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    engine: RolloutEngine,
    stops: list[int],
    first_step: int,
) -> Callable[[Order], Collected]:
    """Fills orders of consecutive steps from `first_step` on: the prompts and the seed are functions of the step."""
    stream = examples(task, config.seed)
    engines = ranks.size // config.rollout.tensor_parallel_size or 1
    which = ranks.rank // config.rollout.tensor_parallel_size  # ranks that share an engine sample the same prompts
    share = slice(*(config.prompts_per_step * edge // engines for edge in (which, which + 1)))
    skipped = (first_step - 1) * config.prompts_per_step
    next(itertools.islice(stream, skipped, skipped), None)

    def make(order: Order) -> Collected:
        start = time.perf_counter()
        engine.sync(order.weights)
        synced = time.perf_counter() - start
        drawn = list(itertools.islice(stream, config.prompts_per_step))
        collected = collect(
            engine,
            tokenizer,
            task,
            drawn[share],
            stops=stops,
            samples=config.samples_per_prompt,
            sampling=config.rollout.sampling,
            version=order.version,
            seed=(config.seed << 32) + (order.step << 8) + which,
            first_group=share.start,
        )
        return replace(collected, seconds={**collected.seconds, "sync": synced})

    return make
