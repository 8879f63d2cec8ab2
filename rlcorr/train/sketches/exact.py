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
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.answer_tree import Distributions, Tree, grow
from rlcorr.train.sketches.sampled import OTHER_PROMPTS, next_log_probs
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of
from rlcorr.train.sketches.tree_scores import node_log_probs, pack_trees
from rlcorr.types import TokenBatch

TREE_MIB = 2048
"""Memory for all answers; a run stops with an error if they need more."""
NODE_BYTES = 128
"""Memory of a node without its scores."""
PREFIXES_AT_ONCE = 512


def exact_sketch(session: Session, weights: Weights) -> ExactSketch:
    """Make the exact sketch of a step, from newly drawn training prompts. Call this before the update.

    Raises `UsageError` as `grow` does, and if the distribution that the engine samples from is not known.

    Args:
        weights: those that sampled the step's batch.
    """
    config, lm = session.config, scored_copy(session.policy.lm)
    stream = examples(session.worker.task, config.seed + OTHER_PROMPTS)
    prompts = list(itertools.islice(stream, config.sketch.exact_prompts))
    tree = session.queue.run_exclusive(lambda: _grow_tree(session, lm, prompts, weights))
    old, scores = _scores_of_nodes(session, lm, tree)
    nodes = _as_tensors(tree, old)
    return ExactSketch(
        tree=nodes,
        advantages=_advantages(session, answers_of(nodes), tree, prompts),
        scores=scores,
        task_prompts=session.worker.task.prompts,
    )


def _grow_tree(session: Session, lm: PreTrainedModel, prompts: list[Example], weights: Weights) -> Tree:
    """Grow the tree of answers with the engine's distributions under these weights."""
    config, worker = session.config, session.worker
    worker.engine.sync(weights)

    def evaluate(prefixes: list[list[int]]) -> Distributions:
        parts = [prefixes[start : start + PREFIXES_AT_ONCE] for start in range(0, len(prefixes), PREFIXES_AT_ONCE)]
        return _concat([_distributions(session, lm, part) for part in parts])

    return grow(
        [encode_example(worker.tokenizer, worker.task, example) for example in prompts],
        evaluate,
        eos_ids=worker.eos_ids,
        max_tokens=worker.task.max_tokens,
        smallest=config.sketch.smallest_probability,
        most_nodes=TREE_MIB * 2**20 // (4 * config.sketch.directions + NODE_BYTES),
    )


@torch.no_grad()
def _distributions(session: Session, lm: PreTrainedModel, prefixes: list[list[int]]) -> Distributions:
    rollout = session.config.rollout
    reported = session.worker.engine.next_log_probs(prefixes, rollout.sampling)
    routed = reported.routed_experts if rollout.router_replay else None
    old = next_log_probs(lm, prefixes, rollout.scored_temperature, routed)
    return Distributions(old.cpu(), reported.log_probs, drawn_from(reported.log_probs, rollout), routed)


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


def _concat(parts: list[Distributions]) -> Distributions:
    experts = [part.experts for part in parts if part.experts is not None]
    return Distributions(
        old=torch.cat([part.old for part in parts]),
        rollout=torch.cat([part.rollout for part in parts]),
        sampled=torch.cat([part.sampled for part in parts]),
        experts=list(itertools.chain.from_iterable(experts)) or None,
    )


def _scores_of_nodes(session: Session, lm: PreTrainedModel, tree: Tree) -> tuple[Tensor, Tensor]:
    """Compute log π_old of every node, (nodes,), and its scores, (nodes, directions)."""
    config, directions = session.config, draw_directions(lm, session.config.seed, session.config.sketch.directions)
    old, scores = torch.zeros(len(tree.nodes)), torch.zeros(len(tree.nodes), directions.count)
    for packed in pack_trees(tree, lm.device):
        log_probs, of_nodes = scores_of(
            lm, directions, lambda packed=packed: node_log_probs(lm, packed, config.rollout.scored_temperature)
        )
        old[packed.nodes.cpu()], scores[packed.nodes.cpu()] = log_probs.cpu(), of_nodes.cpu()
    return old, scores


def _as_tensors(tree: Tree, old: Tensor) -> AnswerTree:
    nodes = tree.nodes
    return AnswerTree(
        prompts=torch.tensor([node.prompt for node in nodes]),
        parents=torch.tensor([node.parent for node in nodes]),
        tokens=torch.tensor([node.token for node in nodes]),
        old_log_probs=old,
        rollout_log_probs=torch.tensor([node.rollout_log_prob for node in nodes]),
        sampled_log_probs=torch.tensor([node.sampled_log_prob for node in nodes]),
    )


def _advantages(session: Session, answers: Answers, tree: Tree, prompts: list[Example]) -> Tensor:
    """Compute the advantage of every token of every answer, (N,).

    Raises `UsageError` if the reward function gave no number for an answer.
    """
    config, batch = session.config, answers.batch
    prompt_indices = answers.prompts.tolist()  # of each answer
    prompt_ids, prompt_mask = left_padded([tree.prompts[index] for index in prompt_indices], torch.device("cpu"))
    complete = batch.replace(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        rewards=torch.tensor(_rewards(session, batch, [prompts[index] for index in prompt_indices])),
        routed_experts=None if tree.experts is None else _routes(tree, answers, prompt_mask.shape[1]),
    )
    device = session.ranks.device
    complete = TokenBatch(**{name: tensor.to(device) for name, tensor in complete.tensors().items()})
    scored = score(complete, session.policy, session.reference, config, ALONE)
    return expected_advantages(scored, answers.sampled.to(device), config.advantage)[scored.response_mask].cpu()


def _rewards(session: Session, batch: TokenBatch, prompts: list[Example]) -> list[float]:
    """Return the reward of each row of the batch, which answers the prompt of the same index."""
    worker = session.worker
    assert batch.response_ids is not None
    responses = [ids[mask].tolist() for ids, mask in zip(batch.response_ids, batch.response_mask, strict=True)]
    rewards = [
        judge(worker.task, prompt, decode(worker.tokenizer, ids, worker.eos_ids))
        for prompt, ids in zip(prompts, responses, strict=True)
    ]
    numbers = [reward for reward in rewards if reward is not None and not math.isnan(reward)]
    if len(numbers) < len(rewards):
        raise UsageError(
            "the reward function raised on a likely answer, or returned None for it, so the expected gradient is not "
            "defined."
        )
    return numbers


def _routes(tree: Tree, answers: Answers, width: int) -> Tensor:
    """Return the engine's experts of each answer's prompt and tokens, (A, width + T, layers, k).

    They are −1 for padding and for tokens that the engine was not fed.
    """
    assert tree.experts is not None
    mask = answers.batch.response_mask
    routes = torch.full((len(mask), width + mask.shape[1], *tree.experts[0].shape[1:]), -1)
    nodes = iter(answers.nodes.tolist())
    for row, (prompt, length) in enumerate(zip(answers.prompts.tolist(), mask.sum(-1).tolist(), strict=True)):
        prompt_experts = tree.experts[prompt]
        routes[row, width - len(prompt_experts) : width] = prompt_experts.to(routes)
        for column in range(length):
            experts = tree.nodes[next(nodes)].experts
            if experts is not None:
                routes[row, width + column] = experts.to(routes)
    return routes


def expected_advantages(batch: TokenBatch, probability: Tensor, config: AdvantageConfig) -> Tensor:
    """Compute the advantages (A, T) of A answers as the run computes them, in the limit of infinite groups and batches.

    GRPO: (r − E r)/σ(r) over the answers to a prompt; without `norm_by_std`, and for RLOO, r − E r. GAE and REINFORCE++
    normalised to mean 0 and variance 1 over all tokens. Raises `UsageError` as `with_advantages` does.

    Args:
        probability: probability of each answer given its prompt (`group_ids`), under the policy that sampled, (A,).
    """
    mask = batch.response_mask
    if not config.grouped:
        advantages = with_advantages(batch, config).advantages
        assert advantages is not None
        return _whitened(advantages, mask, probability)
    assert batch.rewards is not None
    assert batch.group_ids is not None
    per_answer = _normalised(batch.rewards.double(), batch.group_ids, probability, config)
    return torch.where(mask, per_answer[:, None], 0).float()


def _normalised(rewards: Tensor, prompts: Tensor, probability: Tensor, config: AdvantageConfig) -> Tensor:
    def expected(values: Tensor) -> Tensor:
        total, weight = (
            torch.zeros(int(prompts.max()) + 1, dtype=torch.float64, device=values.device).index_add(0, prompts, x)
            for x in (probability * values, probability)
        )
        return (total / weight)[prompts]

    centred = rewards - expected(rewards)
    if config.estimator == "grpo" and config.norm_by_std:
        return centred / (expected(centred.square()).sqrt() + 1e-6)
    return centred


def _whitened(advantages: Tensor, mask: Tensor, probability: Tensor) -> Tensor:
    weight = probability[:, None] * mask
    mean = (weight * advantages).sum() / weight.sum()
    variance = (weight * (advantages - mean).square()).sum() / weight.sum()
    return torch.where(mask, (advantages - mean) * (variance + 1e-8).rsqrt(), 0).float()
