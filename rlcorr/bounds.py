"""One bound of a correction as a number that can be moved, and where it is worth moving it."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import log_weights, old_log_probs, require
from rlcorr.errors import UsageError
from rlcorr.ratios import log_ratio
from rlcorr.rejection import rule_statistic
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch

Side = Literal["upper", "lower", "band"]
POINTS = 60
LARGEST = 500.0
"""Logarithm of a ratio, so that exp of it is a float."""
NEGLIGIBLE = 0.01
"""Share of the whole distance from neutral, Σ|log r|, that the items within the tightest useful bound hold together."""


def at_threshold(
    correction: CorrectionConfig, threshold: float, rule: int | None = None, side: Side = "band"
) -> CorrectionConfig:
    """The correction with another bound of its weights, or of the rule with this index; without weights of the first.

    band: one number for both sides, t above, and where there is a bound below as well, 1/t for ratios and −t for
    differences; what is bounded on one side only stays so. Raises `UsageError` without weights and rules.

    >>> at_threshold(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), 3.0).rollout_is_threshold
    3.0
    """
    rule = moved_rule(correction, rule)
    if rule is None:
        lower, upper = correction.rollout_is_threshold_lower, correction.rollout_is_threshold
        lower, upper = _moved(lower, upper, threshold, side, of_ratio=True)
        return replace(correction, rollout_is_threshold=upper, rollout_is_threshold_lower=lower)
    rules = list(correction.rollout_rs)
    old = rules[rule]
    lower, upper = _moved(old.lower, old.upper, threshold, side, of_ratio=old.divergence == "k1")
    if side == "band" and old.lower is not None and math.isinf(old.upper):
        upper = old.upper
    rules[rule] = replace(old, lower=lower, upper=upper)
    return replace(correction, rollout_rs=tuple(rules))


def _moved(
    lower: float | None, upper: float, threshold: float, side: Side, *, of_ratio: bool
) -> tuple[float | None, float]:
    if side == "upper":
        return lower, threshold
    if side == "lower":
        return threshold, upper
    mirrored = 1 / threshold if of_ratio else -threshold
    return (None if lower is None else mirrored), threshold


def usual_thresholds(
    batch: TokenBatch,
    correction: CorrectionConfig,
    rule: int | None = None,
    *,
    side: Side = "band",
    count: int = POINTS,
) -> list[float]:
    """From the tightest to the loosest: spaced evenly in the logarithm of the distance from r = 1, between the 5 %
    closest items and the farthest. Raises `UsageError` where no item is off.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.5]]), torch.ones(1, 2))
    >>> [round(x, 2) for x in usual_thresholds(batch, CorrectionConfig(rollout_is="token"), count=2)]  # e^0.5 = 1.65
    [1.65, 1.65]
    """
    sizes = _distances(batch, correction, moved_rule(correction, rule))
    return _spaced(sizes.quantile(0.05), 1.001 * sizes.max(), correction, rule, side, count)


def useful_range(
    batch: TokenBatch, correction: CorrectionConfig, rule: int | None = None, *, side: Side = "band"
) -> tuple[float, float]:
    """Return the tightest and the loosest bound between which moving it changes something on this batch.

    The items within the tightest bound hold NEGLIGIBLE of the whole distance from neutral, Σ|log r| for ratios and Σ|s|
    for another statistic s; a tighter bound touches items that hardly differ. The loosest lies just beyond the farthest
    item. An upper bound is moved by what lies above neutral, a lower one by what lies below.

    Raises:
        UsageError: if no item is off neutral.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.5]]), torch.ones(1, 2))
    >>> [round(x, 2) for x in useful_range(batch, CorrectionConfig(rollout_is="token"))]
    [1.65, 1.73]
    """
    sizes = _distances(batch, correction, moved_rule(correction, rule), side).sort().values
    held = sizes.cumsum(0) / sizes.sum()
    tightest = sizes[int((held < NEGLIGIBLE).sum())]
    low, high = _spaced(tightest, torch.maximum(1.001 * sizes[-1], 1.1 * tightest), correction, rule, side, 2)
    return low, high


def tight_thresholds(batch: TokenBatch, correction: CorrectionConfig, rule: int | None, count: int) -> list[float]:
    """Those that `usual_thresholds` leaves out: from a thousandth of the distance of the closest item, practically
    neutral, to the 5 % closest items.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.5]]), torch.ones(1, 2))
    >>> [round(x, 4) for x in tight_thresholds(batch, CorrectionConfig(rollout_is="token"), None, 1)]  # e^0.0005
    [1.0005]
    """
    sizes = _distances(batch, correction, moved_rule(correction, rule))
    return _spaced(sizes.min() / 1000, sizes.quantile(0.05), correction, rule, "band", count + 1)[:-1]


def _spaced(
    low: Tensor, high: Tensor, correction: CorrectionConfig, rule: int | None, side: Side, count: int
) -> list[float]:
    ends = (math.log(low), math.log(high))
    distances = torch.linspace(*ends, count, dtype=torch.float64).exp()
    sign = -1 if side == "lower" else 1
    of_ratio = is_ratio(correction, moved_rule(correction, rule))
    return ((sign * distances).exp() if of_ratio else sign * distances).tolist()


def moved_rule(correction: CorrectionConfig, rule: int | None) -> int | None:
    """The rule whose bound moves; None: the weights'.

    >>> moved_rule(CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=2.0),)), None)
    0
    """
    rules = len(correction.rollout_rs)
    if rule is None and correction.rollout_is is None:
        if not rules:
            raise UsageError("the correction has neither weights nor rejection rules: there is no threshold to move.")
        return 0
    if rule is not None and not 0 <= rule < rules:
        raise UsageError(f"rule must be below {rules}, the number of the correction's rejection rules; got {rule}.")
    return rule


def is_ratio(correction: CorrectionConfig, rule: int | None) -> bool:
    """Whether what is bounded is a ratio, neutral at 1, rather than a divergence, neutral at 0.

    >>> is_ratio(CorrectionConfig(rollout_is="token"), None)
    True
    """
    return rule is None or _of_ratio(correction.rollout_rs[rule])


def _of_ratio(rule: RejectionRule) -> bool:
    return rule.divergence in ("k1", "mult_error")


def _distances(batch: TokenBatch, correction: CorrectionConfig, rule: int | None, side: Side = "band") -> Tensor:
    """Return how far the items on this side are off neutral, without those that are not off; of ratios the logarithm.
    Raises `UsageError` where none is."""
    mask = batch.response_mask
    require(batch, correction)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, mask)
    if rule is None:
        assert correction.rollout_is is not None
        statistic = log_weights(d, mask, correction.rollout_is)
    else:
        bounded = correction.rollout_rs[rule]
        statistic = rule_statistic(bounded, batch, d)
        statistic = statistic.log() if bounded.divergence == "mult_error" else statistic
    items = statistic[mask if statistic.shape == mask.shape else mask.any(-1, keepdim=True)].double()
    sizes = {"band": items.abs(), "upper": items, "lower": -items}[side]
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    if not len(sizes):
        raise UsageError("no token of this batch is off its ratio of 1: there is nothing to bound.")
    return sizes.clamp(max=LARGEST)
