"""Check the exercises on the KL estimators."""

import math
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _leaf(node: Any) -> Tensor | None:
    """The first tensor with requires_grad that a graph leads back to."""
    if node is None:
        return None
    if hasattr(node, "variable"):
        return node.variable
    return next((leaf for before, _ in node.next_functions if (leaf := _leaf(before)) is not None), None)


def value_and_gradient(penalty: Any) -> dict[str, Any]:
    """Return the value of a penalty, and the gradient of its sum in the log-probs that it was computed from."""
    if not isinstance(penalty, Tensor):
        return {"value": penalty, "gradient": torch.zeros(())}
    leaf = _leaf(penalty.grad_fn)
    gradient = torch.zeros_like(penalty) if leaf is None else torch.autograd.grad(penalty.sum(), leaf)[0]
    return {"value": penalty.detach(), "gradient": gradient}


def _k2(log_probs: Tensor, ref: Tensor) -> Tensor:
    return (log_probs - ref) ** 2 / 2


def _k3(log_probs: Tensor, ref: Tensor) -> Tensor:
    return (ref - log_probs).exp() - 1 + log_probs - ref


class _Spelled(torch.autograd.Function):
    """Value and gradient written down one after the other."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, ref: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(log_probs - ref)
        return _k3(log_probs, ref)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return incoming * ctx.saved_tensors[0], None


def _leaves(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log().requires_grad_()


STRAIGHT_THROUGH = Exercise(
    expected=_Spelled.apply,
    cases=(
        (_leaves([0.5, 0.4, 0.1]), torch.tensor([0.4, 0.1, 0.5], dtype=torch.float64).log()),
        (_leaves([0.01, 0.9, 0.3]), torch.tensor([0.9, 0.01, 0.3], dtype=torch.float64).log()),
    ),
    part=value_and_gradient,
    mistakes=(
        (_k3, "That is plain k3: the value is right, and the gradient follows the other KL."),
        (_k2, "That is plain k2: the gradient is right, and the value is not k3."),
        (lambda log_probs, ref: _k3(log_probs, ref).detach(),
         "The value is right, but everything is detached, so the gradient is 0."),
        (lambda log_probs, ref: _k3(log_probs, ref) - _k3(log_probs, ref).detach() + _k2(log_probs, ref).detach(),
         "The other way round: this has the value of k2 and the gradient of k3."),
        (lambda log_probs, ref: _k2(log_probs, ref) - _k2(log_probs, ref).detach(),
         "The gradient is right, but the value is 0: add k3, detached."),
        (lambda log_probs, ref: _k2(log_probs, ref) + _k3(log_probs, ref).detach(),
         "The gradient is right, but the value is k2 + k3: take k2 away again, detached."),
        (lambda log_probs, ref: _k2(log_probs, ref) - _k2(log_probs, ref).detach() + _k3(log_probs, ref),
         "The value is right, but k3 must be detached too: now both gradients are added."),
        (lambda log_probs, ref: _k2(log_probs, ref) + _k3(log_probs, ref),
         "This is k2 + k3, in the value and in the gradient. Detach k3, and take the value of k2 away, detached."),
        (lambda log_probs, ref: log_probs - log_probs.detach() + _k3(log_probs, ref).detach(),
         "The value is right, but the gradient is that of k1, which is 1 for every token. Use k2 in its place."),
        (lambda log_probs, ref: 2 * (_k2(log_probs, ref) - _k2(log_probs, ref).detach()) + _k3(log_probs, ref).detach(),
         "The value is right, and the gradient is twice that of k2, which has a factor ½."),
        (lambda log_probs, ref: _k2(log_probs, ref).detach() - _k2(log_probs, ref) + _k3(log_probs, ref).detach(),
         "The value is right, and the gradient has the wrong sign: it is k2 − k2.detach(), not the reverse."),
        (lambda log_probs, ref: _k2(log_probs, ref) * (_k3(log_probs, ref) / _k2(log_probs, ref)).detach(),
         "The value is right, but a factor multiplies the gradient, too. Add and subtract instead."),
        *(
            (answer, "Your δ has the wrong sign in k3: it is log π − log ref, and k3 is exp(−δ) − 1 + δ.")
            for answer in (
                lambda log_probs, ref: _k3(ref, log_probs),
                lambda log_probs, ref: (
                    _k2(log_probs, ref) - _k2(log_probs, ref).detach() + _k3(ref, log_probs).detach()
                ),
            )
        ),
        (lambda log_probs, ref: log_probs - ref, "That is plain k1. Its gradient is the same for every token."),
    ),
)  # fmt: skip


def _off_policy(log_probs: Tensor, ref: Tensor, rollout: Tensor) -> Tensor:
    """π/q · log(π/ref), one token after the other."""
    terms = []
    for a, b, c in zip(log_probs.tolist(), ref.tolist(), rollout.tolist(), strict=True):
        terms.append(math.exp(a) / math.exp(c) * (a - b))
    return torch.tensor(terms, dtype=torch.float64)


def _logs_of(*rows: list[float]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(row, dtype=torch.float64).log() for row in rows)


OFF_POLICY = Exercise(
    expected=_off_policy,
    cases=(
        _logs_of([0.5, 0.4, 0.1], [0.4, 0.1, 0.5], [0.25, 0.25, 0.5]),
        _logs_of([0.2, 0.2, 0.6], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]),
        _logs_of([0.9, 0.05, 0.05], [0.6, 0.3, 0.1], [0.1, 0.45, 0.45]),  # a weight of 9
    ),
    mistakes=(
        (lambda log_probs, ref, rollout: log_probs - ref,
         "That is right for tokens that π drew itself. These came from q: count each by π/q."),
        (lambda log_probs, ref, rollout: (log_probs - rollout).exp().clamp(max=2) * (log_probs - ref),
         "You capped the weights at 2. A cap adds a bias (lesson 03). Here the coefficient is exact."),
        (lambda log_probs, ref, rollout: (rollout - log_probs).exp() * (log_probs - ref),
         "The weight is q/π. The policy that drew the tokens is the denominator: π/q."),
        (lambda log_probs, ref, rollout: (log_probs - rollout).exp() * (1 - (ref - log_probs).exp()),
         "The weight is right, but this is the coefficient of k3, which follows KL(ref‖π)."),
        (lambda log_probs, ref, rollout: (log_probs - rollout).exp() * (log_probs - ref) ** 2 / 2,
         "The weight is right, but this is the value of k2. Its derivative multiplies the score."),
        (lambda log_probs, ref, rollout: log_probs - rollout,
         "The reference is missing: this is the coefficient of a penalty towards the engine (lesson 09)."),
    ),
)  # fmt: skip
