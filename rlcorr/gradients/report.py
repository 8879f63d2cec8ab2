"""What a correction does to the gradient on recorded data: bias, variance, direction, each with its interval.

All from score sketches (see `contributions`). Their projection adds a relative error of about √(2/K) to a squared
length, and of (1 − cos²)/√K to a cosine.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
    noises,
)
from rlcorr.gradients.contributions import (
    Contributions,
    contributions,
    mean_gradients,
    variances,
    without_rules,
)
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientReport:
    """One estimator's gradient beside the on-policy one; lengths are norms over the parameters. Where a squared length
    is not above what noise adds to it, the length is 0, and what would be divided by it is NaN: it is not known."""

    length: Interval
    """‖E[g]‖, without what noise adds to it."""
    reference_length: Interval
    bias: Interval
    """‖E[g] − reference‖, without what noise adds to it; 0 is inside its interval where noise explains it all."""
    relative_bias: Interval
    """bias / reference_length."""
    cosine: Interval
    """Between E[g] and the reference; NaN where noise explains one of them, with the possible ones in the interval."""
    scale: Interval
    """⟨E[g], reference⟩/‖reference‖²: what the step along the reference is multiplied by."""
    variance: Interval
    """Σ over parameters of the variance of g over batches of this size."""
    error: Interval
    """√(bias² + variance)/reference_length: the root mean square distance of one batch's gradient from the on-policy
    one. It depends on the length of the step: a gradient that is always 0 has 1, and a step that is shrunk has less
    than a noisy one of full length, although it learns less. Compare by it what has the same `scale`."""
    snr: Interval
    """‖E[g]‖²/variance."""
    ess: Interval
    """(Σ w)²/Σ w² over sequences, w a sequence's mean weight on its kept tokens, as a share of the sequences."""
    projection_error: float
    """√(2/K): relative error of a squared length, the same for every estimator."""

    @property
    def noise(self) -> Interval:
        """√variance/reference_length: the standard deviation over batches of this size."""
        variance, unit = self.variance, self.reference_length.value
        return Interval(*(end**0.5 / unit for end in (variance.value, variance.low, variance.high)))


def report(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientReport:
    """All numbers, with bootstrap intervals over sequences and over the blocks of the reference."""
    return compare(batch, sketch, [correction], loss, replicates=replicates, seed=seed).reports[0]


@dataclass(frozen=True)
class Ranking:
    """Several corrections on the same data, the bootstrap samples shared."""

    reports: list[GradientReport]
    best: int
    """Which has the smallest error."""
    support: list[float]
    """Per correction, the share of the bootstrap samples in which it has the smallest error."""


def compare(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Ranking:
    """The reports of several corrections, or of one at sixty thresholds, and which of them has the smallest error."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    samples = [samples_of(parts, replicas) for parts in contributions(batch, sketch, corrections, loss)]
    winners = torch.stack([numbers["error"] for numbers in samples]).argmin(0)
    return Ranking(
        reports=[report_of(numbers, sketch) for numbers in samples],
        best=int(winners[0]),
        support=[float((winners[1:] == number).float().mean()) for number in range(len(samples))],
    )


@dataclass(frozen=True)
class Decomposition:
    """Where an estimator's gradient leaves the exact one: lengths of differences, over that of the reference."""

    level: Interval
    """Unbounded weights of this level, or none, against the unbounded product over the sequence."""
    truncation: Interval
    """Bounds on the weights."""
    rejection: Interval
    """The rules, with the denominator as it was."""
    denominator: Interval
    """Counting kept tokens only, and batch normalisation."""
    noise: Interval
    """The standard deviation of the whole, over batches of this size."""


def decompose(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Decomposition:
    """From exact sequence weights to this correction in four steps, each measured on the same responses, so that most
    of the noise cancels; what is left of it is taken off, as in `report`."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    return decomposition(contributions(batch, sketch, stages(correction), loss), replicas)


def stages(correction: CorrectionConfig) -> tuple[CorrectionConfig, ...]:
    """Five corrections: exact sequence weights, then this one's level, bounds, rules and denominator one by one."""
    bounded = without_rules(correction)
    unbounded = bounded if correction.rollout_is is None else replace(bounded, **_UNBOUNDED)
    return _exact(correction), unbounded, bounded, replace(bounded, rollout_rs=correction.rollout_rs), correction


def decomposition(parts: Sequence[Contributions], replicas: Replicas) -> Decomposition:
    """From the contributions of the five `stages`."""
    gradients = [mean_gradients(stage, replicas.sequences) for stage in parts]
    length = replicas.reference_length[0]
    steps = [_without_noise(after - before) / length for before, after in itertools.pairwise(gradients)]
    noise = variances(parts[-1], replicas.sequences).sqrt() / length
    return Decomposition(*(interval_of(values, signed=False) for values in (*steps, noise)))


_UNBOUNDED: dict[str, Any] = {
    "rollout_is_threshold": math.inf, "rollout_is_threshold_lower": None, "rollout_is_mode": "truncate"
}  # fmt: skip


def _exact(correction: CorrectionConfig) -> CorrectionConfig:
    """Unbounded sequence weights on the same loss. A clipped loss in bypass mode takes no weights: its first step has
    the ratio in the loss, token by token, so the policy gradient stands in for it."""
    loss_type = "reinforce" if correction.bypass_mode else correction.loss_type
    return CorrectionConfig(
        rollout_is="sequence", rollout_is_threshold=math.inf, bypass_mode=correction.bypass_mode, loss_type=loss_type
    )


def _without_noise(differences: Tensor) -> Tensor:
    """(1 + R, K) → (1 + R,): lengths, less what bootstrap noise adds to their squares."""
    noise = (differences[1:] - differences[0]).square().sum(-1).mean() if len(differences) > 1 else 0.0
    return length_of(differences.square().sum(-1) - noises(differences) * noise)


def samples_of(parts: Contributions, replicas: Replicas) -> dict[str, Tensor]:
    """The numbers of a report for every bootstrap sample, (1 + R,) each."""
    drawn, r = replicas.sequences, replicas.reference
    g, variance = mean_gradients(parts, drawn), variances(parts, drawn)
    noise, times = variance[0], noises(drawn)
    g2 = g.square().sum(-1) - times * noise
    bias2 = (g - r).square().sum(-1) - times * (noise + replicas.reference_noise)
    inner = (g * r).sum(-1)
    length, bias, reference_length = length_of(g2), length_of(bias2), replicas.reference_length
    unit = reference_length[0]  # one unit for all samples: in some of them the reference may be noise
    weight = parts.weight
    return {
        "length": length,
        "reference_length": reference_length,
        "bias": bias,
        "relative_bias": bias / unit,
        "cosine": cosine(inner, length * reference_length),
        "scale": inner / unit.square(),
        "variance": variance,
        "error": (bias.square() + variance).sqrt() / unit,
        "snr": length.square() / variance.clamp(min=1e-30),
        "ess": (drawn @ weight).square() / (drawn @ weight.square()).clamp(min=1e-30) / drawn.sum(-1),
    }


def report_of(numbers: dict[str, Tensor], sketch: Sketch) -> GradientReport:
    """Each number of the sample itself, with its interval."""
    names = [f.name for f in fields(GradientReport) if f.name != "projection_error"]
    return GradientReport(
        **{name: interval_of(numbers[name], signed=name in ("cosine", "scale")) for name in names},
        projection_error=math.sqrt(2 / sketch.directions),
    )
