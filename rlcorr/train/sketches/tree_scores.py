"""Log-probs of every node of a tree of answers, in one pass per prompt instead of one per prefix.

A row consists of a prompt and all nodes that have children. Each token attends to the prompt and to its own ancestors,
and its position is its depth. So the tokens that answers have in common are computed once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.sketches.answer_tree import Tree
from rlcorr.train.sketches.sampled import head_log_probs


@dataclass(frozen=True)
class PackedTree:
    """One prompt and its answers as a row of S tokens, and the positions at which the n nodes are predicted."""

    ids: Tensor  # (S,)
    positions: Tensor  # (S,)
    attends: Tensor  # (S, S) bool
    experts: Tensor | None  # (S, layers, k); −1 for tokens that the engine was not fed
    nodes: Tensor  # (n,) indices in the tree
    before: Tensor  # (n,) column of its parent, whose output predicts it
    tokens: Tensor  # (n,)


def pack_trees(tree: Tree, device: torch.device) -> Iterator[PackedTree]:
    """Yield the packed tree of each prompt."""
    prompt_nodes: list[list[int]] = [[] for _ in tree.prompts]
    for index, node in enumerate(tree.nodes):
        prompt_nodes[node.prompt].append(index)
    inner = {node.parent for node in tree.nodes}
    for prompt, nodes in enumerate(prompt_nodes):
        yield _pack(tree, prompt, nodes, [index for index in nodes if index in inner], device)


def _pack(tree: Tree, prompt: int, nodes: list[int], inner: list[int], device: torch.device) -> PackedTree:
    ids, length = [*tree.prompts[prompt], *(tree.nodes[index].token for index in inner)], len(tree.prompts[prompt])
    columns = {-1: length - 1} | {index: length + place for place, index in enumerate(inner)}  # node → its column
    positions = torch.arange(len(ids))
    attends = torch.eye(len(ids), dtype=torch.bool)
    attends[:length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    experts = None
    if tree.experts is not None:
        experts = torch.full((len(ids), *tree.experts[prompt].shape[1:]), -1)
        experts[:length] = tree.experts[prompt].to(experts)
    for index in inner:
        column, parent = columns[index], columns[tree.nodes[index].parent]
        positions[column] = positions[parent] + 1
        attends[column] |= attends[parent]
        of_node = tree.nodes[index].experts
        if experts is not None and of_node is not None:
            experts[column] = of_node.to(experts)
    return PackedTree(
        ids=torch.tensor(ids, device=device),
        positions=positions.to(device),
        attends=attends.to(device),
        experts=None if experts is None else experts.to(device),
        nodes=torch.tensor(nodes, device=device),
        before=torch.tensor([columns[tree.nodes[index].parent] for index in nodes], device=device),
        tokens=torch.tensor([tree.nodes[index].token for index in nodes], device=device),
    )


def node_log_probs(lm: PreTrainedModel, packed: PackedTree, temperature: float) -> Tensor:
    """Compute log π(node | prompt and ancestors) of the nodes of one prompt, (n,)."""
    mask = torch.where(packed.attends, 0.0, torch.finfo(torch.float32).min)[None, None]  # (1, 1, S, S)
    inputs = {"attention_mask": mask, "position_ids": packed.positions[None], "use_cache": False}
    routes = None if packed.experts is None else packed.experts[None]
    with replayed(lm, routes, torch.ones(1, len(packed.ids), dtype=torch.bool, device=mask.device)):
        states = lm.base_model(packed.ids[None], **inputs)[0][0]
    return head_log_probs(lm, states, temperature)[packed.before, packed.tokens]
