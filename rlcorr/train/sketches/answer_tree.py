"""All likely answers to some prompts, as a tree that grows by the distributions of the trainer and the engine.

A branch continues while its probability is above ε under one of the two policies. The probability of everything that is
left out is known: it is 1 minus the sum over the answers.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rlcorr.errors import UsageError

PROMPTS_AT_ONCE = 8
"""Prompts whose prefixes are evaluated together; this limits the memory of their distributions."""


class Distributions(NamedTuple):
    """Distributions of the token after each of F prefixes, as log-probs (F, V)."""

    old: Tensor  # π_old
    rollout: Tensor  # as the engine reports it
    sampled: Tensor  # as the engine samples from it
    experts: list[Tensor] | None = None  # with router replay, the engine's: (tokens, layers, k) per prefix


@dataclass(frozen=True)
class Node:
    """One token of an answer."""

    prompt: int
    parent: int  # index of the node before; −1 at the first token
    token: int
    rollout_log_prob: float
    sampled_log_prob: float
    ends: bool  # the answer is complete: the token ends it, or it has the largest length
    experts: Tensor | None = None  # (layers, k) of this token


@dataclass(frozen=True)
class Tree:
    """Tree of answers. A node comes after its parent, and each branch reaches the end of an answer."""

    prompts: list[list[int]]
    nodes: list[Node]
    experts: list[Tensor] | None = None  # (tokens, layers, k) per prompt


Evaluate = Callable[[list[list[int]]], Distributions]


def grow(
    prompts: Sequence[list[int]],
    evaluate: Evaluate,
    *,
    eos_ids: Sequence[int],
    max_tokens: int,
    smallest: float,
    most_nodes: int,
) -> Tree:
    """Grow the tree of every answer that is more likely than `smallest` under π_old or under the engine's sampling.

    Raises:
        UsageError: if there is no id that ends an answer, if a prompt has no likely answer, or if there are more than
            `most_nodes` nodes; then the message gives the number of prompts whose nodes fit.
    """
    if not eos_ids:
        raise UsageError(_NO_END)

    def grow_group(group: Sequence[list[int]], room: int) -> Tree:
        return _grow_group(group, evaluate, eos_ids, max_tokens, math.log(smallest), room)

    nodes: list[Node] = []
    experts: list[Tensor] = []
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        group = prompts[first : first + PROMPTS_AT_ONCE]
        room = most_nodes - len(nodes)
        tree = grow_group(group, room)
        if len(tree.nodes) > room:
            # This tree stopped early, so grow the trees of fewer prompts to find how many fit.
            fits = (count for count in range(1, len(group)) if len(grow_group(group[:count], room).nodes) <= room)
            raise UsageError(_too_large(len(prompts), most_nodes, first + max(fits, default=0)))
        shift = len(nodes)
        nodes += [
            replace(node, prompt=node.prompt + first, parent=node.parent + shift if node.parent >= 0 else -1)
            for node in tree.nodes
        ]
        experts += tree.experts or []
    if len({node.prompt for node in nodes}) < len(prompts):
        raise UsageError(f"a prompt has no answer that is more likely than {smallest:g}: {_LOWER}")
    return Tree(list(prompts), nodes, experts or None)


_NO_END = (
    "an exact sketch needs a token that ends an answer, and this model names none: leave --sketch.exact-prompts out to "
    "sketch sampled answers."
)
_LOWER = "lower --sketch.smallest-probability, or leave --sketch.exact-prompts out if answers are long."


def _too_large(prompts: int, most_nodes: int, fit: int) -> str:
    return (
        f"the likely answers to {prompts} prompts have more than {most_nodes} tokens, which is all that fits into "
        f"memory; those to {fit} prompts fit. Ask for fewer prompts, or raise --sketch.smallest-probability."
    )


def _grow_group(
    prompts: Sequence[list[int]],
    evaluate: Evaluate,
    eos_ids: Sequence[int],
    max_tokens: int,
    log_smallest: float,
    most_nodes: int,
) -> Tree:
    """Grow the tree of some prompts, level by level; stop early if it has too many nodes."""
    nodes: list[Node] = []
    prompt_experts = None
    prefixes, parents = list(prompts), [-1] * len(prompts)  # of the answers that continue
    owners, old, sampled = list(range(len(prompts))), torch.zeros(len(prompts)), torch.zeros(len(prompts))
    for depth in range(1, max_tokens + 1):
        following = evaluate(prefixes)
        if following.experts is not None and depth == 1:
            prompt_experts = following.experts
        if following.experts is not None and depth > 1:
            for index, experts in zip(parents, following.experts, strict=True):
                nodes[index] = replace(nodes[index], experts=experts[-1])
        total_old, total_sampled = old[:, None] + following.old, sampled[:, None] + following.sampled
        likely = (torch.maximum(total_old, total_sampled) > log_smallest).nonzero()
        count = len(nodes)
        nodes += [
            Node(
                prompt=owners[row], parent=parents[row], token=token,
                rollout_log_prob=float(following.rollout[row, token]),
                sampled_log_prob=float(following.sampled[row, token]),
                ends=token in eos_ids or depth == max_tokens,
            )
            for row, token in likely.tolist()
        ]  # fmt: skip
        unfinished = [i for i, node in enumerate(nodes[count:]) if not node.ends]
        if not unfinished or len(nodes) > most_nodes:
            break
        rows, tokens = likely[unfinished].unbind(-1)
        prefixes = [[*prefixes[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
        owners, parents = [owners[row] for row in rows.tolist()], [count + i for i in unfinished]
        old, sampled = total_old[rows, tokens], total_sampled[rows, tokens]
    return Tree(list(prompts), nodes if len(nodes) > most_nodes else _without_dead_ends(nodes), prompt_experts)


def _without_dead_ends(nodes: list[Node]) -> list[Node]:
    """Return the nodes from which an answer ends. After the others, each single continuation is too unlikely."""
    alive = [node.ends for node in nodes]
    for index in reversed(range(len(nodes))):  # parents come before their children
        if alive[index] and nodes[index].parent >= 0:
            alive[nodes[index].parent] = True
    new_indices = [count - 1 for count in itertools.accumulate(alive)]
    return [
        replace(node, parent=new_indices[node.parent] if node.parent >= 0 else -1)
        for node, kept in zip(nodes, alive, strict=True)
        if kept
    ]
