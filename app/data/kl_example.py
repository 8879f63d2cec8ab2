"""A policy that moves away from its reference, over five tokens: every value and every gradient is exact."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from rlcorr.gradients.kl_losses import Target, kl_gradients
from rlcorr.gradients.sketch import NextTokens
from rlcorr.losses.kl import kl_penalty

LOSSES, LOSS = ("k1", "k2", "k3", "k3+"), "k3"
TARGETS: dict[str, Target] = {"reference": "ref", "sampler": "rollout"}
"""Name on the page → name in the library: the recorded policy that stands for the reference."""
MOST_POSITIONS = 64
"""The largest position that an address can name. Recorded steps have 16 or 48; beyond theirs the mean is shown."""
REFERENCE = torch.tensor([2.0, 1.5, 0.5, -0.5, -1.0], dtype=torch.float64)
"""Logits of the reference. The tokens are ordered by their probability: 50 %, 31 %, 11 %, 4 % and 2 %."""
DIRECTION = torch.tensor([-1.0, 0.2, -0.4, 1.3, 0.6], dtype=torch.float64)
"""The way of the policy: it learns to say what the reference rarely says."""
DISTANCES, DISTANCE = tuple(step / 20 for step in range(1, 101)), 3.0
"""Multiples of the direction. At 0 both policies are the same, and no gradient has a direction."""


@dataclass(frozen=True)
class Example:
    """One policy of the example: its position, and the exact numbers of one loss."""

    position: NextTokens
    policy: float
    """KL(policy‖reference)."""
    reference: float
    """KL(reference‖policy)."""
    value: float
    """What the estimator reports, on average over the policy's own tokens."""
    gradients: tuple[Tensor, Tensor, Tensor]
    """In the five logits: of both divergences, and of the estimator as a loss."""

    @property
    def slopes(self) -> tuple[float, float, float]:
        """Return how fast both divergences and the loss change along the way of the policy."""
        policy, reference, loss = (float(gradient @ DIRECTION) for gradient in self.gradients)
        return policy, reference, loss


@cache
def example(loss: str, distance: float) -> Example:
    """Return the policy at this distance, with the numbers of a loss."""
    log_probs, ref = ((REFERENCE + moved * DIRECTION).log_softmax(-1)[None] for moved in (distance, 0.0))
    scores = torch.eye(len(REFERENCE), dtype=torch.float64) - log_probs.exp()
    position = NextTokens(log_probs, scores[None], ref)
    policy, reference = ((a.exp() * (a - b)).sum() for a, b in ((log_probs, ref), (ref, log_probs)))
    value = (log_probs.exp() * kl_penalty(log_probs, ref, loss)).sum()
    truth, reverse, gradient = (one[0] for one in kl_gradients(position, loss))
    return Example(position, float(policy), float(reference), float(value), (truth, reverse, gradient))
