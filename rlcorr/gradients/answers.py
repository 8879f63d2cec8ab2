"""Every likely answer as the row of a batch, with its probability: what expectations over answers are summed from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.types import TokenBatch

ENOUGH_COVERED = 0.99
"""Of the probability: where the answers have less, it is said beside what is measured on them."""


@dataclass(frozen=True)
class AnswerTree:
    """Every answer to P prompts whose probability is above ε under π_old or under what the engine draws from: a node
    per token, after its parent. An answer ends where no node follows."""

    prompts: Tensor  # (E,) which prompt
    parents: Tensor  # (E,) the node before; −1 at an answer's first token
    tokens: Tensor  # (E,)
    old_log_probs: Tensor  # (E,) of the token after what stands before it
    rollout_log_probs: Tensor  # (E,) as the engine reports them
    sampled_log_probs: Tensor  # (E,) of what the engine draws from; others than reported for raw log-probs


@dataclass(frozen=True)
class Answers:
    """A answers to P prompts. Each row is corrected as if it had been sampled, and counts as often as it would be."""

    batch: TokenBatch  # group_ids are the prompts, 0 … P − 1
    nodes: Tensor  # (N,) the node of each response token, row by row
    sampled: Tensor  # (A,) probability under what the engine draws from
    trained: Tensor  # (A,) probability under π_old

    @property
    def prompts(self) -> Tensor:
        """(A,) the prompt of each answer."""
        assert self.batch.group_ids is not None
        return self.batch.group_ids

    @property
    def prompt_count(self) -> int:
        """P."""
        return int(self.prompts.max()) + 1

    @property
    def per_prompt(self) -> Tensor:
        """(P,) how many answers each prompt has."""
        return self.prompts.bincount(minlength=self.prompt_count)

    @property
    def coverage(self) -> dict[str, float]:
        """Probability of all answers together, the mean over the prompts: what lacks to 1 is left out."""
        return {
            name: float(probability.sum()) / self.prompt_count
            for name, probability in (("old", self.trained), ("rollout", self.sampled))
        }


def answers_of(tree: AnswerTree) -> Answers:
    """The answers to one prompt after those to another, and in the order of their last nodes."""
    paths = paths_of(tree.parents)
    paths = paths[tree.prompts[paths[:, 0]].argsort(stable=True)]
    mask = paths >= 0
    nodes = paths[mask]
    old, rollout, sampled = (
        _columns(values, paths) for values in (tree.old_log_probs, tree.rollout_log_probs, tree.sampled_log_probs)
    )
    batch = TokenBatch(
        response_mask=mask,
        # What is never drawn has no ratio. It counts 0 times, and 0 · ∞ would not be 0.
        rollout_log_probs=torch.where(rollout.isfinite(), rollout, old),
        old_log_probs=old,
        response_ids=torch.where(mask, tree.tokens[paths.clamp(min=0)].long(), 0),
        group_ids=tree.prompts[paths[:, 0]].long(),
    )
    return Answers(batch, nodes, *(values.double().sum(-1).exp() for values in (sampled, old)))


def paths_of(parents: Tensor) -> Tensor:
    """(E,) → (A, T): the nodes from an answer's first token to its last, −1 after the end."""
    has_child = torch.zeros(len(parents), dtype=torch.bool)
    has_child[parents[parents >= 0].long()] = True
    here = (~has_child).nonzero()[:, 0]
    backwards = []
    while bool((here >= 0).any()):
        backwards.append(here)
        here = torch.where(here >= 0, parents[here].long(), -1)
    table = torch.stack(backwards, 1)
    lengths = (table >= 0).sum(-1, keepdim=True)
    columns = torch.arange(table.shape[1])
    return torch.where(columns < lengths, table.gather(1, (lengths - 1 - columns).clamp(min=0)), -1)


def _columns(values: Tensor, paths: Tensor) -> Tensor:
    """Of nodes → (A, T), 0 after the end."""
    return torch.where(paths >= 0, values.float()[paths.clamp(min=0)], 0)
