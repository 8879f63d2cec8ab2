"""Ranges and ticks of axes, as plain numbers. They stay fixed while a threshold moves."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlcorr.ratios import SAFETY_BOUND

SMALLEST_POSITION = 1e-12
SMALLEST_GAP = 0.09
"""Smallest distance between two labels, as a share of the axis."""
FEW_DECADES = 2
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NEAR_ONE = 2e-4
"""A stretched axis is linear for |log r| below this, and logarithmic in |log r| above it."""
RATIO_TICKS = (*(1 + 10.0**-k for k in range(5, 0, -1)), 1.3, 2, 4, 10, 100, 1e4, 1e8, 1e16, 1e50, 1e100, 1e200)


def token_axis(tokens: int) -> dict[str, Any]:
    """Return a logarithmic axis for token counts, because tails matter. It stays fixed while a threshold moves."""
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
    positions, labels = [math.log(t) for t in ticks], [f"{t:g}" for t in ticks]
    return {"range": [-span * 1.02, span * 1.02], "tickvals": positions, "ticktext": labels, "read": "exp"}


def stretched(log_ratios: np.ndarray | float) -> np.ndarray:
    """Return the positions of log-ratios on a stretched axis, on which 0.999, 1 and 1.001 are far apart.

    >>> stretched(np.log([0.999, 1, 1.001, 10])).round(1).tolist()  # from 1 to 1.001 it is a fifth of the way to 10
    [-2.3, 0.0, 2.3, 10.0]
    """
    return np.arcsinh(np.asarray(log_ratios) / NEAR_ONE)


def stretched_axis(span: float) -> dict[str, Any]:
    """Return the axis for positions from `stretched`, for log-ratios within ± `span`."""
    end, least = float(stretched(span)), 0.0
    ticks = [1.0]
    for distance in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 9.0, 99.0, 9999.0, 1e8 - 1):
        position = float(stretched(math.log1p(distance)))
        if position <= end and position >= least + 3 * SMALLEST_GAP * end:
            ticks += [1 - distance if distance < 1 else 1 / (1 + distance), 1 + distance]
            least = position
    positions = stretched(np.log(np.array(sorted(ticks)))).tolist()
    labels = [f"{tick:.6g}" for tick in sorted(ticks)]
    return {"range": [-end * 1.02, end * 1.02], "tickvals": positions, "ticktext": labels, "read": "exp of sinh"}


def threshold_scale(thresholds: Sequence[float], *, of_ratio: bool) -> tuple[Callable[[float], float], dict[str, Any]]:
    """Return the function from a bound to its position on the axis, and the axis, labelled with the bounds.

    If all bounds are on one side of the neutral value (1 for ratios, 0 for differences), the axis is logarithmic in the
    distance from it. Tight bounds are left, loose ones right, and 1.001 is not squeezed into a corner. The distance of
    a ratio t is |log t|. A bound on the other side is put at the tight end. With bounds on both sides the position is
    log t, or the difference itself.
    """
    signed = [_signed_distance(threshold, of_ratio=of_ratio) for threshold in thresholds]
    if min(signed) < 0 < max(signed):
        return partial(_signed_distance, of_ratio=of_ratio), _two_sided_axis(min(signed), max(signed), of_ratio)
    below = min(signed) < 0

    def position(threshold: float) -> float:
        distance = _signed_distance(threshold, of_ratio=of_ratio)
        return max(-distance if below else distance, SMALLEST_POSITION)

    return position, _one_sided_axis([position(threshold) for threshold in thresholds], position, of_ratio, below)


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
    positions: Sequence[float], position: Callable[[float], float], of_ratio: bool, below: bool
) -> dict[str, Any]:
    """Return a logarithmic axis. Its labels are far enough apart for a phone."""
    first, last = min(positions), max(positions)
    if of_ratio:
        bounds = [1 / t for t in RATIO_TICKS] if below else list(RATIO_TICKS)
    else:
        bounds = [(-1 if below else 1) * 10.0**k for k in range(-12, 9)]
    factor = (last / first) ** SMALLEST_GAP  # between two labels
    ticks: list[tuple[float, float]] = []
    for bound in bounds:
        x = position(bound)
        if first <= x <= last and (not ticks or x >= ticks[-1][0] * factor):
            ticks.append((x, bound))
    return {
        "title_text": "threshold",
        "type": "log",
        "range": [math.log10(first), math.log10(last)],
        "read": ("exp of −" if below else "exp") if of_ratio else ("−" if below else ""),
        "tickvals": [x for x, _ in ticks],
        "ticktext": [f"{bound:.6g}" for _, bound in ticks],
    }


def tail_axis(sizes: np.ndarray) -> dict[str, Any]:
    """Return a logarithmic axis for these |log r|, without the lowest 10 % of those above 0.

    These are tokens that are nearly certain and hardly differ.
    """
    positive = sizes[sizes > 0]
    low, high = np.quantile(positive, [0.1, 1]) if len(positive) else (1e-3, 1.0)
    return power_axis(low, high) | {"title_text": "|log r|", "range": [math.log10(low), math.log10(high) + 0.1]}


def power_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis of whole decades around low and high.

    More than two decades have about four labels, all powers of ten. Fewer have labels at 1, 2 and 5 of each power.
    """
    span = [math.floor(math.log10(low)), math.floor(math.log10(high)) + 1]
    if span[1] - span[0] <= FEW_DECADES:
        ticks = [(digit, power) for power in range(*span) for digit in (1, 2, 5)] + [(1, span[1])]
        labels = [f"{d * 10.0**power:g}" if -4 <= power < 5 else f"{d}e{power}" for d, power in ticks]
        return {"type": "log", "tickvals": [d * 10.0**power for d, power in ticks], "ticktext": labels, "range": span}
    step = max(1, round((span[1] - span[0]) / 4))
    powers = [power for power in range(span[0], span[1] + 1) if power % step == 0]  # Plotly would write them larger
    labels = [f"{10.0**power:g}" if abs(power) < 3 else f"10{str(power).translate(RAISED)}" for power in powers]
    return {"type": "log", "tickvals": [10.0**power for power in powers], "ticktext": labels, "range": span}


def span_of(log_values: np.ndarray) -> float:
    """Return the half-width of a symmetric log axis that contains 99.9 % of the values."""
    sizes = np.abs(log_values[np.isfinite(log_values)])
    return float(np.clip(np.quantile(sizes, 0.999) * 1.1, 1e-4, SAFETY_BOUND)) if len(sizes) else 1.0


def decades(positive: np.ndarray) -> tuple[int, int]:
    """Return the whole decades around the values, without the lowest 0.5 %."""
    if not len(positive):
        return -6, 0
    low, high = np.quantile(positive, [0.005, 1]).clip(1e-12, 1e9)
    low = math.floor(math.log10(low))
    return low, max(math.ceil(math.log10(high)), low + 1)


def ratio_ticks(span: float) -> list[float]:
    """Return a few round ratios within exp(±span)."""
    if span > 5:
        decade = max(1, round(span / math.log(10) / 3))
        return [10.0**k for k in range(-9, 10) if k % decade == 0 and abs(k) * math.log(10) <= span]
    if span > 0.8:
        return [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if abs(math.log(t)) <= span]
    step = next(s for k in range(-6, 1) for s in (10.0**k, 2 * 10.0**k, 5 * 10.0**k) if span / s <= 3.5)
    ticks = [round(1 + k * step, 8) for k in range(-4, 5)]
    return [t for t in ticks if t > 0 and abs(math.log(t)) <= span]
