"""What lesson 00 asks for."""

import math
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

NAN = math.nan


def _logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def _products(old: Tensor, rollout: Tensor, mask: Tensor, term: Any) -> Tensor:
    """The product of a term over the real tokens of each row, one token after the other."""
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
        Mistake(
            lambda old, rollout, mask: _products(old, rollout, mask, lambda p, q: q / p),
            "Upside down: it is trainer over engine.",
        ),
        Mistake(
            lambda old, rollout, mask: (old - rollout).exp().prod(-1),
            "Padding took part. Multiply the tokens where the mask is True, and no others.",
        ),
        Mistake(
            lambda old, rollout, mask: ((old - rollout).exp().where(mask, 0)).sum(-1),
            "That is the sum of the ratios. The probability of an answer is a product.",
        ),
        Mistake(
            lambda old, rollout, mask: (old - rollout).where(mask, 0).sum(-1),
            "That is still a logarithm: e to the power of it is the product.",
        ),
        Mistake(
            lambda old, rollout, mask: ((old - rollout).where(mask, 0).sum(-1) / mask.sum(-1)).exp(),
            "That is the geometric mean, the ratio of a typical token. Here the whole product is asked for.",
        ),
    ),
    equivalents=(lambda old, rollout, mask: (old - rollout).exp().where(mask, 1).prod(-1),),
)


def _earned(reward: Tensor, r: Tensor) -> float:
    return sum(x * weight for x, weight in zip(reward.tolist(), r.tolist(), strict=True)) / len(reward)


REWARDS = torch.tensor([1.0, 1.0, 0.0, 4.0], dtype=torch.float64)
RATIOS = torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=torch.float64)

TRAINER_REWARD = Exercise(
    expected=_earned,
    cases=((REWARDS, RATIOS), (REWARDS, 2 * RATIOS)),
    mistakes=(
        Mistake(
            lambda reward, r: reward.mean(),
            "This is what the engine earned: each reward must be multiplied by its ratio.",
        ),
        Mistake(lambda reward, r: (reward / r).mean(), "Multiply by the ratio; you divided by it."),
        Mistake(lambda reward, r: (reward * r).sum(), "This is a sum. Divide by the number of answers."),
        Mistake(
            lambda reward, r: (reward * r).sum() / r.sum(),
            "Divide by the number of answers. By the sum of the ratios is another estimate: lesson 02 compares them.",
        ),
        Mistake(lambda reward, r: reward * r, "One number per answer came back. Average them."),
    ),
    equivalents=(lambda reward, r: reward @ r / len(r), lambda reward, r: sum(reward * r) / reward.numel()),
)
