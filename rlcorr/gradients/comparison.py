"""Two corrections' gradients on the same answers, and by how much they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import REPLICATES, Interval, bootstrap, cosine, interval_of, length_of
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.estimates import covariances, mean_gradients
from rlcorr.gradients.report import BATCH_SIZES, GradientReport, report_of, samples_of
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientComparison:
    """Two estimators' gradients on the same bootstrap samples. Differences are B − A, in units of the on-policy
    gradient; their intervals are those of the paired differences, so noise that both share cancels."""

    a: GradientReport
    b: GradientReport
    bias: Interval
    cosine: Interval
    """Of B with the on-policy gradient, less that of A."""
    between: Interval
    """Cosine of the two gradients of this batch, or of these prompts: do the two steps go the same way?"""
    expected: Interval
    """Cosine of the two expected gradients, without what their common noise adds; NaN where noise explains one."""
    noise: tuple[Interval, ...]
    """For each batch size of the reports."""
    progress: tuple[Interval, ...]
    """Of η, for each batch size."""
    b_is_better: tuple[float, ...]
    """Share of the bootstrap samples in which B makes more progress, for each batch size; a tie counts half."""


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
    """Bias, noise, progress and direction of both, and by how much they differ. Raises as `report` does."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    parts_a, parts_b = contributions(batch, sketch, [a, b], loss)
    of_a, of_b = samples_of(parts_a, replicas, batch_sizes), samples_of(parts_b, replicas, batch_sizes)
    g_a, g_b = (mean_gradients(parts, replicas.units) for parts in (parts_a, parts_b))
    lengths = [length_of((replicas.directions * g.square()).sum(-1)) for g in (g_a, g_b)]
    without_noise = replicas.without_noise(g_a * g_b, covariances(parts_a, parts_b))
    lengths_alone = [
        length_of(replicas.without_noise(g.square(), covariances(parts, parts)))
        for g, parts in ((g_a, parts_a), (g_b, parts_b))
    ]
    gained = (of_b.progress - of_a.progress)[:, 1:].nan_to_num(0).sign()
    return GradientComparison(
        a=report_of(of_a),
        b=report_of(of_b),
        bias=interval_of(of_b.relative_bias - of_a.relative_bias, signed=True),
        cosine=interval_of(of_b.cosine - of_a.cosine, signed=True),
        between=interval_of(cosine((replicas.directions * g_a * g_b).sum(-1), lengths[0] * lengths[1]), signed=True),
        expected=interval_of(cosine(without_noise, lengths_alone[0] * lengths_alone[1]), signed=True),
        noise=_paired(of_a.noise, of_b.noise),
        progress=_paired(of_a.progress, of_b.progress),
        b_is_better=tuple((0.5 + gained / 2).mean(-1).tolist()),
    )


def _paired(a: torch.Tensor, b: torch.Tensor) -> tuple[Interval, ...]:
    """B − A of each row, (S, 1 + R)."""
    return tuple(interval_of(difference, signed=True) for difference in b - a)
