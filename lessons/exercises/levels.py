"""Check the exercises on the weights of tokens and prefixes."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

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
        (lambda old, rollout, mask: (old - rollout).cumsum(-1).exp(),
         "Padding leaked in: choose with the mask before you add up, and return 0 there. Use `torch.where`, because "
         "nan times 0 is nan."),
        (lambda old, rollout, mask: _d(old, rollout, mask).exp().where(mask, 0),
         "That is each token's own ratio. What came before it is missing."),
        (lambda old, rollout, mask: _d(old, rollout, mask).sum(-1, keepdim=True).exp().where(mask, 0),
         "That is the product of the whole answer. Token t takes the product up to t, and no further."),
        (lambda old, rollout, mask: (
             (_d(old, rollout, mask).cumsum(-1) - _d(old, rollout, mask)).exp().where(mask, 0)
         ),
         "The token's own ratio is missing: the product goes up to t and includes it."),
        (lambda old, rollout, mask: _d(old, rollout, mask).flip(-1).cumsum(-1).flip(-1).exp().where(mask, 0),
         "That is the suffix: the product from t to the end. The prefix begins at the first token and ends with t."),
        (lambda old, rollout, mask: (
             (_d(old, rollout, mask).cumsum(-1) / torch.arange(1, mask.shape[1] + 1)).exp().where(mask, 0)
         ),
         "That is the geometric mean of the first t ratios. The product has no root: do not divide by t."),
        (lambda old, rollout, mask: _d(old, rollout, mask).cumsum(-1).where(mask, 0),
         "That is the logarithm of the product. Exponentiate it."),
        (lambda old, rollout, mask: _prefixes(rollout, old, mask),
         "Your ratio is engine over trainer. It must be trainer over engine."),
    ),
)  # fmt: skip


LENGTHS = torch.tensor([1, 2, 10, 100], dtype=torch.int64)
