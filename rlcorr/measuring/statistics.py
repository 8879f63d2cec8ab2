"""Statistics of moments: mean, spread, extremes, effective sample size. All are 0 if nothing was measured."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class HostMoments:
    """Moments as Python floats, on the host."""

    count: float
    total: float
    squares: float
    low: float
    high: float

    @classmethod
    def of(cls, *values: float) -> "HostMoments":
        """Compute the moments of some numbers.

        >>> HostMoments.of(1, 2, 3)
        HostMoments(count=3, total=6, squares=14, low=1, high=3)
        """
        low, high = min(values, default=math.inf), max(values, default=-math.inf)
        return cls(len(values), sum(values), sum(x * x for x in values), low, high)


def mean(m: HostMoments) -> float:
    """Return the mean Σx/n.

    >>> mean(HostMoments.of(1, 2, 6)), mean(HostMoments.of())
    (3.0, 0.0)
    """
    return m.total / m.count if m.count else 0.0


def half_square(m: HostMoments) -> float:
    """Return Σx²/(2n), half the mean square.

    >>> half_square(HostMoments.of(2, 4))
    5.0
    """
    return m.squares / m.count / 2 if m.count else 0.0


def std(m: HostMoments) -> float:
    """Return the population standard deviation, with n in the denominator.

    >>> std(HostMoments.of(1, 3))
    1.0
    """
    return math.sqrt(max(m.squares / m.count - mean(m) ** 2, 0.0)) if m.count else 0.0


def sample_std(m: HostMoments) -> float:
    """Return the standard deviation with n − 1 in the denominator; 0 for one value.

    >>> round(sample_std(HostMoments.of(1, 2, 3)), 9), sample_std(HostMoments.of(7))
    (1.0, 0.0)
    """
    return std(m) * math.sqrt(m.count / (m.count - 1)) if m.count > 1 else 0.0


def largest(m: HostMoments) -> float:
    """Return max x.

    >>> largest(HostMoments.of(1, 3)), largest(HostMoments.of())
    (3, 0.0)
    """
    return m.high if m.count else 0.0


def smallest(m: HostMoments) -> float:
    """Return min x.

    >>> smallest(HostMoments.of(1, 3)), smallest(HostMoments.of())
    (1, 0.0)
    """
    return m.low if m.count else 0.0


def chi2(excess: HostMoments) -> float:
    """Compute χ² = mean(r²) − 1 = mean(2e + e²) from the moments of e = r − 1, which keeps the digits of a small e.

    >>> chi2(HostMoments.of(1, -0.5))  # ratios 2 and 0.5
    1.125
    """
    return (2 * excess.total + excess.squares) / excess.count if excess.count else 0.0


def effective_share(m: HostMoments) -> float:
    """Return (Σw)²/(n Σw²), the effective sample size of n weights as a share of n (Kish, 1965).

    For weights ≥ 0 it is in [0, 1]; 0 if all weights are 0.

    >>> effective_share(HostMoments.of(1, 1, 1, 1)), effective_share(HostMoments.of(1, 0, 0, 0))
    (1.0, 0.25)
    """
    return effective_trained(m, m)


def effective_trained(trained: HostMoments, tokens: HostMoments) -> float:
    """Return the effective sample size of the trained tokens' weights, as a share of all tokens, including rejected.

    >>> effective_trained(HostMoments.of(1, 1), HostMoments.of(0, 0, 0, 0))  # two of four tokens are kept
    0.5
    """
    return trained.total**2 / (tokens.count * trained.squares) if trained.squares else 0.0


def correlation(p: HostMoments, q: HostMoments, p_plus_q: HostMoments) -> float:
    """Compute Pearson's r from the variances of p, q and p + q.

    >>> round(correlation(HostMoments.of(0, 1), HostMoments.of(1, 0), HostMoments.of(1, 1)), 9)
    -1.0
    """
    scale = std(p) * std(q)
    return (std(p_plus_q) ** 2 - std(p) ** 2 - std(q) ** 2) / (2 * scale) if scale else 0.0
