"""What a recorded step stores of its gradients: K random projections of the score of every token.

The tokens are those of sampled answers (`SampledSketch`), or of every likely answer to some prompts (`ExactSketch`).
Both have the row of the scores of each token (`rows`), the sum over the answers of a unit (`over_units`), and how much
the choice of the units adds to a variance (`finite_population_factor`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rlcorr.gradients.answers import Answers, AnswerTree, answers_of
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Reference:
    """The on-policy gradient, in M blocks of responses that the trainer's own weights have sampled.

    Sketches with `--sketch.reference-answers`, and those that were recorded before version 0.2, have one. Without it,
    the target is the gradient of exact sequence weights on the answers of the step.
    """

    by_token: Tensor  # (M, K) Σ over the block of advantage · score
    by_sequence: Tensor  # (M, K) the same, each response divided by its length
    tokens: Tensor  # (M,)
    sequences: Tensor  # (M,)


@dataclass(frozen=True)
class NextTokens:
    """All V possible next tokens at P positions of the batch, so that expectations over the next token are exact."""

    log_probs: Tensor  # (P, V) log π_old
    scores: Tensor  # (P, V, K) of each token
    ref_log_probs: Tensor | None = None  # (P, V), if the run has a reference policy
    rollout_log_probs: Tensor | None = None  # (P, V), of the engine with the weights that sampled the batch


@dataclass(frozen=True)
class KLGradients:
    """∇KL at P positions of the batch, exact over the next token. In place of `NextTokens`, if the vocabulary is large.

    With fixed positions, ∇KL(π‖τ) = Σ π (log π − log τ) ∇log π and ∇KL(τ‖π) = −Σ τ ∇log π, over all next tokens.
    """

    policy_rollout: Tensor  # (P, K) ∇KL(π_old‖π_rollout), of the engine with the weights that sampled the batch
    rollout_policy: Tensor  # (P, K) ∇KL(π_rollout‖π_old)
    policy_ref: Tensor | None = None  # (P, K) ∇KL(π_old‖π_ref), if the run has a reference policy
    ref_policy: Tensor | None = None  # (P, K) ∇KL(π_ref‖π_old)


@dataclass(frozen=True)
class SampledSketch:
    """Scores of the tokens of sampled answers. A unit is an answer."""

    scores: Tensor  # (N, K) in the order of batch.response_mask, row by row
    reference: Reference | None = None
    next_tokens: NextTokens | None = None
    weights_hash: str = ""
    directions_hash: str = ""
    kl_gradients: KLGradients | None = None

    finite_population_factor = 1.0

    @property
    def directions(self) -> int:
        """Return K, the number of directions."""
        return self.scores.shape[1]

    @property
    def rows(self) -> Tensor:
        """Return the row in `scores` of each response token, (N,)."""
        return torch.arange(len(self.scores))

    def over_units(self, values: Tensor) -> Tensor:
        """Return the numbers of the answers, (A,) or (A, K): each answer is a unit."""
        return values


@dataclass(frozen=True)
class ExactSketch:
    """Scores of every node of an answer tree to P prompts. A unit is a prompt with all its answers.

    Expected gradients on these prompts, including the on-policy one, are sums over the answers and need no sampling.
    The intervals account for the other prompts of the task.
    """

    tree: AnswerTree
    advantages: Tensor  # (N,) of every token, in the order of `answers_of`
    scores: Tensor  # (E, K)
    task_prompts: int | None = None  # N, number of prompts of the run; None if it draws new ones
    next_tokens: NextTokens | None = None
    weights_hash: str = ""
    directions_hash: str = ""

    @property
    def directions(self) -> int:
        """Return K, the number of directions."""
        return self.scores.shape[1]

    @property
    def finite_population_factor(self) -> float:
        """Return 1 − P/N, the share of the run's N prompts that are not in this sketch; 1 if the run draws new ones."""
        return 1.0 if self.task_prompts is None else 1 - self.answers.prompt_count / self.task_prompts

    @property
    def rows(self) -> Tensor:
        """Return the row in `scores` of each response token, (N,). Answers to one prompt share their first nodes."""
        return self.answers.nodes

    def over_units(self, values: Tensor, probability: Tensor | None = None) -> Tensor:
        """Return the expected value over the answers to each prompt, (A,) → (P,) or (A, K) → (P, K).

        The probability of each answer, (A,), is by default that under the distribution that the engine samples from.
        """
        probability = self.answers.sampled if probability is None else probability
        answers = torch.arange(len(probability))
        columns = values if values.dim() == 2 else values[:, None]
        return bags(answers, probability, self.answers.prompts.bincount(), columns).view(-1, *values.shape[1:])

    @cached_property
    def answers(self) -> Answers:
        """Return the answers of the tree with their advantages."""
        answers = answers_of(self.tree)
        advantages = torch.zeros(answers.batch.response_mask.shape)
        advantages[answers.batch.response_mask] = self.advantages.float()
        return replace(answers, batch=answers.batch.replace(advantages=advantages))


Sketch = SampledSketch | ExactSketch


def bags(rows: Tensor, c: Tensor, sizes: Tensor, table: Tensor) -> Tensor:
    """Sum c · table[row] over bags: M row numbers and coefficients in B consecutive bags of these sizes → (B, K)."""
    starts = sizes.cumsum(0) - sizes
    return embedding_bag(rows, table, starts, mode="sum", per_sample_weights=c.to(table))


@dataclass(frozen=True)
class SampledUnits:
    """The units whose sampling explains most of the width of an interval, and their number."""

    count: int
    kind: Literal["sampled answers", "prompts", "random directions"]


def sampled_units(batch: TokenBatch, sketch: Sketch) -> SampledUnits:
    """Return the units: the directions if all answers to all prompts of the run are present."""
    if isinstance(sketch, SampledSketch):
        return SampledUnits(len(batch.response_mask), "sampled answers")
    if sketch.finite_population_factor > 0:
        return SampledUnits(sketch.answers.prompt_count, "prompts")
    return SampledUnits(sketch.directions, "random directions")
