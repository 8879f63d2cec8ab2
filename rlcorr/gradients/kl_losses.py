"""The gradient of a KL estimator used as a loss, at recorded positions of real responses, exact over the next token.

At each position all V next tokens are known with their probabilities and scores. The expected gradient of an estimator
therefore needs no sampling of tokens. Only the positions are a sample, and the intervals are over them.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.bootstrap import REPLICATES, Interval, interval_of, resampled
from rlcorr.gradients.sketch import KLGradients, NextTokens
from rlcorr.losses.kl import kl_penalty

Target = Literal["ref", "rollout"]
Positions = NextTokens | KLGradients
EXPECTED = {"k1": "zero", "k2": "policy", "k3": "target"} | dict.fromkeys(("k1+", "k2+", "k3+"), "policy")
"""Estimator → its expected gradient over the policy's own tokens: 0, ∇KL(π_θ‖target), or ∇KL(target‖π_θ)."""

UNKNOWN = Interval(math.nan, math.nan, math.nan)
NO_DISTRIBUTION = "the recorded positions have no distribution of π_{lacking}: the run had none at that step."


@dataclass(frozen=True)
class KLGradientReport:
    """Gradient of one estimator compared with the true gradient ∇KL(π_θ‖target), the mean over the positions."""

    cosine: Interval
    """Cosine of the expected gradient and the true one; 0 if the gradient vanishes."""
    length: Interval
    """‖E[g]‖ divided by the length of the true gradient."""
    reverse_cosine: Interval
    """Cosine of the expected gradient and ∇KL(target‖π_θ)."""
    noise: Interval
    """Standard deviation of one token's gradient, divided by the length of the true gradient. NaN: unknown, since
    `KLGradients` are sums over the tokens."""


def kl_gradients(
    positions: Positions, estimator: str, target: Target = "ref", *, on_policy: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ∇KL(π_θ‖target), ∇KL(target‖π_θ) and the expected gradient of the estimator as a loss, each (P, K).

    Tokens come from π_old, which equals π_θ here, or from the engine's own distribution (`on_policy` is false). Raises
    `UsageError` if the recorded positions lack a distribution that is needed, or have only `KLGradients` for a question
    about the engine's tokens or about another estimator than those of `EXPECTED`.
    """
    return _at_positions(positions, estimator, target, on_policy=on_policy)[:3]


def kl_report(
    positions: Positions,
    estimator: str,
    target: Target = "ref",
    *,
    on_policy: bool = True,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> KLGradientReport:
    """Measure the gradient of a KL estimator as a loss. The arguments and refusals are those of `kl_gradients`."""
    truth, reverse, expected, squares = _at_positions(positions, estimator, target, on_policy=on_policy)
    shares = resampled(len(expected), replicates, seed).to(expected) / len(expected)
    g, t, r = (shares @ gradient for gradient in (expected, truth, reverse))
    unit = t.norm(dim=-1).clamp(min=1e-30)
    spread = None if squares is None else (shares @ squares.to(shares) - g.square().sum(-1)).clamp(min=0).sqrt()
    return KLGradientReport(
        cosine=interval_of(_cosine(g, t), signed=True),
        length=interval_of(g.norm(dim=-1) / unit, signed=False),
        reverse_cosine=interval_of(_cosine(g, r), signed=True),
        noise=UNKNOWN if spread is None else interval_of(spread / unit, signed=False),
    )


def _at_positions(
    positions: Positions, estimator: str, target: Target, *, on_policy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the three of `kl_gradients`, and the mean square of one token's gradient, (P,)."""
    if isinstance(positions, KLGradients):
        return *_of_sums(positions, estimator, target, on_policy=on_policy), None
    theirs, q = _distributions(positions, target, on_policy=on_policy)
    reverse = _gradient(-theirs.exp(), positions.scores)
    comparable = _comparable(positions.log_probs, theirs)
    truth = _gradient(positions.log_probs.exp() * (positions.log_probs - comparable), positions.scores)
    coefficient = _coefficients(positions.log_probs, comparable, estimator)
    squares = (q.exp() * coefficient.square() * positions.scores.square().sum(-1)).sum(-1)
    return truth, reverse, _gradient(q.exp() * coefficient, positions.scores), squares


def _of_sums(
    positions: KLGradients, estimator: str, target: Target, *, on_policy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    truth, reverse = vars(positions)[f"policy_{target}"], vars(positions)[f"{target}_policy"]
    if truth is None:
        raise UsageError(NO_DISTRIBUTION.format(lacking=target))
    if not on_policy or estimator not in EXPECTED:
        raise UsageError(
            f"these positions have only the gradients of KL: they say what {', '.join(EXPECTED)} do with the policy's "
            "own tokens. A run of a model with at most 1,024 tokens in its vocabulary records all next tokens."
        )
    return truth, reverse, {"zero": torch.zeros_like(truth), "policy": truth, "target": reverse}[EXPECTED[estimator]]


def _distributions(positions: NextTokens, target: Target, *, on_policy: bool) -> tuple[Tensor, Tensor]:
    """Return the log-probs of the target and of the distribution that draws the tokens."""
    theirs = positions.ref_log_probs if target == "ref" else positions.rollout_log_probs
    q = positions.log_probs if on_policy else positions.rollout_log_probs
    if theirs is None or q is None:
        lacking = target if theirs is None else "rollout"
        raise UsageError(NO_DISTRIBUTION.format(lacking=lacking))
    return theirs, q


def _comparable(log_probs: Tensor, target: Tensor) -> Tensor:
    """Return the target's log-probs. A token that is impossible there cannot be compared, and counts 0."""
    return torch.where(target > -math.inf, target, log_probs)


def _coefficients(log_probs: Tensor, target: Tensor, estimator: str) -> Tensor:
    """Return dκ/d log π_θ of each token. The gradient of the loss is this times the score."""
    leaf = log_probs.detach().requires_grad_()
    penalty = kl_penalty(leaf, target, estimator)
    return torch.autograd.grad(penalty.sum(), leaf)[0]


def _gradient(c: Tensor, scores: Tensor) -> Tensor:
    """Sum c times the score over the tokens of each position: (P, V), (P, V, K) → (P, K)."""
    return torch.einsum("pv,pvk->pk", c.to(scores), scores)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(lengths > 0, (a * b).sum(-1) / lengths.clamp(min=1e-30), 0)
