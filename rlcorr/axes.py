"""Axes that stand still while a threshold moves: their ranges and ticks, as plain numbers."""

import math
from typing import Any

import numpy as np

from rlcorr.ratios import SAFETY_BOUND


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
    return {"range": [-span * 1.02, span * 1.02], "tickvals": places, "ticktext": labels}


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
