"""The error of the gradient as a curve over a threshold, and the threshold that should have been chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.analysis.thresholds import Side, at_threshold, is_ratio, swept, usual_thresholds
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.gradients.bootstrap import LEVEL, REPLICATES, Interval
from rlcorr.gradients.report import Choice, compare
from rlcorr.gradients.sketch import Sketch
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientSweep:
    """One correction at thresholds from the tightest to the loosest, on the same bootstrap samples."""

    thresholds: list[float]
    of_ratio: bool
    """Whether they bound a ratio, whose neutral value is 1, or a divergence, where it is 0."""
    choice: Choice
    best: Interval
    """The threshold with the smallest error, and between which ones it lies in 95 % of the bootstrap samples."""


def gradient_sweep(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    *,
    rule: int | None = None,
    side: Side = "band",
    thresholds: Sequence[float] = (),
    loss: LossConfig | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientSweep:
    """Of a bound of the weights, or of the rule with this index; without weights of the first rule. Thresholds as in
    `at_threshold`; by default sixty, from one that touches nearly every item of the batch to one that touches none."""
    points = sorted(thresholds, reverse=side == "lower") or usual_thresholds(batch, correction, rule, side=side)
    moved = [at_threshold(correction, threshold, rule, side) for threshold in points]
    choice = compare(batch, sketch, moved, loss, replicates=replicates, seed=seed)
    reached = torch.tensor(choice.support).cumsum(0)
    ends = sorted(points[min(int((reached < level).sum()), len(points) - 1)] for level in LEVEL)
    of_ratio = is_ratio(correction, swept(correction, rule))
    return GradientSweep(points, of_ratio, choice, Interval(points[choice.best], *ends))
