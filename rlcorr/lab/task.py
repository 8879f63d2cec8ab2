"""The Lab's task: 36 prompts "a, b", answered with digits of a + b, a · b and so on, in base 8. All must be right."""

import torch
from torch import Tensor

SIDE = 6
"""a and b are below this."""
PROMPTS = SIDE * SIDE
BASE = 8
"""Tokens of the vocabulary: the digits."""
A, B = torch.arange(SIDE).repeat_interleave(SIDE), torch.arange(SIDE).repeat(SIDE)
"""The prompts, (P,) each."""
DIGITS = [(A + B) // BASE, A + B, A * B, A + 2 * B, 2 * A + B, A * A + B, A + B * B, A * A + B * B]
"""The digits of an answer before they are taken modulo 8; shorter answers have the first of them."""


def targets(length: int) -> Tensor:
    """Return the right answers, (P, T)."""
    return torch.stack(DIGITS[:length], -1) % BASE


def reward(log_probs: Tensor, right: Tensor) -> Tensor:
    """Return the exact expected reward: the probability of the right answer, averaged over the prompts, (N,).

    Args:
        log_probs: log π of every digit, (N, P, T, V).
        right: the right digits, (P, T).
    """
    chosen = log_probs.gather(-1, right.expand(len(log_probs), *right.shape)[..., None])[..., 0]
    return chosen.sum(-1).exp().mean(-1)
