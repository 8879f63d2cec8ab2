"""Bias, noise and progress over a threshold: of a recorded step, with intervals, and of the toy, exact."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlcorr.bounds import Side, at_threshold, is_ratio, moved_rule, usual_thresholds
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import old_log_probs
from rlcorr.gradients.bootstrap import LEVEL, REPLICATES, Interval
from rlcorr.gradients.progress import Choice
from rlcorr.gradients.report import BATCH_SIZES, Ranking, compare
from rlcorr.gradients.sketch import Sketch
from rlcorr.gradients.toy import Toy, gradient_truth
from rlcorr.ratios import log_ratio
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class GradientSweep:
    """One correction at thresholds from the tightest to the loosest, on the same bootstrap samples."""

    thresholds: list[float]
    of_ratio: bool
    """Whether they bound a ratio, whose neutral value is 1, or a divergence, where it is 0."""
    ranking: Ranking
    best: tuple[Interval, ...]
    """For each batch size the threshold that makes the most progress, and between which ones it lies in 95 % of the
    bootstrap samples."""


def gradient_sweep(
    batch: TokenBatch,
    sketch: Sketch,
    correction: CorrectionConfig,
    *,
    rule: int | None = None,
    side: Side = "band",
    thresholds: Sequence[float] = (),
    loss: LossConfig | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientSweep:
    """Of a bound of the weights, or of the rule with this index; without weights of the first rule. Thresholds as in
    `at_threshold`; by default sixty, from one that touches nearly every item of the batch to one that touches none."""
    points = sorted(thresholds, reverse=side == "lower") or usual_thresholds(batch, correction, rule, side=side)
    moved = [at_threshold(correction, threshold, rule, side) for threshold in points]
    ranking = compare(batch, sketch, moved, loss, batch_sizes=batch_sizes, replicates=replicates, seed=seed)
    of_ratio = is_ratio(correction, moved_rule(correction, rule))
    return GradientSweep(points, of_ratio, ranking, tuple(_best(points, choice) for choice in ranking.choices))


def _best(points: Sequence[float], choice: Choice) -> Interval:
    reached = torch.tensor(choice.support).cumsum(0)
    ends = sorted(points[min(int((reached < level).sum()), len(points) - 1)] for level in LEVEL)
    return Interval(points[choice.best], *ends)


@dataclass(frozen=True)
class ToySweep:
    """In units of the policy gradient, one number per threshold; no interval, because nothing is sampled."""

    thresholds: list[float]
    bias: list[float]
    noise: list[float]
    """Standard deviation over batches of so many answers."""
    progress: list[float]
    """η(B) for them."""


def spread_of(batch: TokenBatch) -> float:
    """√ mean d² over the tokens, d the log-ratio: a gap for `small_world`. Two digits, between 1e-4 and 3."""
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, batch.response_mask)
    return float(f"{min(max(float(d[batch.response_mask].double().square().mean().sqrt()), 1e-4), 3.0):.2g}")


def toy_sweep(
    toy: Toy,
    correction: CorrectionConfig,
    thresholds: Sequence[float],
    batch_size: int,
    *,
    rule: int | None = None,
    side: Side = "band",
    loss: LossConfig | None = None,
) -> ToySweep:
    """The correction at each threshold (`at_threshold`), for batches of so many answers."""
    bias, noise, progress = [], [], []
    for threshold in thresholds:
        moved = at_threshold(correction, threshold, rule, side)
        truth = gradient_truth(toy.where, toy.policies, toy.advantages, moved, loss or LossConfig())
        bias.append(truth.relative_bias)
        noise.append((truth.variance / batch_size) ** 0.5 / float(truth.reference.norm()))
        progress.append(truth.progress(batch_size))
    return ToySweep(list(thresholds), bias, noise, progress)
