"""KL penalties between π_θ and a reference: their values, and the gradients they really have.

With δ = log π_θ − log π_ref on sampled tokens. As a *value* k1, k2 and k3 all estimate KL(π_θ‖π_ref); as a
*loss* they differ: on-policy E[∇k1] = 0, E[∇k2] = ∇KL(π_θ‖π_ref), E[∇k3] = ∇KL(π_ref‖π_θ). The "+" forms keep the
value and take k2's gradient, straight through.
"""

import torch
from torch import Tensor

from rlcorr.config import KL_ALIASES, KL_ESTIMATORS
from rlcorr.errors import unknown
from rlcorr.ratios import SAFETY_BOUND, at_least_float32, k2, k3


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, estimator: str) -> Tensor:
    """Per-token penalty, same shape as `log_probs`, at least float32. Raises `UsageError` for an unknown estimator.

    k1: δ · abs: |δ| · k2: δ²/2 · k3: e^(−δ) − 1 + δ. Only the input of k3's exponential is clamped (to ±20), and with a
    straight-through clamp, so the gradient never silently becomes zero.

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
