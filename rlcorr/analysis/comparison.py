"""Two corrections of one batch, A and B: where their masks, weights, metrics and gradients differ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.contributions import Sketch, contributions, covariance, mean_gradients
from rlcorr.gradients.report import (
    REPLICATES,
    GradientReport,
    Interval,
    bootstrap,
    cosine,
    interval_of,
    noises,
    report_of,
    samples_of,
)
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
    both, neither, only_a, only_b = counts[1:]
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


@dataclass(frozen=True)
class GradientComparison:
    """Two estimators' gradients on the same bootstrap samples. Differences are B − A, in units of the on-policy
    gradient; their intervals are those of the paired differences, so noise that both share cancels."""

    a: GradientReport
    b: GradientReport
    bias: Interval
    noise: Interval
    error: Interval
    cosine: Interval
    """Of B with the on-policy gradient, less that of A."""
    between: Interval
    """Cosine of the two gradients of this batch: do the two steps go the same way?"""
    expected: Interval
    """Cosine of the two expected gradients, without what their common noise adds; NaN where noise explains one."""
    b_is_better: float
    """Share of the bootstrap samples in which B has the smaller error; a tie counts half."""


def compare_gradients(
    batch: TokenBatch,
    sketch: Sketch,
    a: CorrectionConfig,
    b: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientComparison:
    """Bias, noise, error and direction of both, and by how much they differ. Raises as `gradients.report`."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    parts_a, parts_b = contributions(batch, sketch, [a, b], loss)
    of_a, of_b = samples_of(parts_a, replicas), samples_of(parts_b, replicas)
    unit = replicas.reference_length[0]
    more = {name: of_b[name] - of_a[name] for name in ("relative_bias", "error", "cosine")}
    more["noise"] = (of_b["variance"].sqrt() - of_a["variance"].sqrt()) / unit
    g_a, g_b = (mean_gradients(parts, replicas.sequences) for parts in (parts_a, parts_b))
    inner, sizes = (g_a * g_b).sum(-1), g_a.norm(dim=-1) * g_b.norm(dim=-1)
    expected = inner - noises(inner) * covariance(parts_a, parts_b)
    gained = (of_a["error"] - of_b["error"])[1:].sign()
    return GradientComparison(
        a=report_of(of_a, sketch),
        b=report_of(of_b, sketch),
        bias=interval_of(more["relative_bias"], signed=True),
        noise=interval_of(more["noise"], signed=True),
        error=interval_of(more["error"], signed=True),
        cosine=interval_of(more["cosine"], signed=True),
        between=interval_of(cosine(inner, sizes), signed=True),
        expected=interval_of(cosine(expected, of_a["length"] * of_b["length"]), signed=True),
        b_is_better=float((0.5 + gained / 2).mean()),
    )


def _same_batch(batch: TokenBatch, *results: CorrectionResult) -> None:
    expected = batch.response_mask.shape
    for result in results:
        if result.keep_mask.shape != expected:
            raise UsageError(
                f"corrections compare token by token on one batch only: it is {tuple(expected)}, "
                f"a result is {tuple(result.keep_mask.shape)}."
            )
