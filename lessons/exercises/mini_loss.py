"""Check the weighted and masked loss, a piece of mini.py."""

import math
from collections.abc import Callable

import torch
from exercises.rejection import logs, padded_cases, probabilities
from torch import Tensor

from rlcorr.teaching.check import Exercise

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def slope(of_loss: Loss) -> Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor]:
    """Return the slope of a loss along every log-prob of the trainer.

    The weights are made of the same log-probs: p/q, at most `cap`, and 0 where p/q is above `reject_above`.
    """

    def along_log_probs(
        trainer: Tensor, engine: Tensor, mask: Tensor, advantage: Tensor, cap: float, reject_above: float
    ) -> Tensor:
        trainer = trainer.clone().requires_grad_()
        r = (trainer - engine).where(mask, -math.inf).exp()
        weights = r.clamp(max=cap).where(r <= reject_above, 0)
        return torch.autograd.grad(of_loss(trainer, weights, mask, advantage), trainer)[0]

    return along_log_probs


def _coefficients(
    trainer: Tensor, engine: Tensor, mask: Tensor, advantage: Tensor, cap: float, reject_above: float
) -> Tensor:
    slopes = torch.zeros(mask.shape, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        r = math.exp(float(trainer[row, column] - engine[row, column]))
        weight = min(r, cap) if r <= reject_above else 0.0
        slopes[row, column] = -weight * float(advantage[row]) / int(mask.sum())
    return slopes


def _summed(log_p: Tensor, w: Tensor, mask: Tensor, a: Tensor) -> Tensor:
    return -(w.detach() * a[:, None] * log_p.where(mask, 0)).sum()


_RANDOM = padded_cases(8)
_ADVANTAGE = torch.arange(6, dtype=torch.float64) - 2.5

LOSS = Exercise(
    expected=_coefficients,
    cases=(
        (  # the ratios are 2 and 1/2, and 1 and padding: the cap changes the first, nothing is rejected
            logs([[0.8, 0.4], [0.4, 0.9]]),
            logs([[0.4, 0.8], [0.4, 0.3]]),
            torch.tensor([[True, True], [True, False]]),
            probabilities(1.0, -2.0),
            1.5,
            9.0,
        ),
        (  # the ratio 4 is rejected, so the sum has two terms and N is 3
            logs([[0.8, 0.4], [0.4, 0.9]]),
            logs([[0.2, 0.8], [0.4, 0.3]]),
            torch.tensor([[True, True], [True, False]]),
            probabilities(1.0, -2.0),
            1.5,
            3.0,
        ),
        (*(x[:5] for x in _RANDOM[:3]), _ADVANTAGE[:5], 1.2, 1.4),
        (*_RANDOM[:3], _ADVANTAGE, 1.2, 1.4),
    ),
    mistakes=(
        (slope(lambda log_p, w, mask, a: -(w * a[:, None] * log_p.where(mask, 0)).sum() / mask.sum()),
         "The weights were computed from the same log-probs, so they were differentiated too: detach them."),
        (slope(lambda log_p, w, mask, a: -_summed(log_p, w, mask, a) / mask.sum()),
         "The sign is wrong. An optimizer makes the loss smaller, and the reward must become larger."),
        (slope(lambda log_p, w, mask, a: _summed(log_p, w, mask, a) / mask.numel()),
         "You divided by all positions, padding included. Divide by the number of real tokens."),
        (slope(_summed), "This is a sum. Divide by the number of real tokens."),
        (slope(lambda log_p, w, mask, a: _summed(log_p, w, mask, a) / (w > 0).sum()),
         "You divided by the tokens with a weight above 0. N counts the mask: rejected tokens are in it, too."),
        (slope(lambda log_p, w, mask, a: _summed(log_p, w, mask, a) / w.detach().sum()),
         "You divided by the sum of the weights. N is the number of real tokens: count the mask."),
        (slope(
             lambda log_p, w, mask, a: (
                 -((w.detach() * a[:, None] * log_p.where(mask, 0)).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
             )
         ),
         "You averaged each answer first, so tokens of short answers count more. Sum over all tokens, then divide."),
        (slope(
             lambda log_p, w, mask, a: (
                 -(w.detach() * (a if len(a) == w.shape[1] else a[:, None]) * log_p.where(mask, 0)).sum()
                 / mask.sum()
             )
         ),
         "`advantage` has one number per answer. In a square batch torch takes it for one number per position: "
         "write advantage[:, None]."),
        (slope(lambda log_p, w, mask, a: -(a[:, None] * log_p.where(mask, 0)).sum() / mask.sum()),
         "The weights are missing: this trains on the engine's tokens as if the trainer had drawn them."),
        (slope(
             lambda log_p, w, mask, a: -(w.detach() * a[:, None]).sum() / mask.sum() - 0 * log_p.where(mask, 0).sum()
         ),
         "The slope is 0: multiply weight and advantage by the log-prob of the trainer."),
    ),
)  # fmt: skip
