"""What a correction does to the gradient on recorded data: bias, variance, direction, each with its interval.

Every loss of this project has the gradient Σ_t c_t ∇ log π_t, with one coefficient per token. A sketch holds, for every
token, K random projections of its score: s_t[k] = ⟨∇ log π_t, d_k⟩/√K, d_k standard normal over all parameters. Then
⟨Σ c s, Σ c' s⟩ estimates ⟨Σ c ∇ log π, Σ c' ∇ log π⟩, so another preset or threshold is one matrix product away. The
projection adds a relative error of about √(2/K) to a squared length, and of (1 − cos²)/√K to a cosine.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.objective import score_coefficients
from rlcorr.types import TokenBatch

REPLICATES = 200
LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Reference:
    """The gradient at the trainer's own weights, from responses that they sampled, in M blocks of responses."""

    by_token: Tensor  # (M, K) Σ over the block of advantage · score
    by_sequence: Tensor  # (M, K) the same, each response divided by its length
    tokens: Tensor  # (M,)
    sequences: Tensor  # (M,)


@dataclass(frozen=True)
class Sketch:
    """Scores of one step's tokens, and the reference at the same weights in the same directions."""

    scores: Tensor  # (N, K) in the order of batch.response_mask, row by row
    reference: Reference
    weights_hash: str = ""
    directions_hash: str = ""

    @property
    def directions(self) -> int:
        """K."""
        return self.scores.shape[1]


@dataclass(frozen=True)
class Interval:
    """A number, and where it lies in 95 % of the bootstrap samples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GradientReport:
    """One estimator's gradient beside the on-policy one. Lengths are in units of the parameters."""

    length: Interval
    """‖E[g]‖, without what noise adds to it."""
    reference_length: Interval
    bias: Interval
    """‖E[g] − reference‖, without what noise adds to it; 0 is inside its interval where noise explains it all."""
    relative_bias: Interval
    """bias / reference_length."""
    cosine: Interval
    """Between E[g] and the reference."""
    scale: Interval
    """⟨E[g], reference⟩/‖reference‖²: what the step along the reference is multiplied by."""
    variance: Interval
    """Σ over parameters of the variance of g over batches of this size."""
    error: Interval
    """√(bias² + variance)/reference_length: how far a step is off the on-policy one, all told."""
    snr: Interval
    """‖E[g]‖²/variance."""
    ess: Interval
    """(Σ w)²/Σ w² over sequences, w a sequence's mean weight on its kept tokens, as a share of the sequences."""
    projection_error: float
    """√(2/K): relative error of a squared length, the same for every estimator."""


@dataclass(frozen=True)
class Contributions:
    """What each sequence adds to the gradient Σ_b u_b / Σ_b n_b, divided by the mean of W over m where normalised."""

    u: Tensor  # (B, K)
    n: Tensor  # (B,)
    weight: Tensor  # (B,) the mean weight on kept tokens
    total: Tensor  # (B,) W and m: what batch normalisation takes the mean of
    count: Tensor  # (B,)


def contributions(
    batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig, loss: LossConfig | None = None
) -> Contributions:
    """Of the policy loss without its KL terms; a token-sum is taken per sequence, so that batches of different sizes
    compare. Needs old_log_probs and advantages; π_θ is π_old, as in the first optimizer step after sampling. Raises
    `UsageError` for losses that compare a batch (clip_cov, kl_cov), and where sketch and batch differ in size."""
    loss = replace(loss or LossConfig(), use_kl_loss=False, use_rollout_kl_loss=False)
    _check(batch, sketch, correction)
    assert batch.old_log_probs is not None
    once = replace(correction, rollout_is_batch_normalize=False)
    result = correct(batch, once)
    c = score_coefficients(batch.old_log_probs, batch, result, once, loss, tokens=1, sequences=1)
    keep = result.keep_mask
    counted = batch.response_mask if correction.denominator == "fixed" else keep
    n = counted.sum(-1) if loss.loss_agg_mode == "token-mean" else counted.any(-1)
    weight = masked_mean(result.weights, keep, -1)
    if correction.rollout_is == "token":
        total, count = (result.weights * keep).sum(-1), keep.sum(-1)
    else:
        total, count = weight * keep.any(-1), keep.any(-1)
    normalised = correction.rollout_is_batch_normalize
    one = torch.ones_like(weight)
    return Contributions(
        u=per_sequence(c, batch.response_mask, sketch.scores),
        n=n.to(weight),
        weight=weight,
        total=total.to(weight) if normalised else one,
        count=count.to(weight) if normalised else one,
    )


def per_sequence(c: Tensor, mask: Tensor, scores: Tensor) -> Tensor:
    """Σ_t c_t s_t of each sequence: (B, T), (B, T), (N, K) → (B, K)."""
    starts = mask.sum(-1).cumsum(0) - mask.sum(-1)
    numbers = torch.arange(len(scores), device=scores.device)
    return embedding_bag(numbers, scores, starts, mode="sum", per_sample_weights=c[mask].to(scores))


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
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    numbers = _numbers(contributions(batch, sketch, correction, loss), replicas)
    return _report(numbers, sketch)


@dataclass(frozen=True)
class Choice:
    """Several corrections on the same data, the bootstrap samples shared."""

    reports: list[GradientReport]
    best: int
    """Which has the smallest error."""
    support: list[float]
    """Share of the bootstrap samples in which each one has the smallest error."""


def compare(
    batch: TokenBatch,
    sketch: Sketch,
    corrections: Sequence[CorrectionConfig],
    loss: LossConfig | None = None,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Choice:
    """The report of each, such as one correction at sixty thresholds, and which should have been chosen."""
    replicas = bootstrap(batch, sketch, loss or LossConfig(), replicates, seed)
    each = [_numbers(contributions(batch, sketch, correction, loss), replicas) for correction in corrections]
    winners = torch.stack([numbers["squared_error"] for numbers in each]).argmin(0)
    return Choice(
        reports=[_report(numbers, sketch) for numbers in each],
        best=int(winners[0]),
        support=[float((winners[1:] == number).float().mean()) for number in range(len(each))],
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
    bounded = replace(correction, rollout_rs=(), denominator="fixed", rollout_is_batch_normalize=False)
    unbounded = bounded if correction.rollout_is is None else replace(bounded, **_UNBOUNDED)
    stages = (_exact(correction), unbounded, bounded, replace(bounded, rollout_rs=correction.rollout_rs), correction)
    parts = [contributions(batch, sketch, stage, loss) for stage in stages]
    gradients = [mean_gradients(each, replicas.sequences) for each in parts]
    length = _numbers(parts[-1], replicas)["reference_length"].clamp(min=1e-30)
    steps = [_without_noise(after - before) / length for before, after in itertools.pairwise(gradients)]
    noise = _variances(parts[-1], replicas.sequences).sqrt() / length
    return Decomposition(*(_interval(values, signed=False) for values in (*steps, noise)))


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
    times = torch.where(torch.arange(len(differences)) == 0, 1.0, 2.0)
    return (differences.square().sum(-1) - times * noise).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Replicas:
    """Bootstrap samples: row 0 is the sample itself."""

    sequences: Tensor  # (1 + R, B) how often each sequence is drawn
    reference: Tensor  # (1 + R, K) the gradient of the reference
    reference_noise: Tensor  # () its variance


def bootstrap(batch: TokenBatch, sketch: Sketch, loss: LossConfig, replicates: int, seed: int) -> Replicas:
    """Over sequences, and over the blocks of the reference."""
    blocks = blocks_of(sketch.reference, loss, batch.response_mask)
    drawn = resampled(len(blocks.n), replicates, seed + 1)
    return Replicas(
        sequences=resampled(len(batch.response_mask), replicates, seed),
        reference=mean_gradients(blocks, drawn),
        reference_noise=_variances(blocks, drawn[:1])[0],
    )


def blocks_of(reference: Reference, loss: LossConfig, mask: Tensor) -> Contributions:
    """The reference as contributions of blocks, divided by what the loss divides the sampled batch by: so a token-mean
    of responses of another length is not called a bias."""
    mode = loss.loss_agg_mode
    u = reference.by_sequence if mode == "seq-mean-token-mean" else reference.by_token
    n = reference.sequences
    if mode == "token-mean":
        n = n * mask.sum(-1).float().mean()
    if mode == "seq-mean-token-sum-norm":
        n = n * (mask.shape[1] if loss.loss_scale_factor is None else loss.loss_scale_factor)
    one = torch.ones_like(reference.tokens)
    return Contributions(u=u, n=n, weight=one, total=one, count=one)


def resampled(count: int, replicates: int, seed: int) -> Tensor:
    """(1 + R, count): how often each item is drawn; row 0 is the sample itself."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (replicates, count), generator=generator)
    counts = torch.zeros(replicates, count).scatter_add_(1, drawn, torch.ones(drawn.shape))
    return torch.cat([torch.ones(1, count), counts])


def mean_gradients(parts: Contributions, drawn: Tensor) -> Tensor:
    """(1 + R, K): the gradient of each bootstrap sample."""
    factor = (drawn @ parts.total) / (drawn @ parts.count).clamp(min=1e-30)
    divisor = (drawn @ parts.n).clamp(min=1e-30) * torch.where(factor > 1e-8, factor, 1.0)
    return drawn @ parts.u / divisor[:, None]


def _numbers(parts: Contributions, replicas: Replicas) -> dict[str, Tensor]:
    drawn, r = replicas.sequences, replicas.reference
    g, variance = mean_gradients(parts, drawn), _variances(parts, drawn)
    noise, reference_noise = variance[0], replicas.reference_noise
    # A bootstrap sample has the noise of the sample, and as much again of its own.
    times = torch.where(torch.arange(len(drawn)) == 0, 1.0, 2.0)
    g2, r2 = g.square().sum(-1) - times * noise, r.square().sum(-1) - times * reference_noise
    bias2 = (g - r).square().sum(-1) - times * (noise + reference_noise)
    inner = (g * r).sum(-1)
    length, reference_length, bias = (x.clamp(min=0).sqrt() for x in (g2, r2, bias2))
    one = reference_length.clamp(min=1e-30)
    weight = parts.weight
    return {
        "length": length,
        "reference_length": reference_length,
        "bias": bias,
        "relative_bias": bias / one,
        "cosine": (inner / (length * one).clamp(min=1e-30)).clamp(-1, 1),
        "scale": inner / r2.clamp(min=1e-30),
        "variance": variance,
        "error": (bias2 + variance).clamp(min=0).sqrt() / one,
        "squared_error": bias2 + variance,
        "snr": g2.clamp(min=0) / variance.clamp(min=1e-30),
        "ess": (drawn @ weight).square() / (drawn @ weight.square()).clamp(min=1e-30) / drawn.sum(-1),
    }


def _report(numbers: dict[str, Tensor], sketch: Sketch) -> GradientReport:
    names = [f.name for f in fields(GradientReport) if f.name != "projection_error"]
    return GradientReport(
        **{name: _interval(numbers[name], signed=name in ("cosine", "scale")) for name in names},
        projection_error=math.sqrt(2 / sketch.directions),
    )


def _variances(parts: Contributions, drawn: Tensor) -> Tensor:
    """(1 + R,): Σ over parameters of the variance of the mean gradient, by the delta method on Σu/Σn, the factor and
    the mean of the whole sample held fixed."""
    size = len(parts.n)
    mean = mean_gradients(parts, drawn[:1])[0]
    factor = parts.total.sum() / parts.count.sum().clamp(min=1e-30)
    n = parts.n * torch.where(factor > 1e-8, factor, 1.0)
    squared = (parts.u - n[:, None] * mean).square().sum(-1) * size / max(size - 1, 1)
    return drawn @ squared / (drawn @ n).clamp(min=1e-30).square()


def _interval(values: Tensor, *, signed: bool) -> Interval:
    low, high = torch.quantile(values[1:], torch.tensor(LEVEL)).tolist() if len(values) > 1 else (math.nan, math.nan)
    value = float(values[0])
    return Interval(value, low if signed else max(low, 0.0), high)


def _check(batch: TokenBatch, sketch: Sketch, correction: CorrectionConfig) -> None:
    if correction.loss_type in ("clip_cov", "kl_cov"):
        raise UsageError(f"{correction.loss_type} selects tokens by comparing a batch: it has no gradient per token.")
    if batch.old_log_probs is None or batch.advantages is None:
        raise UsageError("a gradient needs old_log_probs and advantages; the recorded batch lacks one of them.")
    if len(sketch.scores) != int(batch.response_mask.sum()):
        raise UsageError(
            f"the sketch has {len(sketch.scores)} tokens, the batch {int(batch.response_mask.sum())}: it is of "
            "another step."
        )
