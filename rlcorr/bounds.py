"""One bound of a correction as a number that can be moved, the range in which moving it matters, and M2PO's bound."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import old_log_probs, require_fields
from rlcorr.divergences import DIVERGENCES
from rlcorr.errors import UsageError
from rlcorr.ratios import log_ratio
from rlcorr.rules import RejectionRule, rule_statistic
from rlcorr.types import TokenBatch

Side = Literal["upper", "lower", "band"]
POINTS = 60
LARGEST = 500.0
"""Largest logarithm of a ratio that is used as a bound, so that exp of it is a float."""
NEGLIGIBLE = 0.01
"""Share of the whole distance from neutral, Σ|log r|, that the items within the tightest useful bound hold together."""


@dataclass(frozen=True)
class BoundId:
    """One bound of a correction.

    `rule_index` counts in `rollout_rs`; None means the bounds of the weights, or the first rule if there are no
    weights. `side` "band" moves both sides together with one number t: up to t, and where there is a lower bound, down
    to 1/t for ratios and −t for differences. A bound that exists on one side only stays one-sided.
    """

    rule_index: int | None = None
    side: Side = "band"


BAND = BoundId()
"""Both bounds of the weights together, or those of the first rule if there are no weights."""


def resolve(correction: CorrectionConfig, bound: BoundId) -> BoundId:
    """Return the bound with the index of its rule filled in: the first rule, if none is named and there are no weights.

    Raises:
        UsageError: if the correction has nothing to move, or no rule with this index.
    """
    rules, index = len(correction.rollout_rs), bound.rule_index
    if index is None and correction.rollout_is is None:
        if not rules:
            raise UsageError("the correction has neither weights nor rejection rules: there is no threshold to move.")
        return replace(bound, rule_index=0)
    if index is not None and not 0 <= index < rules:
        raise UsageError(f"rule must be below {rules}, the number of the correction's rejection rules; got {index}.")
    return bound


def at_threshold(correction: CorrectionConfig, threshold: float, bound: BoundId = BAND) -> CorrectionConfig:
    """Return the correction with this bound moved to `threshold`. Raises `UsageError` as `resolve` does.

    >>> at_threshold(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), 3.0).rollout_is_threshold
    3.0
    """
    bound = resolve(correction, bound)
    if bound.rule_index is None:
        lower, upper = correction.rollout_is_threshold_lower, correction.rollout_is_threshold
        lower, upper = _moved(lower, upper, threshold, bound.side, of_ratio=True)
        return replace(correction, rollout_is_threshold=upper, rollout_is_threshold_lower=lower)
    rules = list(correction.rollout_rs)
    old = rules[bound.rule_index]
    lower, upper = _moved(old.lower, old.upper, threshold, bound.side, of_ratio=old.divergence == "k1")
    if bound.side == "band" and old.lower is not None and math.isinf(old.upper):
        upper = old.upper
    rules[bound.rule_index] = replace(old, lower=lower, upper=upper)
    return replace(correction, rollout_rs=tuple(rules))


def _moved(
    lower: float | None, upper: float, threshold: float, side: Side, *, of_ratio: bool
) -> tuple[float | None, float]:
    if side == "upper":
        return lower, threshold
    if side == "lower":
        return threshold, upper
    mirrored = -threshold
    if of_ratio:
        mirrored = 1 / threshold if threshold else math.inf  # the configuration refuses 0 with a sentence
    return (None if lower is None else mirrored), threshold


def usual_thresholds(
    batch: TokenBatch, correction: CorrectionConfig, bound: BoundId = BAND, *, count: int = POINTS
) -> list[float]:
    """Return thresholds for this bound, from the tightest to the loosest.

    They are spaced evenly in the logarithm of the distance from r = 1, between the 5 % closest items and the farthest.

    Raises:
        UsageError: if no item is off neutral.
    """
    bound = resolve(correction, bound)
    sizes = _distances(batch, correction, replace(bound, side="band"))
    return _spaced(sizes.quantile(0.05), 1.001 * sizes.max(), correction, bound, count)


def useful_range(batch: TokenBatch, correction: CorrectionConfig, bound: BoundId = BAND) -> tuple[float, float]:
    """Return the tightest and the loosest useful threshold of this bound on this batch.

    A bound limits items: tokens, or the sequences of a sequence rule. Neutral is r = 1 for ratios and 0 for another
    statistic s. The items inside the tightest useful threshold together have 1 % (`NEGLIGIBLE`) of the distance of all
    items from neutral, Σ|log r| or Σ|s|: a tighter threshold only touches items that hardly differ. The loosest is just
    beyond the farthest item. For an upper bound only items above neutral count, for a lower one only those below.

    Raises:
        UsageError: if no item is off neutral.

    >>> batch = TokenBatch.from_log_probs(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.5]]), torch.ones(1, 2))
    >>> [round(x, 2) for x in useful_range(batch, CorrectionConfig(rollout_is="token"))]
    [1.65, 1.73]
    """
    bound = resolve(correction, bound)
    sizes = _distances(batch, correction, bound).sort().values
    cumulative = sizes.cumsum(0) / sizes.sum()
    tightest = sizes[int((cumulative < NEGLIGIBLE).sum())]
    low, high = _spaced(tightest, torch.maximum(1.001 * sizes[-1], 1.1 * tightest), correction, bound, 2)
    return low, high


def tight_thresholds(batch: TokenBatch, correction: CorrectionConfig, bound: BoundId, count: int) -> list[float]:
    """Return thresholds tighter than `usual_thresholds`, which leaves them out.

    They go from a thousandth of the distance of the closest item, which is practically neutral, to the 5 % closest.
    """
    bound = replace(resolve(correction, bound), side="band")
    sizes = _distances(batch, correction, bound)
    return _spaced(sizes.min() / 1000, sizes.quantile(0.05), correction, bound, count + 1)[:-1]


def _spaced(low: Tensor, high: Tensor, correction: CorrectionConfig, bound: BoundId, count: int) -> list[float]:
    ends = (math.log(low), math.log(high))
    distances = torch.linspace(*ends, count, dtype=torch.float64).exp()
    sign = -1 if bound.side == "lower" else 1
    return ((sign * distances).exp() if is_ratio(correction, bound) else sign * distances).tolist()


def is_ratio(correction: CorrectionConfig, bound: BoundId = BAND) -> bool:
    """Check whether the bound is on a ratio, neutral at 1, and not on a divergence, neutral at 0."""
    index = resolve(correction, bound).rule_index
    return index is None or DIVERGENCES[correction.rollout_rs[index].divergence].neutral == 1


def _distances(batch: TokenBatch, correction: CorrectionConfig, bound: BoundId) -> Tensor:
    """Return how far the items on this side are off neutral, as logarithms for ratios, without those that are not off.

    Raises:
        UsageError: if no item is off.
    """
    mask = batch.response_mask
    require_fields(batch, correction)
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, mask)
    if bound.rule_index is None:
        assert correction.weights is not None
        statistic = correction.weights.raw(d, mask)
    else:
        rule = correction.rollout_rs[bound.rule_index]
        statistic = rule_statistic(rule, batch, d)
        statistic = statistic.log() if rule.divergence == "mult_error" else statistic
    items = statistic[mask if statistic.shape == mask.shape else mask.any(-1, keepdim=True)].double()
    sizes = {"band": items.abs(), "upper": items, "lower": -items}[bound.side]
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    if not len(sizes):
        raise UsageError("no token of this batch is off its ratio of 1: there is nothing to bound.")
    return sizes.clamp(max=LARGEST)


# --- M2PO: a bound on k2 that is computed from all tokens of a batch at once (arXiv:2510.01161) ---


def m2po(batch: TokenBatch, threshold: float = 0.04) -> RejectionRule:
    """Return the rejection rule of M2PO for this batch.

    M2PO keeps as many tokens as possible, those with the smallest d² first, while the mean d² of the kept tokens stays
    below `threshold`; d = log π_old − log π_rollout. As a rule this is an upper bound on k2 = d²/2 (`token_k2`). If
    even the smallest d² is too large, that token alone is kept.

    M2PO fails in two situations. If π_old and π_rollout differ much on a few tokens and little on all others, a single
    one of the few may lift the mean above the threshold, so all of the few are dropped. If they differ a little on all
    tokens, none is dropped.

    Source: arXiv:2510.01161, τ = 0.04; AReaL, actor.m2_threshold.
    Waits for the device.

    Args:
        batch: Needs old_log_probs.
        threshold: The limit τ for the mean d²; > 0.

    Raises:
        UsageError: If the batch has no tokens or no old_log_probs, or if the threshold is not > 0.

    >>> old = torch.tensor([[0.0, -0.1, -0.5]])
    >>> rule = m2po(TokenBatch.from_log_probs(old, torch.zeros(1, 3), torch.ones(1, 3)))  # 0.26/3 > 0.04 > 0.01/2
    >>> rule.name, round(rule.upper, 9)
    ('token_k2', 0.005)
    """
    if not threshold > 0:
        raise UsageError(f"the threshold of M2PO must be > 0; got {threshold}.")
    mask = batch.response_mask
    d = log_ratio(old_log_probs(batch), batch.rollout_log_probs, mask).detach()[mask]
    k2 = (d.square() / 2).double().sort().values
    if not len(k2):
        raise UsageError("M2PO needs a token to keep; the batch has none.")
    means = 2 * k2.cumsum(0) / torch.arange(1, len(k2) + 1, device=k2.device)
    kept = int((means < threshold).sum())  # the running means of ascending values ascend, so this counts a prefix
    upper = float(k2[max(kept - 1, 0)])
    return RejectionRule.named("token_k2", upper=max(upper, torch.finfo(torch.float32).tiny))
