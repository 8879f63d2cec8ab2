"""The exercises of lesson 16."""

import math
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

NAN = math.nan

ANSWERS_NEEDED = Exercise(
    expected=lambda std, error: math.ceil((std / error) ** 2 - 1e-9),
    cases=((0.5, 0.05), (0.5, 0.01), (1.0, 0.3), (0.034, 0.001), (3.0, 5.0)),
    mistakes=(
        Mistake(lambda std, error: math.ceil(std / error), "The error falls with √N, so N grows with the square."),
        Mistake(
            lambda std, error: int((std / error) ** 2 + 1e-9),
            "You rounded down or to the nearest number. Then the error may be larger than it should be. Round up.",
        ),
        Mistake(lambda std, error: (std / error) ** 2, "The number of answers is a whole number. Round up."),
        Mistake(lambda std, error: math.ceil((error / std) ** 2), "Upside down: a smaller error needs more answers."),
        Mistake(
            lambda std, error: math.ceil(std / error**2),
            "You squared only the error. Square the quotient of both.",
        ),
        Mistake(
            lambda std, error: math.ceil(4 * (std / error) ** 2),
            "That makes two standard errors as large as `error`. One standard error should be.",
        ),
    ),
)
"""The small number is for spreads and errors whose quotient is whole, but not quite so for a computer."""


def _by_answers(x: Tensor, mask: Tensor, *, of_answers: bool = False, bessel: bool = True) -> tuple[float, float]:
    """The mean over tokens, or over the answers' means, and its error by answers."""
    totals, counts = [], []
    for values, real in zip(x.tolist(), mask.tolist(), strict=True):
        real_values = [value for value, here in zip(values, real, strict=True) if here]
        if real_values:
            totals.append(sum(real_values) / len(real_values) if of_answers else sum(real_values))
            counts.append(1 if of_answers else len(real_values))
    mean, n = sum(totals) / sum(counts), len(totals)
    squares = sum((total - mean * count) ** 2 for total, count in zip(totals, counts, strict=True))
    return mean, math.sqrt(squares * (n / (n - 1) if bessel else 1)) / sum(counts)


def _by_tokens(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    values = x[mask]
    return values.mean(), values.std() / len(values) ** 0.5


def _quick(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    count = mask.sum(-1)
    total = x.where(mask, 0).sum(-1)
    mean, n = total.sum() / count.sum(), len(count)
    return mean, ((total - mean * count).square().sum() * n / (n - 1)).sqrt() / count.sum()


def _spread_of_sums(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over tokens, and an error from the spread of the sums whatever their lengths."""
    totals, n = x.where(mask, 0).sum(-1), len(mask)
    return totals.sum() / mask.sum(), totals.std() * n**0.5 / mask.sum()


def _answers(seed: int) -> tuple[Tensor, Tensor]:
    """Nine answers, each with an offset of its own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 1, dtype=torch.float64, generator=generator) + 0.3 * torch.randn(
        9, 7, dtype=torch.float64, generator=generator
    )
    mask = torch.arange(7) < torch.tensor([[7], [3], [5], [1], [7], [2], [6], [4], [7]])
    return x.where(mask, NAN), mask


MEAN_AND_ERROR = Exercise(
    expected=_by_answers,
    cases=(
        (
            torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, NAN], [1.0, NAN, NAN]], dtype=torch.float64),
            torch.tensor([[True, True, True], [True, True, False], [True, False, False]]),
        ),
        _answers(0),
        _answers(1),
    ),
    mistakes=(
        Mistake(_by_tokens, "Tokens of one answer are not independent: sum over each answer, then look at the spread."),
        Mistake(
            lambda x, mask: _by_answers(x, mask, of_answers=True),
            "That is a mean of means: a short answer counts as much as a long one. Use the mean over all tokens.",
        ),
        Mistake(
            lambda x, mask: _by_answers(x, mask, bessel=False),
            "Nearly right: multiply the squares by N/(N − 1), because the mean is from the same answers.",
        ),
        Mistake(
            lambda x, mask: _spread_of_sums(x, mask),
            "The sums S differ also because answers differ in length. Subtract the mean times T from each sum first.",
        ),
        Mistake(
            lambda x, mask: _quick(x.where(mask, 0), torch.ones_like(mask)),
            "Padding was counted: divide by the number of real tokens.",
        ),
    ),
)


def _directions(cosine: float, error: float, power: int = 2, spread: Any = lambda c: 1 - c * c) -> int:
    return max(math.ceil((spread(cosine) / error) ** power - 1e-9), 1)


DIRECTIONS_NEEDED = Exercise(
    expected=_directions,
    cases=((0.0, 0.1), (0.0, 0.125), (0.6, 0.08), (0.9, 0.05), (-0.6, 0.08), (0.99, 0.01)),
    mistakes=(
        Mistake(
            lambda cosine, error: _directions(0.0, error),
            "This is right for a cosine of 0. Near ±1 fewer directions are enough: the spread is 1 − c².",
        ),
        Mistake(
            lambda cosine, error: _directions(cosine, error, spread=lambda c: math.sqrt(1 + c * c)),
            "That is for an inner product of vectors of known lengths. Here the lengths are from the sketch, too.",
        ),
        Mistake(
            lambda cosine, error: _directions(cosine, error, power=1),
            "The error falls with √K, so K grows with the square.",
        ),
        Mistake(
            lambda cosine, error: _directions(cosine, error, spread=lambda c: 1 - abs(c)),
            "The spread is 1 − c², not 1 − |c|.",
        ),
    ),
)
