"""A step's exact sketch: every likely answer to some prompts, with both policies' log-probs, advantages and scores.

Only the prompts are sampled. The expectations of any correction's gradient, under the engine's sampling and under
π_old, are sums over the answers.
"""

import itertools
import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcorr.errors import UsageError
from rlcorr.gradients.answers import Answers, AnswerTree, answers_of
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.train.config.learning import AdvantageConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.inputs.tokenizer import decode
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import score, with_advantages
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.collect import encode_example, judge
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.answer_tree import Distributions, grow
from rlcorr.train.sketches.reference import OTHER_PROMPTS
from rlcorr.train.sketches.sampled import next_log_probs, token_scores
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy
from rlcorr.types import TokenBatch

TREE_MIB = 2048
"""Memory for the scores of all answers; a run stops with an error if they need more."""
PREFIXES_AT_ONCE = 512


def exact_sketch(session: Session, weights: Weights) -> ExactSketch:
    """Make the exact sketch of a step, from newly drawn training prompts. Call this before the update.

    Raises `UsageError` as `grow` does, and if the distribution that the engine samples from is not known.

    Args:
        weights: those that sampled the step's batch.
    """
    config, worker, lm = session.config, session.worker, scored_copy(session.policy.lm)
    stream = examples(worker.task, config.seed + OTHER_PROMPTS)
    prompts = list(itertools.islice(stream, config.sketch.exact_prompts))
    ids = [encode_example(worker.tokenizer, worker.task, example) for example in prompts]
    tree, experts = session.queue.run_exclusive(lambda: _grow_tree(session, lm, ids, weights))
    answers = answers_of(tree)
    batch = _as_sampled(session, answers, prompts, ids, experts)
    first = _first_uses(answers, len(tree.tokens))
    directions = draw_directions(lm, config.seed, config.sketch.directions)
    scores = torch.zeros(len(tree.tokens), directions.count)
    scores[answers.nodes[first[answers.batch.response_mask]]] = token_scores(lm, directions, batch, first, config).cpu()
    scored = score(batch, session.policy, session.reference, config, ALONE)
    advantages = expected_advantages(scored, answers.sampled.to(lm.device), config.advantage)
    return ExactSketch(tree, advantages[scored.response_mask].cpu(), scores, task_prompts=worker.task.prompts)


def _grow_tree(
    session: Session, lm: PreTrainedModel, prompts: list[list[int]], weights: Weights
) -> tuple[AnswerTree, list[Tensor]]:
    """Grow the tree of answers with the engine's distributions under these weights."""
    config, worker = session.config, session.worker
    worker.engine.sync(weights)

    def evaluate(prefixes: list[list[int]]) -> Distributions:
        starts = range(0, len(prefixes), PREFIXES_AT_ONCE)
        parts = [_distributions(session, lm, prefixes[start : start + PREFIXES_AT_ONCE]) for start in starts]
        old, rollout, sampled, experts = zip(*parts, strict=True)
        return Distributions(torch.cat(old), torch.cat(rollout), torch.cat(sampled), list(itertools.chain(*experts)))

    return grow(
        prompts,
        evaluate,
        eos_ids=worker.eos_ids,
        max_tokens=worker.task.max_tokens,
        smallest=config.sketch.smallest_probability,
        most_nodes=TREE_MIB * 2**20 // (4 * config.sketch.directions),
    )


@torch.no_grad()
def _distributions(session: Session, lm: PreTrainedModel, prefixes: list[list[int]]) -> Distributions:
    rollout = session.config.rollout
    reported = session.worker.engine.next_log_probs(prefixes, rollout.sampling)
    routed = reported.routed_experts if rollout.router_replay else None
    old = next_log_probs(lm, prefixes, rollout.scored_temperature, routed)
    return Distributions(old.cpu(), reported.log_probs, drawn_from(reported.log_probs, rollout), routed or ())


def drawn_from(reported: Tensor, rollout: RolloutConfig) -> Tensor:
    """Return the log-probs that the engine samples from, (F, V): those it reports, or raw ones with the temperature.

    Raises `UsageError` for raw log-probs with top_p or top_k.
    """
    if rollout.log_probs == "processed":
        return reported
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise UsageError(
            f"raw log-probs do not show what top_p {rollout.top_p:g} and top_k {rollout.top_k} cut off: an exact "
            "sketch needs --rollout.log-probs processed, or top_p 1 and top_k 0."
        )
    return (reported / rollout.temperature).log_softmax(-1)


def _as_sampled(
    session: Session, answers: Answers, prompts: list[Example], ids: list[list[int]], experts: list[Tensor]
) -> TokenBatch:
    """Return the answers as a batch of the engine's, with the prompts and the rewards.

    Raises `UsageError` if the reward function gave no number for an answer.
    """
    worker, batch, owners = session.worker, answers.batch, answers.prompts.tolist()
    lengths = batch.response_mask.sum(-1)
    responses, log_probs = (
        [row.tolist() for row in values[batch.response_mask].split(lengths.tolist())]
        for values in (batch.tensors()["response_ids"], batch.rollout_log_probs)
    )
    rewards = [
        judge(worker.task, prompts[owner], decode(worker.tokenizer, row, worker.eos_ids))
        for owner, row in zip(owners, responses, strict=True)
    ]
    if any(reward is None or math.isnan(reward) for reward in rewards):
        raise UsageError(
            "the reward function raised on a likely answer, or returned None for it, so the expected gradient is not "
            "defined."
        )
    last = answers.nodes[lengths.cumsum(0) - 1].tolist()  # its experts are those of all tokens that were fed
    samples = Samples(responses, log_probs, [experts[node] for node in last] if experts else None)
    device = session.ranks.device
    return to_batch([ids[owner] for owner in owners], samples, device).replace(
        rewards=torch.tensor(rewards, device=device), group_ids=answers.prompts.to(device)
    )


def _first_uses(answers: Answers, nodes: int) -> Tensor:
    """Return for each response token whether its node is in no earlier answer, (A, T): its score is computed there."""
    mask, uses = answers.batch.response_mask, torch.arange(len(answers.nodes))
    first = torch.full((nodes,), len(uses)).scatter_reduce(0, answers.nodes, uses, "amin")
    return torch.zeros_like(mask).masked_scatter(mask, torch.isin(uses, first))


def expected_advantages(batch: TokenBatch, probability: Tensor, config: AdvantageConfig) -> Tensor:
    """Compute the advantages (A, T) of A answers as the run computes them, in the limit of infinite groups and batches.

    GRPO: (r − E r)/σ(r) over the answers to a prompt; without `norm_by_std`, and for RLOO, r − E r. GAE and REINFORCE++
    normalised to mean 0 and variance 1 over all tokens.

    Args:
        probability: probability of each answer given its prompt (`group_ids`), under the policy that sampled, (A,).
    """
    mask = batch.response_mask
    if config.grouped:
        rewards, prompts = batch.tensors()["rewards"].double(), batch.tensors()["group_ids"]
        centred, variance = _centred(rewards, probability, prompts)
        if config.estimator == "grpo" and config.norm_by_std:
            centred = centred / (variance.sqrt() + 1e-6)
        return torch.where(mask, centred[:, None], 0).float()
    advantages = with_advantages(batch, config).tensors()["advantages"][mask]
    together = torch.zeros(len(advantages), dtype=torch.int64, device=mask.device)
    centred, variance = _centred(advantages.double(), probability[:, None].expand_as(mask)[mask], together)
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(
        mask, (centred * (variance + 1e-8).rsqrt()).float()
    )


def _centred(values: Tensor, weights: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values minus the weighted mean of their group, and the weighted variance of their group, (N,) each."""

    def expected(x: Tensor) -> Tensor:
        sums = torch.zeros(2, int(groups.max()) + 1, dtype=torch.float64, device=x.device)
        total, weight = sums.index_add(1, groups, torch.stack([weights * x, weights]))
        return (total / weight)[groups]

    centred = values - expected(values)
    return centred, expected(centred.square())
