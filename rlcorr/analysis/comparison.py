"""Two corrections of one batch, A and B: the differences between their masks, weights and metrics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
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
    """Return an index into SHARED for each token, (B, T) uint8. Raises `UsageError` if a result is of another batch."""
    _same_batch(batch, a, b)
    by_a, by_b = trained_on(a), trained_on(b)
    neither = batch.response_mask & ~by_a & ~by_b
    return (by_a & by_b).byte() + 2 * neither.byte() + 3 * (by_a & ~by_b).byte() + 4 * (by_b & ~by_a).byte()


@dataclass(frozen=True)
class Agreement:
    """Number of tokens that both corrections, one of them, or neither trains on."""

    both: int
    only_a: int
    only_b: int
    neither: int
    jaccard: float
    """both / (both + only A + only B); 1 if neither trains on anything."""
    differing: float
    """(only A + only B) / response tokens; 0 without tokens."""


def agreement(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Agreement:
    """Count the response tokens that both corrections, one, or neither trains on. Raises the same error as `shared`."""
    counts = torch.bincount(shared(batch, a, b).flatten().long(), minlength=len(SHARED)).tolist()
    return agreement_of(*counts[1:])


def agreement_of(both: int, neither: int, only_a: int, only_b: int) -> Agreement:
    """Compute the agreement from these four token counts."""
    different = only_a + only_b
    return Agreement(
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=neither,
        jaccard=both / (both + different) if both + different else 1.0,
        differing=different / max(both + different + neither, 1),
    )


@dataclass(frozen=True)
class MetricPair:
    """One metric of both corrections; NaN if one of them does not measure it."""

    key: str
    a: float
    b: float
    difference: float
    """b − a."""


def metric_pairs(a: Mapping[str, float], b: Mapping[str, float]) -> list[MetricPair]:
    """Pair every metric that A or B has: first the metrics of A in their order, then those that only B has."""
    pairs = [(key, a.get(key, math.nan), b.get(key, math.nan)) for key in {**a, **b}]
    return [MetricPair(key, value_a, value_b, value_b - value_a) for key, value_a, value_b in pairs]


def _same_batch(batch: TokenBatch, *results: CorrectionResult) -> None:
    expected = batch.response_mask.shape
    for result in results:
        if result.keep_mask.shape != expected:
            raise UsageError(
                f"corrections are compared token by token, so both results must be of this batch: its shape is "
                f"{tuple(expected)}, a result has {tuple(result.keep_mask.shape)}."
            )
