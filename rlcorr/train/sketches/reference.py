"""The on-policy gradient of a step: answers that the trained weights themselves sample, with their own advantages."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import Reference
from rlcorr.losses.advantages import whiten
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.learner.microbatch import slice_rows
from rlcorr.train.learner.policy import response_states
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import score, with_advantages
from rlcorr.train.rollout.collect import RolloutWorker, batch_of, collect, scored
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.token_scores import Directions, groups_of, head_log_probs, scores_of
from rlcorr.types import TokenBatch

Keep = Callable[[str, Callable[[], dict[str, Tensor]]], dict[str, Tensor]]
"""Returns the tensors of a part with this name: those that an interrupted run has kept, or else new ones."""
OTHER_PROMPTS = 1_000_003
"""Added to the seed of the prompts, so that a sketch does not get the run's prompts in the run's order."""
OTHER_ANSWERS = 1 << 56
"""Added to the seed of the answers, which are not those of the run."""
BLOCKS = 64
"""Most blocks of a reference: with 512 directions they take a quarter of a MB."""


def reference_gradient(
    session: Session, lm: PreTrainedModel, directions: Directions, step: int, keep: Keep
) -> Reference:
    """Sum advantage · score over at least `sketch.reference_answers` answers of the trained weights.

    Prompts are drawn as the run draws them, and have as many answers. A part has as many prompts as a step. Each prompt
    is a block, or several are, if there are many.
    """
    config, worker = session.config, session.worker
    engine = TransformersEngine(RolloutConfig(engine="transformers", dtype="float32"), lm, worker.eos_ids)
    prompts = examples(worker.task, config.seed + OTHER_PROMPTS)
    count = math.ceil(config.sketch.reference_answers / (config.prompts_per_step * config.samples_per_prompt))
    parts = []
    for part in range(count):
        drawn = list(itertools.islice(prompts, config.prompts_per_step))
        seed = OTHER_ANSWERS + (config.seed << 32) + (step << 16) + part
        make = partial(_part, session, replace(worker, engine=engine), lm, directions, drawn, seed)
        parts.append(keep(f"reference_{part + 1}_of_{count}", make))
    columns = {field.name: torch.cat([part[field.name] for part in parts]) for field in fields(Reference)}
    blocks = torch.arange(len(columns["tokens"]))
    blocks = blocks * min(BLOCKS, len(blocks)) // len(blocks)
    return Reference(**{name: _sums(values, blocks) for name, values in columns.items()})


def _part(
    session: Session, worker: RolloutWorker, lm: PreTrainedModel, directions: Directions, prompts: list[Example],
    seed: int,
) -> dict[str, Tensor]:  # fmt: skip
    """Sample answers to these prompts with the engine of `worker`, and return the fields of a `Reference` by prompt.

    Raises `UsageError` if the reward function gave no number for an answer.
    """
    config = session.config
    sampling = Sampling(config.rollout.scored_temperature)
    collected = collect(worker, prompts, samples=config.samples_per_prompt, sampling=sampling, version=0, seed=seed)
    collected = scored(collected)
    if not collected.rewards or not all(math.isfinite(reward or 0.0) for reward in collected.rewards):
        raise UsageError(
            "the reward function gave no number for an answer of the reference gradient; its message is above. The "
            "parts of the sketch that are done are kept for --resume."
        )
    batch = batch_of(collected, session.ranks.device)
    if session.policy.value_head is not None:
        batch = score(batch, session.policy, None, config, ALONE)
    batch = with_advantages(batch, config.advantage)
    assert batch.advantages is not None
    if not config.advantage.grouped:
        batch = batch.replace(advantages=whiten(batch.advantages, batch.response_mask))
    along, lengths = answer_gradients(lm, directions, batch, config.rollout), batch.response_mask.sum(-1).float()
    values = {
        "by_token": along, "by_sequence": along / lengths[:, None],
        "tokens": lengths, "sequences": torch.ones_like(lengths),
    }  # fmt: skip
    return {name: _sums(x, batch.tensors()["group_ids"]).cpu() for name, x in values.items()}


def answer_gradients(lm: PreTrainedModel, directions: Directions, batch: TokenBatch, rollout: RolloutConfig) -> Tensor:
    """Compute Σ advantage · score over the tokens of each answer, (B, K), with one backward pass for many answers."""
    advantages = batch.tensors()["advantages"]
    sums = torch.zeros(len(advantages), directions.count, device=advantages.device)
    active = advantages.any(-1).nonzero()[:, 0]  # the answers to a prompt that have all the same reward have none
    answers = batch.rows(active)
    for rows in groups_of(lm, answers):
        column = partial(_weighted, lm, slice_rows(answers, rows), rollout)
        sums[active[rows]] = scores_of(lm, directions, column)[1][:, 0]
    return sums


def _weighted(lm: PreTrainedModel, batch: TokenBatch, rollout: RolloutConfig) -> Iterator[Tensor]:
    """Yield Σ advantage · log π over the tokens of each answer, (B,)."""
    columns, states = batch.tensors(), response_states(lm, batch, replay=False)
    log_probs = head_log_probs(lm, states, rollout.scored_temperature)
    log_probs = log_probs.gather(-1, columns["response_ids"][..., None])[..., 0]
    yield torch.where(batch.response_mask, columns["advantages"] * log_probs, 0).sum(-1)


def _sums(values: Tensor, groups: Tensor) -> Tensor:
    """Sum the rows of each group: (N, …), (N,) → (G, …)."""
    sums = torch.zeros(int(groups.max()) + 1, *values.shape[1:], device=values.device)
    return sums.index_add_(0, groups, values)
