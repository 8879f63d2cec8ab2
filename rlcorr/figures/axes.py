"""Axes that stand still while a threshold moves: their ranges and ticks, as plain numbers."""

import math
from collections.abc import Sequence
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


def threshold_place(threshold: float, *, of_ratio: bool) -> float:
    """Where a bound stands on a logarithmic axis: its distance from neutral, so tight is left and loose is right. Of
    ratios that is |log t|, so that 1.001 is not squeezed into a corner."""
    return max(abs(math.log(threshold)) if of_ratio else abs(threshold), SMALLEST_PLACE)


def threshold_axis(thresholds: Sequence[float], *, of_ratio: bool) -> dict[str, Any]:
    """Labelled with the bounds themselves, as far apart as a phone needs."""
    places = [threshold_place(threshold, of_ratio=of_ratio) for threshold in thresholds]
    first, last = min(places), max(places)
    axis = {"title_text": "threshold", "type": "log", "range": [math.log10(first), math.log10(last)]}
    below = (thresholds[0] < 1) if of_ratio else (thresholds[0] < 0)
    if of_ratio:
        bounds = [1 / t for t in RATIO_TICKS] if below else list(RATIO_TICKS)
    else:
        bounds = [(-1 if below else 1) * 10.0**k for k in range(-12, 9)]
    at = [threshold_place(bound, of_ratio=of_ratio) for bound in bounds]
    apart = (last / first) ** SMALLEST_GAP
    ticks: list[tuple[float, float]] = []
    for place, bound in zip(at, bounds, strict=True):
        if first <= place <= last and (not ticks or place >= ticks[-1][0] * apart):
            ticks.append((place, bound))
    axis["read"] = ("exp of −" if below else "exp") if of_ratio else ("−" if below else "")
    return axis | {"tickvals": [place for place, _ in ticks], "ticktext": [f"{bound:.6g}" for _, bound in ticks]}


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
