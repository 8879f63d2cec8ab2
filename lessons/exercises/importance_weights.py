"""Check the exercises on importance weights."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise


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
        (lambda w: w.sum() ** 2 / w.square().sum(),
         "This is the effective number of samples. Divide by N to get the share."),
        (lambda w: len(w) * w.square().sum() / w.sum() ** 2,
         "This is upside down: it grows when the weights spread. The share must shrink, and never exceed 1."),
        (lambda w: 1 / w.square().mean(),
         "This is right only if the weights of the sample average to 1. Five weights of 3 are as good as five of "
         "1: the "
         "result must be 1."),
        *(
            (answer,
             "Square the sum in the numerator. Without it, doubling all weights changes the result, and it must not.")
            for answer in (lambda w: w.mean() / w.square().mean(), lambda w: w.sum() / (len(w) * w.square().sum()))
        ),
        *(
            (answer, "You used the largest weight. The share uses the squares of all weights.")
            for answer in (lambda w: w.sum() / w.max() / len(w), lambda w: w.sum() / w.max())
        ),
        (lambda w: w.square().sum() / w.sum() ** 2,
         "This is 1 divided by the effective number of samples: turn it upside down, and divide by N."),
        (lambda w: w.sum() ** 2 / w.square().sum() / len(w) ** 2, "You divided by N twice. Once is enough."),
        (lambda w: len(w) * w.sum() ** 2 / w.square().sum(), "You multiplied by N. Divide by it."),
        (lambda w: w.sum() ** 2 / len(w) * w.square().sum(),
         "You multiplied by the sum of the squares: `a / b * c` is (a/b)·c. Put brackets around N Σw²."),
        *(
            (answer, "You divided a number by itself. Σw² is the sum of the squares, (Σw)² the square of the sum.")
            for answer in (lambda w: w.sum() ** 2 / (len(w) * w.sum() ** 2), lambda w: w.sum() / w.sum() / len(w))
        ),
        *(
            (lambda w, n=n: w.var(correction=n) / w.mean() ** 2,
             "This is how much the weights spread, the χ² of the sample. The share is 1/(1 + χ²).")
            for n in (0, 1)
        ),
        (lambda w: 1 - w.var(correction=0) / w.mean() ** 2,
         "1 − χ² is close to 1/(1 + χ²) only if χ² is small. Divide."),
        (lambda w: w.mean(), "This is the average weight. The share says how much the weights differ."),
        (lambda w: 1 / (1 + w.var()),
         "1/(1 + variance) is right only if the weights average to 1 and the variance divides by N: torch's `var` "
         "divides by N − 1. Use the formula with sums."),
        (lambda w: 1 / (1 + w.var(correction=0)),
         "1/(1 + variance) is right only if the weights average to 1. Divide the variance by the square of their "
         "mean."),
        (lambda w: 1 / (1 + w.var() / w.mean() ** 2),
         "torch's `var` divides by N − 1. With `correction=0` it divides by N, and your formula is right."),
    ),
)  # fmt: skip


def _longest(chi2: float, share: float) -> int:
    """Token by token, as long as enough is left."""
    length, left = 0, 1 / (1 + chi2)
    while left >= share:
        length, left = length + 1, left / (1 + chi2)
    return length


LONGEST_ANSWER = Exercise(
    expected=_longest,
    cases=((0.375, 0.5), (0.375, 0.1), (0.02, 0.5), (0.001, 0.9), (1.0, 0.6), (1.0, 0.25)),
    mistakes=(
        (lambda chi2, share: math.floor((1 / share - 1) / chi2),
         "You added χ² for every token. The factors 1 + χ² are multiplied."),
        (lambda chi2, share: math.floor((1 - share) / chi2),
         "You took χ² off the share for every token. The share is divided by 1 + χ² each time."),
        (lambda chi2, share: math.floor(math.log(1 / share) / chi2),
         "Close: e to the χ² is a little more than 1 + χ². Divide by the logarithm of 1 + χ²."),
        (lambda chi2, share: math.ceil(math.log(1 / share) / math.log(1 + chi2)),
         "This is one token too many: less than the share is left. Round down."),
        (lambda chi2, share: math.floor(math.log(1 / share) / math.log(1 + chi2)) - 1,
         "This is one token too few: one more still leaves the share."),
        (lambda chi2, share: math.ceil(math.log(1 / share) / math.log(1 + chi2)) - 1,
         "If exactly the share is left, the token counts: *at least* means ≥."),
        *(
            (lambda chi2, share, whole=whole: whole(math.log(share) / math.log(1 + chi2)),
             "The logarithm of a share is negative. The number of tokens has the logarithm of 1/share.")
            for whole in (float, math.floor, int, math.ceil)
        ),
        (lambda chi2, share: math.floor(math.log(1 + chi2) / math.log(1 / share)),
         "Your quotient is upside down: the more χ², the fewer tokens."),
        *(
            (lambda chi2, share, log=log: math.floor(log(1 / share) / math.log(1 + chi2)),
             "Both logarithms must have the same base.")
            for log in (math.log2, math.log10)
        ),
        *(
            (lambda chi2, share, sign=sign: int(sign * math.log(1 - share) / math.log(1 + chi2)),
             "1 − share is what is lost. `share` is what must be left.")
            for sign in (1, -1)
        ),
        *(
            (lambda chi2, share, whole=whole: whole(math.log(1 / share) / math.log(chi2)),
             "A token multiplies by 1 + χ², not by χ².")
            for whole in (math.floor, int)
        ),
        (lambda chi2, share: math.log(1 / share) / math.log(1 + chi2),
         "A number of tokens is whole. Round down."),
        (lambda chi2, share: round(math.log(1 / share) / math.log(1 + chi2)),
         "You rounded to the nearest whole number. If that is up, less than the share is left. Round down."),
    ),
)  # fmt: skip


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
        (
            torch.tensor([[0.8, 0.1, 0.5]], dtype=torch.float64).log(),  # a ratio of 8
            torch.tensor([[0.1, 0.7, 0.5]], dtype=torch.float64).log(),
            torch.tensor([[True, True, False]]),
        ),
    ),
    mistakes=(
        (lambda p, q, mask: (p - q).exp(),
         "Your result is not 0 at padding. It must be 0 there, whatever the padding contains."),
        (lambda p, q, mask: (p - q).exp() * mask,
         "nan times 0 is nan. Select with `where`; do not multiply by the mask."),
        (lambda p, q, mask: (q - p).exp().where(mask, 0),
         "Your ratios are upside down: divide the trainer's probability by the engine's."),
        (lambda p, q, mask: (p / q).where(mask, 0),
         "You divided log-probs. Subtract them, and raise e to the power of the difference."),
        (lambda p, q, mask: (p - q).where(mask, 0),
         "This is d, the logarithm of the ratio. Raise e to the power of it."),
        (lambda p, q, mask: (p - q).where(mask, 0).exp(),
         "Padding gets the ratio 1, for example as e⁰. It must be 0: select after the exponential."),
        (lambda p, q, mask: (p - q).exp().nan_to_num(0),
         "You replaced nan. Padding may contain ordinary numbers, too: select with the mask."),
        *(
            (lambda p, q, mask, base=base: (base ** (p - q)).where(mask, 0),
             "Log-probs are natural logarithms: raise e to the power of their difference, not 2 or 10.")
            for base in (2, 10)
        ),
        (lambda p, q, mask: p.exp().where(mask, 0), "This is the trainer's probability. Divide it by the engine's."),
        (lambda p, q, mask: (p.exp() - q.exp()).where(mask, 0),
         "This is the difference of the probabilities. The ratio is their quotient."),
        (lambda p, q, mask: (p - q).exp().where(~mask, 0),
         "Your mask is the wrong way round: it is True at real tokens."),
        (lambda p, q, mask: (p - q).exp().clamp(max=2).where(mask, 0),
         "You capped the ratios. The cap is another piece."),
    ),
)  # fmt: skip
