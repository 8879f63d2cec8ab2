"""The exercises of lesson 02."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _random(count: int, seed: int) -> Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _share(w: Tensor) -> float:
    """(Σw)² / (N Σw²), one weight after the other."""
    total, squares = 0.0, 0.0
    for weight in w.tolist():
        total, squares = total + weight, squares + weight * weight
    return total**2 / (len(w) * squares)


EFFECTIVE_SHARE = Exercise(
    expected=_share,
    cases=(
        (_numbers(0.5, 0.5, 1, 2),),
        (_numbers(3, 3, 3, 3, 3),),
        (_numbers(0.1, 0.1, 0.1, 40),),
        (_random(50, seed=1).exp(),),
    ),
    mistakes=(
        Mistake(
            lambda w: w.sum() ** 2 / w.square().sum(),
            "This is the effective number of samples. Divide by N to get the share.",
        ),
        Mistake(
            lambda w: len(w) * w.square().sum() / w.sum() ** 2,
            "This is upside down: it grows when the weights spread. The share must shrink, and never exceed 1.",
        ),
        Mistake(
            lambda w: 1 / w.square().mean(),
            "This is right only if the weights of the sample average to 1. Five weights of 3 are as good as five of "
            "1: the "
            "result must be 1.",
        ),
        Mistake(
            lambda w: w.mean() / w.square().mean(),
            "Square the sum in the numerator. Without it, doubling all weights changes the result, and it must not.",
        ),
        Mistake(
            lambda w: w.sum() / w.max() / len(w),
            "This depends on the largest weight only. The share uses the squares of all weights.",
        ),
        Mistake(
            lambda w: 1 / (1 + w.var()),
            "1/(1 + variance) is right only if the weights average to 1 and the variance divides by N: torch's `var` "
            "divides by N − 1. Use the formula with sums.",
        ),
        Mistake(
            lambda w: 1 / (1 + w.var(correction=0)),
            "1/(1 + variance) is right only if the weights average to 1. Divide the variance by the square of their "
            "mean.",
        ),
        Mistake(
            lambda w: 1 / (1 + w.var() / w.mean() ** 2),
            "torch's `var` divides by N − 1. With `correction=0` it divides by N, and your formula is right.",
        ),
    ),
)


def _self_normalised(reward: Tensor, log_w: Tensor) -> float:
    """Σ w f / Σ w. Only quotients of weights matter, so each is taken over the largest."""
    top = max(log_w.tolist())
    weights = [math.exp(x - top) for x in log_w.tolist()]
    return sum(f * w for f, w in zip(reward.tolist(), weights, strict=True)) / sum(weights)


SELF_NORMALISED = Exercise(
    expected=_self_normalised,
    cases=(
        (_numbers(1, 1, 0, 4), _numbers(0.5, 0.5, 1, 2).log()),
        (_numbers(1, 1, 0, 4), _numbers(1, 1, 2, 4).log()),
        (_random(20, seed=2), 2 * _random(20, seed=3) - 1),
        (_numbers(0, 1, 1), _numbers(800, 799, 0)),
    ),
    mistakes=(
        Mistake(
            lambda reward, log_w: (log_w.exp() * reward).mean(),
            "This is the plain estimate. Divide by the sum of the weights, not by their number.",
        ),
        Mistake(
            lambda reward, log_w: (log_w * reward).sum() / log_w.sum(),
            "You weighted by the logarithm of the weight. Raise e to the power of it first.",
        ),
        Mistake(
            lambda reward, log_w: (-log_w).softmax(-1) @ reward,
            "Your weights are 1/w. Use e to the power of log w, not of −log w.",
        ),
        Mistake(
            lambda reward, log_w: (log_w.exp() * reward).sum() / log_w.exp().sum(),
            "This is right until a weight is too large for a float: e to the power of 800 is infinite, and infinite "
            "over "
            "infinite is nan. Subtract the largest logarithm from all of them first; the quotient does not change.",
        ),
    ),
)


def _longest(chi2: float, share: float) -> int:
    """Token by token, as long as enough is left."""
    length, left = 0, 1 / (1 + chi2)
    while left >= share:
        length, left = length + 1, left / (1 + chi2)
    return length


LONGEST_ANSWER = Exercise(
    expected=_longest,
    cases=((0.375, 0.5), (0.375, 0.1), (0.02, 0.5), (0.001, 0.9), (1.0, 0.6)),
    mistakes=(
        Mistake(
            lambda chi2, share: math.floor((1 / share - 1) / chi2),
            "You added χ² for every token. The factors 1 + χ² are multiplied.",
        ),
        Mistake(
            lambda chi2, share: math.floor((1 - share) / chi2),
            "You took χ² off the share for every token. The share is divided by 1 + χ² each time.",
        ),
        Mistake(
            lambda chi2, share: math.floor(math.log(1 / share) / chi2),
            "Close: e to the χ² is a little more than 1 + χ². Divide by the logarithm of 1 + χ².",
        ),
        Mistake(
            lambda chi2, share: math.ceil(math.log(1 / share) / math.log(1 + chi2)),
            "This is one token too many: less than the share is left. Round down.",
        ),
        Mistake(
            lambda chi2, share: math.log(1 / share) / math.log(1 + chi2),
            "A number of tokens is whole. Round down.",
        ),
        Mistake(
            lambda chi2, share: round(math.log(1 / share) / math.log(1 + chi2)),
            "You rounded to the nearest whole number. If that is up, less than the share is left. Round down.",
        ),
    ),
)


# --- mini.py: the ratio ---


def _ratios(trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
    weights = torch.zeros(mask.shape, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        weights[row, column] = math.exp(float(trainer[row, column])) / math.exp(float(engine[row, column]))
    return weights


RATIOS = Exercise(
    expected=_ratios,
    cases=(
        (
            torch.tensor([[0.5, 0.2, 0.9], [0.3, math.nan, 0.5]], dtype=torch.float64).log(),
            torch.tensor([[0.25, 0.4, 0.9], [0.6, math.nan, 0.4]], dtype=torch.float64).log(),
            torch.tensor([[True, True, True], [True, False, False]]),
        ),
    ),
    mistakes=(
        Mistake(
            lambda p, q, mask: (p - q).exp(),
            "Your result is not 0 at padding. It must be 0 there, whatever the padding contains.",
        ),
        Mistake(
            lambda p, q, mask: (p - q).exp() * mask,
            "nan times 0 is nan. Select with `where`; do not multiply by the mask.",
        ),
        Mistake(
            lambda p, q, mask: (q - p).exp().where(mask, 0),
            "Your ratios are upside down: divide the trainer's probability by the engine's.",
        ),
        Mistake(
            lambda p, q, mask: (p / q).where(mask, 0),
            "You divided log-probs. Subtract them, and raise e to the power of the difference.",
        ),
        Mistake(
            lambda p, q, mask: (p - q).where(mask, 0),
            "This is d, the logarithm of the ratio. Raise e to the power of it.",
        ),
        Mistake(
            lambda p, q, mask: (p - q).where(mask, 0).exp(),
            "e⁰ is 1, so padding gets the ratio 1. Select after the exponential.",
        ),
    ),
)
