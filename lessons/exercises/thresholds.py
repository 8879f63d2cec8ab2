"""Check the exercises on thresholds."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

# --- the tightest band that keeps a share ---


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
        *(
            (answer, "Small ratios are outside the band, too: sort by the distance from 1, the larger of r and 1/r.")
            for answer in (
                lambda r, share: r.sort().values[math.ceil(share * len(r)) - 1], lambda r, share: r.quantile(share)
            )
        ),
        (lambda r, share: _distance(r).sort().values[math.floor(share * len(r)) - 1],
         "Yours keeps too few if share · N is not a whole number: round it up."),
        (lambda r, share: _distance(r).sort().values[min(math.ceil(share * len(r)), len(r) - 1)],
         "One token too many. The k-th smallest has index k − 1."),
        (lambda r, share: _distance(r).sort().values[int(share * len(r))],
         "`int` rounds down, and an index counts from 0: k is share · N rounded up, and the k-th smallest has index "
         "k − 1."),
        (lambda r, share: _distance(r).quantile(share),
         "An interpolated quantile lies between two tokens. Take the distance of a token, so that enough are kept."),
        *(
            (lambda r, share, start=start: start + (r - 1).abs().sort().values[math.ceil(share * len(r)) - 1],
             "1/2 and 2 count as equally far from 1. You measured |r − 1|, which is at most 1 for r below 1.")
            for start in (0, 1)
        ),
        (lambda r, share: _distance(r).sort().values[math.ceil((1 - share) * len(r)) - 1],
         "You kept 1 − share. `share` is what stays, not what is rejected."),
        (lambda r, share: _distance(r)[math.ceil(share * len(r)) - 1], "The distances must be sorted first."),
        (lambda r, share: _distance(r).max(), "This band keeps every token. Ask for the share only."),
        (lambda r, share: torch.minimum(r, 1 / r).sort().values[math.ceil(share * len(r)) - 1],
         "You took the smaller of r and 1/r. u is at least 1: take the larger."),
        (lambda r, share: _distance(r).sort().values[: math.ceil(share * len(r))].mean(),
         "This is the average distance of the tokens that stay. The band ends at the largest of them."),
    ),
)  # fmt: skip


# --- the same band in verl's words ---


def _to_verl(lower: float, upper: float) -> tuple[float, float]:
    """verl keeps a token while a ≤ 1/r ≤ b. 1/r is smallest where r is largest."""
    return 1 / upper, 1 / lower


TO_VERL = Exercise(
    expected=_to_verl,
    cases=((0.5, 5.0), (0.8, 1.25), (0.98, 1.05)),
    mistakes=(
        (lambda lower, upper: (lower, upper),
         "verl's k1 rules bound 1/r, not r: invert both bounds, and exchange them."),
        (lambda lower, upper: (1 / lower, 1 / upper),
         "Both are inverted, but now the first is the larger. Exchange them."),
        *(
            (answer, "verl takes the logarithms itself. It is given ratios.")
            for answer in (
                lambda lower, upper: (-math.log(upper), -math.log(lower)),
                lambda lower, upper: (-math.log(lower), -math.log(upper)),
                lambda lower, upper: (math.log(lower), math.log(upper)),
            )
        ),
        *(
            (answer, "That is the band of one number u. Here each bound is a number of its own.")
            for answer in (lambda lower, upper: (1 / upper, upper), lambda lower, upper: (lower, 1 / lower))
        ),
        (lambda lower, upper: (upper, lower), "You exchanged the bounds. Invert them as well: verl bounds 1/r."),
        (lambda lower, upper: (-upper, -lower),
         "The minus sign belongs to the logarithm: −log r is the logarithm of 1/r. So invert."),
        (lambda lower, upper: (1 / upper, lower), "The first is right. Invert the second, too."),
        (lambda lower, upper: (lower, 1 / upper),
         "Both bounds are inverted in verl, and exchanged: 1/upper comes first."),
    ),
)  # fmt: skip
