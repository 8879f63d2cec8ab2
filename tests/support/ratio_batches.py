"""Batches that are nothing but ratios, for what depends on nothing else."""

import math
from collections.abc import Sequence

import torch

from rlcorr.types import TokenBatch


def of_log_ratios(d: torch.Tensor) -> TokenBatch:
    """Every token counts, with an advantage of 1."""
    return TokenBatch(
        response_mask=torch.ones(d.shape, dtype=torch.bool),
        rollout_log_probs=torch.full(d.shape, -1.0, dtype=d.dtype),
        old_log_probs=-1.0 + d,
        advantages=torch.ones(d.shape),
    )


def of_ratios(ratios: Sequence[float]) -> TokenBatch:
    """One sequence of one token for each."""
    return of_log_ratios(torch.tensor([[math.log(r)] for r in ratios], dtype=torch.float64))


def effective_share(weights: Sequence[float]) -> float:
    """(Σw)² / (n Σw²)."""
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
