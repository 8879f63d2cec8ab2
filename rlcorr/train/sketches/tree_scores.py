"""Log-probs and scores of every node of a tree of answers, in one pass per prompt instead of one per prefix.

A prompt and all nodes that go on stand in one row; each token attends to the prompt and to its own ancestors, and its
position is its depth. So what many answers share is computed once.
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
"""The tangents of so many tokens along eight directions stay in the cache."""


@dataclass(frozen=True)
class PackedTrees:
    """Some prompts as rows of S tokens, and where each of their nodes is predicted."""

    ids: Tensor  # (b, S)
    positions: Tensor  # (b, S)
    attends: Tensor  # (b, S, S) bool
    experts: Tensor | None  # (b, S, layers, k), −1 on padding
    nodes: Tensor  # (n,) numbers in the tree
    rows: Tensor  # (n,) of each node's prompt
    before: Tensor  # (n,) where its parent stands, whose output predicts it
    tokens: Tensor  # (n,)


def packed(tree: Tree, device: torch.device) -> Iterator[PackedTrees]:
    """All prompts, in groups of some hundred tokens."""
    of_prompts: list[list[int]] = [[] for _ in tree.prompts]
    for number, node in enumerate(tree.nodes):
        of_prompts[node.prompt].append(number)
    goes_on = {node.parent for node in tree.nodes}
    lengths = [
        len(ids) + sum(number in goes_on for number in numbers)
        for ids, numbers in zip(tree.prompts, of_prompts, strict=True)
    ]
    group: list[int] = []
    for prompt in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[prompt] > TOKENS_TOGETHER:
            yield _packed(tree, group, of_prompts, goes_on, lengths[group[-1]], device)
            group = []
        group.append(prompt)
    yield _packed(tree, group, of_prompts, goes_on, lengths[group[-1]], device)


def _packed(
    tree: Tree, group: list[int], of_prompts: list[list[int]], goes_on: set[int], width: int, device: torch.device
) -> PackedTrees:
    ids = torch.zeros(len(group), width, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    attends = torch.eye(width, dtype=torch.bool).repeat(len(group), 1, 1)
    experts = None
    if tree.experts is not None:
        experts = torch.full((len(group), width, *tree.experts[0].shape[1:]), -1)
    places: list[tuple[int, int, int, int]] = []
    for row, prompt in enumerate(group):
        length = len(tree.prompts[prompt])
        ids[row, :length] = torch.tensor(tree.prompts[prompt])
        positions[row, :length] = torch.arange(length)
        attends[row, :length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
        if experts is not None and tree.experts is not None:
            experts[row, :length] = tree.experts[prompt].to(experts)
        place = {-1: length - 1}
        for number in of_prompts[prompt]:
            node = tree.nodes[number]
            places.append((number, row, place[node.parent], node.token))
            if number in goes_on:
                here = place[number] = length + len(place) - 1
                ids[row, here] = node.token
                positions[row, here] = positions[row, place[node.parent]] + 1
                attends[row, here] |= attends[row, place[node.parent]]
                if experts is not None and node.experts is not None:
                    experts[row, here] = node.experts.to(experts)
    numbers, rows, before, tokens = torch.tensor(places, device=device).unbind(-1)
    return PackedTrees(
        ids=ids.to(device),
        positions=positions.to(device),
        attends=attends.to(device),
        experts=None if experts is None else experts.to(device),
        nodes=numbers,
        rows=rows,
        before=before,
        tokens=tokens,
    )


def node_log_probs(
    lm: PreTrainedModel, parameters: Mapping[str, Tensor], trees: PackedTrees, temperature: float
) -> Tensor:
    """log π(node | what stands before it), (n,)."""
    low = torch.finfo(torch.float32).min
    mask = torch.where(trees.attends, 0.0, low)[:, None]  # (b, 1, S, S)
    given = {"attention_mask": mask, "position_ids": trees.positions, "use_cache": False}
    real = torch.ones_like(trees.ids, dtype=torch.bool)
    with replayed(lm, trees.experts, real):
        logits = functional_call(lm, dict(parameters), (trees.ids,), given).logits
    log_p = (logits[trees.rows, trees.before].float() / temperature).log_softmax(-1)
    return log_p.gather(-1, trees.tokens[:, None])[:, 0]


@torch.no_grad()
def node_scores(
    lm: PreTrainedModel, trees: PackedTrees, temperature: float, chosen: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """log π of each node, (n,), and ⟨∇ log π, direction⟩, (n, directions)."""
    weights = {name: parameter.detach() for name, parameter in lm.named_parameters()}
    along = {name.removeprefix("lm."): direction for name, direction in chosen.items()}

    def log_probs(parameters: dict[str, Tensor]) -> Tensor:
        return node_log_probs(lm, parameters, trees, temperature)

    scores = vmap(lambda direction: jvp(log_probs, (weights,), (direction,))[1])(along)
    return log_probs(weights), scores.T
