"""All likely answers to some prompts, as a tree that grows by the distributions of the trainer and the engine.

A branch continues while its probability is above ε under one of the two policies. The probability of everything that is
left out is known: it is 1 minus the sum over the answers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.answers import AnswerTree


class Distributions(NamedTuple):
    """Distributions of the token after each of F prefixes, as log-probs (F, V)."""

    old: Tensor  # π_old
    rollout: Tensor  # as the engine reports it
    sampled: Tensor  # as the engine samples from it
    experts: Sequence[Tensor] = ()  # with router replay, the engine's: (tokens, layers, k) per prefix


Evaluate = Callable[[list[list[int]]], Distributions]


def grow(
    prompts: Sequence[list[int]],
    evaluate: Evaluate,
    *,
    eos_ids: Sequence[int],
    max_tokens: int,
    smallest: float,
    most_nodes: int,
) -> tuple[AnswerTree, list[Tensor]]:
    """Grow the tree of every answer that is more likely than `smallest` under π_old or under the engine's sampling.

    Returns:
        The tree, whose nodes come after their parents, and for each node the engine's experts of all tokens before it,
        (tokens, layers, k), if there are any.

    Raises:
        UsageError: if there is no id that ends an answer, if a prompt has no likely answer, or if there are more than
            `most_nodes` nodes.
    """
    if not eos_ids:
        raise UsageError(_NO_END)
    levels: list[AnswerTree] = []
    ends: list[Tensor] = []
    experts: list[Tensor] = []
    edge = _Edge(
        list(prompts), torch.arange(len(prompts)), torch.full((len(prompts),), -1), *torch.zeros(2, len(prompts))
    )
    while edge.prefixes:
        ending = torch.tensor(eos_ids) if len(levels) + 1 < max_tokens else None
        following = evaluate(edge.prefixes)
        rows, nodes, complete, edge = _step(edge, following, math.log(smallest), ending, sum(map(len, ends)))
        levels.append(nodes)
        ends.append(complete)
        experts += [following.experts[row] for row in rows.tolist()] if following.experts else []
        if sum(map(len, ends)) > most_nodes:
            raise UsageError(_TOO_LARGE.format(prompts=len(prompts), most=most_nodes))
    tree, alive = _without_dead_ends(levels, torch.cat(ends))
    if len(tree.prompts.unique()) < len(prompts):
        raise UsageError(f"a prompt has no answer that is more likely than {smallest:g}: {_LOWER}")
    return tree, [experts[node] for node in alive.nonzero()[:, 0].tolist()] if experts else []


_NO_END = (
    "an exact sketch needs a token that ends an answer, and this model names none: leave --sketch.exact-prompts out to "
    "sketch sampled answers."
)
_TOO_LARGE = (
    "the likely answers to {prompts} prompts have more than {most} tokens, which is all that fits into memory: ask for "
    "fewer prompts, or raise --sketch.smallest-probability."
)
_LOWER = "lower --sketch.smallest-probability, or leave --sketch.exact-prompts out if answers are long."


class _Edge(NamedTuple):
    """The F answers that continue."""

    prefixes: list[list[int]]
    prompts: Tensor  # (F,) indices
    parents: Tensor  # (F,) their last nodes
    old: Tensor  # (F,) log-probs so far
    sampled: Tensor


def _step(
    edge: _Edge, following: Distributions, log_smallest: float, ending: Tensor | None, count: int
) -> tuple[Tensor, AnswerTree, Tensor, _Edge]:
    """Return the n likely nodes after the edge, of which the first has this number.

    Args:
        ending: ids that end an answer; None if all do, because it has its largest length.

    Returns:
        The index of each node's prefix, (n,), the nodes, whether they complete an answer, (n,), and the next edge.
    """
    old, sampled = edge.old[:, None] + following.old, edge.sampled[:, None] + following.sampled
    rows, tokens = (torch.maximum(old, sampled) > log_smallest).nonzero().unbind(-1)
    log_probs = (table[rows, tokens] for table in following[:3])
    ends = torch.ones_like(tokens, dtype=torch.bool) if ending is None else torch.isin(tokens, ending)
    nodes = AnswerTree(edge.prompts[rows], edge.parents[rows], tokens, *log_probs)
    going = (~ends).nonzero()[:, 0]
    on, last = rows[going], tokens[going]
    prefixes = [[*edge.prefixes[row], token] for row, token in zip(on.tolist(), last.tolist(), strict=True)]
    return rows, nodes, ends, _Edge(prefixes, edge.prompts[on], count + going, old[on, last], sampled[on, last])


def _without_dead_ends(levels: list[AnswerTree], ends: Tensor) -> tuple[AnswerTree, Tensor]:
    """Return the nodes from which an answer ends, and which those are. The others have no likely continuation."""
    columns = {field.name: torch.cat([getattr(level, field.name) for level in levels]) for field in fields(AnswerTree)}
    tree, alive = AnswerTree(**columns), ends.clone()
    for _ in levels:
        alive[tree.parents[alive & (tree.parents >= 0)]] = True
    new_indices = alive.cumsum(0) - 1
    tree = AnswerTree(**{name: values[alive] for name, values in columns.items()})
    return replace(tree, parents=torch.where(tree.parents >= 0, new_indices[tree.parents], -1)), alive
