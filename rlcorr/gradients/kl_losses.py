"""What a KL estimator does as a loss, on recorded places of real responses: its gradient, exact over the next token.

At each place all V next tokens are known with their probabilities and scores, so the expected gradient of an estimator
needs no sampling of tokens; only the places are a sample, and the intervals are over them.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import REPLICATES, Interval, interval_of, resampled
from rlcorr.gradients.sketch import NextTokens
from rlcorr.losses.kl import kl_penalty

Target = Literal["ref", "rollout"]


@dataclass(frozen=True)
class KLGradientReport:
    """Beside the truth: ∇KL(π_θ‖target), the mean over the places."""

    cosine: Interval
    """Between the expected gradient and the truth; 0 where the gradient vanishes."""
    length: Interval
    """‖E[g]‖ over the length of the truth."""
    reverse_cosine: Interval
    """Between the expected gradient and ∇KL(target‖π_θ)."""
    noise: Interval
    """Standard deviation of one token's gradient over the length of the truth."""


def kl_report(
    places: NextTokens,
    estimator: str,
    target: Target = "ref",
    *,
    on_policy: bool = True,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> KLGradientReport:
    """Tokens drawn from π_old, which is π_θ here, or from the engine's own distribution. Raises `UsageError` where the
    recorded places lack a distribution."""
    targets = {"ref": places.ref_log_probs, "rollout": places.rollout_log_probs}
    against, engine = targets[target], places.rollout_log_probs
    if against is None or (not on_policy and engine is None):
        lacking = target if against is None else "rollout"
        raise UsageError(f"the recorded places have no distribution of π_{lacking}: the run had none at that step.")
    q = places.log_probs if on_policy or engine is None else engine
    coefficient = _coefficients(places.log_probs, against, estimator)
    expected = _gradient(q.exp() * coefficient, places.scores)
    truth = _gradient(places.log_probs.exp() * _difference(places.log_probs, against), places.scores)
    reverse = _gradient(-against.exp(), places.scores)
    squares = (q.exp() * coefficient.square() * places.scores.square().sum(-1)).sum(-1)
    drawn = resampled(len(q), replicates, seed).to(expected) / len(q)
    g, t, r = (drawn @ gradient for gradient in (expected, truth, reverse))
    unit = t.norm(dim=-1).clamp(min=1e-30)
    spread = (drawn @ squares.to(drawn) - g.square().sum(-1)).clamp(min=0).sqrt()
    return KLGradientReport(
        cosine=interval_of(_cosine(g, t), signed=True),
        length=interval_of(g.norm(dim=-1) / unit, signed=False),
        reverse_cosine=interval_of(_cosine(g, r), signed=True),
        noise=interval_of(spread / unit, signed=False),
    )


def _difference(log_probs: Tensor, against: Tensor) -> Tensor:
    """log π_θ − log target; a token that the target never gives cannot be compared, and counts 0."""
    return torch.where(against > -math.inf, log_probs - against, 0)


def _coefficients(log_probs: Tensor, against: Tensor, estimator: str) -> Tensor:
    """dκ/d log π_θ of each token: the gradient of the loss is this times the score."""
    leaf = log_probs.detach().requires_grad_()
    penalty = kl_penalty(leaf, torch.where(against > -math.inf, against, log_probs), estimator)
    return torch.autograd.grad(penalty.sum(), leaf)[0]


def _gradient(c: Tensor, scores: Tensor) -> Tensor:
    """Σ over the tokens of each place: (P, V), (P, V, K) → (P, K)."""
    return torch.einsum("pv,pvk->pk", c.to(scores), scores)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(lengths > 0, (a * b).sum(-1) / lengths.clamp(min=1e-30), 0)
