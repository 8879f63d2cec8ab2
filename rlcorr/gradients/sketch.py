"""What a recorded step stores of its gradients: K random projections of the score of every token.

The tokens are those of sampled answers (`SampledSketch`), or of every likely answer to some prompts (`ExactSketch`).
For a step with few answers, further ones are sampled for the sketch (`DrawnAnswers`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from rlcorr.gradients.answers import Answers, AnswerTree, answers_of
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Reference:
    """The gradient at the trainer's own weights, in M blocks of responses that were sampled with these weights."""

    by_token: Tensor  # (M, K) Σ over the block of advantage · score
    by_sequence: Tensor  # (M, K) the same, each response divided by its length
    tokens: Tensor  # (M,)
    sequences: Tensor  # (M,)

    def along_first(self, directions: int) -> "Reference":
        """Return the reference in the first of its K directions.

        A projection is divided by the root of the number of directions, so the values are rescaled.
        """
        scale = (self.by_token.shape[1] / directions) ** 0.5
        return replace(
            self,
            by_token=self.by_token[:, :directions] * scale,
            by_sequence=self.by_sequence[:, :directions] * scale,
        )


@dataclass(frozen=True)
class NextTokens:
    """All V possible next tokens at P positions of the batch, so that expectations over the next token are exact."""

    log_probs: Tensor  # (P, V) log π_old
    scores: Tensor  # (P, V, K) of each token
    ref_log_probs: Tensor | None = None  # (P, V), if the run has a reference policy
    rollout_log_probs: Tensor | None = None  # (P, V), of the engine with the weights that sampled the batch


@dataclass(frozen=True)
class SampledSketch:
    """Scores of one step's tokens, and the reference at the same weights in the same directions."""

    scores: Tensor  # (N, K) in the order of batch.response_mask, row by row
    reference: Reference
    next_tokens: NextTokens | None = None
    weights_hash: str = ""
    directions_hash: str = ""

    @property
    def directions(self) -> int:
        """Return K, the number of directions."""
        return self.scores.shape[1]


@dataclass(frozen=True)
class DrawnAnswers:
    """Answers to other prompts than those of the step, sampled with the same weights. Gradients are measured on them.

    Their scores may use only the first of the sketch's directions.
    """

    batch: TokenBatch  # with the log-probs of both policies and the advantages of an update
    scores: Tensor  # (N, K') in the order of batch.response_mask, row by row


@dataclass(frozen=True)
class ExactSketch:
    """Scores of every node of an answer tree to P prompts.

    The P prompts are the task. Expected gradients on them, including the on-policy one, are sums over the answers and
    need no sampling. The intervals account for the other prompts of the task.
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
        """Return 1 − P/N, the share of the run's N prompts that are not in this sketch.

        It is 1 if the run draws new prompts. This is the correction of a variance for a finite population.
        """
        return 1.0 if self.task_prompts is None else 1 - self.answers.prompt_count / self.task_prompts

    @cached_property
    def answers(self) -> Answers:
        """Return the answers of the tree with their advantages."""
        answers = answers_of(self.tree)
        advantages = torch.zeros(answers.batch.response_mask.shape)
        advantages[answers.batch.response_mask] = self.advantages.float()
        return replace(answers, batch=answers.batch.replace(advantages=advantages))


Sketch = SampledSketch | ExactSketch


@dataclass(frozen=True)
class SampledUnits:
    """The units that the intervals are over, and their number."""

    count: int
    kind: Literal["sampled answers", "prompts", "random directions"]


def sampled_units(batch: TokenBatch, sketch: Sketch) -> SampledUnits:
    """Return the units whose sampling explains most of the width of an interval.

    These are the directions if all answers to all prompts of the run are present. In the other cases directions are
    resampled, too.
    """
    if isinstance(sketch, SampledSketch):
        return SampledUnits(len(batch.response_mask), "sampled answers")
    if sketch.finite_population_factor > 0:
        return SampledUnits(sketch.answers.prompt_count, "prompts")
    return SampledUnits(sketch.directions, "random directions")
