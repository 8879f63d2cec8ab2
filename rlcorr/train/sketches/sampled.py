"""A step's score sketch: the scores of its answers' tokens at the weights before the update."""

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcorr.gradients.sketch import NextTokens, SampledSketch
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.token_scores import Directions, draw_directions, hash_of, scored_copy, scores_of
from rlcorr.types import TokenBatch

OTHER_PROMPTS = 1_000_003
"""Added to the seed of the prompts, so that an exact sketch does not get the run's prompts in the run's order."""
LARGEST_VOCABULARY = 1024
"""Largest vocabulary whose tokens are all sketched at some positions: each takes a backward pass."""


def sampled_sketch(session: Session, batch: TokenBatch, step: int, weights: Weights) -> SampledSketch:
    """Make the sketch of a step. Call this before the update.

    Args:
        batch: the batch as it was sampled.
        weights: those that sampled it.
    """
    config, lm = session.config, scored_copy(session.policy.lm)
    directions = draw_directions(lm, config.seed, config.sketch.directions)
    return SampledSketch(
        scores=token_scores(lm, directions, batch, batch.response_mask, config),
        next_tokens=next_tokens(session, lm, directions, batch, step, weights),
        weights_hash=hash_of(dict(lm.named_parameters())),
        directions_hash=directions.hash,
    )


def token_scores(
    lm: PreTrainedModel, directions: Directions, batch: TokenBatch, wanted: Tensor, config: TrainConfig
) -> Tensor:
    """Compute the scores of some response tokens along all directions, (N, K).

    Args:
        wanted: which response tokens, (B, T); at least one in each row.
    """
    if not config.rollout.router_replay:
        batch = replace(batch, routed_experts=None)
    temperature, mask = config.rollout.scored_temperature, batch.response_mask.cpu()

    def log_probs(row: int) -> Tensor:
        return answer_log_probs(lm, batch, row, temperature)[wanted[row].cpu()[mask[row]]]

    return torch.cat([scores_of(lm, directions, lambda row=row: log_probs(row))[1] for row in range(len(mask))])


def answer_log_probs(lm: PreTrainedModel, batch: TokenBatch, row: int, temperature: float) -> Tensor:
    """Compute log π of the response tokens of one row, (n,), in one forward pass without padding."""
    columns, mask = batch.tensors(), batch.response_mask[row]
    prompt, response = columns["prompt_ids"][row][columns["prompt_mask"][row]], columns["response_ids"][row][mask]
    ids = torch.cat([prompt, response])[None]
    routes = None
    if batch.routed_experts is not None:
        routes = batch.routed_experts[row, torch.cat([columns["prompt_mask"][row], mask])][None]
    with replayed(lm, routes, torch.ones_like(ids, dtype=torch.bool)):
        states = lm.base_model(ids, use_cache=False)[0][0, len(prompt) - 1 : -1]
    return head_log_probs(lm, states, temperature).gather(-1, response[:, None])[:, 0]


def head_log_probs(lm: PreTrainedModel, states: Tensor, temperature: float) -> Tensor:
    """Compute the log-probs of all tokens from the last hidden states, (..., H) → (..., V)."""
    head = lm.get_output_embeddings()
    assert head is not None
    return (head(states).float() / temperature).log_softmax(-1)


def random_prefixes(batch: TokenBatch, count: int, seed: int) -> list[list[int]]:
    """Draw `count` response tokens of the batch, and return the ids before each: the prompt and the response so far."""
    columns, positions = batch.tensors(), batch.response_mask.nonzero()
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(seed))[:count]
    return [
        columns["prompt_ids"][row][columns["prompt_mask"][row]].tolist()
        + columns["response_ids"][row, :column].tolist()
        for row, column in positions[order.to(positions.device)].tolist()
    ]


def next_tokens(
    session: Session, lm: PreTrainedModel, directions: Directions, batch: TokenBatch, step: int, weights: Weights
) -> NextTokens | None:
    """Compute the scores and distributions of all tokens that may follow some random prefixes of the batch.

    The distributions are those of the policy, the reference, and the engine with the weights that sampled the batch.
    Return None for a vocabulary above `LARGEST_VOCABULARY`.
    """
    if lm.config.vocab_size > LARGEST_VOCABULARY:
        return None
    config, reference = session.config, session.reference
    rollout, prefixes = config.rollout, random_prefixes(batch, config.sketch.places, step)
    at_each = [
        scores_of(lm, directions, lambda prefix=prefix: next_log_probs(lm, [prefix], rollout.scored_temperature)[0])
        for prefix in prefixes
    ]

    def engine_log_probs() -> Tensor:
        session.worker.engine.sync(weights)
        return session.worker.engine.next_log_probs(prefixes, rollout.sampling).log_probs

    return NextTokens(
        log_probs=torch.stack([log_probs for log_probs, _ in at_each]),
        scores=torch.stack([scores for _, scores in at_each]),
        ref_log_probs=(
            None if reference is None else next_log_probs(reference.lm, prefixes, rollout.scored_temperature).detach()
        ),
        rollout_log_probs=session.queue.run_exclusive(engine_log_probs),
    )


def next_log_probs(
    lm: PreTrainedModel, prefixes: list[list[int]], temperature: float, routed_experts: list[Tensor] | None = None
) -> Tensor:
    """Compute log π(token | prefix) of every token, (P, V); with `routed_experts`, the model uses these experts."""
    ids, mask = left_padded(prefixes, lm.device)
    routes = None
    if routed_experts is not None:
        routes = torch.full((*mask.shape, *routed_experts[0].shape[1:]), -1, device=mask.device)
        routes[mask] = torch.cat(routed_experts).to(routes)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    with replayed(lm, routes, mask):
        states = lm.base_model(ids, attention_mask=mask, position_ids=positions, use_cache=False)[0][:, -1]
    return head_log_probs(lm, states, temperature)
