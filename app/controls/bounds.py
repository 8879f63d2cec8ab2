"""The bounds that a configuration has, each with its range, and the configuration with other numbers in their place."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from data import corrections
from data.corrections import Identity
from state.fields import Bound

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch
from rlcorr.bounds import Side
from rlcorr.strips.places import COUNT, slider_places

CLOSEST = 1e-6
"""The distance of a ratio's tightest bound from 1, as a share of that of its loosest."""

Place = tuple[int | None, Side]
"""Whose bound, as in `Bound`: a rule's index, None for the weights; and which side of it."""


def bounds_of(config: CorrectionConfig) -> list[Bound]:
    """The bounds that this configuration has; curves are drawn over the first."""
    bounds = []
    if config.rollout_is is not None:
        reach = {"token": 99.0, "sequence": 9999.0, "geometric": 1.0}[config.rollout_is]
        if math.isfinite(config.rollout_is_threshold):
            reach = max(reach, config.rollout_is_threshold - 1)
            bounds.append(_of_ratio("is", (None, "upper"), config.rollout_is_threshold, reach))
        if config.rollout_is_threshold_lower is not None:
            bounds.append(_of_ratio("is", (None, "lower"), config.rollout_is_threshold_lower, reach))
    for index, rule in enumerate(config.rollout_rs):
        if math.isfinite(rule.upper):
            bounds.append(_of_rule(rule, (index, "upper"), rule.upper))
        if rule.lower is not None:
            bounds.append(_of_rule(rule, (index, "lower"), rule.lower))
    return bounds


def is_first(b: Bound, config: CorrectionConfig) -> bool:
    """Whether it is the one that curves are drawn over."""
    first = bounds_of(config)[0]
    return (b.rule, b.side) == (first.rule, first.side)


def _of_rule(rule: RejectionRule, place: Place, value: float) -> Bound:
    if rule.divergence == "k1":
        reach = {None: 99.0, "max": 99.0, "min": 99999.0, "sum": 9999.0, "mean": 1.0}[rule.reduce]
        return _of_ratio(rule.name, place, value, max(reach, abs(value), 1 / value))
    if rule.divergence == "mult_error":
        return _of_ratio(rule.name, place, value, 99.0)
    index, side = place
    key, label = f"{rule.name}_{side}", f"{rule.name}: {side} bound"
    high = {"binary_kl": 20.0, "forward_kl": 20.0, "signed_kl": 20.0, "prob_diff": 1.0, "prob_gap": 1.0}.get(
        rule.divergence, 100.0
    )
    if side == "lower":
        return Bound(key, index, side, label, value, -high, -1e-7, 0.0, "Smallest value kept.")
    return Bound(key, index, side, label, value, 1e-7, high, 0.0, "Largest value kept.")


def _of_ratio(name: str, place: Place, value: float, reach: float) -> Bound:
    """A bound on a ratio; `name` is what its URL key begins with."""
    index, side = place
    label = f"{side.capitalize()} bound of the weight" if index is None else f"{name}: {side} bound"
    if side == "lower":
        return Bound(f"{name}_lower", index, side, label, value, 1 / (1 + reach), 1.0, 1.0, "Smallest ratio allowed.")
    high = 1 + reach
    return Bound(f"{name}_upper", index, side, label, value, 1 + reach * CLOSEST, high, 1.0, "Largest ratio allowed.")


def places_on(
    batches: Sequence[tuple[Identity, TokenBatch]], config: CorrectionConfig, b: Bound, value: float
) -> tuple[float, ...]:
    """Return the places of the bound's slider where moving it changes something on one of these batches."""
    ends = [end for of, batch in batches for end in corrections.useful_ends(of, batch, config, b.rule, b.side)]
    ends = [min(max(end, b.low), b.high) for end in (*ends, b.value, value) if end != b.offset]
    if not min(ends) < max(ends):
        return places_of(b, value)
    return places_of(replace(b, low=min(ends), high=max(ends)), value)


def places_of(b: Bound, value: float, count: int = COUNT) -> tuple[float, ...]:
    """Return the places of its slider: over its whole range, with the preset's own number and this value, wherever they
    lie."""
    tightest, loosest = (b.low, b.high) if b.side == "upper" else (b.high, b.low)
    if tightest == b.offset == 1:  # a lower bound on a ratio may be 1 itself, which a logarithm does not reach
        tightest = 1 / (1 + CLOSEST * (1 / loosest - 1))
    between = [number for number in (b.value, value) if number != b.offset]
    return slider_places(tightest, loosest, of_ratio=b.offset == 1, count=count, also=between)


def with_bounds(config: CorrectionConfig, values: Mapping[Place, float]) -> CorrectionConfig:
    """The configuration with these numbers in place of its own."""
    rules = tuple(
        replace(rule, upper=values.get((i, "upper"), rule.upper), lower=values.get((i, "lower"), rule.lower))
        for i, rule in enumerate(config.rollout_rs)
    )
    return replace(
        config,
        rollout_rs=rules,
        rollout_is_threshold=values.get((None, "upper"), config.rollout_is_threshold),
        rollout_is_threshold_lower=values.get((None, "lower"), config.rollout_is_threshold_lower),
    )
