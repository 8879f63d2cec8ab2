"""The gradients of two corrections on the same answers, and the differences between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import (
    REPLICATES,
    Interval,
    bootstrap,
    cosine,
    covariances,
    interval_of,
    length_of,
    mean_gradients,
)
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import BATCH_SIZES, GradientReport, report_of, samples_of
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientComparison:
    """The gradients of two corrections, A and B, on the same bootstrap samples.

    Differences are B − A, in units of the on-policy gradient. Their intervals are those of the paired differences, so
    noise that both share cancels.
    """

    a: GradientReport
    b: GradientReport
    bias: Interval
    """Difference of the relative bias."""
    cosine: Interval
    """Cosine of B with the on-policy gradient, minus that of A."""
    between: Interval
    """Cosine of the two gradients of this batch, or of these prompts. Near 1 both steps have the same direction."""
    expected: Interval
    """Cosine of the two expected gradients, without their common noise. NaN if noise explains one of them."""
    noise: tuple[Interval, ...]
    """Difference for each batch size of the reports."""
    progress: tuple[Interval, ...]
    """Difference of η, for each batch size."""
    b_is_better: tuple[float, ...]
    """Share of the bootstrap samples in which B makes more progress, for each batch size. A tie counts half."""


def compare_gradients(
    batch: TokenBatch,
    sketch: Sketch,
    a: CorrectionConfig,
    b: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientComparison:
    """Measure bias, noise, progress and direction of two corrections and the differences between them.

    Raises the same errors as `report`.
    """
    samples = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    parts_a, parts_b = contributions(batch, sketch, [a, b], loss)
    numbers_a, numbers_b = samples_of(parts_a, samples, batch_sizes), samples_of(parts_b, samples, batch_sizes)
    g_a, g_b = (mean_gradients(parts, samples.units) for parts in (parts_a, parts_b))
    lengths = [length_of((samples.directions * g.square()).sum(-1)) for g in (g_a, g_b)]
    inner = samples.without_noise(g_a * g_b, covariances(parts_a, parts_b))
    expected_lengths = [
        length_of(samples.without_noise(g.square(), covariances(parts, parts)))
        for g, parts in ((g_a, parts_a), (g_b, parts_b))
    ]
    gain = (numbers_b.progress - numbers_a.progress)[:, 1:].nan_to_num(0).sign()
    return GradientComparison(
        a=report_of(numbers_a),
        b=report_of(numbers_b),
        bias=interval_of(numbers_b.relative_bias - numbers_a.relative_bias, signed=True),
        cosine=interval_of(numbers_b.cosine - numbers_a.cosine, signed=True),
        between=interval_of(cosine((samples.directions * g_a * g_b).sum(-1), lengths[0] * lengths[1]), signed=True),
        expected=interval_of(cosine(inner, expected_lengths[0] * expected_lengths[1]), signed=True),
        noise=_paired(numbers_a.noise, numbers_b.noise),
        progress=_paired(numbers_a.progress, numbers_b.progress),
        b_is_better=tuple((0.5 + gain / 2).mean(-1).tolist()),
    )


def _paired(a: torch.Tensor, b: torch.Tensor) -> tuple[Interval, ...]:
    """Return the intervals of B − A, one per row of (S, 1 + R)."""
    return tuple(interval_of(difference, signed=True) for difference in b - a)
