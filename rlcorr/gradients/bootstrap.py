"""Bootstrap samples: what they draw, and the interval that a number has over them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.contributions import Contributions, contributions, on_policy
from rlcorr.gradients.estimates import blocks_of, covariances, mean_gradients
from rlcorr.gradients.sketch import ExactSketch, Sketch
from rlcorr.types import TokenBatch

REPLICATES = 200
LEVEL = (0.025, 0.975)
EXACT_WEIGHTS = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf)
"""Unbounded sequence weights: their gradient is the on-policy one on average, whatever the mismatch."""


@dataclass(frozen=True)
class Interval:
    """A number, and where it lies in 95 % of the bootstrap samples. NaN is a number that the data do not tell."""

    value: float
    low: float
    high: float

    @property
    def tells(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Replicas:
    """Bootstrap samples, all in the dtype of the scores: row 0 is the sample itself.

    They draw units, which are prompts, or sampled answers; and directions, so that an interval also holds the error of
    the projection.
    """

    units: Tensor  # (1 + R, U) how often each is drawn
    directions: Tensor  # (1 + R, K)
    reference: Tensor  # (1 + R, K) the on-policy gradient
    reference_noise: Tensor  # (K,) in its squares
    target: Contributions
    """What a correction's gradient should be, of the same units, so that most of their noise cancels in the difference:
    the on-policy gradient itself where answers are all there, else that of unbounded sequence weights."""
    exact: bool
    """Whether the units are prompts whose answers are all there. Then the reference is the target."""
    unseen: float
    """What drawing prompts adds to a variance, as a share of what it would add in a task without end: 1 − P/N for P of
    a training's N prompts (Cochran, Sampling Techniques, §2.6). At 0 they are all there, and nothing is drawn."""

    def without_noise(self, products: Tensor, noise: Tensor) -> Tensor:
        """Σ over the directions of x·y, (1 + R, K) → (1 + R,), without what the noise of the units adds, (K,).

        Of sampled answers it is taken off once in the sample itself, and twice in a bootstrap sample, because drawing
        from the sample adds the same variance again. Where the prompts are the task, there is none in the sample; a
        bootstrap sample has it once, and is made smaller by what it has too much on average: x² and y² of the same
        prompts grow and shrink together, and their ratio must not lose that. Of prompts from a finite task, drawing
        adds less.
        """
        summed, added = (self.directions * products).sum(-1), (self.directions * noise).sum(-1)
        drawn = torch.full_like(summed, self.unseen)
        drawn[0] = 0
        if not self.exact:
            return summed - (1 + drawn) * added
        excess = torch.where((summed[0] > 0) & (added[0] > 0), added[0] / summed[0], 0)
        return summed / (1 + drawn * excess)


def bootstrap(batch: TokenBatch, sketch: Sketch, loss: LossConfig, replicates: int, seed: int) -> Replicas:
    """Over the units, over the blocks of a sampled reference, and over the directions."""
    directions = resampled(sketch.directions, replicates, seed + 2).to(sketch.scores)
    if isinstance(sketch, ExactSketch):
        target = on_policy(batch, sketch, loss)
        unseen = sketch.unseen
        units = (1 + unseen**0.5 * (resampled(len(target.n), replicates, seed) - 1)).to(sketch.scores)
        reference, noise = mean_gradients(target, units), covariances(target, target)
    else:
        unseen = 1.0
        (target,) = contributions(batch, sketch, [EXACT_WEIGHTS], loss)
        units = resampled(len(target.n), replicates, seed).to(sketch.scores)
        blocks = blocks_of(sketch.reference, loss, batch.response_mask)
        drawn = resampled(len(blocks.n), replicates, seed + 1).to(blocks.u)
        reference, noise = (x.to(sketch.scores) for x in (mean_gradients(blocks, drawn), covariances(blocks, blocks)))
    return Replicas(units, directions, reference, noise, target, isinstance(sketch, ExactSketch), unseen)


def length_of(squares: Tensor) -> Tensor:
    """From squared lengths whose noise has been taken off. One below 0 is a length of 0: noise alone explains it."""
    return squares.clamp(min=0).sqrt()


def reference_noise(replicas: Replicas) -> Tensor:
    """(1 + R,): the share of ‖g*‖², the squared length of the mean on-policy gradient of these units, that their
    differences alone give, at most 1: E‖ḡ‖² = ‖E g‖² + Σ Var/U, for the mean ḡ of U units.

    Of sampled answers it is taken off everywhere. Where the prompts are the task it belongs to it; a gradient over many
    more prompts like them is shorter by this share, and η of an unbiased gradient is there at B answers what it is here
    at (1 − share)·B. Where no others are in the training, it is 0.
    """
    squares = (replicas.directions * replicas.reference.square()).sum(-1)
    noise = replicas.unseen * (replicas.directions * replicas.reference_noise).sum(-1)
    squares[1:] -= noise[1:]  # drawing from the sample has added it once more
    return torch.where(squares > noise, noise / squares, 1.0)


def reference_lengths(replicas: Replicas) -> Tensor:
    """(1 + R,): the length of the on-policy gradient, without what noise adds to it."""
    return length_of(replicas.without_noise(replicas.reference.square(), replicas.reference_noise))


def cosine(inner: Tensor, lengths: Tensor) -> Tensor:
    """(1 + R,) from inner products ⟨a, b⟩ and the products of both lengths, ‖a‖‖b‖ without their noise.

    ‖a‖‖b‖ may come out too small, and even 0, so the quotient is clamped to ±1; as the lengths go to 0 that is the sign
    of the inner product. A bootstrap sample without a length counts as this sign. Were it left out, the interval would
    be made of the samples with the longest lengths alone, and miss what the others say. Of the sample itself a
    direction without a length is not reported: NaN.
    """
    limit = torch.where(inner == 0, math.nan, inner.sign())
    cosines = torch.where(lengths > 0, (inner / lengths).clamp(-1, 1), limit)
    cosines[0] = cosines[0] if lengths[0] > 0 else math.nan
    return cosines


def resampled(count: int, replicates: int, seed: int) -> Tensor:
    """(1 + R, count): how often each item is drawn; row 0 is the sample itself, in which each occurs once."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (replicates, count), generator=generator)
    counts = torch.zeros(replicates, count).scatter_add_(1, drawn, torch.ones(drawn.shape))
    return torch.cat([torch.ones(1, count), counts])


def interval_of(values: Tensor, *, signed: bool) -> Interval:
    """The value of the sample, row 0, and quantiles of those of the bootstrap samples; what is not finite is left out
    of them. A number that cannot be negative (`signed` false) has no end below 0."""
    finite = torch.where(values.isfinite(), values, math.nan)
    low, high = (
        torch.nanquantile(finite[1:], finite.new_tensor(LEVEL)).tolist() if len(values) > 1 else (math.nan, math.nan)
    )
    return Interval(float(finite[0]), low if signed else max(low, 0.0), high)
