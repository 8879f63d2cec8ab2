"""Axes that stand still while a threshold moves: their ranges and ticks, as plain numbers."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlcorr.ratios import SAFETY_BOUND

SMALLEST_PLACE = 1e-12
SMALLEST_GAP = 0.09
"""Of an axis, between two of its labels."""
RATIO_TICKS = (*(1 + 10.0**-k for k in range(5, 0, -1)), 1.3, 2, 4, 10, 100, 1e4, 1e8, 1e16, 1e50, 1e100, 1e200)


def token_axis(tokens: int) -> dict[str, Any]:
    """Counts on a logarithmic axis, since the tails matter, and standing still while a threshold moves."""
    top = math.log10(max(tokens, 10)) + 0.05
    return {
        "title_text": "tokens",
        "type": "log",
        "dtick": 1,
        "range": [math.log10(0.5), top],
        "exponentformat": "none",
    }


def ratio_axis(span: float) -> dict[str, Any]:
    ticks = ratio_ticks(span)
    places, labels = [math.log(t) for t in ticks], [f"{t:g}" for t in ticks]
    return {"range": [-span * 1.02, span * 1.02], "tickvals": places, "ticktext": labels, "read": "exp"}


def threshold_scale(thresholds: Sequence[float], *, of_ratio: bool) -> tuple[Callable[[float], float], dict[str, Any]]:
    """Where a bound stands, and the axis, labelled with the bounds themselves.

    Bounds on one side of neutral (1 for ratios, 0 for differences) stand at the logarithm of their distance from it, so
    that tight is left, loose is right, and 1.001 is not squeezed into a corner; the distance of a ratio is |log t|. A
    bound on the other side stands at the tight end. Bounds on both sides stand at log t, or at the difference itself.
    """
    signed = [_signed_distance(threshold, of_ratio=of_ratio) for threshold in thresholds]
    if min(signed) < 0 < max(signed):
        return partial(_signed_distance, of_ratio=of_ratio), _two_sided_axis(min(signed), max(signed), of_ratio)
    below = min(signed) < 0

    def place(threshold: float) -> float:
        distance = _signed_distance(threshold, of_ratio=of_ratio)
        return max(-distance if below else distance, SMALLEST_PLACE)

    return place, _one_sided_axis([place(threshold) for threshold in thresholds], place, of_ratio, below)


def _signed_distance(threshold: float, *, of_ratio: bool) -> float:
    return math.log(threshold) if of_ratio else threshold


def _two_sided_axis(low: float, high: float, of_ratio: bool) -> dict[str, Any]:
    axis = {"title_text": "threshold", "range": [low, high]}
    if not of_ratio:
        return axis
    ticks = [tick for tick in ratio_ticks(max(-low, high)) if low <= math.log(tick) <= high]
    labels = [f"{tick:g}" for tick in ticks]
    return axis | {"tickvals": [math.log(tick) for tick in ticks], "ticktext": labels, "read": "exp"}


def _one_sided_axis(
    places: Sequence[float], place: Callable[[float], float], of_ratio: bool, below: bool
) -> dict[str, Any]:
    """Its labels are as far apart as a phone needs."""
    first, last = min(places), max(places)
    if of_ratio:
        bounds = [1 / t for t in RATIO_TICKS] if below else list(RATIO_TICKS)
    else:
        bounds = [(-1 if below else 1) * 10.0**k for k in range(-12, 9)]
    apart = (last / first) ** SMALLEST_GAP
    ticks: list[tuple[float, float]] = []
    for bound in bounds:
        at = place(bound)
        if first <= at <= last and (not ticks or at >= ticks[-1][0] * apart):
            ticks.append((at, bound))
    return {
        "title_text": "threshold",
        "type": "log",
        "range": [math.log10(first), math.log10(last)],
        "read": ("exp of −" if below else "exp") if of_ratio else ("−" if below else ""),
        "tickvals": [at for at, _ in ticks],
        "ticktext": [f"{bound:.6g}" for _, bound in ticks],
    }


def power_axis(low: float, high: float) -> dict[str, Any]:
    """From the decade of the lowest value to the end of that of the highest; about four labels, all powers of ten."""
    span = [math.floor(math.log10(low)), math.floor(math.log10(high)) + 1]
    every = max(1, round((span[1] - span[0]) / 4))
    return {"type": "log", "exponentformat": "power", "dtick": every, "range": span}


def span_of(log_values: np.ndarray) -> float:
    """Half-width of a symmetric log axis that holds 99.9 % of the values."""
    sizes = np.abs(log_values[np.isfinite(log_values)])
    return float(np.clip(np.quantile(sizes, 0.999) * 1.1, 1e-4, SAFETY_BOUND)) if len(sizes) else 1.0


def decades(positive: np.ndarray) -> tuple[int, int]:
    """Whole decades around the values, leaving the lowest 0.5 % out."""
    if not len(positive):
        return -6, 0
    low, high = np.quantile(positive, [0.005, 1]).clip(1e-12, 1e9)
    low = math.floor(math.log10(low))
    return low, max(math.ceil(math.log10(high)), low + 1)


def ratio_ticks(span: float) -> list[float]:
    """A handful of round ratios within exp(±span)."""
    if span > 5:
        decade = max(1, round(span / math.log(10) / 3))
        return [10.0**k for k in range(-9, 10) if k % decade == 0 and abs(k) * math.log(10) <= span]
    if span > 0.8:
        return [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if abs(math.log(t)) <= span]
    step = next(s for k in range(-6, 1) for s in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if span / s <= 3.5)
    ticks = [round(1 + k * step, 8) for k in range(-4, 5)]
    return [t for t in ticks if t > 0 and abs(math.log(t)) <= span]
