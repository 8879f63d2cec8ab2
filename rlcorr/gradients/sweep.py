"""Bias, noise and progress over a threshold: for a recorded step with intervals, and exact for the toy world."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.bounds import BAND, BoundId, at_threshold, is_ratio, usual_thresholds
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import LEVEL, REPLICATES, Interval
from rlcorr.gradients.report import BATCH_SIZES, Choice, Ranking, compare
from rlcorr.gradients.sketch import Sketch
from rlcorr.gradients.toy import Toy, gradient_truth
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientSweep:
    """One correction at several thresholds, from the tightest to the loosest, on the same bootstrap samples."""

    thresholds: list[float]
    of_ratio: bool
    """Whether the thresholds bound a ratio, whose neutral value is 1, or a divergence, whose neutral value is 0."""
    ranking: Ranking
    best: tuple[Interval, ...]
    """For each batch size, the threshold with the most progress and the range that contains it in 95 % of the bootstrap
    samples."""

    def shows_best(self, size_index: int) -> bool:
        """Check whether the data show at which thresholds the progress is largest, at one of the batch sizes.

        They do if the best threshold makes significantly more progress than no correction, and if its range does not
        contain all thresholds.
        """
        best = self.best[size_index]
        contains_all = best.low <= min(self.thresholds) and best.high >= max(self.thresholds)
        return self.ranking.choices[size_index].over_nothing.tells and not contains_all


def gradient_sweep(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    bound: BoundId = BAND,
    *,
    thresholds: Sequence[float] = (),
    loss: LossConfig | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientSweep:
    """Measure the gradient of the correction with one bound at each threshold (`at_threshold`).

    By default there are sixty thresholds, from one that touches nearly every item of the batch to one that touches
    none.
    """
    points = sorted(thresholds, reverse=bound.side == "lower") or usual_thresholds(batch, correction, bound)
    corrections = [at_threshold(correction, threshold, bound) for threshold in points]
    ranking = compare(batch, sketch, corrections, loss, batch_sizes=batch_sizes, replicates=replicates, seed=seed)
    of_ratio = is_ratio(correction, bound)
    return GradientSweep(points, of_ratio, ranking, tuple(_best(points, choice) for choice in ranking.choices))


def _best(points: Sequence[float], choice: Choice) -> Interval:
    cumulative = torch.tensor(choice.support).cumsum(0)  # share of the samples whose best is at or before a point
    ends = sorted(points[min(int((cumulative < level).sum()), len(points) - 1)] for level in LEVEL)
    return Interval(points[choice.best], *ends)


@dataclass(frozen=True)
class ToySweep:
    """Exact numbers of one correction at several thresholds, in units of the policy gradient.

    There are no intervals, because nothing is sampled.
    """

    thresholds: list[float]
    bias: list[float]
    noise: list[float]
    """Standard deviation over batches of `batch_size` answers, see `toy_sweep`."""
    progress: list[float]
    """η for these batches."""


def toy_sweep(
    toy: Toy,
    correction: CorrectionConfig,
    thresholds: Sequence[float],
    batch_size: int,
    bound: BoundId = BAND,
    *,
    loss: LossConfig | None = None,
) -> ToySweep:
    """Compute the exact gradient at each threshold (`at_threshold`), for batches of `batch_size` answers."""
    bias, noise, progress = [], [], []
    for threshold in thresholds:
        changed = at_threshold(correction, threshold, bound)
        truth = gradient_truth(toy.where, toy.policies, toy.advantages, changed, loss or LossConfig())
        bias.append(truth.relative_bias)
        noise.append((truth.variance / batch_size) ** 0.5 / float(truth.reference.norm()))
        progress.append(truth.progress(batch_size))
    return ToySweep(list(thresholds), bias, noise, progress)
