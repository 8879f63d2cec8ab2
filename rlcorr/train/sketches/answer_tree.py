"""All likely answers to some prompts, as a tree that the trainer and the engine grow together.

A branch goes on while its probability is above ε under one of the two policies. What is left out is known: it is what
the probabilities of the answers lack to 1.
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
"""Whose prefixes are evaluated together, which bounds what their distributions take."""


class Distributions(NamedTuple):
    """Of the token after each of F prefixes, as log-probs (F, V)."""

    old: Tensor  # π_old
    rollout: Tensor  # what the engine reports
    sampled: Tensor  # what the engine draws from
    experts: list[Tensor] | None = None  # per prefix (its tokens, layers, k): the engine's, where they are replayed


@dataclass(frozen=True)
class Node:
    """One token of an answer."""

    prompt: int
    parent: int  # the node before; −1 at the first token
    token: int
    rollout_log_prob: float
    sampled_log_prob: float
    ends: bool  # the answer is complete: this is an end token, or the last that it may have
    experts: Tensor | None = None  # (layers, k) of this token


@dataclass(frozen=True)
class Tree:
    """Nodes after their parents; each branch reaches the end of an answer."""

    prompts: list[list[int]]
    nodes: list[Node]
    experts: list[Tensor] | None = None  # per prompt (its tokens, layers, k)


Evaluate = Callable[[list[list[int]]], Distributions]


def grow(
    prompts: Sequence[list[int]],
    evaluate: Evaluate,
    *,
    stops: Sequence[int],
    max_tokens: int,
    smallest: float,
    most_nodes: int,
) -> Tree:
    """Every answer whose probability is above `smallest` under π_old or under what the engine draws from.

    Raises `UsageError` where no token ends an answer, where a prompt has no likely one, and where there are more nodes
    than allowed, with the number of prompts whose nodes fit.
    """
    if not stops:
        raise UsageError(_NO_END)

    def grow_some(some: Sequence[list[int]], room: int) -> Tree:
        return _grow_some(some, evaluate, stops, max_tokens, math.log(smallest), room)

    nodes: list[Node] = []
    experts: list[Tensor] = []
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        some = prompts[first : first + PROMPTS_AT_ONCE]
        room = most_nodes - len(nodes)
        grown = grow_some(some, room)
        if len(grown.nodes) > room:
            fewer = range(1, len(some))  # of what has stopped early it cannot be told
            fit = first + max((count for count in fewer if len(grow_some(some[:count], room).nodes) <= room), default=0)
            raise UsageError(_too_large(len(prompts), most_nodes, fit))
        shift = len(nodes)
        nodes += [
            replace(node, prompt=node.prompt + first, parent=node.parent + shift if node.parent >= 0 else -1)
            for node in grown.nodes
        ]
        experts += grown.experts or []
    if len({node.prompt for node in nodes}) < len(prompts):
        raise UsageError(f"a prompt has no answer as likely as {smallest:g}: {_LOWER}")
    return Tree(list(prompts), nodes, experts or None)


_NO_END = (
    "an exact sketch needs a token that ends an answer, and this model names none: leave --sketch.exact-prompts out, "
    "and sampled answers are sketched."
)
_LOWER = "lower --sketch.smallest-probability, or leave --sketch.exact-prompts out where answers are long."


def _too_large(prompts: int, most_nodes: int, fit: int) -> str:
    return (
        f"the likely answers to {prompts} prompts have more than {most_nodes} tokens, which is what --sketch.tree-mib "
        f"holds; those to {fit} prompts fit. Ask for fewer prompts, raise --sketch.smallest-probability, or give more "
        "memory."
    )


def _grow_some(
    prompts: Sequence[list[int]],
    evaluate: Evaluate,
    stops: Sequence[int],
    max_tokens: int,
    log_smallest: float,
    most_nodes: int,
) -> Tree:
    """Level by level; it stops early where there are too many nodes."""
    nodes: list[Node] = []
    prompt_experts = None
    prefixes, numbers = list(prompts), [-1] * len(prompts)
    owners, old, sampled = list(range(len(prompts))), torch.zeros(len(prompts)), torch.zeros(len(prompts))
    for depth in range(1, max_tokens + 1):
        following = evaluate(prefixes)
        if following.experts is not None and depth == 1:
            prompt_experts = following.experts
        if following.experts is not None and depth > 1:
            for number, experts in zip(numbers, following.experts, strict=True):
                nodes[number] = replace(nodes[number], experts=experts[-1])
        of_old, of_sampled = old[:, None] + following.old, sampled[:, None] + following.sampled
        chosen = (torch.maximum(of_old, of_sampled) > log_smallest).nonzero()
        before = len(nodes)
        nodes += [
            Node(
                prompt=owners[row], parent=numbers[row], token=token,
                rollout_log_prob=float(following.rollout[row, token]),
                sampled_log_prob=float(following.sampled[row, token]),
                ends=token in stops or depth == max_tokens,
            )
            for row, token in chosen.tolist()
        ]  # fmt: skip
        going = [place for place, node in enumerate(nodes[before:]) if not node.ends]
        if not going or len(nodes) > most_nodes:
            break
        rows, tokens = chosen[going].unbind(-1)
        prefixes = [[*prefixes[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
        owners, numbers = [owners[row] for row in rows.tolist()], [before + place for place in going]
        old, sampled = of_old[rows, tokens], of_sampled[rows, tokens]
    return Tree(list(prompts), nodes if len(nodes) > most_nodes else _without_dead_ends(nodes), prompt_experts)


def _without_dead_ends(nodes: list[Node]) -> list[Node]:
    """Only the nodes from which an end is reached: elsewhere each single continuation is too unlikely."""
    alive = [node.ends for node in nodes]
    for number in reversed(range(len(nodes))):  # parents stand before their children
        if alive[number] and nodes[number].parent >= 0:
            alive[nodes[number].parent] = True
    renumbered = [count - 1 for count in itertools.accumulate(alive)]
    return [
        replace(node, parent=renumbered[node.parent] if node.parent >= 0 else -1)
        for node, kept in zip(nodes, alive, strict=True)
        if kept
    ]
