"""What a correction does to the gradient of a recorded step: bias, noise, direction and progress, with intervals.

All numbers come from score sketches (see `contributions`). The intervals include the error of their random projection.
Progress η is one number for a correction: the share of the progress of the exact gradient that it keeps.

A step θ + a g along an estimator g of the gradient g* raises the objective by at least a ⟨g*, g⟩ − a² L ‖g‖²/2, if L
bounds its curvature. On average over batches and with the best a, this is ⟨g*, E g⟩² / (2 L E‖g‖²). With g* itself it
is ‖g*‖²/(2 L). With E‖g‖² = ‖E g‖² + V/B, where V is the variance of one answer's contribution and B the number of
answers in a batch, the quotient is

    η(B) = ⟨E g, g*⟩² / (‖g*‖² (‖E g‖² + V/B)).

η is between 0 and 1 and does not change with the length of g. It describes one step of the best length. It leaves out
Adam, gradient clipping, and the effect of many steps together.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import (
    EXACT_WEIGHTS,
    REPLICATES,
    BootstrapSamples,
    Interval,
    bootstrap,
    cosine,
    covariances,
    effective_share,
    interval_of,
    length_of,
    mean_gradients,
    reference_lengths,
    reference_noise,
    squared_difference,
)
from rlcorr.gradients.contributions import Contributions, contributions
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch

BATCH_SIZES = (256, 4096)
"""Default numbers of answers in a batch."""
SIGNED = ("cosine", "scale")
"""Numbers of a report that can be negative."""
ROUNDING = 1e-8
"""Squared lengths below this share of ‖g*‖² are rounding errors of float32 scores. The value includes a margin."""

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
    gradient of unbounded sequence weights on the same answers; with few effective ones, that of the reference."""
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
    choices: tuple["Choice", ...]
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
    variance = samples.variance(parts)
    g, g_noise, inner_noise = samples.gradient(parts)
    g2 = samples.without_noise(g.square(), g_noise)
    bias = samples.bias(parts)
    inner = samples.without_noise(g * samples.reference, inner_noise)
    length, unit = length_of(g2), reference_lengths(samples)
    sizes = torch.tensor(batch_sizes).to(g)[:, None]
    return ReportSamples(
        length=length,
        reference_length=unit,
        reference_noise=reference_noise(samples),
        bias=bias,
        relative_bias=bias / unit,
        cosine=cosine(inner, length * unit),
        scale=inner / unit.square(),
        variance=variance,
        ess=effective_share(parts, samples.units),
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


# --- progress, and which correction makes the most ---


def progress(inner: Tensor, g2: Tensor, reference2: Tensor, noise2: Tensor) -> Tensor:
    """Compute η from ⟨E g, g*⟩, ‖E g‖², ‖g*‖² and V/B, each without noise; NaN unless ‖g*‖² > 0.

    η is 0 for an estimator that points away from g*, because its best step has length 0. It is also 0 for a correction
    that rejects everything and leaves only rounding. ‖E g‖ is at least its part along g*. Subtracting noise can leave
    less, and without this limit a correction with unknown length would make the most progress.
    """
    along2 = inner.clamp(min=0).square() / reference2
    length2 = torch.maximum(torch.maximum(g2, along2) + noise2, ROUNDING * reference2)
    return torch.where(reference2 > 0, along2 / length2, math.nan)


@dataclass(frozen=True)
class Choice:
    """The correction that makes the most progress at one batch size, and how certain this is."""

    batch_size: int
    best: int
    support: list[float]
    """For each correction, the share of the bootstrap samples in which it makes the most progress."""
    groups: list[list[int]]
    """All corrections, the best first. Those of one group do not differ significantly from its first."""
    over_next: Interval
    """η of the best minus η of the second; NaN if there is only one correction."""
    over_nothing: Interval
    """η of the best minus η of no correction."""


def choices(eta: Tensor, nothing: Tensor, batch_sizes: tuple[int, ...]) -> tuple[Choice, ...]:
    """Choose the best of C corrections for each of S batch sizes: η of them, (C, S, 1 + R), and of none, (S, 1 + R)."""
    return tuple(_choice(eta[:, index], nothing[index], size) for index, size in enumerate(batch_sizes))


def _choice(eta: Tensor, nothing: Tensor, batch_size: int) -> Choice:
    comparable = eta.nan_to_num(-1.0)  # NaN ranks last
    order = comparable[:, 0].argsort(descending=True, stable=True).tolist()
    winners = comparable[:, 1:].argmax(0)
    second = eta[order[1]] if len(order) > 1 else torch.full_like(nothing, math.nan)
    return Choice(
        batch_size=batch_size,
        best=order[0],
        support=[float((winners == index).float().mean()) for index in range(len(eta))],
        groups=tied(eta, order),
        over_next=difference(eta[order[0]], second),
        over_nothing=difference(eta[order[0]], nothing),
    )


def tied(eta: Tensor, order: list[int]) -> list[list[int]]:
    """Split corrections, in this order, into groups: (C, 1 + R).

    A correction that differs significantly from the first of the current group begins a new group.
    """
    groups: list[list[int]] = []
    for index in order:
        if groups and not difference(eta[groups[-1][0]], eta[index]).tells:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def difference(a: Tensor, b: Tensor) -> Interval:
    """Return a − b on the same bootstrap samples, (1 + R,) each. Noise that both share cancels."""
    return interval_of(a - b, signed=True)


def units_needed(units: int, paired: Interval) -> int | None:
    """Return how many prompts or sampled answers would make a difference like this one significant.

    Intervals shrink with the root of their number. Return None if the difference is 0 or unknown.
    """
    half_width = paired.value - paired.low if paired.value > 0 else paired.high - paired.value
    if not abs(paired.value) > 0 or math.isnan(half_width):
        return None
    return math.ceil(units * max(half_width / abs(paired.value), 1) ** 2)


# --- two corrections on the same answers ---


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


def _paired(a: Tensor, b: Tensor) -> tuple[Interval, ...]:
    """Return the intervals of B − A, one per row of (S, 1 + R)."""
    return tuple(interval_of(difference, signed=True) for difference in b - a)


# --- the bias in four steps ---


@dataclass(frozen=True)
class Decomposition:
    """Lengths of four differences between gradients, divided by the length of the reference."""

    level: Interval
    """Unbounded weights of this level (or no weights), compared with the unbounded product over the sequence."""
    truncation: Interval
    """Effect of the bounds on the weights."""
    rejection: Interval
    """Effect of the rules, with the denominator unchanged."""
    denominator: Interval
    """Effect of counting kept tokens only, and of batch normalisation."""


def decompose(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Decomposition:
    """Measure the four steps from exact sequence weights to this correction.

    All steps use the same answers, so most of their noise cancels. The rest is subtracted, as in `report`.
    """
    samples = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    parts, unit = contributions(batch, sketch, _stages(correction), loss), reference_lengths(samples)
    squares = (squared_difference(after, before, samples) for before, after in itertools.pairwise(parts))
    return Decomposition(*(interval_of(length_of(square) / unit, signed=False) for square in squares))


def _stages(correction: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Return five corrections that lead from exact sequence weights to this correction.

    The first has exact sequence weights. Then come the level, bounds, rules and denominator of this correction, one by
    one. A clipped loss in bypass mode takes no weights: in its first step the ratio is in the loss, token by token. So
    the first stage has the policy gradient (reinforce) instead.
    """
    loss_type = "reinforce" if correction.bypass_mode else correction.loss_type
    exact = replace(EXACT_WEIGHTS, bypass_mode=correction.bypass_mode, loss_type=loss_type)
    bounded = replace(correction, rollout_rs=(), denominator="fixed", rollout_is_batch_normalize=False)
    unbounded = bounded
    if correction.rollout_is is not None:
        unbounded = replace(
            bounded, rollout_is_threshold=math.inf, rollout_is_threshold_lower=None, rollout_is_mode="truncate"
        )
    return exact, unbounded, bounded, replace(bounded, rollout_rs=correction.rollout_rs), correction
