"""A step's score sketch and its on-policy reference, both at the weights before the update.

One pass of forward-mode differentiation gives the derivative of every token's log-prob along one direction of the whole
parameter space; K directions give K numbers per token.
"""

import copy
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from transformers import PreTrainedModel

from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import NextTokens, Reference, SampledSketch
from rlcorr.losses.advantages import whiten
from rlcorr.masked import masked_sum
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.learner.microbatch import lengths_of, plan_microbatches, slice_rows
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.learner.score import score, with_advantages
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.collect import batch_of, collect
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session.session import Session
from rlcorr.types import TokenBatch

TOGETHER = 8
"""Directions per pass; they share the forward pass."""
BLOCKS = 32
"""Blocks of responses in the reference."""
GRADIENT_BYTES = 2**29
"""Memory for the gradients of several blocks of the reference; at least one block is processed at a time. Every group
of blocks draws all directions again, which for a small model takes longer than the gradients."""
OTHER_PROMPTS = 1_000_003
"""Added to the seed of the prompts, so that the reference does not get the run's prompts in the run's order."""
MICROBATCH_TOKENS = 512
"""Tokens per pass. Their tangents along eight directions stay in the cache; 4096 tokens take half as long again."""


def sampled_sketch(session: Session, batch: TokenBatch, step: int, weights: Weights) -> SampledSketch:
    """Make the sketch of a step: the scores of the batch's tokens, and the reference. Call this before the update.

    Args:
        batch: the batch as it was sampled.
        weights: those that sampled it.
    """
    config, policy = session.config, eager_copy(session.policy)
    return SampledSketch(
        scores=scores_of(session, policy, batch, config.sketch.directions),
        reference=reference_of(session, policy, step),
        next_tokens=next_tokens(session, policy, batch, step, weights),
        weights_hash=hash_of(dict(policy.named_parameters())),
        directions_hash=hash_of_directions(session, policy),
    )


def scores_of(session: Session, policy: Policy, batch: TokenBatch, count: int) -> Tensor:
    """Compute the score of every response token along the first `count` directions of the run, (N, count)."""
    groups = directions(dict(policy.named_parameters()), session.config.seed, count)
    return torch.cat([token_scores(policy, batch, session.config, group) for group in groups], 1) * count**-0.5


def all_directions(session: Session, policy: Policy) -> Iterator[dict[str, Tensor]]:
    """Yield the directions of the run in groups. They depend on its seed only."""
    return directions(dict(policy.named_parameters()), session.config.seed, session.config.sketch.directions)


def hash_of_directions(session: Session, policy: Policy) -> str:
    digest = hashlib.sha256()
    for group in all_directions(session, policy):
        for direction in group.values():
            digest.update(direction.numpy(force=True).tobytes())
    return digest.hexdigest()


def reference_of(session: Session, policy: Policy, step: int) -> Reference:
    """Compute the on-policy reference: Σ advantage · ∇ log π over each block of responses, in the run's directions.

    The sum is weighted by token and by sequence; the reference also has the tokens and responses of each block. The
    responses are sampled from the trainer's own weights in float32, and judged and scored like the run's batches.
    """
    config = session.config
    batch = on_policy_batch(session, policy, step)
    assert batch.group_ids is not None
    prompts = torch.arange(config.sketch.reference_prompts, device=batch.group_ids.device)
    blocks = [batch.rows(torch.isin(batch.group_ids, block)) for block in prompts.tensor_split(BLOCKS)]
    bytes_of_block = 2 * sum(p.numel() * p.element_size() for p in policy.parameters())  # by token and by sequence
    count = max(GRADIENT_BYTES // bytes_of_block, 1)
    tables = [along_directions(session, policy, blocks[start : start + count]) for start in range(0, BLOCKS, count)]
    by_token, by_sequence = torch.cat(tables, 1) * config.sketch.directions**-0.5
    lengths = [block.response_mask.sum(-1) for block in blocks]
    tokens, sequences = torch.tensor([[int(n.sum()), int((n > 0).sum())] for n in lengths]).to(by_token).unbind(-1)
    return Reference(by_token, by_sequence, tokens, sequences)


def along_directions(session: Session, policy: Policy, blocks: list[TokenBatch]) -> Tensor:
    """Compute ⟨Σ advantage · ∇ log π, direction⟩ of some blocks, (2, blocks, K): by token, then by sequence.

    The directions are drawn again for each call, so that only the gradients of these blocks are in memory.
    """
    gradients = {name: torch.zeros(2, len(blocks), p.numel()).to(p) for name, p in policy.named_parameters()}
    for index, block in enumerate(blocks):
        add_gradients(policy, block, session.config, {name: sums[:, index] for name, sums in gradients.items()})
    products = []
    for group in all_directions(session, policy):
        products.append(torch.stack([gradients[name] @ d.flatten(1).T for name, d in group.items()]).sum(0))
    return torch.cat(products, -1)


def add_gradients(policy: Policy, block: TokenBatch, config: TrainConfig, sums: dict[str, Tensor]) -> None:
    """Add Σ advantage · ∇ log π of a block's responses to `sums`.

    Args:
        sums: parameter name → (2, size of the parameter). The first row weights every token equally, the second every
            sequence, by the mean over its tokens.
    """
    for rows in plan_microbatches(range(len(block.response_mask)), lengths_of(block), MICROBATCH_TOKENS, 1)[0]:
        part = slice_rows(block, rows)
        assert part.advantages is not None
        log_p = policy(part, config.rollout.scored_temperature).log_probs
        per_response = masked_sum(part.advantages * log_p, part.response_mask, -1)
        values = per_response.sum(), (per_response / part.response_mask.sum(-1).clamp(min=1)).sum()
        for index, value in enumerate(values):
            gradients = torch.autograd.grad(value, list(policy.parameters()), retain_graph=index == 0)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total[index] += gradient.flatten()


def eager_copy(policy: Policy) -> Policy:
    """Copy the language model, with attention and experts that forward mode can differentiate."""
    lm = copy.deepcopy(policy.lm).eval()
    lm.set_attn_implementation("eager")
    lm.set_experts_implementation("eager")
    return Policy(lm, None)


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().numpy(force=True).tobytes())
    return digest.hexdigest()


def directions(like: Mapping[str, Tensor], seed: int, count: int) -> Iterator[dict[str, Tensor]]:
    """Yield `count` standard normal directions over all these tensors, in groups: name → (n, *shape).

    Direction k depends only on the seed and k.
    """
    for first in range(0, count, TOGETHER):
        numbers = range(first, min(first + TOGETHER, count))
        group = {name: torch.empty(len(numbers), *p.shape).to(p) for name, p in like.items()}
        for index, k in enumerate(numbers):
            generator = torch.Generator().manual_seed((seed << 20) + k)
            for direction in group.values():
                direction[index] = torch.randn(direction.shape[1:], generator=generator)
        yield group


@torch.no_grad()
def token_scores(policy: Policy, batch: TokenBatch, config: TrainConfig, group: dict[str, Tensor]) -> Tensor:
    """Compute ⟨∇ log π(token), direction⟩ of every response token, (N, n), for a group of n directions."""
    weights = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    count = len(next(iter(group.values())))
    scores = torch.zeros(*batch.response_mask.shape, count, device=batch.response_mask.device)
    for rows in plan_microbatches(range(len(scores)), lengths_of(batch), MICROBATCH_TOKENS, 1)[0]:
        part = slice_rows(batch, rows)

        def log_probs(parameters: dict[str, Tensor], part: TokenBatch = part) -> Tensor:
            arguments = (part, config.rollout.scored_temperature)
            return functional_call(policy, parameters, arguments, {"replay": config.rollout.router_replay}).log_probs

        products = vmap(lambda direction, f=log_probs: jvp(f, (weights,), (direction,))[1])(group)  # (n, rows, columns)
        scores[rows, : products.shape[2]] = products.permute(1, 2, 0)
    return scores[batch.response_mask]


def random_prefixes(batch: TokenBatch, count: int, seed: int) -> list[list[int]]:
    """Draw `count` response tokens of the batch, and return the ids before each: the prompt and the response so far."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    positions = batch.response_mask.nonzero()
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(seed))[:count]
    return [
        batch.prompt_ids[row][batch.prompt_mask[row]].tolist() + batch.response_ids[row, :column].tolist()
        for row, column in positions[order.to(positions.device)].tolist()
    ]


def next_tokens(session: Session, policy: Policy, batch: TokenBatch, step: int, weights: Weights) -> NextTokens:
    """Compute the scores and distributions of all tokens that may follow some random prefixes of the batch.

    The distributions are those of the policy, the reference, and the engine with the weights that sampled the batch.
    """
    config = session.config
    rollout, reference = config.rollout, session.reference
    prefixes = random_prefixes(batch, config.sketch.places, step)
    scores = [
        next_scores(policy.lm, prefixes, rollout.scored_temperature, group) for group in all_directions(session, policy)
    ]

    def model_log_probs(lm: PreTrainedModel) -> Tensor:
        return next_log_probs(lm, dict(lm.named_parameters()), prefixes, rollout.scored_temperature).detach()

    def engine_log_probs() -> Tensor:
        session.worker.engine.sync(weights)
        return session.worker.engine.next_log_probs(prefixes, rollout.sampling).log_probs

    return NextTokens(
        log_probs=model_log_probs(policy.lm),
        scores=torch.cat(scores, -1) * config.sketch.directions**-0.5,
        ref_log_probs=None if reference is None else model_log_probs(reference.lm),
        rollout_log_probs=session.queue.run_exclusive(engine_log_probs),
    )


def next_log_probs(
    lm: PreTrainedModel,
    parameters: Mapping[str, Tensor],
    prefixes: list[list[int]],
    temperature: float,
    routed_experts: list[Tensor] | None = None,
) -> Tensor:
    """Compute log π(token | prefix) of every token, (P, V); with `routed_experts`, the model uses these experts."""
    ids, mask = left_padded(prefixes, lm.device)
    inputs = {"attention_mask": mask, "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0), "use_cache": False}
    routes = None
    if routed_experts is not None:
        routes = torch.full((*mask.shape, *routed_experts[0].shape[1:]), -1, device=mask.device)
        routes[mask] = torch.cat(routed_experts).to(routes)
    with replayed(lm, routes, mask):
        logits = functional_call(lm, dict(parameters), (ids,), inputs).logits[:, -1]
    return (logits.float() / temperature).log_softmax(-1)


@torch.no_grad()
def next_scores(lm: PreTrainedModel, prefixes: list[list[int]], temperature: float, group: dict[str, Tensor]) -> Tensor:
    """Compute ⟨∇ log π(token | prefix), direction⟩ of every token, (P, V, n), for a group of n directions."""
    weights = {name: parameter.detach() for name, parameter in lm.named_parameters()}
    lm_group = {name.removeprefix("lm."): direction for name, direction in group.items()}

    def log_probs(parameters: dict[str, Tensor]) -> Tensor:
        return next_log_probs(lm, parameters, prefixes, temperature)

    return vmap(lambda direction: jvp(log_probs, (weights,), (direction,))[1])(lm_group).permute(1, 2, 0)


def on_policy_batch(session: Session, policy: Policy, step: int) -> TokenBatch:
    """Sample responses of the trainer's own weights to other prompts, with advantages as the run computes them."""
    config = session.config
    temperature = config.rollout.scored_temperature
    exact = RolloutConfig(engine="transformers", dtype="float32", temperature=temperature)
    prompts = list(
        itertools.islice(examples(session.worker.task, config.seed + OTHER_PROMPTS), config.sketch.reference_prompts)
    )
    collected = collect(
        replace(session.worker, engine=TransformersEngine(exact, policy.lm, session.worker.eos_ids)),
        prompts,
        samples=config.samples_per_prompt,
        sampling=Sampling(temperature=temperature),
        version=step,
        seed=(config.seed << 32) + (step << 8) + 255,
    )
    batch = batch_of(collected, session.ranks.device)
    assert batch.rewards is not None
    if not bool(batch.rewards.isfinite().all()):
        raise UsageError("the reward function gave no number for an answer of the reference: it has no gradient.")
    # The engine did not sample these answers, so there are no experts of it to replay.
    unreplayed = replace(config, rollout=replace(config.rollout, router_replay=False))
    return as_updated(session, batch, unreplayed)


def as_updated(session: Session, batch: TokenBatch, config: TrainConfig) -> TokenBatch:
    """Add log π_old to a collected batch, and advantages as an update without rejection uses them."""
    advantage = config.advantage
    batch = with_advantages(score(batch, session.policy, session.reference, config, ALONE), advantage)
    assert batch.advantages is not None
    plain = advantage.grouped or not advantage.whiten
    return batch if plain else batch.replace(advantages=whiten(batch.advantages, batch.response_mask))
