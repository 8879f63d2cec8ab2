"""Check the exercises on the ratio."""

import math
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def _products(old: Tensor, rollout: Tensor, mask: Tensor, term: Any) -> Tensor:
    """Multiply a term over the real tokens of each row, one token after the other."""
    products = []
    for p_row, q_row, real in zip(old.exp().tolist(), rollout.exp().tolist(), mask.tolist(), strict=True):
        products.append(math.prod(term(p, q) for p, q, here in zip(p_row, q_row, real, strict=True) if here))
    return torch.tensor(products, dtype=torch.float64)


ANSWER_RATIO = Exercise(
    expected=lambda old, rollout, mask: _products(old, rollout, mask, lambda p, q: p / q),
    cases=(
        (
            _logs([[0.6, 0.4, 0.5, 0.8], [0.6, 0.25, 0.9, NAN]]),
            _logs([[0.5, 0.8, 0.5, 0.4], [0.5, 0.5, NAN, NAN]]),
            torch.tensor([[True, True, True, True], [True, True, False, False]]),
        ),
        (_logs([[0.3, 0.2, 0.1]]), _logs([[0.3, 0.1, 0.2]]), torch.tensor([[True, True, False]])),
    ),
    mistakes=(
        (lambda old, rollout, mask: _products(old, rollout, mask, lambda p, q: q / p),
         "Your ratios are upside down: divide the trainer's probability by the engine's."),
        (lambda old, rollout, mask: (old - rollout).exp().prod(-1),
         "Your product includes padding. Multiply only the tokens where the mask is True."),
        (lambda old, rollout, mask: ((old - rollout).exp().where(mask, 0)).sum(-1),
         "This is the sum of the ratios. The probability of an answer is a product, so its ratio is one, too."),
        (lambda old, rollout, mask: (old / rollout).where(mask, 1).prod(-1),
         "You divided log-probs. Subtract them: log p − log q is the logarithm of p/q."),
        (lambda old, rollout, mask: ((old - rollout).where(mask, 0).sum(-1) / mask.sum(-1)).exp(),
         "This is the geometric mean, the ratio of a typical token. The exercise asks for the whole product."),
    ),
)  # fmt: skip


def _earned(reward: Tensor, r: Tensor) -> float:
    return sum(x * weight for x, weight in zip(reward.tolist(), r.tolist(), strict=True)) / len(reward)


REWARDS = torch.tensor([1.0, 1.0, 0.0, 4.0], dtype=torch.float64)
RATIOS = torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=torch.float64)

TRAINER_REWARD = Exercise(
    expected=_earned,
    cases=((REWARDS, RATIOS), (REWARDS, 2 * RATIOS)),
    mistakes=(
        (lambda reward, r: reward.mean(),
         "This is the average that the engine earned. Multiply each reward by its ratio first."),
        (lambda reward, r: (reward / r).mean(), "You divided by the ratio. Multiply by it."),
        (lambda reward, r: (reward * r).sum(), "This is a sum. Divide by the number of answers."),
        (lambda reward, r: (reward * r).sum() / r.sum(),
         "You divided by the sum of the ratios. That is another estimate, which lesson 01 compares with this one. "
         "Divide by the number of answers."),
        (lambda reward, r: reward * r, "You returned one number per answer. Average them."),
        (lambda reward, r: reward.mean() * r.mean(),
         "You averaged first and multiplied then. Multiply each reward by its own ratio, and then average."),
    ),
)  # fmt: skip
