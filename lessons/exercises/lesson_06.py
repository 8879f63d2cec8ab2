"""Check the exercises of lesson 06."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

NAN = math.nan


def _logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def _prefixes(old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    products = torch.zeros(mask.shape, dtype=torch.float64)
    for row in range(len(mask)):
        product = 1.0
        for column in range(mask.shape[1]):
            if mask[row, column]:
                product *= math.exp(float(old[row, column] - rollout[row, column]))
                products[row, column] = product
    return products


def _d(old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    return (old - rollout).where(mask, 0)


PREFIX_WEIGHTS = Exercise(
    expected=_prefixes,
    cases=(
        (
            _logs([[0.75, 0.75], [0.25, NAN]]),
            _logs([[0.5, 0.5], [0.5, NAN]]),
            torch.tensor([[True, True], [True, False]]),
        ),
        (
            _logs([[0.6, 0.4, 0.5, 0.8], [0.9, 0.3, NAN, NAN]]),
            _logs([[0.5, 0.8, 0.5, 0.4], [0.6, 0.6, NAN, NAN]]),
            torch.tensor([[True, True, True, True], [True, True, False, False]]),
        ),
    ),
    mistakes=(
        Mistake(
            lambda old, rollout, mask: (old - rollout).cumsum(-1).exp(),
            "Padding leaked in: choose with the mask before you add up, and return 0 there. Use `torch.where`, because "
            "nan times 0 is nan.",
        ),
        Mistake(
            lambda old, rollout, mask: _d(old, rollout, mask).exp().where(mask, 0),
            "That is each token's own ratio. What came before it is missing.",
        ),
        Mistake(
            lambda old, rollout, mask: _d(old, rollout, mask).sum(-1, keepdim=True).exp().where(mask, 0),
            "That is the product of the whole answer. Token t takes the product up to t, and no further.",
        ),
        Mistake(
            lambda old, rollout, mask: (
                (_d(old, rollout, mask).cumsum(-1) - _d(old, rollout, mask)).exp().where(mask, 0)
            ),
            "The token's own ratio is missing: the product goes up to t and includes it.",
        ),
        Mistake(
            lambda old, rollout, mask: _d(old, rollout, mask).flip(-1).cumsum(-1).flip(-1).exp().where(mask, 0),
            "That is the suffix: the product from t to the end. The prefix begins at the first token and ends with t.",
        ),
        Mistake(
            lambda old, rollout, mask: (
                (_d(old, rollout, mask).cumsum(-1) / torch.arange(1, mask.shape[1] + 1)).exp().where(mask, 0)
            ),
            "That is the geometric mean of the first t ratios. The product has no root: do not divide by t.",
        ),
        Mistake(
            lambda old, rollout, mask: _d(old, rollout, mask).cumsum(-1).where(mask, 0),
            "That is the logarithm of the product. Exponentiate it.",
        ),
        Mistake(
            lambda old, rollout, mask: _prefixes(rollout, old, mask),
            "Your ratio is engine over trainer. It must be trainer over engine.",
        ),
    ),
)


def _tolerance(upper: float, lengths: Tensor) -> Tensor:
    return torch.tensor([upper ** (1 / length) for length in lengths.tolist()], dtype=torch.float64)


LENGTHS = torch.tensor([1, 2, 10, 100], dtype=torch.int64)

TOLERANCE = Exercise(
    expected=_tolerance,
    cases=((2.0, LENGTHS), (5.0, LENGTHS), (0.5, torch.tensor([3, 59], dtype=torch.int64))),
    mistakes=(
        Mistake(lambda upper, lengths: upper / lengths, "A product of equal factors is a power: take the root."),
        Mistake(
            lambda upper, lengths: upper ** lengths.double(),
            "That is the other way round: the product that a bound on the geometric mean allows.",
        ),
        Mistake(
            lambda upper, lengths: 1 + math.log(upper) / lengths,
            "Nearly: 1 + x is close to e to the power of x for a small x only. At length 1 it is the bound itself.",
        ),
    ),
)


def _longest(sigma: float, upper: float) -> int:
    length = 0
    while 2 * sigma * math.sqrt(length + 1) <= math.log(upper):
        length += 1
    return length


LONGEST = Exercise(
    expected=_longest,
    cases=((0.1, 2.0), (0.03, 5.0), (0.5, 2.0)),
    mistakes=(
        Mistake(
            lambda sigma, upper: math.floor(math.log(upper) / (2 * sigma)),
            "Noise of T independent tokens grows like the square root of T, so the length must be squared.",
        ),
        Mistake(
            lambda sigma, upper: math.floor((math.log(upper) / sigma) ** 2),
            "That is one standard deviation. Two were asked for.",
        ),
        Mistake(
            lambda sigma, upper: math.floor((upper / (2 * sigma)) ** 2),
            "The bound is on the ratio; the noise is that of its logarithm. Take log upper.",
        ),
        Mistake(
            lambda sigma, upper: (math.log(upper) / (2 * sigma)) ** 2,
            "An answer has a whole number of tokens: round down, so that it still fits.",
        ),
        Mistake(
            lambda sigma, upper: round((math.log(upper) / (2 * sigma)) ** 2),
            "You rounded to the nearest whole number. If that is up, the answer is one token too long. Round down.",
        ),
    ),
)
