"""A step's score sketch: the scores of its answers' tokens at the weights before the update."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcorr.gradients.sketch import KLGradients, NextTokens, SampledSketch
from rlcorr.records import runs
from rlcorr.records.sketch_files import kept, unfinished
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.microbatch import slice_rows
from rlcorr.train.learner.policy import response_states
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.reference import Keep, reference_gradient
from rlcorr.train.sketches.token_scores import (
    TOKENS_AT_ONCE,
    Columns,
    Directions,
    draw_directions,
    groups_of,
    has_whole_gradients,
    hash_of,
    head_log_probs,
    scored_copy,
    scores_of,
)
from rlcorr.types import TokenBatch

LARGEST_VOCABULARY = 1024
"""Largest vocabulary whose tokens are all sketched at some positions: each takes a backward pass. In a larger one, the
two gradients of each KL divergence are sketched."""


def sampled_sketch(session: Session, batch: TokenBatch, step: int, weights: Weights) -> SampledSketch:
    """Make the sketch of a step. Call this before the update.

    Args:
        batch: the batch as it was sampled.
        weights: those that sampled it.
    """
    config, lm = session.config, scored_copy(session.policy.lm)
    directions = draw_directions(lm, config.seed, config.sketch.directions)
    hashes = hash_of(dict(lm.named_parameters())), directions.hash
    parts = unfinished(runs.LOCAL / config.run, step)
    of_batch = hash_of({name: batch.tensors()[name] for name in ("prompt_ids", "response_ids", "response_mask")})
    keep = partial(kept, parts, "".join((*hashes, of_batch)))
    reference = None
    if config.sketch.reference_answers:
        reference = reference_gradient(session, lm, directions, step, partial(kept, parts, "".join(hashes)))
    scores = token_scores(lm, directions, batch, batch.response_mask, config, keep)
    following, divergences = next_tokens(session, lm, directions, batch, step, weights)
    return SampledSketch(scores, reference, following, *hashes, divergences)


def token_scores(
    lm: PreTrainedModel, directions: Directions, batch: TokenBatch, wanted: Tensor, config: TrainConfig,
    keep: Keep = lambda _, make: make(),
) -> Tensor:  # fmt: skip
    """Compute the scores of some response tokens along all directions, (N, K).

    Args:
        wanted: which response tokens, (B, T); at least one in each row.
        keep: keeps the scores of the answers that were computed together.
    """
    scores, groups = torch.zeros(*wanted.shape, directions.count, device=wanted.device), groups_of(lm, batch)
    for number, rows in enumerate(groups, 1):
        part = slice_rows(batch, rows)
        chosen = wanted[rows, : part.response_mask.shape[1]]
        columns = partial(answer_columns, lm, part, chosen, config.rollout)
        make = partial(_scores, lm, directions, columns)
        scores[rows, : chosen.shape[1]] = keep(f"answers_{number}_of_{len(groups)}", make)["scores"].to(scores)
    return scores[wanted]


def _scores(lm: PreTrainedModel, directions: Directions, columns: Columns) -> dict[str, Tensor]:
    return {"scores": scores_of(lm, directions, columns)[1]}


def answer_columns(lm: PreTrainedModel, batch: TokenBatch, wanted: Tensor, rollout: RolloutConfig) -> Iterator[Tensor]:
    """Yield log π of the tokens at each response position, (B,); 0 for those that are not wanted, (B, T)."""
    states, ids = response_states(lm, batch, rollout.router_replay), batch.tensors()["response_ids"]
    for column in range(wanted.shape[1]):
        log_probs = head_log_probs(lm, states[:, column], rollout.scored_temperature)
        yield torch.where(wanted[:, column], log_probs.gather(-1, ids[:, column, None])[:, 0], 0)


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
) -> tuple[NextTokens | None, KLGradients | None]:
    """Compute what may follow some random prefixes of the batch: the scores and distributions of all tokens.

    The distributions are those of the policy, the reference, and the engine with the weights that sampled the batch.
    For a vocabulary above `LARGEST_VOCABULARY`, the gradients of the KL divergences between them.
    """
    config, reference = session.config, session.reference
    rollout, prefixes = config.rollout, random_prefixes(batch, config.sketch.places, step)

    def engine_log_probs() -> Tensor:
        session.worker.engine.sync(weights)
        return session.worker.engine.next_log_probs(prefixes, rollout.sampling).log_probs

    temperature = rollout.scored_temperature
    others = {"rollout": session.queue.run_exclusive(engine_log_probs)}
    if reference is not None:
        others["ref"] = next_log_probs(reference.lm, prefixes, temperature).detach()
    if lm.config.vocab_size > LARGEST_VOCABULARY:
        return None, kl_gradients(lm, directions, prefixes, temperature, others)
    values, scores = _at_prefixes(
        lm,
        directions,
        prefixes,
        lambda rows: next_log_probs(lm, [prefixes[row] for row in rows], temperature).unbind(-1),
    )
    return NextTokens(values, scores, others.get("ref"), others["rollout"]), None


def kl_gradients(
    lm: PreTrainedModel, directions: Directions, prefixes: list[list[int]], temperature: float,
    others: Mapping[str, Tensor],
) -> KLGradients:  # fmt: skip
    """Compute the gradients of both KL divergences between π and each other policy, two backward passes for each.

    Args:
        others: "rollout" and perhaps "ref" → log-probs of all tokens after each prefix, (P, V). A token that is
            impossible there cannot be compared, and counts 0.
    """

    def columns(rows: list[int]) -> Iterator[Tensor]:
        log_probs = next_log_probs(lm, [prefixes[row] for row in rows], temperature)
        policy = log_probs.detach()
        for theirs in (of_all[rows] for of_all in others.values()):
            yield (policy.exp() * (policy - torch.where(theirs > -math.inf, theirs, policy)) * log_probs).sum(-1)
            yield -(theirs.exp() * log_probs).sum(-1)

    _, along = _at_prefixes(lm, directions, prefixes, columns)
    of_other = dict(zip(others, along.transpose(0, 1).unflatten(0, (-1, 2)), strict=True))
    return KLGradients(*of_other["rollout"], *of_other.get("ref", ()))


def _at_prefixes(
    lm: PreTrainedModel, directions: Directions, prefixes: list[list[int]],
    columns: Callable[[list[int]], Iterable[Tensor]],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return what `scores_of` returns of columns at these prefixes, as many at once as fit."""
    count = 1 if has_whole_gradients(lm) else max(1, TOKENS_AT_ONCE // max(map(len, prefixes)))
    groups = [list(range(len(prefixes)))[start : start + count] for start in range(0, len(prefixes), count)]
    values, scores = zip(*(scores_of(lm, directions, partial(columns, rows)) for rows in groups), strict=True)
    return torch.cat(values), torch.cat(scores)


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
