"""KL penalties between π_θ and a reference: their values and their gradients.

δ = log π_θ − log π_ref on sampled tokens. As a *value* k1, k2 and k3 all estimate KL(π_θ‖π_ref). As a *loss* they
differ: on-policy E[∇k1] = 0, E[∇k2] = ∇KL(π_θ‖π_ref) and E[∇k3] = ∇KL(π_ref‖π_θ), where KL is that of the next token
with the visited positions held fixed; the KL of whole answers has another gradient, because π_θ decides which positions
are visited. The "+" forms have the value of the estimator and the gradient of k2 (straight-through).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import KL_ALIASES, KL_ESTIMATORS
from rlcorr.errors import unknown
from rlcorr.ratios import SAFETY_BOUND, at_least_float32, k2, k3


@dataclass(frozen=True)
class KLTerm:
    """A KL term of the loss, per token."""

    per_token: Tensor  # (B, T) the penalty, with a graph; 0 outside `tokens` and if `left_out`
    tokens: Tensor  # (B, T) bool: tokens of the term, which are also its denominator
    left_out: Tensor  # (B, T) bool: rejected tokens among them without a finite penalty

    @property
    def compared(self) -> Tensor:
        """Return the tokens that have a penalty, (B, T) bool."""
        return self.tokens & ~self.left_out


def kl_term(log_probs: Tensor, target: Tensor, tokens: Tensor, keep: Tensor, estimator: str) -> KLTerm:
    """Compute the penalty of each of `tokens` against `target`, which gets no gradient.

    A token that is impossible under one policy, or NaN, has no finite penalty and no finite gradient. If it was
    rejected, it counts 0, stays in the denominator, and is marked as left out. If it was kept, it makes the loss
    infinite or NaN, because the token is trained on and the fault must be visible.
    """
    left_out = tokens & ~keep & ~(log_probs.isfinite() & target.isfinite())
    compared = tokens & ~left_out
    theta, constant = torch.where(compared, log_probs, 0), torch.where(compared, target.detach(), 0)
    return KLTerm(kl_penalty(theta, constant, estimator), tokens, left_out)


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    """Compute the penalty of each token, at least float32, in the shape of `log_probs`.

    k1: δ · abs: |δ| · k2: δ²/2 · k3: e^(−δ) − 1 + δ. Only the input of k3's exponential is clamped (to ±20). The clamp
    is straight-through, so the gradient never silently becomes zero. Raises `UsageError` for an unknown estimator.

    >>> log_probs, ref = torch.tensor([-1.0]), torch.tensor([-2.0])  # δ = 1
    >>> [round(kl_penalty(log_probs, ref, name).item(), 3) for name in ("k1", "k2", "k3")]
    [1.0, 0.5, 0.368]
    """
    if estimator not in KL_ESTIMATORS:
        raise unknown("KL estimator", estimator, KL_ESTIMATORS)
    delta = at_least_float32(log_probs) - at_least_float32(ref_log_probs)
    value = _value(delta, estimator.removesuffix("+"))
    if not estimator.endswith("+"):
        return value
    straight_through = k2(delta)
    return straight_through - straight_through.detach() + value.detach()


def _value(delta: Tensor, name: str) -> Tensor:
    name = KL_ALIASES.get(name, name)
    if name == "k1":
        return delta
    if name == "abs":
        return delta.abs()
    if name == "k2":
        return k2(delta)
    constant = delta.detach()
    straight_through = torch.where(constant.isinf(), 0, delta - constant)  # ∞ − ∞ is NaN
    return k3(-(constant.clamp(-SAFETY_BOUND, SAFETY_BOUND) + straight_through))
