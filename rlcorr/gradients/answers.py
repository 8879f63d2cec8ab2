"""Every likely answer to some prompts as a row of a batch, with its probability. Expected values are sums over these
rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.types import TokenBatch

ENOUGH_COVERED = 0.99
"""Probability that the answers must cover. If they cover less, reports show the coverage next to their numbers."""


@dataclass(frozen=True)
class AnswerTree:
    """All tokens of the likely answers to P prompts, as a tree with E nodes.

    A node is one token and points to its parent, the token before it. The tree contains every answer whose probability
    is above ε, either under π_old or under the distribution that the engine samples from. An answer ends at a node
    without children.
    """

    prompts: Tensor  # (E,) index of the prompt
    parents: Tensor  # (E,) the node of the token before; −1 for an answer's first token
    tokens: Tensor  # (E,) token ids
    old_log_probs: Tensor  # (E,) log π_old of the token, given the tokens before it
    rollout_log_probs: Tensor  # (E,) log-probs that the engine reports
    sampled_log_probs: Tensor  # (E,) log-probs that the engine samples from; they differ from reported raw log-probs


@dataclass(frozen=True)
class Answers:
    """All A answers of a tree, as one batch.

    Each row is corrected as if it had been sampled. In an expected value it counts with its probability.
    """

    batch: TokenBatch  # group_ids are the prompts, 0 … P − 1
    nodes: Tensor  # (N,) node of each response token, row by row
    sampled: Tensor  # (A,) probability under the distribution that the engine samples from
    trained: Tensor  # (A,) probability under π_old

    @property
    def prompts(self) -> Tensor:
        """Return the prompt of each answer, (A,)."""
        assert self.batch.group_ids is not None
        return self.batch.group_ids

    @property
    def prompt_count(self) -> int:
        """Return P, the number of prompts."""
        return int(self.prompts.max()) + 1

    @property
    def coverage(self) -> dict[str, float]:
        """Return the probability of all answers together, as a mean over the prompts: under π_old and under the engine.

        The rest, up to 1, belongs to answers that the tree leaves out.
        """
        sums = {"old": self.trained.sum(), "rollout": self.sampled.sum()}
        return {name: float(total) / self.prompt_count for name, total in sums.items()}


def answers_of(tree: AnswerTree) -> Answers:
    """Return the answers of a tree as a batch.

    The rows are sorted by prompt, and the answers to one prompt by their last nodes.
    """
    paths = paths_of(tree.parents)
    paths = paths[tree.prompts[paths[:, 0]].argsort(stable=True)]
    mask = paths >= 0
    nodes = paths[mask]
    old, rollout, sampled = (
        torch.where(mask, values.float()[paths.clamp(min=0)], 0)
        for values in (tree.old_log_probs, tree.rollout_log_probs, tree.sampled_log_probs)
    )
    batch = TokenBatch(
        response_mask=mask,
        # An answer that the engine never samples has weight 0. Its ratio must be finite, because 0 · ∞ is NaN.
        rollout_log_probs=torch.where(rollout.isfinite(), rollout, old),
        old_log_probs=old,
        response_ids=torch.where(mask, tree.tokens[paths.clamp(min=0)].long(), 0),
        group_ids=tree.prompts[paths[:, 0]].long(),
    )
    return Answers(batch, nodes, *(values.double().sum(-1).exp() for values in (sampled, old)))


def paths_of(parents: Tensor) -> Tensor:
    """Return the path of every answer through the tree, (E,) → (A, T).

    A row contains the nodes from the answer's first token to its last, then −1.
    """
    has_child = torch.zeros(len(parents), dtype=torch.bool)
    has_child[parents[parents >= 0].long()] = True
    node = (~has_child).nonzero()[:, 0]  # the last token of each answer
    backwards = []
    while bool((node >= 0).any()):
        backwards.append(node)
        node = torch.where(node >= 0, parents[node].long(), -1)
    table = torch.stack(backwards, 1)  # from the last token to the first; reversed below
    lengths = (table >= 0).sum(-1, keepdim=True)
    columns = torch.arange(table.shape[1])
    return torch.where(columns < lengths, table.gather(1, (lengths - 1 - columns).clamp(min=0)), -1)
