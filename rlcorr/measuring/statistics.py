"""What moments say: mean, spread, extremes, effective sample size. All are 0 where nothing was measured."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """Moments on the host."""

    count: float
    total: float
    squares: float
    low: float
    high: float

    @classmethod
    def of(cls, *values: float) -> "Numbers":
        """The moments of some numbers.

        >>> Numbers.of(1, 2, 3)
        Numbers(count=3, total=6, squares=14, low=1, high=3)
        """
        low, high = min(values, default=math.inf), max(values, default=-math.inf)
        return cls(len(values), sum(values), sum(x * x for x in values), low, high)


def mean(m: Numbers) -> float:
    """Σx/n.

    >>> mean(Numbers.of(1, 2, 6)), mean(Numbers.of())
    (3.0, 0.0)
    """
    return m.total / m.count if m.count else 0.0


def half_square(m: Numbers) -> float:
    """Σx²/(2n).

    >>> half_square(Numbers.of(2, 4))
    5.0
    """
    return m.squares / m.count / 2 if m.count else 0.0


def std(m: Numbers) -> float:
    """Population standard deviation.

    >>> std(Numbers.of(1, 3))
    1.0
    """
    return math.sqrt(max(m.squares / m.count - mean(m) ** 2, 0.0)) if m.count else 0.0


def sample_std(m: Numbers) -> float:
    """Standard deviation with n − 1 in the denominator; 0 for one value.

    >>> round(sample_std(Numbers.of(1, 2, 3)), 9), sample_std(Numbers.of(7))
    (1.0, 0.0)
    """
    return std(m) * math.sqrt(m.count / (m.count - 1)) if m.count > 1 else 0.0


def largest(m: Numbers) -> float:
    """max x.

    >>> largest(Numbers.of(1, 3)), largest(Numbers.of())
    (3, 0.0)
    """
    return m.high if m.count else 0.0


def smallest(m: Numbers) -> float:
    """min x.

    >>> smallest(Numbers.of(1, 3)), smallest(Numbers.of())
    (1, 0.0)
    """
    return m.low if m.count else 0.0


def chi2(excess: Numbers) -> float:
    """mean(r²) − 1 from the moments of e = r − 1: mean(2e + e²).

    >>> chi2(Numbers.of(1, -0.5))  # ratios 2 and 0.5
    1.125
    """
    return (2 * excess.total + excess.squares) / excess.count if excess.count else 0.0


def effective_share(m: Numbers) -> float:
    """(Σw)²/(n Σw²) ∈ [0, 1], the effective sample size of n weights as a share of n (Kish, 1965); 0 if all are 0.

    >>> effective_share(Numbers.of(1, 1, 1, 1)), effective_share(Numbers.of(1, 0, 0, 0))
    (1.0, 0.25)
    """
    return effective_trained(m, m)


def effective_trained(trained: Numbers, tokens: Numbers) -> float:
    """The effective sample size of the weights that are trained on, as a share of all tokens, rejected ones included.

    >>> effective_trained(Numbers.of(1, 1), Numbers.of(0, 0, 0, 0))  # two of four tokens are kept
    0.5
    """
    return trained.total**2 / (tokens.count * trained.squares) if trained.squares else 0.0


def correlation(p: Numbers, q: Numbers, p_plus_q: Numbers) -> float:
    """Pearson's r from the variances of p, q and p + q.

    >>> round(correlation(Numbers.of(0, 1), Numbers.of(1, 0), Numbers.of(1, 1)), 9)
    -1.0
    """
    scale = std(p) * std(q)
    return (std(p_plus_q) ** 2 - std(p) ** 2 - std(q) ** 2) / (2 * scale) if scale else 0.0
