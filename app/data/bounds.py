"""The bounds of a configuration: their ranges, the values of their sliders, and the configuration with other values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from data.corrections import Identity, useful_ends
from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.analysis.in_words import statistic
from rlcorr.bounds import BoundId, Side
from rlcorr.divergences import DIVERGENCES
from rlcorr.strips.slider_scale import COUNT, slider_scale

LARGEST, SMALLEST = "Largest weight", "Smallest weight"

_SIDES: Mapping[Side, str] = {"upper": "Largest", "lower": "Smallest", "band": "Allowed"}
CLOSEST = 1e-6
"""The distance of a ratio's tightest bound from 1, as a share of that of its loosest."""


@dataclass(frozen=True)
class Bound:
    """One bound of a configuration: its key in the address, what it bounds, its range, and the preset's number.

    Values are `offset` ± an excess that is easiest to set on a logarithmic scale.
    """

    key: str
    id: BoundId
    label: str
    value: float
    low: float
    high: float
    offset: float
    help: str

    def within(self, value: float) -> float:
        """Return the nearest value of the range."""
        return min(max(value, self.low), self.high)


def bounds_of(config: CorrectionConfig) -> list[Bound]:
    """Return the bounds of this configuration; curves are drawn over the first."""
    bounds = []
    if config.rollout_is is not None:
        reach = {"token": 99.0, "sequence": 9999.0, "geometric": 1.0, "prefix": 9999.0}[config.rollout_is]
        if math.isfinite(config.rollout_is_threshold):
            reach = max(reach, config.rollout_is_threshold - 1)
            bounds.append(_of_ratio("is", LARGEST, BoundId(None, "upper"), config.rollout_is_threshold, reach))
        if (lower := config.rollout_is_threshold_lower) is not None:
            bounds.append(_of_ratio("is", SMALLEST, BoundId(None, "lower"), lower, reach))
    for index, rule in enumerate(config.rollout_rs):
        if math.isfinite(rule.upper):
            bounds.append(_of_rule(rule, BoundId(index, "upper"), rule.upper))
        if rule.lower is not None:
            bounds.append(_of_rule(rule, BoundId(index, "lower"), rule.lower))
    return bounds


def is_first(b: Bound, config: CorrectionConfig) -> bool:
    """Check whether this is the bound that curves are drawn over."""
    return b.id == bounds_of(config)[0].id


def _of_rule(rule: RejectionRule, bound: BoundId, value: float) -> Bound:
    if rule.divergence == "k1":
        reach = {None: 99.0, "max": 99.0, "min": 99999.0, "sum": 9999.0, "mean": 1.0}[rule.reduce]
        return _of_ratio(rule.name, _rule_label(rule, bound.side), bound, value, max(reach, abs(value), 1 / value))
    if rule.divergence == "mult_error":
        return _of_ratio(rule.name, _rule_label(rule, bound.side), bound, value, 99.0)
    key, label = f"{rule.name}_{bound.side}", _rule_label(rule, bound.side)
    high = DIVERGENCES[rule.divergence].most
    if bound.side == "lower":
        return Bound(key, bound, label, value, -high, -1e-7, 0.0, "The smallest value that is kept.")
    return Bound(key, bound, label, value, 1e-7, high, 0.0, "The largest value that is kept.")


def _of_ratio(name: str, label: str, bound: BoundId, value: float, reach: float) -> Bound:
    """Return a bound on a ratio; its URL key begins with `name`."""
    if bound.side == "lower":
        low, high, help = 1 / (1 + reach), 1.0, "The smallest ratio that is allowed."
    else:
        low, high, help = 1 + reach * CLOSEST, 1 + reach, "The largest ratio that is allowed."
    return Bound(f"{name}_{bound.side}", bound, label, value, low, high, 1.0, help)


def useful_slider_values(
    identity: Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound, value: float
) -> tuple[float, ...]:
    """Return slider values over the range in which moving the bound changes something on this batch.

    They go on to a tenth of the preset's distance from neutral, so that its own number can be tightened, too.
    """
    ends = [*useful_ends(identity, batch, config, b.id), b.value, value, _tighter(b)]
    ends = [b.within(end) for end in ends if end != b.offset]
    if not min(ends) < max(ends):
        return slider_values_of(b, value)
    return slider_values_of(replace(b, low=min(ends), high=max(ends)), value)


def _tighter(b: Bound) -> float:
    """Return the bound at a tenth of the distance of the preset's number from neutral."""
    if b.offset == 0:
        return b.value / 10
    return 1 + (b.value - 1) / 10 if b.id.side == "upper" else 1 / (1 + (1 / b.value - 1) / 10)


def slider_values_of(b: Bound, value: float, count: int = COUNT) -> tuple[float, ...]:
    """Return the slider values over the whole range of a bound, including the preset's own number and this value."""
    tightest, loosest = (b.low, b.high) if b.id.side == "upper" else (b.high, b.low)
    if tightest == b.offset == 1:  # a lower bound on a ratio may be 1 itself, which a logarithm does not reach
        tightest = 1 / (1 + CLOSEST * (1 / loosest - 1))
    between = [number for number in (b.value, value) if number != b.offset]
    return slider_scale(tightest, loosest, of_ratio=b.offset == 1, count=count, also=between)


def with_bounds(config: CorrectionConfig, values: Mapping[BoundId, float]) -> CorrectionConfig:
    """Return the configuration with these bounds instead of its own."""
    rules = []
    for i, rule in enumerate(config.rollout_rs):
        lower, upper = values.get(BoundId(i, "lower"), rule.lower), values.get(BoundId(i, "upper"), rule.upper)
        rules.append(replace(rule, lower=lower, upper=upper))
    return replace(
        config,
        rollout_rs=tuple(rules),
        rollout_is_threshold=values.get(BoundId(None, "upper"), config.rollout_is_threshold),
        rollout_is_threshold_lower=values.get(BoundId(None, "lower"), config.rollout_is_threshold_lower),
    )


def _rule_label(rule: RejectionRule, side: Side) -> str:
    """Return the label of the slider of one threshold of a rule.

    >>> rule = RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001)
    >>> _rule_label(rule, "lower"), _rule_label(rule, "upper")
    ('Smallest mean ratio (seq_mean_k1)', 'Largest mean ratio (seq_mean_k1)')
    """
    return f"{_SIDES[side]} {statistic(rule)} ({rule.name})"
