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
from rlcorr.train.config.learning import SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.inputs.tokenizer import decode
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import score
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.collect import encode_example, judge
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.answer_tree import Distributions, Tree, grow
from rlcorr.train.sketches.expected_advantages import expected_advantages
from rlcorr.train.sketches.sampled import OTHER_PROMPTS, next_log_probs
from rlcorr.train.sketches.token_scores import draw_directions, scored_copy, scores_of
from rlcorr.train.sketches.tree_scores import node_log_probs, pack_trees
from rlcorr.types import TokenBatch

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
        most_nodes=_most_nodes(config.sketch),
    )


def _most_nodes(sketch: SketchConfig) -> int:
    return sketch.tree_mib * 2**20 // (4 * sketch.directions + NODE_BYTES)


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
