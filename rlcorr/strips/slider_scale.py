"""The values of a slider, from the tightest bound to the loosest."""

import math
from bisect import insort
from collections.abc import Iterable

from rlcorr.errors import UsageError

COUNT = 601
DIGITS = 3
"""Significant digits of a value's distance from neutral, so that a bound can be read and typed."""


def slider_scale(
    tightest: float, loosest: float, *, of_ratio: bool, count: int = COUNT, also: Iterable[float] = ()
) -> tuple[float, ...]:
    """Return `count` values, evenly spaced in the logarithm of their distance from neutral, and the values `also`.

    One of `also` replaces a value that is the same to eleven digits: an address has twelve, and two places of a slider
    must not look alike.

    Neutral is 1 for a ratio, where the distance of t is t − 1, or 1/t − 1 below 1; it is 0 for a difference.

    Raises:
        UsageError: unless both ends are on one side of neutral, and the tightest is nearer to it.

    >>> slider_scale(1.001, 11.0, of_ratio=True, count=5)
    (1.001, 1.01, 1.1, 2.0, 11.0)
    >>> slider_scale(0.5, 0.01, of_ratio=True, count=3, also=[0.2])
    (0.5, 0.2, 0.0913, 0.01)
    """
    near, far = _distance(tightest, of_ratio), _distance(loosest, of_ratio)
    if near * far <= 0 or not abs(near) < abs(far):
        raise UsageError(
            f"a slider goes from a tight bound to a loose one on the same side of {1 if of_ratio else 0}; got "
            f"{tightest:g} to {loosest:g}."
        )
    steps = [near * (far / near) ** (step / (count - 1)) for step in range(count)]
    smallest, largest = sorted((tightest, loosest))
    values = sorted({min(max(_rounded(distance, of_ratio), smallest), largest) for distance in steps})
    for value in also:
        values = [other for other in values if not math.isclose(other, value, rel_tol=1e-11)]
        insort(values, value)
    return tuple(values if far > 0 else reversed(values))


def _distance(bound: float, of_ratio: bool) -> float:
    """Return the distance from neutral: above 0 for upper bounds, below 0 for lower ones."""
    if not of_ratio:
        return bound
    return bound - 1 if bound >= 1 else 1 - 1 / bound


def _rounded(distance: float, of_ratio: bool) -> float:
    """Return the bound at this distance with few digits, without the rounding error of adding 1."""
    if not of_ratio:
        return _digits(distance)
    if distance > 0:
        return float(f"{1 + _digits(distance):.12g}")
    below = 1 / (1 - distance)
    return float(f"{_digits(below) if below < 0.5 else 1 - _digits(1 - below):.12g}")


def _digits(x: float) -> float:
    return float(f"{x:.{DIGITS}g}") if math.isfinite(x) else x
