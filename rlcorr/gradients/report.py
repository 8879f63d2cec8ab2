"""What a correction does to the gradient on recorded data: bias, noise, direction and progress, with their intervals.

All from score sketches (see `contributions`); the intervals hold the error of their projection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import (
    REPLICATES,
    Interval,
    Replicas,
    bootstrap,
    cosine,
    interval_of,
    length_of,
    reference_lengths,
    reference_noise,
)
from rlcorr.gradients.contributions import Contributions, contributions
from rlcorr.gradients.estimates import answer_variances, covariances, difference_noise, mean_gradients
from rlcorr.gradients.progress import Choice, choices, progress
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch

BATCH_SIZES = (256, 4096)
"""Answers in a batch, unless others are asked for."""


@dataclass(frozen=True)
class GradientReport:
    """One estimator's gradient beside the on-policy one; lengths are norms over the parameters. Where a squared length
    is not above what noise adds to it, the length is 0, and what would be divided by it is NaN: it is not known."""

    length: Interval
    """‖E[g]‖, without what noise adds to it."""
    reference_length: Interval
    reference_noise: Interval
    """See `reference_noise`."""
    bias: Interval
    """‖E[g] − g*‖, without what noise adds to it; 0 is inside its interval where noise explains it all. g* is the
    on-policy gradient; of sampled answers that of unbounded sequence weights on the same ones."""
    relative_bias: Interval
    """bias / reference_length."""
    cosine: Interval
    """Between E[g] and the reference; NaN where noise explains one of them, with the possible ones in the interval."""
    scale: Interval
    """⟨E[g], reference⟩/‖reference‖²: what the step along the reference is multiplied by."""
    variance: Interval
    """V, Σ over parameters of the variance of one answer's contribution; a batch of B answers has V/B."""
    ess: Interval
    """(Σ w)²/Σ w² over sequences, w a sequence's mean weight on its kept tokens, as a share of the sequences."""
    batch_sizes: tuple[int, ...]
    """B, in answers."""
    noise: tuple[Interval, ...]
    """√(V/B)/reference_length for each: the standard deviation over batches of B answers."""
    progress: tuple[Interval, ...]
    """η(B) for each: see `progress`."""


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
    """All numbers, with bootstrap intervals over the prompts, or over sampled answers and the blocks of the reference,
    and over the directions. Raises `UsageError` as `contributions` does."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    (parts,) = contributions(batch, sketch, [correction], loss)
    return report_of(samples_of(parts, replicas, batch_sizes))


@dataclass(frozen=True)
class Samples:
    """The numbers of a report for every bootstrap sample: (1 + R,), those of batch sizes (S, 1 + R)."""

    length: Tensor
    reference_length: Tensor
    reference_noise: Tensor
    bias: Tensor
    relative_bias: Tensor
    cosine: Tensor
    scale: Tensor
    variance: Tensor
    ess: Tensor
    batch_sizes: tuple[int, ...]
    noise: Tensor
    progress: Tensor


@dataclass(frozen=True)
class Ranking:
    """Several corrections on the same data, the bootstrap samples shared."""

    reports: list[GradientReport]
    choices: tuple[Choice, ...]
    """Which makes the most progress, for each batch size."""
    progress: Tensor  # (C, S, 1 + R) η of every correction, batch size and bootstrap sample


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
    """The reports of several corrections, or of one at sixty thresholds, and which of them makes the most progress."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    nothing, *parts = contributions(batch, sketch, [CorrectionConfig(), *corrections], loss)
    samples = [samples_of(of_one, replicas, batch_sizes) for of_one in parts]
    of_all = torch.stack([numbers.progress for numbers in samples])
    return Ranking(
        reports=[report_of(numbers) for numbers in samples],
        choices=choices(of_all, samples_of(nothing, replicas, batch_sizes).progress, tuple(batch_sizes)),
        progress=of_all,
    )


def samples_of(parts: Contributions, replicas: Replicas, batch_sizes: Sequence[int]) -> Samples:
    drawn, reference, target = replicas.units, replicas.reference, replicas.target
    g = mean_gradients(parts, drawn)
    apart, apart_noise = g - mean_gradients(target, drawn), difference_noise(parts, target)
    if replicas.exact:
        g_noise, inner_noise = covariances(parts, parts), covariances(parts, target)
    else:  # E[g] is the reference and the difference to it: most noise of the answers cancels in that
        g, g_noise = reference + apart, replicas.reference_noise + apart_noise
        inner_noise = replicas.reference_noise
    g2 = replicas.without_noise(g.square(), g_noise)
    bias2 = replicas.without_noise(apart.square(), apart_noise)
    inner = replicas.without_noise(g * reference, inner_noise)
    variance = (replicas.directions * answer_variances(parts, drawn, sampled=not replicas.exact)).sum(-1)
    length, unit = length_of(g2), reference_lengths(replicas)
    sizes = torch.tensor(batch_sizes).to(g)[:, None]
    return Samples(
        length=length,
        reference_length=unit,
        reference_noise=reference_noise(replicas),
        bias=length_of(bias2),
        relative_bias=length_of(bias2) / unit,
        cosine=cosine(inner, length * unit),
        scale=inner / unit.square(),
        variance=variance,
        ess=(drawn @ parts.weight).square()
        / (drawn @ parts.weight_square).clamp(min=1e-30)
        / (drawn @ parts.probability),
        batch_sizes=tuple(batch_sizes),
        noise=(variance / sizes).sqrt() / unit,
        progress=progress(inner, g2, unit.square(), variance / sizes),
    )


def report_of(samples: Samples) -> GradientReport:
    """Each number of the sample itself, with its interval."""
    signed = ("cosine", "scale")
    single = ("length", "reference_length", "reference_noise", "bias", "relative_bias", "variance", "ess", *signed)
    intervals: dict[str, Any] = {name: interval_of(getattr(samples, name), signed=name in signed) for name in single}
    for name in ("noise", "progress"):
        intervals[name] = tuple(interval_of(of_size, signed=False) for of_size in getattr(samples, name))
    return GradientReport(**intervals, batch_sizes=samples.batch_sizes)
