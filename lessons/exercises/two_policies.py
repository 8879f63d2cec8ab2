"""Check the exercises on the causes of a gap."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

# --- the temperature between two distributions ---


def _tempered(probabilities: list[float], times: float) -> tuple[Tensor, Tensor]:
    """log p and log q of one place: the trainer divides the engine's logits by `times` as much."""
    log_q = torch.tensor(probabilities, dtype=torch.float64).log()
    return (log_q / times).log_softmax(-1), log_q


def _drawn_place(seed: int, size: int, times: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, dtype=torch.float64, generator=generator)
    return _tempered(logits.softmax(-1).tolist(), times)


def _times(log_p: Tensor, log_q: Tensor) -> float:
    """From the most and the least probable token: what both have in common, the normaliser, cancels."""
    p, q = log_p.tolist(), log_q.tolist()
    top, bottom = q.index(max(q)), q.index(min(q))
    return (q[top] - q[bottom]) / (p[top] - p[bottom])


TEMPERATURE_BETWEEN = Exercise(
    expected=_times,
    cases=(_tempered([0.64, 0.16, 0.16, 0.04], 2.0), _drawn_place(0, 6, 0.5), _drawn_place(1, 21, 1 / 0.7)),
    mistakes=(
        (lambda log_p, log_q: 1 / _times(log_p, log_q),
         "This is 1/τ. A trainer with a higher temperature has flatter log-probs, so τ is the engine's difference "
         "divided by the trainer's."),
        (lambda log_p, log_q: 1 / _times(log_p, log_q) - 1,
         "This is the slope of d over log q, which is 1/τ − 1. Solve it for τ."),
        (lambda log_p, log_q: log_q[0] / log_p[0],
         "One token is not enough: its log-probs contain the normaliser, which the temperature changes as well. "
         "Take the difference of two tokens."),
        (lambda log_p, log_q: (log_q / log_p).mean(),
         "Averaging quotients does not remove the normaliser. Take the difference of two tokens."),
        (lambda log_p, log_q: (log_p - log_q).std(),
         "The spread of d is the size of the gap, not the temperature."),
    ),
)  # fmt: skip

# --- the trainer's log-probs of what the engine could have drawn ---


def _drawn_places(seed: int, rows: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, kept tokens, and one kept token of each place."""
    generator = torch.Generator().manual_seed(seed)
    log_p = (2 * torch.randn(rows, size, dtype=torch.float64, generator=generator)).log_softmax(-1)
    kept = log_p > log_p.median(-1, keepdim=True).values
    return log_p, kept, torch.where(kept, log_p, torch.inf).argmin(-1)


def _within(log_p: Tensor, kept: Tensor, token: Tensor) -> Tensor:
    log_probs = []
    for row, keep, drawn in zip(log_p.tolist(), kept.tolist(), token.tolist(), strict=True):
        mass = sum(math.exp(x) for x, here in zip(row, keep, strict=True) if here)
        log_probs.append(row[drawn] - math.log(mass))
    return torch.tensor(log_probs, dtype=torch.float64)


def _of(log_p: Tensor, token: Tensor) -> Tensor:
    return log_p.gather(-1, token[:, None])[:, 0]


SAME_TOKENS = Exercise(
    expected=_within,
    cases=(
        (
            torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], dtype=torch.float64).log(),
            torch.tensor([[True, True, False], [True, True, True]]),
            torch.tensor([1, 1]),
        ),
        _drawn_places(2, 5, 9),
    ),
    mistakes=(
        (lambda log_p, kept, token: _of(log_p, token),
         "This is the log-prob among all tokens. The engine sampled from the kept ones, and made their "
         "probabilities "
         "larger, so that they add up to 1. Do the same."),
        (lambda log_p, kept, token: _of((log_p * kept).log_softmax(-1), token),
         "A log-prob of 0 is a probability of 1. What was cut has probability 0, so its log-prob is −∞."),
        (lambda log_p, kept, token: _of(log_p, token) + torch.where(kept, log_p.exp(), 0).sum(-1).log(),
         "The sign of the mass is wrong: dividing a probability by S subtracts log S."),
        (lambda log_p, kept, token: _of(log_p, token).exp() / torch.where(kept, log_p.exp(), 0).sum(-1),
         "These are probabilities. Log-probs are asked for."),
    ),
)  # fmt: skip
