"""Exercises of lesson 09."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

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
        Mistake(
            lambda q, reward, beta: (reward / beta).softmax(-1),
            "Where is the engine? Its probabilities are multiplied by e^(R/β), not replaced by it.",
        ),
        Mistake(
            lambda q, reward, beta: (q.log() + beta * reward).softmax(-1),
            "A large β is a strong pull: the reward is divided by β, not multiplied.",
        ),
        Mistake(
            lambda q, reward, beta: (q.log() - reward / beta).softmax(-1),
            "Yours avoids rewards: the sign of the exponent is wrong.",
        ),
        Mistake(
            lambda q, reward, beta: q * (reward / beta).exp(),
            "These do not add up to 1 yet: divide by their sum.",
        ),
        Mistake(
            lambda q, reward, beta: (q + reward / beta).softmax(-1),
            "q itself is in the exponent. Use log q there, or multiply by q outside of it.",
        ),
        Mistake(
            lambda q, reward, beta: ((q.log() + reward) / beta).softmax(-1),
            "β divides the engine's log-probs, too. Only the reward is divided: log q + R/β.",
        ),
    ),
)


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
        Mistake(
            lambda log_pi, log_q, mask, beta: beta * _delta(log_pi, log_q, mask) / math.prod(_counts(mask)),
            "The sign is wrong: if π is above q, the pull lowers log π.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -2 * beta * _delta(log_pi, log_q, mask) / math.prod(_counts(mask)),
            "Twice too much: k2 is half of the square. (prime-rl has the whole square, so its coefficient is β/2.)",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: (
                beta * _delta(log_pi, log_q, mask).square() / 2 / math.prod(_counts(mask))
            ),
            "That is the loss of each token. Return its coefficient: the derivative of δ²/2 is δ, and −∇L has a minus.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: (
                -beta * _delta(log_pi, log_q, mask).square() / 2 / math.prod(_counts(mask))
            ),
            "That is the negative loss of each token. Its derivative is asked for: that of δ²/2 is δ.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / _counts(mask)[0] / len(mask),
            "You divided by all rows. A row without tokens is no answer: count the rows that have any.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / _counts(mask)[0],
            "The mean over the answers is missing: divide by the number of answers that have tokens, too.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / mask.sum(),
            "You divided by all tokens of the batch. First the mean of each answer, then the mean over the answers.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask),
            "That is the pull before any division: take the mean over the tokens of an answer, then over the answers.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: (
                -beta * (1 - (-_delta(log_pi, log_q, mask)).exp()) / math.prod(_counts(mask))
            ),
            "That is the pull of k3. The derivative of δ²/2 is δ.",
        ),
        Mistake(
            lambda log_pi, log_q, mask, beta: -beta * _delta(log_pi, log_q, mask) / mask.shape[1] / mask.shape[0],
            "You divided by the shape of the tensor. Count the real tokens of each answer, and the answers that have "
            "any.",
        ),
    ),
)


# --- from a hard bound to a strength ---


def _kl(p: Tensor, q: Tensor) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > 0)


def _strength(q: Tensor, reward: Tensor, kappa: float) -> float:
    """Halve the interval of log β sixty times."""
    low, high = -4.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        if _kl(_tilt(q, reward, math.exp(middle)), q) > kappa:
            low = middle
        else:
            high = middle
    return math.exp(high)


def _spread(q: Tensor, reward: Tensor) -> float:
    return float((q * (reward - (q * reward).sum()).square()).sum())


STRENGTH = Exercise(
    expected=_strength,
    cases=(
        (*QUARTERS, math.log(2) / 4),
        (*QUARTERS, 0.01),
        (_random(7, 6).softmax(-1), _random(8, 6), 0.05),
        (_random(9, 6).softmax(-1), 10 * _random(10, 6), 0.3),
    ),
    tolerance=1e-5,
    mistakes=(
        Mistake(
            lambda q, reward, kappa: math.sqrt(_spread(q, reward) / (2 * kappa)),
            "That is the rule for small κ. Search for the β itself: the rule is a good place to start.",
        ),
        Mistake(
            lambda q, reward, kappa: 1 / _strength(q, reward, kappa),
            "Inverted: yours is 1/β, which grows with κ. A tighter bound needs a larger β.",
        ),
        Mistake(
            lambda q, reward, kappa: _reversed(q, reward, kappa),
            "You bounded KL(q‖π*). The bound is on KL(π*‖q), which is an average over π*.",
        ),
        Mistake(
            lambda q, reward, kappa: kappa,
            "κ is a divergence, in nats; β is a price, in reward per nat. They are different numbers.",
        ),
    ),
)


def _reversed(q: Tensor, reward: Tensor, kappa: float) -> float:
    low, high = -4.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _kl(q, _tilt(q, reward, math.exp(middle))) > kappa else (low, middle)
    return math.exp(high)
