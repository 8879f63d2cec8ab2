"""The exercises of lesson 04."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake

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
        Mistake(
            lambda rho, a, e: torch.where((rho > 1 + e) | (rho < 1 - e), 0.0, a * rho),
            "You removed the gradient on both sides. PPO removes it only if the token has already moved in the "
            "direction of "
            "A: a token with A > 0 and a small ratio keeps its gradient.",
        ),
        Mistake(
            lambda rho, a, e: a * rho.clamp(1 - e, 1 + e),
            "You clipped the ratio and kept the gradient. That is another loss (CISPO). PPO's clipped branch is "
            "constant, "
            "so its gradient is 0.",
        ),
        Mistake(
            lambda rho, a, e: torch.where(((a > 0) & (rho < 1 - e)) | ((a < 0) & (rho > 1 + e)), 0.0, a * rho),
            "The two sides are swapped: the minimum takes the clipped branch if the unclipped one is larger.",
        ),
        Mistake(
            lambda rho, a, e: torch.where(((a > 0) & (rho > 1 + e)) | ((a < 0) & (rho < 1 - e)), 0.0, a),
            "The ratio is missing: ∇ρ = ρ ∇ log π, so an unclipped token has A·ρ, not A.",
        ),
        Mistake(lambda rho, a, e: a * rho, "Nothing is clipped yet."),
        Mistake(
            lambda rho, a, e: torch.where(_clipped(rho, a, e) | ((a < 0) & (rho > 3)), 0.0, a * rho),
            "This is dual clip, verl's PPO: it also removes tokens with A < 0 and a ratio above 3. Keep these.",
        ),
        Mistake(
            lambda rho, a, e: torch.minimum(a * rho, a * rho.clamp(1 - e, 1 + e)),
            "This is the objective itself. The exercise asks for its derivative by log π: A·ρ, or 0 if the clipped "
            "branch is "
            "taken, because that is constant.",
        ),
    ),
)


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
        Mistake(
            lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / q, a, e), 0.0, (p / q).clamp(max=cap) * pi / p * a),
            "The clip looks at π/q. In decoupled PPO it looks at π/p, how far this update has moved.",
        ),
        Mistake(
            lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, (pi / q).clamp(max=cap) * a),
            "You capped the product π/q. Cap the weight p/q alone, which is fixed before the update.",
        ),
        Mistake(
            lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, (q / p).clamp(max=cap) * pi / p * a),
            "The weight is upside down: it is trainer over engine, p/q.",
        ),
        Mistake(
            lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, pi / p * a),
            "The weight p/q is missing: this is PPO as if p had sampled.",
        ),
        Mistake(
            lambda pi, p, q, a, cap, e: torch.where(_clipped(pi / p, a, e), 0.0, p / q * pi / p * a),
            "The weight has no cap yet: use min(p/q, cap).",
        ),
        Mistake(
            lambda pi, p, q, a, cap, e: (p / q).clamp(max=cap) * pi / p * a,
            "The weight is right; PPO's clip is missing.",
        ),
    ),
)


# --- what bypass mode has clipped before it starts ---


def _silent(p: Tensor, q: Tensor, advantage: Tensor, mask: Tensor, epsilon: float) -> float:
    silent = tokens = 0
    for rows in zip(p.tolist(), q.tolist(), advantage.tolist(), mask.tolist(), strict=True):
        for p_t, q_t, a, real in zip(*rows, strict=True):
            if real and a != 0:
                tokens += 1
                silent += (a > 0 and p_t / q_t > 1 + epsilon) or (a < 0 and p_t / q_t < 1 - epsilon)
    return silent / tokens


def _share(silent: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    return silent[mask & (advantage != 0)].double().mean()


def _batch(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.arange(6) < torch.tensor([[6], [3], [1], [5]])
    p, q, _, advantage = _three(seed)
    advantage = advantage.where(torch.arange(40) % 5 > 0, 0)  # the answers to some prompts all earn the same
    padded = [x[:24].view(4, 6).where(mask, NAN) for x in (p, q, advantage)]
    return padded[0], padded[1], padded[2], mask


SILENT_SHARE = Exercise(
    expected=_silent,
    cases=(
        (
            torch.tensor([[0.5, 0.3, 0.5], [0.5, 0.5, NAN]], dtype=torch.float64),
            torch.tensor([[0.4, 0.6, 0.5], [0.4, 0.4, NAN]], dtype=torch.float64),
            torch.tensor([[1.0, 1.0, 0.0], [-1.0, 2.0, NAN]], dtype=torch.float64),
            torch.tensor([[True, True, True], [True, True, False]]),
            0.2,
        ),
        (*_batch(30), 0.2),
        (*_batch(40), 0.5),
    ),
    mistakes=(
        Mistake(
            lambda p, q, a, mask, e: _share((p / q > 1 + e) | (p / q < 1 - e), a, mask),
            "These are all tokens outside the band. With A > 0 a ratio below it is not clipped: only the side in the "
            "direction of A counts.",
        ),
        Mistake(
            lambda p, q, a, mask, e: _share(_clipped(q / p, a, e), a, mask),
            "Your ratio is upside down: before the first step π is p, so the ratio of bypass mode is p/q.",
        ),
        Mistake(
            lambda p, q, a, mask, e: _clipped(p / q, a, e).double().mean(),
            "You counted padding as tokens. Divide by the number of real tokens with an advantage other than 0.",
        ),
        Mistake(
            lambda p, q, a, mask, e: _clipped(p / q, a, e)[mask].double().mean(),
            "You divided by all real tokens. One with advantage 0 has no gradient anyway: do not count it.",
        ),
        Mistake(
            lambda p, q, a, mask, e: (_clipped(p / q, a, e) | ((a == 0) & (p / q > 1 + e)))[mask].double().mean(),
            "A token with advantage 0 is not pushed up, so no clip stops it: the condition is A > 0, not A ≥ 0.",
        ),
        Mistake(
            lambda p, q, a, mask, e: _share(_clipped(torch.ones_like(p), a, e), a, mask),
            "This is the share with three policies: there π/p is 1 before the first step, and nothing is clipped.",
        ),
        Mistake(
            lambda p, q, a, mask, e: int(_clipped(p / q, a, e)[mask].sum()),
            "This is a number of tokens. Divide it by the number of real tokens with an advantage other than 0.",
        ),
    ),
)
