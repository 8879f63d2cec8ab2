"""Bootstrap samples: what they draw, and the interval that a number has over them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import LossConfig
from rlcorr.gradients.contributions import (
    blocks_of,
    mean_gradients,
    variances,
)
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch

REPLICATES = 200


LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """A number, and where it lies in 95 % of the bootstrap samples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Replicas:
    """Bootstrap samples: row 0 is the sample itself."""

    sequences: Tensor  # (1 + R, B) how often each sequence is drawn
    reference: Tensor  # (1 + R, K) the gradient of the reference
    reference_noise: Tensor  # () its variance
    reference_length: Tensor  # (1 + R,) without what noise adds to it


def bootstrap(batch: TokenBatch, sketch: Sketch, loss: LossConfig, replicates: int, seed: int) -> Replicas:
    """Over sequences, and over the blocks of the reference."""
    blocks = blocks_of(sketch.reference, loss, batch.response_mask)
    drawn = resampled(len(blocks.n), replicates, seed + 1)
    reference, noise = mean_gradients(blocks, drawn), variances(blocks, drawn[:1])[0]
    return Replicas(
        sequences=resampled(len(batch.response_mask), replicates, seed),
        reference=reference,
        reference_noise=noise,
        reference_length=root(reference.square().sum(-1) - noises(reference) * noise),
    )


def noises(samples: Tensor) -> Tensor:
    """How many times the noise is in each row: a bootstrap sample has that of the sample, and as much of its own."""
    return torch.where(torch.arange(len(samples)) == 0, 1.0, 2.0)


def root(squares: Tensor) -> Tensor:
    """A squared length without its noise may come out below 0: then noise explains it whole."""
    return squares.clamp(min=0).sqrt()


def cosine(inner: Tensor, lengths: Tensor) -> Tensor:
    """(1 + R,) from the inner products and the products of both lengths; NaN where noise explains one of these."""
    return torch.where(lengths > 0, (inner / lengths).clamp(-1, 1), math.nan)


def resampled(count: int, replicates: int, seed: int) -> Tensor:
    """(1 + R, count): how often each item is drawn; row 0 is the sample itself."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (replicates, count), generator=generator)
    counts = torch.zeros(replicates, count).scatter_add_(1, drawn, torch.ones(drawn.shape))
    return torch.cat([torch.ones(1, count), counts])


def interval_of(values: Tensor, *, signed: bool) -> Interval:
    known = torch.where(values.isfinite(), values, math.nan)
    low, high = (
        torch.nanquantile(known[1:], known.new_tensor(LEVEL)).tolist() if len(values) > 1 else (math.nan, math.nan)
    )
    return Interval(float(known[0]), low if signed else max(low, 0.0), high)
