"""Two corrections of one batch, A and B: where their masks, weights, metrics and gradients differ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.types import CorrectionResult, TokenBatch

SHARED = ("padding", "both", "neither", "only A", "only B")
"""Who trains on a token. A difference has the higher number: where tokens share a cell of a picture, it shows."""


def trained_on(result: CorrectionResult) -> Tensor:
    """(B, T) bool: tokens that no rule rejects and whose weight is above 0 (masking sets weights to 0)."""
    return result.keep_mask & (result.weights > 0)


def shared(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Tensor:
    """(B, T) uint8: an index into SHARED. Raises `UsageError` where the results are of another batch."""
    _same_batch(batch, a, b)
    by_a, by_b = trained_on(a), trained_on(b)
    neither = batch.response_mask & ~by_a & ~by_b
    return (by_a & by_b).byte() + 2 * neither.byte() + 3 * (by_a & ~by_b).byte() + 4 * (by_b & ~by_a).byte()


@dataclass(frozen=True)
class Agreement:
    """How many tokens both, one, or neither of two corrections train on."""

    both: int
    only_a: int
    only_b: int
    neither: int
    jaccard: float
    """both / (both + only A + only B); 1 where neither trains on anything."""
    differing: float
    """(only A + only B) / response tokens; 0 without tokens."""


def agreement(batch: TokenBatch, a: CorrectionResult, b: CorrectionResult) -> Agreement:
    """Counted over the response tokens. Raises `UsageError` as `shared` does."""
    counts = torch.bincount(shared(batch, a, b).flatten().long(), minlength=len(SHARED)).tolist()
    return agreement_of(*counts[1:])


def agreement_of(both: int, neither: int, only_a: int, only_b: int) -> Agreement:
    """Of so many tokens each."""
    apart = only_a + only_b
    return Agreement(
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=neither,
        jaccard=both / (both + apart) if both + apart else 1.0,
        differing=apart / max(both + apart + neither, 1),
    )


@dataclass(frozen=True)
class MetricPair:
    """One metric of both; NaN where one of them does not measure it."""

    key: str
    a: float
    b: float
    difference: float
    """b − a."""


def metric_pairs(a: Mapping[str, float], b: Mapping[str, float]) -> list[MetricPair]:
    """Every metric of either, A's first, in the order of the reports."""
    pairs = [(key, a.get(key, math.nan), b.get(key, math.nan)) for key in {**a, **b}]
    return [MetricPair(key, of_a, of_b, of_b - of_a) for key, of_a, of_b in pairs]


def _same_batch(batch: TokenBatch, *results: CorrectionResult) -> None:
    expected = batch.response_mask.shape
    for result in results:
        if result.keep_mask.shape != expected:
            raise UsageError(
                f"corrections compare token by token on one batch only: it is {tuple(expected)}, "
                f"a result is {tuple(result.keep_mask.shape)}."
            )
