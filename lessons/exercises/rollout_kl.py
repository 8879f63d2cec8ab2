"""Check the exercises on the rollout KL loss."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the optimum ---


def _tilt(q: Tensor, reward: Tensor, beta: float) -> Tensor:
    terms = [q_a * math.exp(r / beta) for q_a, r in zip(q.tolist(), reward.tolist(), strict=True)]
    return _numbers(*(term / sum(terms) for term in terms))


QUARTERS = (_numbers(0.5, 0.25, 0.25), _numbers(0, 1, 2))

TILT = Exercise(
    expected=_tilt,
    cases=(
        (*QUARTERS, 1 / math.log(2)),
        (*QUARTERS, 3.0),
        (_random(1, 6).softmax(-1), _random(2, 6), 0.5),
        (_random(3, 6).softmax(-1), _random(4, 6), 20.0),
    ),
    mistakes=(
        (lambda q, reward, beta: (reward / beta).softmax(-1),
         "Where is the engine? Its probabilities are multiplied by e^(R/β), not replaced by it."),
        (lambda q, reward, beta: (q.log() + beta * reward).softmax(-1),
         "A large β is a strong pull: the reward is divided by β, not multiplied."),
        (lambda q, reward, beta: (q.log() - reward / beta).softmax(-1),
         "Yours avoids rewards: the sign of the exponent is wrong."),
        (lambda q, reward, beta: q * (reward / beta).exp(),
         "These do not add up to 1 yet: divide by their sum."),
        (lambda q, reward, beta: (q + reward / beta).softmax(-1),
         "q itself is in the exponent. Use log q there, or multiply by q outside of it."),
        (lambda q, reward, beta: ((q.log() + reward) / beta).softmax(-1),
         "β divides the engine's log-probs, too. Only the reward is divided: log q + R/β."),
    ),
)  # fmt: skip


# --- the pull on each token ---


def _pull(log_pi: Tensor, log_q: Tensor, mask: Tensor, beta: float) -> Tensor:
    answers = sum(any(row) for row in mask.tolist())
    pulls = []
    for pi_row, q_row, real in zip(log_pi.tolist(), log_q.tolist(), mask.tolist(), strict=True):
        tokens = sum(real)
        pulls.append(
            [
                -beta * (a - b) / (tokens * answers) if here else 0.0
                for a, b, here in zip(pi_row, q_row, real, strict=True)
            ]
        )
    return torch.tensor(pulls, dtype=torch.float64)


def _delta(log_pi: Tensor, log_q: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, log_pi - log_q, 0)


def _counts(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of each answer, and answers that have any."""
    return mask.sum(-1, keepdim=True).clamp(min=1), mask.any(-1).sum()


MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])
PADDED = torch.arange(5) < torch.tensor([[5], [2], [0], [4]])

PULL = Exercise(
    expected=_pull,
    cases=(
        (
            torch.tensor([[-1.0, -2.0, -1.0, -3.0], [-1.0, -1.0, NAN, NAN]], dtype=torch.float64),
            torch.tensor([[-1.0, -1.0, -2.0, -1.0], [-2.0, -1.0, NAN, NAN]], dtype=torch.float64),
            MASK,
            8.0,
        ),
        (
            -_random(5, 4, 5).exp().where(PADDED, NAN),
            -_random(6, 4, 5).exp().where(PADDED, NAN),
            PADDED,
            0.3,
        ),
    ),
    mistakes=(
        (lambda log_pi, log_q, mask, beta: beta * _delta(log_pi, log_q, mask) / math.prod(_counts(mask)),
         "The sign is wrong: if π is above q, the pull lowers log π."),
        (lambda log_pi, log_q, mask, beta: -2 * beta * _delta(log_pi, log_q, mask) / math.prod(_counts(mask)),
         "Twice too much: k2 is half of the square. (prime-rl has the whole square, so its coefficient is β/2.)"),
        (lambda log_pi, log_q, mask, beta: (
             beta * _delta(log_pi, log_q, mask).square() / 2 / math.prod(_counts(mask))
         ),
         "That is the loss of each token. Return its coefficient: the derivative of δ²/2 is δ, and −∇L has a minus."),
        (lambda log_pi, log_q, mask, beta: (
             -beta * _delta(log_pi, log_q, mask).square() / 2 / math.prod(_counts(mask))
         ),
         "That is the negative loss of each token. Its derivative is asked for: that of δ²/2 is δ."),
        (lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / _counts(mask)[0] / len(mask),
         "You divided by all rows. A row without tokens is no answer: count the rows that have any."),
        (lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / _counts(mask)[0],
         "The mean over the answers is missing: divide by the number of answers that have tokens, too."),
        (lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / mask.sum(),
         "You divided by all tokens of the batch. First the mean of each answer, then the mean over the answers."),
        (lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask),
         "That is the pull before any division: take the mean over the tokens of an answer, then over the answers."),
        (lambda log_pi, log_q, mask, beta: (
             -beta * (1 - (-_delta(log_pi, log_q, mask)).exp()) / math.prod(_counts(mask))
         ),
         "That is the pull of k3. The derivative of δ²/2 is δ."),
        (lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / mask.shape[1] / mask.shape[0],
         "You divided by the shape of the tensor. Count the real tokens of each answer, and the answers that have "
         "any."),
    ),
)  # fmt: skip
