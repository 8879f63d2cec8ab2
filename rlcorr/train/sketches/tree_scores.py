"""Log-probs and scores of every node of a tree of answers, in one pass per prompt instead of one per prefix.

A row consists of a prompt and all nodes that have children. Each token attends to the prompt and to its own ancestors,
and its position is its depth. So the tokens that answers have in common are computed once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from transformers import PreTrainedModel

from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.sketches.answer_tree import Tree

TOKENS_TOGETHER = 512
"""Tokens per pass: their tangents along eight directions stay in the cache."""


@dataclass(frozen=True)
class PackedTrees:
    """A group of b prompts as rows of S tokens, and the positions at which their n nodes are predicted."""

    ids: Tensor  # (b, S)
    positions: Tensor  # (b, S)
    attends: Tensor  # (b, S, S) bool
    experts: Tensor | None  # (b, S, layers, k), −1 on padding
    nodes: Tensor  # (n,) indices in the tree
    rows: Tensor  # (n,) row of each node's prompt
    before: Tensor  # (n,) column of its parent, whose output predicts it
    tokens: Tensor  # (n,)


def pack_trees(tree: Tree, device: torch.device) -> Iterator[PackedTrees]:
    """Yield all prompts in groups of a few hundred tokens."""
    prompt_nodes: list[list[int]] = [[] for _ in tree.prompts]
    for index, node in enumerate(tree.nodes):
        prompt_nodes[node.prompt].append(index)
    parents = {node.parent for node in tree.nodes}
    lengths = [
        len(ids) + sum(index in parents for index in nodes)
        for ids, nodes in zip(tree.prompts, prompt_nodes, strict=True)
    ]
    group: list[int] = []
    for prompt in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[prompt] > TOKENS_TOGETHER:
            yield _pack_group(tree, group, prompt_nodes, parents, lengths[group[-1]], device)
            group = []
        group.append(prompt)
    yield _pack_group(tree, group, prompt_nodes, parents, lengths[group[-1]], device)


def _pack_group(
    tree: Tree, group: list[int], prompt_nodes: list[list[int]], parents: set[int], width: int, device: torch.device
) -> PackedTrees:
    ids = torch.zeros(len(group), width, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    attends = torch.eye(width, dtype=torch.bool).repeat(len(group), 1, 1)
    experts = None
    if tree.experts is not None:
        experts = torch.full((len(group), width, *tree.experts[0].shape[1:]), -1)
    predictions: list[tuple[int, int, int, int]] = []  # node, row, column of its parent, token
    for row, prompt in enumerate(group):
        length = len(tree.prompts[prompt])
        ids[row, :length] = torch.tensor(tree.prompts[prompt])
        positions[row, :length] = torch.arange(length)
        attends[row, :length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
        if experts is not None and tree.experts is not None:
            experts[row, :length] = tree.experts[prompt].to(experts)
        columns = {-1: length - 1}  # node → its column; the prompt's last token is the parent of the first nodes
        for index in prompt_nodes[prompt]:
            node = tree.nodes[index]
            predictions.append((index, row, columns[node.parent], node.token))
            if index in parents:
                column = columns[index] = length + len(columns) - 1
                ids[row, column] = node.token
                positions[row, column] = positions[row, columns[node.parent]] + 1
                attends[row, column] |= attends[row, columns[node.parent]]
                if experts is not None and node.experts is not None:
                    experts[row, column] = node.experts.to(experts)
    nodes, rows, before, tokens = torch.tensor(predictions, device=device).unbind(-1)
    return PackedTrees(
        ids=ids.to(device),
        positions=positions.to(device),
        attends=attends.to(device),
        experts=None if experts is None else experts.to(device),
        nodes=nodes,
        rows=rows,
        before=before,
        tokens=tokens,
    )


def node_log_probs(
    lm: PreTrainedModel, parameters: Mapping[str, Tensor], trees: PackedTrees, temperature: float
) -> Tensor:
    """Compute log π(node | prompt and ancestors), (n,)."""
    low = torch.finfo(torch.float32).min
    mask = torch.where(trees.attends, 0.0, low)[:, None]  # (b, 1, S, S)
    inputs = {"attention_mask": mask, "position_ids": trees.positions, "use_cache": False}
    real = torch.ones_like(trees.ids, dtype=torch.bool)  # padding has experts of −1 already
    with replayed(lm, trees.experts, real):
        logits = functional_call(lm, dict(parameters), (trees.ids,), inputs).logits
    log_p = (logits[trees.rows, trees.before].float() / temperature).log_softmax(-1)
    return log_p.gather(-1, trees.tokens[:, None])[:, 0]


@torch.no_grad()
def node_scores(
    lm: PreTrainedModel, trees: PackedTrees, temperature: float, group: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute log π of each node, (n,), and ⟨∇ log π, direction⟩ for a group of directions, (n, directions)."""
    weights = {name: parameter.detach() for name, parameter in lm.named_parameters()}
    lm_group = {name.removeprefix("lm."): direction for name, direction in group.items()}

    def log_probs(parameters: dict[str, Tensor]) -> Tensor:
        return node_log_probs(lm, parameters, trees, temperature)

    scores = vmap(lambda direction: jvp(log_probs, (weights,), (direction,))[1])(lm_group)
    return log_probs(weights), scores.T
