"""Bootstrap samples of a recorded step: mean gradients, their noise, and the intervals of numbers over them."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.contributions import Contributions, contributions, on_policy
from rlcorr.gradients.sketch import ExactSketch, Reference, Sketch
from rlcorr.types import TokenBatch

REPLICATES = 200
LEVEL = (0.025, 0.975)
TINY = 1e-30
ENOUGH_EFFECTIVE = 0.5
"""Share of the answers that must be effective under exact weights. With fewer, the largest weights are rarely sampled,
and no resampling of the same answers shows what is missing: a bias is then the difference to the reference itself."""
EXACT_WEIGHTS = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
"""Unbounded sequence weights. Their gradient equals the on-policy gradient on average, for any mismatch."""


@dataclass(frozen=True)
class Interval:
    """A number and the interval that contains 95 % of its bootstrap samples.

    A value of NaN means that the data do not determine the number.
    """

    value: float
    low: float
    high: float

    @property
    def tells(self) -> bool:
        """Return whether the number differs significantly from 0: its interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class BootstrapSamples:
    """R bootstrap samples, in the dtype of the scores. Row 0 is the original sample.

    They resample units and directions. A unit is a prompt or a sampled answer. Resampling the directions adds the error
    of the random projection to the interval.
    """

    units: Tensor  # (1 + R, U) how often each unit is drawn
    directions: Tensor  # (1 + R, K) how often each direction is drawn
    reference: Tensor  # (1 + R, K) the on-policy gradient
    reference_noise: Tensor  # (K,) what noise adds to its squares
    reference_is_target: bool
    """True if the reference is the mean gradient of the target. If not, it comes from other answers."""
    target: Contributions
    """The contributions whose gradient a correction should have, from the same units, so that most noise cancels: with
    all answers present the on-policy gradient itself, otherwise the gradient of unbounded sequence weights."""
    exact: bool
    """True if the units are prompts with all their answers."""
    finite_population_factor: float
    """1 − P/N for P of the run's N prompts: how much their choice adds to a variance, compared with prompts from an
    endless supply (Cochran, Sampling Techniques, §2.6). At 0 the prompts are not resampled."""
    target_is_noise: bool = False
    """True if exact weights have too few effective answers to serve as the target: see `ENOUGH_EFFECTIVE`."""

    def gradient(self, parts: Contributions) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean gradient, (1 + R, K), and what noise adds to its squares and to its products with the
        reference, (K,) each.

        If the reference comes from other answers, the gradient is the reference plus the difference to the target: most
        noise of the answers cancels in it. This does not hold if the target is noise.
        """
        g = mean_gradients(parts, self.units)
        if self.target_is_noise:
            return g, covariances(parts, parts), torch.zeros_like(self.reference_noise)
        if self.reference_is_target:
            return g, covariances(parts, parts), covariances(parts, self.target)
        difference = g - mean_gradients(self.target, self.units)
        noise = self.reference_noise + difference_noise(parts, self.target)
        return self.reference + difference, noise, self.reference_noise

    def bias(self, parts: Contributions) -> Tensor:
        """Return the length of the bias without noise, (1 + R,): that of the difference to the target."""
        if not self.target_is_noise:
            return length_of(squared_difference(parts, self.target, self))
        difference = mean_gradients(parts, self.units) - self.reference
        return length_of(self.without_noise(difference.square(), covariances(parts, parts) + self.reference_noise))

    def variance(self, parts: Contributions) -> Tensor:
        """Return V, the variance of one answer's contribution, (1 + R,)."""
        return (self.directions * answer_variances(parts, self.units, sampled=not self.exact)).sum(-1)

    def without_noise(self, products: Tensor, noise: Tensor) -> Tensor:
        """Sum x·y over the directions and subtract what the noise of the units adds.

        For sampled answers the noise is subtracted once in the original sample and twice in a bootstrap sample, because
        resampling adds the same variance again. For prompts with all answers the original sample has no such noise. A
        bootstrap sample has it once, and is divided by its mean excess instead: x² and y² of the same prompts grow and
        shrink together, and their ratio must keep this. For prompts from a finite task, resampling adds less.

        Args:
            products: x·y in each direction, (1 + R, K).
            noise: what the noise of the units adds to it, (K,).

        Returns:
            (1 + R,)
        """
        summed, added = (self.directions * products).sum(-1), (self.directions * noise).sum(-1)
        resampling = torch.full_like(summed, self.finite_population_factor)  # how many more times the noise is there
        resampling[0] = 0
        if not self.exact:
            return summed - (1 + resampling) * added
        excess = torch.where((summed[0] > 0) & (added[0] > 0), added[0] / summed[0], 0)
        return summed / (1 + resampling * excess)


def bootstrap(batch: TokenBatch, sketch: Sketch, loss: LossConfig, replicates: int, seed: int) -> BootstrapSamples:
    """Draw bootstrap samples of the units, of the directions, and of the blocks of a reference if there are any."""
    directions = resampled(sketch.directions, replicates, seed + 2).to(sketch.scores)
    factor, blocks = sketch.finite_population_factor, None
    if isinstance(sketch, ExactSketch):
        target = on_policy(batch, sketch, loss)
    else:
        (target,) = contributions(batch, sketch, [EXACT_WEIGHTS], replace(loss, score_centering=False))
        blocks = sketch.reference and blocks_of(sketch.reference, loss, batch.response_mask)
    # The counts keep their mean of 1; their variance is multiplied by the factor.
    units = (1 + factor**0.5 * (resampled(len(target.n), replicates, seed) - 1)).to(sketch.scores)
    counts = units if blocks is None else resampled(len(blocks.n), replicates, seed + 1)
    of_reference = blocks or target
    reference = mean_gradients(of_reference, counts.to(of_reference.u)).to(sketch.scores)
    noise = covariances(of_reference, of_reference).to(sketch.scores)
    exact = isinstance(sketch, ExactSketch)
    too_few = blocks is not None and effective_share(target, units)[0] < ENOUGH_EFFECTIVE
    return BootstrapSamples(units, directions, reference, noise, blocks is None, target, exact, factor, bool(too_few))


def effective_share(parts: Contributions, counts: Tensor) -> Tensor:
    """Return the effective sample size (Σ w)²/Σ w² of each bootstrap sample, as a share of its answers, (1 + R,)."""
    squares = (counts @ parts.weight_square).clamp(min=TINY)
    return (counts @ parts.weight).square() / squares / (counts @ parts.probability)


def length_of(squares: Tensor) -> Tensor:
    """Return lengths from squared lengths without noise. A negative square gives 0: noise alone explains it."""
    return squares.clamp(min=0).sqrt()


def reference_noise(samples: BootstrapSamples) -> Tensor:
    """Return the share of the squared length of the on-policy gradient that is noise, (1 + R,), at most 1.

    The on-policy gradient g* is the mean over U units, which are answers or prompts. Even if its expectation were 0,
    their differences would give it a length: E‖g*‖² = ‖E g*‖² + Σ Var/U. The share is the second term.

    For sampled answers this share is subtracted everywhere. For prompts with all answers it is part of the gradient and
    stays: the run trains on these prompts. Over many more prompts of the same kind the gradient is shorter by this
    share. There an unbiased gradient with B answers has the η that it has here with (1 − share)·B answers. The share is
    0 if the run has no other prompts.
    """
    squares = (samples.directions * samples.reference.square()).sum(-1)
    noise = samples.finite_population_factor * (samples.directions * samples.reference_noise).sum(-1)
    squares[1:] -= noise[1:]  # resampling has added it a second time
    return torch.where(squares > noise, noise / squares, 1.0)


def squared_difference(a: Contributions, b: Contributions, samples: BootstrapSamples) -> Tensor:
    """Return the squared length of the difference of two mean gradients of the same units without noise, (1 + R,)."""
    difference = mean_gradients(a, samples.units) - mean_gradients(b, samples.units)
    return samples.without_noise(difference.square(), difference_noise(a, b))


def reference_lengths(samples: BootstrapSamples) -> Tensor:
    """Return the length of the on-policy gradient without noise, (1 + R,)."""
    return length_of(samples.without_noise(samples.reference.square(), samples.reference_noise))


def cosine(inner: Tensor, lengths: Tensor) -> Tensor:
    """Return the cosine of two gradients, (1 + R,), clamped to ±1, from ⟨a, b⟩ and ‖a‖‖b‖ without noise.

    The length product may be too small or even 0. As it goes to 0, the clamped quotient goes to the sign of the inner
    product, and a bootstrap sample with length 0 gets this sign: without such samples the interval would be too narrow.
    If the original sample has length 0, its cosine is NaN.
    """
    limit = torch.where(inner == 0, math.nan, inner.sign())
    cosines = torch.where(lengths > 0, (inner / lengths).clamp(-1, 1), limit)
    cosines[0] = cosines[0] if lengths[0] > 0 else math.nan
    return cosines


def resampled(count: int, replicates: int, seed: int) -> Tensor:
    """Draw `count` items with replacement, R times, and return how often each is drawn, (1 + R, count).

    Row 0 is the original sample, which contains each item once.
    """
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(count, (replicates, count), generator=generator)
    counts = torch.zeros(replicates, count).scatter_add_(1, items, torch.ones(items.shape))
    return torch.cat([torch.ones(1, count), counts])


def interval_of(values: Tensor, *, signed: bool) -> Interval:
    """Return the value of the original sample (row 0) with the quantiles of the bootstrap samples.

    Samples that are not finite are left out. If the number cannot be negative (`signed` is false), the lower end is at
    least 0.
    """
    finite = torch.where(values.isfinite(), values, math.nan)
    low, high = (
        torch.nanquantile(finite[1:], finite.new_tensor(LEVEL)).tolist() if len(values) > 1 else (math.nan, math.nan)
    )
    return Interval(float(finite[0]), low if signed else max(low, 0.0), high)


# --- mean gradients, their noise, and the variance of one answer, for each direction of a sketch ---


def blocks_of(reference: Reference, loss: LossConfig, mask: Tensor) -> Contributions:
    """Return the reference as contributions of blocks.

    A token-mean is divided by the mean length in the batch, not in the reference: otherwise answers of another length
    would look like a bias. Without a loss_scale_factor both sides are divided by the number of columns of the batch,
    which cancels.
    """
    mode = loss.loss_agg_mode
    u = reference.by_sequence if mode == "seq-mean-token-mean" else reference.by_token
    n = reference.sequences
    if mode == "token-mean":
        n = n * mask.sum(-1).float().mean()
    if mode == "seq-mean-token-sum-norm":
        n = n * (mask.shape[1] if loss.loss_scale_factor is None else loss.loss_scale_factor)
    n = n.to(u)
    one = torch.ones_like(n)
    return Contributions(
        u=u, n=n, weight=one, total=one, count=one, u_square=u.square(), u_n=u * n[:, None], n_square=n.square(),
        weight_square=one, probability=one,
    )  # fmt: skip


def mean_gradients(parts: Contributions, counts: Tensor) -> Tensor:
    """Compute the gradient of each bootstrap sample, (1 + R, K). `counts` is how often it has each unit, (1 + R, U)."""
    return counts @ parts.u / _divisors(parts, counts)[:, None]


def answer_variances(parts: Contributions, counts: Tensor, *, sampled: bool) -> Tensor:
    """Compute the variance V of one answer's contribution in each bootstrap sample, (1 + R, K).

    The gradient of a batch of B answers has the variance V/B, by the delta method on Σu/Σn with the factor of batch
    normalisation fixed: V = E (u − n E g)² / (E n)². For `sampled` answers V includes the factor U/(U − 1) that makes
    it unbiased. With all answers present E g is exact, and V needs no factor.
    """
    divisor = _divisors(parts, counts)[:, None]
    mean = counts @ parts.u / divisor
    scale = divisor / (counts @ parts.n).clamp(min=TINY)[:, None]  # the factor of batch normalisation
    squares = counts @ parts.u_square - 2 * scale * mean * (counts @ parts.u_n)
    squares = squares + (scale * mean).square() * (counts @ parts.n_square)[:, None]
    units = counts.sum(-1, keepdim=True)
    factor = _unbiased(len(parts.n)) if sampled else 1.0
    return (units * squares / divisor / divisor).clamp(min=0) * factor  # divided twice, because TINY² would be 0


def covariances(a: Contributions, b: Contributions) -> Tensor:
    """Compute the covariance of two mean gradients of the same units, (K,), by the delta method.

    The covariance of a gradient with itself is what noise adds to its squares.
    """
    (influence_a, total_a), (influence_b, total_b) = _influence(a), _influence(b)
    return (influence_a / total_a * (influence_b / total_b)).sum(0) * _unbiased(len(a.n))


def difference_noise(a: Contributions, b: Contributions) -> Tensor:
    """Compute what noise adds to the squared difference of two mean gradients of the same units, (K,)."""
    (influence_a, total_a), (influence_b, total_b) = _influence(a), _influence(b)
    return (influence_a / total_a - influence_b / total_b).square().sum(0) * _unbiased(len(a.n))


def _divisors(parts: Contributions, counts: Tensor) -> Tensor:
    """Return Σn times the factor of batch normalisation, (1 + R,)."""
    factor = (counts @ parts.total) / (counts @ parts.count).clamp(min=TINY)
    return (counts @ parts.n).clamp(min=TINY) * torch.where(factor > 1e-8, factor, 1.0)


def _influence(parts: Contributions) -> tuple[Tensor, Tensor]:
    """Return how far each unit alone moves the mean gradient, times the divisor, (U, K); and the divisor."""
    all_once = torch.ones(1, len(parts.n)).to(parts.n)
    divisor = _divisors(parts, all_once)[0]
    share = parts.n * divisor / parts.n.sum().clamp(min=TINY)
    return parts.u - share[:, None] * mean_gradients(parts, all_once)[0], divisor


def _unbiased(units: int) -> float:  # turns a mean square into an unbiased variance
    return units / max(units - 1, 1)
