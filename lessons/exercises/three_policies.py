"""Check the exercises on PPO with three policies."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the coefficient of PPO ---


def _ppo(rho: Tensor, advantage: Tensor, epsilon: float) -> Tensor:
    """One token after the other: pushed up too far already, pushed down too far already, or neither."""
    gradients = []
    for ratio, a in zip(rho.tolist(), advantage.tolist(), strict=True):
        done = (a > 0 and ratio > 1 + epsilon) or (a < 0 and ratio < 1 - epsilon)
        gradients.append(0.0 if done else a * ratio)
    return _numbers(*gradients)


PPO_COEFFICIENT = Exercise(
    expected=_ppo,
    cases=(
        (_numbers(1.25, 1.25, 0.5, 0.5, 1.0), _numbers(1, -1, 1, -1, 2), 0.2),
        (_random(1, 40).exp(), _random(2, 40), 0.2),
        (_random(3, 40).exp(), _random(4, 40), 0.05),
    ),
    mistakes=(
        (lambda rho, a, e: torch.where((rho > 1 + e) | (rho < 1 - e), 0.0, a * rho),
         "You removed the gradient on both sides. PPO removes it only if the token has already moved in the "
         "direction of "
         "A: a token with A > 0 and a small ratio keeps its gradient."),
        (lambda rho, a, e: a * rho.clamp(1 - e, 1 + e),
         "You clipped the ratio and kept the gradient. That is another loss (CISPO). PPO's clipped branch is "
         "constant, "
         "so its gradient is 0."),
        (lambda rho, a, e: torch.where(((a > 0) & (rho < 1 - e)) | ((a < 0) & (rho > 1 + e)), 0.0, a * rho),
         "The two sides are swapped: the minimum takes the clipped branch if the unclipped one is larger."),
        (lambda rho, a, e: torch.where(((a > 0) & (rho > 1 + e)) | ((a < 0) & (rho < 1 - e)), 0.0, a),
         "The ratio is missing: ∇ρ = ρ ∇ log π, so an unclipped token has A·ρ, not A."),
        (lambda rho, a, e: a * rho, "Nothing is clipped yet."),
        (lambda rho, a, e: torch.where(_clipped(rho, a, e) | ((a < 0) & (rho > 3)), 0.0, a * rho),
         "This is dual clip, verl's PPO: it also removes tokens with A < 0 and a ratio above 3. Keep these."),
        (lambda rho, a, e: torch.minimum(a * rho, a * rho.clamp(1 - e, 1 + e)),
         "This is the objective itself. The exercise asks for its derivative by log π: A·ρ, or 0 if the clipped "
         "branch is "
         "taken, because that is constant."),
    ),
)  # fmt: skip


# --- the coefficient of decoupled PPO ---


def _decoupled(pi: Tensor, p: Tensor, q: Tensor, advantage: Tensor, cap: float, epsilon: float) -> Tensor:
    gradients = []
    for pi_t, p_t, q_t, a in zip(pi.tolist(), p.tolist(), q.tolist(), advantage.tolist(), strict=True):
        weight = min(p_t / q_t, cap)
        rho = pi_t / p_t
        done = (a > 0 and rho > 1 + epsilon) or (a < 0 and rho < 1 - epsilon)
        gradients.append(0.0 if done else weight * rho * a)
    return _numbers(*gradients)


def _clipped(ratio: Tensor, advantage: Tensor, epsilon: float) -> Tensor:
    """Where PPO's gradient is 0."""
    return ((advantage > 0) & (ratio > 1 + epsilon)) | ((advantage < 0) & (ratio < 1 - epsilon))


def _three(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = torch.sigmoid(_random(seed, 40))
    p = torch.sigmoid(q.logit() + _random(seed + 1, 40))
    pi = torch.sigmoid(p.logit() + 0.4 * _random(seed + 2, 40))
    return pi, p, q, _random(seed + 3, 40)


DECOUPLED_COEFFICIENT = Exercise(
    expected=_decoupled,
    cases=(
        (
            _numbers(0.5, 0.5, 0.3, 0.6),
            _numbers(0.4, 0.5, 0.3, 0.6),
            _numbers(0.5, 0.4, 0.6, 0.2),
            _numbers(1, 1, -1, 1),
            2.0,
            0.2,
        ),
        (*_three(10), 2.0, 0.2),
        (*_three(20), 1.5, 0.1),
    ),
    mistakes=(
        (lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / q, a, e), 0.0, (p / q).clamp(max=cap) * pi / p * a),
         "The clip looks at π/q. In decoupled PPO it looks at π/p, how far this update has moved."),
        (lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, (pi / q).clamp(max=cap) * a),
         "You capped the product π/q. Cap the weight p/q alone, which is fixed before the update."),
        (lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, (q / p).clamp(max=cap) * pi / p * a),
         "The weight is upside down: it is trainer over engine, p/q."),
        (lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, pi / p * a),
         "The weight p/q is missing: this is PPO as if p had sampled."),
        (lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, p / q * pi / p * a),
         "The weight has no cap yet: use min(p/q, cap)."),
        (lambda pi, p, q, a, cap, e: (p / q).clamp(max=cap) * pi / p * a,
         "The weight is right; PPO's clip is missing."),
    ),
)  # fmt: skip
