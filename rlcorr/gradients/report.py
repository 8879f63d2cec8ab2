"""What a correction does to the gradient of a recorded step: bias, noise, direction and progress, with intervals.

All numbers come from score sketches (see `contributions`). The intervals include the error of their random projection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import (
    REPLICATES,
    BootstrapSamples,
    Interval,
    bootstrap,
    cosine,
    difference_noise,
    interval_of,
    length_of,
    mean_gradients,
    reference_lengths,
    reference_noise,
)
from rlcorr.gradients.contributions import Contributions, contributions
from rlcorr.gradients.progress import Choice, choices, progress
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch

BATCH_SIZES = (256, 4096)
"""Default numbers of answers in a batch."""
SIGNED = ("cosine", "scale")
"""Numbers of a report that can be negative."""

N = TypeVar("N")
PerBatchSize = TypeVar("PerBatchSize")


@dataclass(frozen=True)
class GradientNumbers(Generic[N, PerBatchSize]):
    """The gradient of one correction compared with the on-policy gradient g*. Lengths are norms over all parameters.

    If noise explains all of a squared length, the length is 0. Numbers divided by it are NaN: they are unknown.
    """

    length: N
    """‖E[g]‖ without noise."""
    reference_length: N
    reference_noise: N
    """See `bootstrap.reference_noise`."""
    bias: N
    """‖E[g] − g*‖ without noise. Its interval includes 0 if noise explains all of it. For sampled answers g* is the
    gradient of unbounded sequence weights on the same answers."""
    relative_bias: N
    """bias / reference_length."""
    cosine: N
    """Cosine of E[g] and the reference. NaN if noise explains one; the interval contains the possible values."""
    scale: N
    """⟨E[g], reference⟩/‖reference‖²: factor on the step along the reference."""
    variance: N
    """V, the variance of one answer's contribution, summed over the parameters. A batch of B answers has V/B."""
    ess: N
    """(Σ w)²/Σ w² over sequences, as a share of the sequences. w is a sequence's mean weight on its kept tokens."""
    batch_sizes: tuple[int, ...]
    """Batch sizes B, in answers."""
    noise: PerBatchSize
    """√(V/B)/reference_length for each batch size: standard deviation over batches of B answers."""
    progress: PerBatchSize
    """η(B) for each batch size: see `progress`."""


class GradientReport(GradientNumbers[Interval, tuple[Interval, ...]]):
    """Each number of the original sample with its interval; noise and progress have one for each batch size."""


class ReportSamples(GradientNumbers[Tensor, Tensor]):
    """Each number in every bootstrap sample, (1 + R,); noise and progress are (S, 1 + R) for S batch sizes."""


def report(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientReport:
    """Measure the gradient of one correction.

    The bootstrap intervals are over the prompts, or over the sampled answers and the blocks of the reference, and over
    the directions. Raises `UsageError` for the same reasons as `contributions`.
    """
    samples = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    (parts,) = contributions(batch, sketch, [correction], loss)
    return report_of(samples_of(parts, samples, batch_sizes))


@dataclass(frozen=True)
class Ranking:
    """Several corrections on the same data and the same bootstrap samples."""

    reports: list[GradientReport]
    choices: tuple[Choice, ...]
    """The correction with the most progress, for each batch size."""
    progress: Tensor  # (C, S, 1 + R): η of every correction, batch size and bootstrap sample


def compare(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Ranking:
    """Report several corrections, or one at sixty thresholds, and choose the one with the most progress."""
    loss = loss or LossConfig()
    samples = bootstrap(batch, sketch, loss, replicates, seed)
    parts = contributions(batch, sketch, corrections, loss)
    (nothing,) = contributions(batch, sketch, [CorrectionConfig()], replace(loss, score_centering=False))
    numbers = [samples_of(one, samples, batch_sizes) for one in parts]
    eta = torch.stack([one.progress for one in numbers])
    return Ranking(
        reports=[report_of(one) for one in numbers],
        choices=choices(eta, samples_of(nothing, samples, batch_sizes).progress, tuple(batch_sizes)),
        progress=eta,
    )


def samples_of(parts: Contributions, samples: BootstrapSamples, batch_sizes: Sequence[int]) -> ReportSamples:
    """Compute the numbers of a report in every bootstrap sample."""
    counts, reference, target = samples.units, samples.reference, samples.target
    difference = mean_gradients(parts, counts) - mean_gradients(target, counts)
    g, g_noise, inner_noise = samples.gradient(parts)
    g2 = samples.without_noise(g.square(), g_noise)
    bias2 = samples.without_noise(difference.square(), difference_noise(parts, target))
    inner = samples.without_noise(g * reference, inner_noise)
    variance = samples.variance(parts)
    length, unit = length_of(g2), reference_lengths(samples)
    sizes = torch.tensor(batch_sizes).to(g)[:, None]
    return ReportSamples(
        length=length,
        reference_length=unit,
        reference_noise=reference_noise(samples),
        bias=length_of(bias2),
        relative_bias=length_of(bias2) / unit,
        cosine=cosine(inner, length * unit),
        scale=inner / unit.square(),
        variance=variance,
        ess=(counts @ parts.weight).square()
        / (counts @ parts.weight_square).clamp(min=1e-30)
        / (counts @ parts.probability),
        batch_sizes=tuple(batch_sizes),
        noise=(variance / sizes).sqrt() / unit,
        progress=progress(inner, g2, unit.square(), variance / sizes),
    )


def report_of(samples: ReportSamples) -> GradientReport:
    """Return each number of the original sample with its interval."""
    numbers: dict[str, Any] = {field.name: getattr(samples, field.name) for field in fields(samples)}
    sizes = numbers.pop("batch_sizes")
    intervals: dict[str, Any] = {
        name: tuple(interval_of(of_size, signed=False) for of_size in values)
        if name in ("noise", "progress")
        else interval_of(values, signed=name in SIGNED)
        for name, values in numbers.items()
    }
    return GradientReport(**intervals, batch_sizes=sizes)
