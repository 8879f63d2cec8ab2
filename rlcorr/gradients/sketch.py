"""What a recorded step keeps of its gradients: K random projections of every token's score.

The tokens are those of sampled answers (`SampledSketch`), or of every likely answer to some prompts (`ExactSketch`).
Where a step has few answers of its own, further ones are sampled for it (`DrawnAnswers`).
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
    """The gradient at the trainer's own weights, from responses that they sampled, in M blocks of responses."""

    by_token: Tensor  # (M, K) Σ over the block of advantage · score
    by_sequence: Tensor  # (M, K) the same, each response divided by its length
    tokens: Tensor  # (M,)
    sequences: Tensor  # (M,)

    def along_first(self, directions: int) -> "Reference":
        """In the first of its K directions. A projection is divided by √ of their number."""
        larger = (self.by_token.shape[1] / directions) ** 0.5
        return replace(
            self,
            by_token=self.by_token[:, :directions] * larger,
            by_sequence=self.by_sequence[:, :directions] * larger,
        )


@dataclass(frozen=True)
class NextTokens:
    """All V tokens that could follow at P places of the batch, so that expectations over the next token are exact."""

    log_probs: Tensor  # (P, V) log π_old
    scores: Tensor  # (P, V, K) of each token
    ref_log_probs: Tensor | None = None  # (P, V), where the run has a reference
    rollout_log_probs: Tensor | None = None  # (P, V), of the engine with the weights that sampled


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
        """K."""
        return self.scores.shape[1]


@dataclass(frozen=True)
class DrawnAnswers:
    """Answers to other prompts than the step's, from the weights that sampled its own: gradients are measured on them.
    Their scores may be along the first of the sketch's directions alone."""

    batch: TokenBatch  # with both policies' log-probs, and advantages as an update sees them
    scores: Tensor  # (N, K') in the order of batch.response_mask, row by row


@dataclass(frozen=True)
class ExactSketch:
    """Scores of every node. The P prompts are the task: expected gradients on them, the on-policy one among them, are
    sums over the answers, without a sample. What the task's other prompts would say is in the intervals."""

    tree: AnswerTree
    advantages: Tensor  # (N,) of every token, answer by answer in the order of `answers_of`
    scores: Tensor  # (E, K)
    task_prompts: int | None = None  # how many prompts the training has, P of them here; None: it draws them
    next_tokens: NextTokens | None = None
    weights_hash: str = ""
    directions_hash: str = ""

    @property
    def directions(self) -> int:
        """K."""
        return self.scores.shape[1]

    @property
    def unseen(self) -> float:
        """The share of the training's prompts that are not here, 1 − P/N: the correction for a finite population."""
        return 1.0 if self.task_prompts is None else 1 - self.answers.prompt_count / self.task_prompts

    @cached_property
    def answers(self) -> Answers:
        """With their advantages."""
        answers = answers_of(self.tree)
        advantages = torch.zeros(answers.batch.response_mask.shape)
        advantages[answers.batch.response_mask] = self.advantages.float()
        return replace(answers, batch=answers.batch.replace(advantages=advantages))


Sketch = SampledSketch | ExactSketch


@dataclass(frozen=True)
class Drawn:
    """What intervals are over, and how many were drawn of it."""

    count: int
    of: Literal["sampled answers", "prompts", "random directions"]


def drawn(batch: TokenBatch, sketch: Sketch) -> Drawn:
    """What most of an interval's width is from. Directions, where all answers to all prompts of the training are there;
    they are drawn of the others as well."""
    if isinstance(sketch, SampledSketch):
        return Drawn(len(batch.response_mask), "sampled answers")
    if sketch.unseen > 0:
        return Drawn(sketch.answers.prompt_count, "prompts")
    return Drawn(sketch.directions, "random directions")
