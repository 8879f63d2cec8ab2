"""The error of the gradient as a curve over a threshold, and the threshold that should have been chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig, RejectionRule
from rlcorr.correction import log_weights, needed, rule_statistic
from rlcorr.errors import UsageError
from rlcorr.gradients import LEVEL, REPLICATES, Choice, Interval, compare
from rlcorr.ratios import log_ratio
from rlcorr.score_sums import Sketch
from rlcorr.types import TokenBatch

POINTS = 60
LARGEST = 500.0
"""Logarithm of a ratio, so that exp of it is a float."""


@dataclass(frozen=True)
class GradientSweep:
    """One correction at ascending thresholds, on the same bootstrap samples."""

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
    thresholds: Sequence[float] = (),
    loss: LossConfig | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> GradientSweep:
    """Of the weights, or of the rule with this index; without weights the first rule. Thresholds: `at_threshold`; by
    default 60 that reach from touching nearly every item of the batch to touching none."""
    points = sorted(thresholds) or usual_thresholds(batch, correction, rule)
    choice = compare(
        batch, sketch, [at_threshold(correction, t, rule) for t in points], loss, replicates=replicates, seed=seed
    )
    reached = torch.tensor(choice.support).cumsum(0)
    low, high = (points[min(int((reached < level).sum()), len(points) - 1)] for level in LEVEL)
    swept = _which(correction, rule)
    of_ratio = swept is None or _of_ratio(correction.rollout_rs[swept])
    return GradientSweep(points, of_ratio, choice, Interval(points[choice.best], low, high))


def at_threshold(correction: CorrectionConfig, threshold: float, rule: int | None = None) -> CorrectionConfig:
    """The correction with one number for its bounds: t above, and where it has a bound below as well, 1/t for ratios
    and −t for differences. What is bounded on one side only stays so. Raises `UsageError` without weights and rules."""
    rule = _which(correction, rule)
    if rule is None:
        lower = None if correction.rollout_is_threshold_lower is None else 1 / threshold
        return replace(correction, rollout_is_threshold=threshold, rollout_is_threshold_lower=lower)
    rules = list(correction.rollout_rs)
    rules[rule] = _rule_at(rules[rule], threshold)
    return replace(correction, rollout_rs=tuple(rules))


def usual_thresholds(
    batch: TokenBatch, correction: CorrectionConfig, rule: int | None = None, count: int = POINTS
) -> list[float]:
    """Spaced evenly in the logarithm of the distance from r = 1, between the 5 % closest items and the farthest. Raises
    `UsageError` where no item is off."""
    sizes, of_ratio = _distances(batch, correction, _which(correction, rule))
    if not len(sizes):
        raise UsageError("no token of this batch is off its ratio of 1: there is nothing to bound.")
    sizes = sizes.clamp(max=LARGEST)
    low, high = math.log(sizes.quantile(0.05)), math.log(1.001 * sizes.max())
    distances = torch.linspace(low, high, count, dtype=torch.float64).exp()
    return (distances.exp() if of_ratio else distances).tolist()


def _which(correction: CorrectionConfig, rule: int | None) -> int | None:
    """The rule that is swept; None: the weights."""
    rules = len(correction.rollout_rs)
    if rule is None and correction.rollout_is is None:
        if not rules:
            raise UsageError("the correction has neither weights nor rejection rules: there is no threshold to move.")
        return 0
    if rule is not None and not 0 <= rule < rules:
        raise UsageError(f"rule must be below {rules}, the number of the correction's rejection rules; got {rule}.")
    return rule


def _rule_at(rule: RejectionRule, threshold: float) -> RejectionRule:
    lower = None if rule.lower is None else (1 / threshold if rule.divergence == "k1" else -threshold)
    upper = rule.upper if rule.lower is not None and math.isinf(rule.upper) else threshold
    return replace(rule, lower=lower, upper=upper)


def _distances(batch: TokenBatch, correction: CorrectionConfig, rule: int | None) -> tuple[Tensor, bool]:
    """How far each item is off, above 0, and whether that is the logarithm of a ratio."""
    mask = batch.response_mask
    d = log_ratio(needed(batch, correction), batch.rollout_log_probs, mask)
    if rule is None:
        assert correction.rollout_is is not None
        statistic, of_ratio = log_weights(d, mask, correction.rollout_is), True
    else:
        swept = correction.rollout_rs[rule]
        statistic, of_ratio = rule_statistic(swept, batch, d), _of_ratio(swept)
        statistic = statistic.log() if swept.divergence == "mult_error" else statistic
    sizes = statistic[mask if statistic.shape == mask.shape else mask.any(-1, keepdim=True)].double().abs()
    return sizes[(sizes > 0) & sizes.isfinite()], of_ratio


def _of_ratio(rule: RejectionRule) -> bool:
    return rule.divergence in ("k1", "mult_error")
