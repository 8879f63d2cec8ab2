"""What a recorded step keeps of its gradients: K random projections of every token's score."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Reference:
    """The gradient at the trainer's own weights, from responses that they sampled, in M blocks of responses."""

    by_token: Tensor  # (M, K) Σ over the block of advantage · score
    by_sequence: Tensor  # (M, K) the same, each response divided by its length
    tokens: Tensor  # (M,)
    sequences: Tensor  # (M,)


@dataclass(frozen=True)
class NextTokens:
    """All V tokens that could follow at P places of the batch, so that expectations over the next token are exact."""

    log_probs: Tensor  # (P, V) log π_old
    scores: Tensor  # (P, V, K) of each token
    ref_log_probs: Tensor | None = None  # (P, V), where the run has a reference
    rollout_log_probs: Tensor | None = None  # (P, V), where the engine still had the weights that sampled


@dataclass(frozen=True)
class Sketch:
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
