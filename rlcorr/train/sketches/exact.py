"""A step's exact sketch: every likely answer to some prompts, with both policies' log-probs, advantages and scores.

Nothing is sampled but the prompts: the expectations of any correction's gradient, under what the engine draws from and
under π_old, are sums over the answers.
"""

import itertools
import math

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.answers import Answers, AnswerTree, answers_of
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.train.config.learning import SketchConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.tasks import Example, examples
from rlcorr.train.inputs.tokenizer import decode, encode
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import score
from rlcorr.train.rollout.batch_queue import Weights
from rlcorr.train.rollout.collect import judge
from rlcorr.train.rollout.engine import left_padded
from rlcorr.train.session.session import Session
from rlcorr.train.sketches.answer_tree import Distributions, Tree, grow
from rlcorr.train.sketches.expected_advantages import expected_advantages
from rlcorr.train.sketches.sampled import OTHER_PROMPTS, all_directions, eager_copy, next_log_probs
from rlcorr.train.sketches.tree_scores import node_scores, packed
from rlcorr.types import TokenBatch

NODE_BYTES = 128
"""What a node takes beside its scores."""
PREFIXES_AT_ONCE = 512


def exact_sketch(session: Session, weights: Weights) -> ExactSketch:
    """Of prompts of the training, drawn anew; the policy not yet updated. `weights` are those that sampled the batch.

    Raises `UsageError` as `grow` does, and where what the engine draws from cannot be told.
    """
    config, policy = session.config, eager_copy(session.policy)
    stream = examples(session.worker.task, config.seed + OTHER_PROMPTS)
    drawn = list(itertools.islice(stream, config.sketch.exact_prompts))
    tree = session.queue.when_idle(lambda: _grown(session, policy, drawn, weights))
    old, scores = _scored(session, policy, tree)
    nodes = _as_tensors(tree, old)
    return ExactSketch(
        tree=nodes,
        advantages=_advantages(session, answers_of(nodes), tree, drawn),
        scores=scores,
        task_prompts=session.worker.task.prompts,
    )


def _grown(session: Session, policy: Policy, drawn: list[Example], weights: Weights) -> Tree:
    """With the engine's distributions under the weights that sampled."""
    config, worker = session.config, session.worker
    worker.engine.sync(weights)

    def evaluate(prefixes: list[list[int]]) -> Distributions:
        parts = [prefixes[at : at + PREFIXES_AT_ONCE] for at in range(0, len(prefixes), PREFIXES_AT_ONCE)]
        return _joined([_distributions(session, policy, part) for part in parts])

    return grow(
        [encode(worker.tokenizer, example.prompt, worker.task.instruction) for example in drawn],
        evaluate,
        stops=worker.stops,
        max_tokens=worker.task.max_tokens,
        smallest=config.sketch.smallest_probability,
        most_nodes=_most_nodes(config.sketch),
    )


def _most_nodes(sketch: SketchConfig) -> int:
    return sketch.tree_mib * 2**20 // (4 * sketch.directions + NODE_BYTES)


@torch.no_grad()
def _distributions(session: Session, policy: Policy, prefixes: list[list[int]]) -> Distributions:
    rollout = session.config.rollout
    reported = session.worker.engine.next_log_probs(prefixes, rollout.sampling)
    routed = reported.routed_experts if rollout.router_replay else None
    old = next_log_probs(
        policy.lm, dict(policy.lm.named_parameters()), prefixes, rollout.scored_temperature, routed_experts=routed
    )
    return Distributions(old.cpu(), reported.log_probs, drawn_from(reported.log_probs, rollout), routed)


def drawn_from(reported: Tensor, rollout: RolloutConfig) -> Tensor:
    """The log-probs that the engine samples by, (F, V): what it reports, or for raw ones that with the temperature.

    Raises `UsageError` for raw log-probs beside top_p or top_k.
    """
    if rollout.log_probs == "processed":
        return reported
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise UsageError(
            f"raw log-probs do not say what top_p {rollout.top_p:g} and top_k {rollout.top_k} leave: an exact sketch "
            "needs --rollout.log-probs processed, or neither."
        )
    return (reported / rollout.temperature).log_softmax(-1)


def _joined(parts: list[Distributions]) -> Distributions:
    experts = [part.experts for part in parts if part.experts is not None]
    return Distributions(
        old=torch.cat([part.old for part in parts]),
        rollout=torch.cat([part.rollout for part in parts]),
        sampled=torch.cat([part.sampled for part in parts]),
        experts=list(itertools.chain.from_iterable(experts)) or None,
    )


def _scored(session: Session, policy: Policy, tree: Tree) -> tuple[Tensor, Tensor]:
    """log π_old of every node, and its scores."""
    config, device = session.config, policy.lm.device
    old = torch.zeros(len(tree.nodes), device=device)
    scores = torch.zeros(len(tree.nodes), config.sketch.directions, device=device)
    groups, first = list(packed(tree, device)), 0
    for chosen in all_directions(session, policy):
        for trees in groups:
            log_p, along = node_scores(policy.lm, trees, config.rollout.scored_temperature, chosen)
            old[trees.nodes] = log_p
            scores[trees.nodes, first : first + along.shape[1]] = along
        first += along.shape[1]
    return old.cpu(), scores.cpu() * config.sketch.directions**-0.5


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


def _advantages(session: Session, answers: Answers, tree: Tree, drawn: list[Example]) -> Tensor:
    """Of every token of every answer, (N,). Raises `UsageError` where the reward function gave no number."""
    config, batch = session.config, answers.batch
    prompts = answers.prompts.tolist()
    prompt_ids, prompt_mask = left_padded([tree.prompts[prompt] for prompt in prompts], torch.device("cpu"))
    whole = batch.replace(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        rewards=torch.tensor(_rewards(session, batch, prompts, drawn)),
        routed_experts=None if tree.experts is None else _routes(tree, answers, prompt_mask.shape[1]),
    )
    device = session.ranks.device
    whole = TokenBatch(**{name: tensor.to(device) for name, tensor in whole.tensors().items()})
    scored = score(whole, session.policy, session.reference, config, ALONE)
    return expected_advantages(scored, answers.sampled.to(device), config.advantage)[scored.response_mask].cpu()


def _rewards(session: Session, batch: TokenBatch, prompts: list[int], drawn: list[Example]) -> list[float]:
    worker = session.worker
    assert batch.response_ids is not None
    responses = [ids[mask].tolist() for ids, mask in zip(batch.response_ids, batch.response_mask, strict=True)]
    rewards = [
        judge(worker.task, drawn[prompt], decode(worker.tokenizer, ids, worker.stops))
        for prompt, ids in zip(prompts, responses, strict=True)
    ]
    numbers = [reward for reward in rewards if reward is not None and not math.isnan(reward)]
    if len(numbers) < len(rewards):
        raise UsageError(
            "the reward function raised on a likely answer, or returned None for it: there is no expected gradient."
        )
    return numbers


def _routes(tree: Tree, answers: Answers, width: int) -> Tensor:
    """The engine's experts of each answer's prompt and tokens, (A, width + T, layers, k); −1 where it fed no token."""
    assert tree.experts is not None
    mask = answers.batch.response_mask
    routes = torch.full((len(mask), width + mask.shape[1], *tree.experts[0].shape[1:]), -1)
    nodes = iter(answers.nodes.tolist())
    for row, (prompt, length) in enumerate(zip(answers.prompts.tolist(), mask.sum(-1).tolist(), strict=True)):
        of_prompt = tree.experts[prompt]
        routes[row, width - len(of_prompt) : width] = of_prompt.to(routes)
        for column in range(length):
            experts = tree.nodes[next(nodes)].experts
            if experts is not None:
                routes[row, width + column] = experts.to(routes)
    return routes
