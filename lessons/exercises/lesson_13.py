"""The exercises of lesson 13."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

# --- exercise 1: which version samples the batch of a step ---


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
        Mistake(
            lambda step, staleness: step - 1 - staleness,
            "The first batches cannot be that old: there is no version before 0.",
        ),
        Mistake(
            lambda step, staleness: max(step - staleness, 0),
            "Step s is scored by version s − 1, and the batch is `staleness` updates older than that.",
        ),
        Mistake(lambda step, staleness: step - 1, "This version scores the batch. An older version sampled it."),
        Mistake(
            lambda step, staleness: min(step - 1, staleness),
            "That is the lag, the number of updates in between. The task is the version that sampled.",
        ),
    ),
)

# --- exercise 2: the power with which a divergence grows ---


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
        Mistake(
            _centred_slope,
            "This is the slope of KL over the lag. A power is a slope of the logarithms.",
        ),
        Mistake(
            lambda lags, kl: _centred_slope(lags, kl.log()),
            "This is the rate of an exponential growth: take the logarithm of the lags as well.",
        ),
        Mistake(
            lambda lags, kl: (lags.log() * kl.log()).sum() / lags.log().square().sum(),
            "Your line goes through KL = 1 at lag 1. Subtract the means from both logarithms first.",
        ),
        Mistake(
            lambda lags, kl: _centred_slope(kl.log(), lags.log()),
            "The axes are exchanged: this is the slope of log lag over log KL.",
        ),
        Mistake(
            lambda lags, kl: _centred_slope(lags.log(), kl.sqrt().log()),
            "This is the power with which |d| grows. It is half of the power of KL.",
        ),
    ),
)

# --- exercise 3: weights of a batch that several versions sampled ---


def _mixture(p: Tensor, q: Tensor, shares: Tensor) -> Tensor:
    weights = []
    for answer, target in enumerate(p.tolist()):
        mixed = sum(share * row[answer] for share, row in zip(shares.tolist(), q.tolist(), strict=True))
        weights.append(target / mixed)
    return torch.tensor(weights, dtype=torch.float64)


def _versions(seed: int, versions: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(versions + 2, tokens, dtype=torch.float64, generator=generator) * 0.9 + 0.05
    shares = drawn[-1, :versions] / drawn[-1, :versions].sum()
    return drawn[0], drawn[1:-1], shares


MIXTURE = Exercise(
    expected=_mixture,
    cases=(
        (_lags(0.5, 0.25, 0.25), torch.stack([_lags(0.25, 0.5, 0.25), _lags(0.75, 0.25, 0.5)]), _lags(0.5, 0.5)),
        (_lags(0.5, 0.25, 0.25), torch.stack([_lags(0.25, 0.5, 0.25), _lags(0.75, 0.25, 0.5)]), _lags(0.75, 0.25)),
        _versions(4, 3, 6),
    ),
    mistakes=(
        Mistake(
            lambda p, q, shares: (shares[:, None] * p / q).sum(0),
            "You averaged the ratios. Average the probabilities q first, then divide p by this average.",
        ),
        Mistake(
            lambda p, q, shares: p / q.mean(0),
            "All versions have the same weight here. Weight each by its share of the batch.",
        ),
        Mistake(lambda p, q, shares: p / q[-1], "This is the ratio to the last version alone."),
        Mistake(
            lambda p, q, shares: p / (shares[:, None] * q),
            "This has one row per version. Add up the versions in the denominator.",
        ),
        Mistake(
            lambda p, q, shares: (shares[:, None] * q).sum(0) / p,
            "Upside down: divide the trainer's probability by the mixture's.",
        ),
        Mistake(
            lambda p, q, shares: p / (shares[:, None] * q.log()).sum(0).exp(),
            "You averaged log-probs. A batch is a mixture of probabilities, so take their exponentials first.",
        ),
    ),
)
