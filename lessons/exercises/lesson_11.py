"""Exercises of lesson 11."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

# --- exercise 1: the tightest band that keeps a share ---


def _tightest(r: Tensor, share: float) -> float:
    """Try every ratio's own distance from 1, from the closest on."""
    distances = sorted(max(x, 1 / x) for x in r.tolist())
    for t in distances:
        if sum(distance <= t for distance in distances) >= share * len(distances):
            return t
    return distances[-1]


TEN = torch.tensor([0.5, 0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 2.1, 8.0], dtype=torch.float64)
MANY = torch.randn(99, generator=torch.Generator().manual_seed(11), dtype=torch.float64).mul(0.3).exp()


def _distance(r: Tensor) -> Tensor:
    return torch.maximum(r, 1 / r)


TIGHTEST = Exercise(
    expected=_tightest,
    cases=((TEN, 0.7), (TEN, 0.85), (MANY, 0.95)),
    mistakes=(
        Mistake(
            lambda r, share: r.sort().values[math.ceil(share * len(r)) - 1],
            "Small ratios are outside the band, too: sort by the distance from 1, the larger of r and 1/r.",
        ),
        Mistake(
            lambda r, share: _distance(r).sort().values[math.floor(share * len(r)) - 1],
            "Yours keeps too few if share · N is not a whole number: round it up.",
        ),
        Mistake(
            lambda r, share: _distance(r).sort().values[min(math.ceil(share * len(r)), len(r) - 1)],
            "One token too many. The k-th smallest has index k − 1.",
        ),
        Mistake(
            lambda r, share: _distance(r).sort().values[int(share * len(r))],
            "`int` rounds down, and an index counts from 0: k is share · N rounded up, and the k-th smallest has index "
            "k − 1.",
        ),
        Mistake(
            lambda r, share: _distance(r).quantile(share),
            "An interpolated quantile lies between two tokens. Take the distance of a token, so that enough are kept.",
        ),
        Mistake(
            lambda r, share: 1 + (r - 1).abs().sort().values[math.ceil(share * len(r)) - 1],
            "1/2 and 2 count as equally far from 1. You measured |r − 1|, which is at most 1 for r below 1.",
        ),
    ),
)


# --- exercise 2: what a band allows per token ---


def _tolerance(lower: float, upper: float, length: int, level: str) -> tuple[float, float]:
    ends = math.log(lower), math.log(upper)
    return (ends[0] / length, ends[1] / length) if level == "product" else ends


TOLERANCE = Exercise(
    expected=_tolerance,
    cases=(
        (0.5, 2.0, 60, "product"),
        (0.5, 2.0, 2000, "product"),
        (0.999, 1.001, 60, "geometric"),
        (0.5, 5.0, 60, "token"),
    ),
    mistakes=(
        Mistake(
            lambda lower, upper, length, level: (math.log(lower) / length, math.log(upper) / length),
            "Only for the product do the log-ratios add up. The other two have the same bounds at any length.",
        ),
        Mistake(
            lambda lower, upper, length, level: (math.log(lower), math.log(upper)),
            "A product of T ratios is T times the mean of d, as a logarithm: divide by the length.",
        ),
        Mistake(
            lambda lower, upper, length, level: (
                (lower / length, upper / length) if level == "product" else (lower, upper)
            ),
            "These are bounds on ratios. Bounds on d are asked for: take logarithms.",
        ),
        Mistake(
            lambda lower, upper, length, level: (
                (math.log(lower) / length**0.5, math.log(upper) / length**0.5)
                if level == "product"
                else (math.log(lower), math.log(upper))
            ),
            "√T is how independent noise grows. The mean of d times T is the logarithm of the product, whatever d is.",
        ),
    ),
)


# --- exercise 3: the same band in verl's words ---


def _to_verl(lower: float, upper: float) -> tuple[float, float]:
    """verl keeps a token while a ≤ 1/r ≤ b. 1/r is smallest where r is largest."""
    return 1 / upper, 1 / lower


TO_VERL = Exercise(
    expected=_to_verl,
    cases=((0.5, 5.0), (0.8, 1.25), (0.98, 1.05)),
    mistakes=(
        Mistake(
            lambda lower, upper: (lower, upper),
            "verl's k1 rules bound 1/r, not r: invert both bounds, and exchange them.",
        ),
        Mistake(
            lambda lower, upper: (1 / lower, 1 / upper),
            "Both are inverted, but now the first is the larger. Exchange them.",
        ),
        Mistake(
            lambda lower, upper: (-math.log(upper), -math.log(lower)),
            "verl takes the logarithms itself. It is given ratios.",
        ),
        Mistake(
            lambda lower, upper: (1 / upper, upper),
            "That is the band of one number u. Here the lower bound is a number of its own.",
        ),
    ),
)
