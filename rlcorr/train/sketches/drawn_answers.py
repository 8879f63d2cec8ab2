"""Additional answers for a step's sketch. If answers are long and few, the step's own are not enough for a gradient.

The engine draws them as it drew the step's own answers, with the same weights, to prompts that no step trains on. They
have no effect on the training run.
"""

import itertools

from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import DrawnAnswers
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.rollout.collect import Collected, batch_of, collect
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.sampled import OTHER_PROMPTS, as_updated, eager_copy, scores_of

STREAM = 2 * OTHER_PROMPTS
"""Added to the seed of the prompts, so that they differ from the run's own and from those of the reference."""


def drawn_answers(session: Session, request: BatchRequest) -> DrawnAnswers:
    """Draw as many answers as the configuration asks for, and compute their scores. Call this before the update.

    Raises `UsageError` if the reward function raised or could not judge, or if the engine gave bad log-probs.
    """
    config, device = session.config, session.ranks.device
    batch = batch_of(session.queue.run_exclusive(lambda: _collect(session, request)), device)
    assert batch.rewards is not None
    bad = ~batch.rollout_log_probs.isfinite() & batch.response_mask
    if bool(bad.any()) or not bool(batch.rewards.isfinite().all()):
        raise UsageError(
            f"step {request.step}: some answers drawn for its sketch have no reward or no log-prob, so no gradient can "
            "be measured on them."
        )
    batch = as_updated(session, batch, config)
    count = config.sketch.answer_directions or config.sketch.directions
    return DrawnAnswers(batch, scores_of(session, eager_copy(session.policy), batch, count))


def _collect(session: Session, request: BatchRequest) -> Collected:
    config, worker = session.config, session.worker
    worker.engine.sync(request.weights)
    stream = examples(worker.task, config.seed + STREAM)
    return collect(
        worker,
        list(itertools.islice(stream, config.sketch.answers // config.samples_per_prompt)),
        samples=config.samples_per_prompt,
        sampling=config.rollout.sampling,
        version=request.version,
        seed=(config.seed << 32) + (request.step << 8) + 254,
    )
