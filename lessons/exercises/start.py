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


def _d(old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    return (old - rollout).where(mask, 0)


ANSWER_RATIO = Exercise(
    expected=lambda old, rollout, mask: _products(old, rollout, mask, lambda p, q: p / q),
    cases=(
        (
            _logs([[0.6, 0.4, 0.5, 0.8], [0.6, 0.25, 0.9, NAN]]),
            _logs([[0.5, 0.8, 0.5, 0.4], [0.5, 0.5, NAN, NAN]]),
            torch.tensor([[True, True, True, True], [True, True, False, False]]),
        ),
        (_logs([[0.9, 0.7, 0.1]]), _logs([[0.4, 0.2, 0.2]]), torch.tensor([[True, True, False]])),  # a large product
    ),
    mistakes=(
        (lambda old, rollout, mask: _products(old, rollout, mask, lambda p, q: q / p),
         "Your ratios are upside down: divide the trainer's probability by the engine's."),
        (lambda old, rollout, mask: (old - rollout).exp().prod(-1),
         "Your product includes padding. Multiply only the tokens where the mask is True."),
        *(
            (answer, "You added the ratios. The probability of an answer is a product, so its ratio is one, too.")
            for answer in (
                lambda old, rollout, mask: (old - rollout).exp().where(mask, 0).sum(-1),
                lambda old, rollout, mask: _d(old, rollout, mask).exp().sum(-1),
                lambda old, rollout, mask: _d(old, rollout, mask).exp().mean(-1),
                lambda old, rollout, mask: (old - rollout).exp().where(mask, 0).sum(-1) / mask.sum(-1),
            )
        ),
        (lambda old, rollout, mask: (old / rollout).where(mask, 1).prod(-1),
         "You divided log-probs. Subtract them: log p − log q is the logarithm of p/q."),
        *(
            (answer,
             "This is the geometric mean, the ratio of a typical token. The exercise asks for the whole product.")
            for answer in (
                lambda old, rollout, mask: (_d(old, rollout, mask).sum(-1) / mask.sum(-1)).exp(),
                lambda old, rollout, mask: _d(old, rollout, mask).mean(-1).exp(),
            )
        ),
        *(
            (lambda old, rollout, mask, base=base: base ** _d(old, rollout, mask).sum(-1),
             "Log-probs are natural logarithms: raise e to the power of their difference, not 2 or 10.")
            for base in (2, 10)
        ),
        (lambda old, rollout, mask: (old - rollout).exp().where(mask, 0).prod(-1),
         "You set padding to 0, and a product with a 0 is 0. In a product padding must count as 1."),
        (lambda old, rollout, mask: old.where(mask, 0).sum(-1).exp(),
         "This is the trainer's probability of the answer. Divide it by the engine's."),
    ),
)  # fmt: skip


def _earned(reward: Tensor, r: Tensor) -> float:
    return sum(x * weight for x, weight in zip(reward.tolist(), r.tolist(), strict=True)) / len(reward)


REWARDS = torch.tensor([1.0, 1.0, 0.0, 4.0], dtype=torch.float64)
RATIOS = torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=torch.float64)

TRAINER_REWARD = Exercise(
    expected=_earned,
    cases=(
        (REWARDS, RATIOS),
        (REWARDS, 2 * RATIOS),
        (torch.tensor([2.0, 0, 1, 0], dtype=torch.float64), torch.tensor([0.25, 1, 3, 0.5], dtype=torch.float64)),
    ),
    mistakes=(
        (lambda reward, r: reward.mean(),
         "This is the average that the engine earned. Multiply each reward by its ratio first."),
        (lambda reward, r: (reward / r).mean(), "You divided by the ratio. Multiply by it."),
        (lambda reward, r: (reward * r).sum(), "This is a sum. Divide by the number of answers."),
        (lambda reward, r: (reward * r).sum() / r.sum(),
         "You divided by the sum of the ratios. That is another estimate, which lesson 01 compares with this one. "
         "Divide by the number of answers."),
        (lambda reward, r: reward * r, "You returned one number per answer. Average them."),
        (lambda reward, r: r.mean(), "This is the average ratio. The rewards are missing."),
        (lambda reward, r: (reward * r.log()).mean(), "You multiplied by the logarithm of the ratio."),
        (lambda reward, r: (reward * r.exp()).mean(),
         "`r` is the ratio, not its logarithm: leave out the exponential."),
        (lambda reward, r: reward.sum() / r.sum(),
         "You divided the rewards by the ratios. Multiply each reward by its ratio, and divide by the "
         "number of answers."),
        (lambda reward, r: (reward * r).sum() / (len(r) - 1), "Divide by the number of answers, N, not by N − 1."),
        (lambda reward, r: (reward * r)[reward > 0].mean(), "You left out the answers whose reward is 0. They count."),
        (lambda reward, r: (reward * r.clamp(max=1)).mean(), "You capped the ratios at 1. Use them as they are."),
        (lambda reward, r: reward.mean() * r.mean(),
         "You averaged first and multiplied then. Multiply each reward by its own ratio, and then average."),
    ),
)  # fmt: skip
