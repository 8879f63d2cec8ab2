"""Bootstrap samples: what they draw, and the interval that a number has over them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import LossConfig
from rlcorr.gradients.contributions import blocks_of, mean_gradients, variances
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch

REPLICATES = 200
LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """A number, and where it lies in 95 % of the bootstrap samples. NaN is a number that the data do not tell."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Replicas:
    """Bootstrap samples, all in the dtype of the scores: row 0 is the sample itself."""

    sequences: Tensor  # (1 + R, B) how often each sequence is drawn
    reference: Tensor  # (1 + R, K) the gradient of the reference
    reference_noise: Tensor  # () its variance
    reference_length: Tensor  # (1 + R,) without what noise adds to it


def bootstrap(batch: TokenBatch, sketch: Sketch, loss: LossConfig, replicates: int, seed: int) -> Replicas:
    """Over sequences, and over the blocks of the reference."""
    blocks = blocks_of(sketch.reference, loss, batch.response_mask)
    drawn = resampled(len(blocks.n), replicates, seed + 1).to(blocks.u)
    reference, noise = mean_gradients(blocks, drawn), variances(blocks, drawn[:1])[0]
    return Replicas(
        sequences=resampled(len(batch.response_mask), replicates, seed).to(sketch.scores),
        reference=reference.to(sketch.scores),
        reference_noise=noise.to(sketch.scores),
        reference_length=length_of(reference.square().sum(-1) - noises(reference) * noise).to(sketch.scores),
    )


def noises(samples: Tensor) -> Tensor:
    """(1 + R,): how many times the variance of the mean is in the square of each row. Once in the sample itself; twice
    in a bootstrap sample, because drawing from the sample adds the same variance again."""
    return torch.where(torch.arange(len(samples), device=samples.device) == 0, 1.0, 2.0).to(samples)


def length_of(squares: Tensor) -> Tensor:
    """From squared lengths whose noise has been taken off. One below 0 is a length of 0: noise alone explains it."""
    return squares.clamp(min=0).sqrt()


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
