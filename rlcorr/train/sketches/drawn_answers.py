"""Further answers for a step's sketch: where answers are long and a step has few, its own tell little of a gradient.

They are drawn like the step's own, by the engine with the weights that sampled those, to prompts that no step trains
on. The training goes on as if they had not been drawn.
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
"""Added to the seed of the prompts: neither the run's own nor those of the reference."""


def drawn_answers(session: Session, request: BatchRequest) -> DrawnAnswers:
    """As many as the configuration asks for; the policy not yet updated.

    Raises `UsageError` where the reward function raised or could not judge, and where the engine gave bad log-probs.
    """
    config, device = session.config, session.ranks.device
    batch = batch_of(session.queue.when_idle(lambda: _collected(session, request)), device)
    assert batch.rewards is not None
    lacking = ~batch.rollout_log_probs.isfinite() & batch.response_mask
    if bool(lacking.any()) or not bool(batch.rewards.isfinite().all()):
        raise UsageError(
            f"step {request.step}: of the answers drawn for its sketch some have no reward or no log-prob, so no "
            "gradient can be measured on them."
        )
    batch = as_updated(session, batch, config)
    count = config.sketch.answer_directions or config.sketch.directions
    return DrawnAnswers(batch, scores_of(session, eager_copy(session.policy), batch, count))


def _collected(session: Session, request: BatchRequest) -> Collected:
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
