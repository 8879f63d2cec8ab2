"""Two corrections of one batch, A and B: which of the two trains on a token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.types import CorrectionResult, TokenBatch

SHARED = ("padding", "both", "neither", "only A", "only B")
"""Which correction trains on a token. A difference has a higher number than agreement, so that it shows if tokens share
a cell of a figure."""


def trained_on(result: CorrectionResult) -> Tensor:
    """Return the tokens that no rule rejects and whose weight is above 0, (B, T) bool.

    Masking of weights sets them to 0.
    """
    return result.keep_mask & (result.weights > 0)


def shared(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Tensor:
    """Return an index into SHARED for each token, (B, T) uint8."""
    by_a, by_b = trained_on(a), trained_on(b)
    neither = batch.response_mask & ~by_a & ~by_b
    return (by_a & by_b).byte() + 2 * neither.byte() + 3 * (by_a & ~by_b).byte() + 4 * (by_b & ~by_a).byte()


@dataclass(frozen=True)
class Agreement:
    """Number of tokens that both corrections, neither, or one of them trains on."""

    both: int
    neither: int
    only_a: int
    only_b: int

    @property
    def differing(self) -> float:
        """Return (only A + only B) / response tokens; 0 without tokens."""
        different = self.only_a + self.only_b
        return different / max(self.both + different + self.neither, 1)


def agreement(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Agreement:
    """Count the response tokens that both corrections, one, or neither trains on."""
    counts = torch.bincount(shared(batch, a, b).flatten().long(), minlength=len(SHARED)).tolist()
    return Agreement(*counts[1:])
