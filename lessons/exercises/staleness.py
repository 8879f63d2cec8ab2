"""Check the exercises on old weights."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

# --- which version samples the batch of a step ---


def _sampler(step: int, staleness: int) -> int:
    """Follow the steps: step s starts with version s − 1, and orders missing batches up to `staleness` steps ahead."""
    ordered: dict[int, int] = {}
    for now in range(1, step + 1):
        for wanted in range(now, now + staleness + 1):
            ordered.setdefault(wanted, now - 1)
    return ordered[step]


VERSION_OF = Exercise(
    expected=_sampler,
    cases=((1, 2), (2, 2), (3, 2), (4, 2), (6, 2), (5, 0), (3, 8), (40, 4)),
    mistakes=(
        (lambda step, staleness: step - 1 - staleness,
         "The first batches cannot be that old: there is no version before 0."),
        (lambda step, staleness: max(step - staleness, 0),
         "Step s is scored by version s − 1, and the batch is `staleness` updates older than that."),
        (lambda step, staleness: step - 1,
         "This version scores the batch. An older version sampled it."),
        (lambda step, staleness: min(step - 1, staleness),
         "That is the lag, the number of updates in between. The task is the version that sampled."),
    ),
)  # fmt: skip

# --- the power with which a divergence grows ---


def _slope(lags: Tensor, kl: Tensor) -> float:
    """Compute the slope of log KL over log lag by least squares, written out."""
    x, y = [math.log(k) for k in lags.tolist()], [math.log(v) for v in kl.tolist()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def _lags(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _centred_slope(x: Tensor, y: Tensor) -> Tensor:
    return ((x - x.mean()) * y).sum() / (x - x.mean()).square().sum()


POWER = Exercise(
    expected=_slope,
    cases=(
        (_lags(1, 2, 4), _lags(0.01, 0.04, 0.16)),
        (_lags(1, 2, 4), _lags(0.03, 0.06, 0.12)),
        (_lags(1, 2, 3, 4, 8), _lags(0.05, 0.12, 0.21, 0.28, 0.9)),
    ),
    mistakes=(
        (_centred_slope,
         "This is the slope of KL over the lag. A power is a slope of the logarithms."),
        (lambda lags, kl: _centred_slope(lags, kl.log()),
         "This is the rate of an exponential growth: take the logarithm of the lags as well."),
        (lambda lags, kl: (lags.log() * kl.log()).sum() / lags.log().square().sum(),
         "Your line goes through KL = 1 at lag 1. Subtract the means from both logarithms first."),
        (lambda lags, kl: _centred_slope(kl.log(), lags.log()),
         "The axes are exchanged: this is the slope of log lag over log KL."),
        (lambda lags, kl: _centred_slope(lags.log(), kl.sqrt().log()),
         "This is the power with which |d| grows. It is half of the power of KL."),
    ),
)  # fmt: skip
