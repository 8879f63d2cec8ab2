"""Check the exercises on the bias and the progress of gradients."""

from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise


def _numbers(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the coefficient of every token ---


def _coefficients(r: Tensor, advantages: Tensor, keep: Tensor, cap: float, kept_only: bool) -> Tensor:
    """One token after the other."""
    divisor = sum(keep.tolist()) if kept_only else len(r)
    return torch.tensor(
        [
            min(ratio, cap) * advantage / divisor if kept else 0.0
            for ratio, advantage, kept in zip(r.tolist(), advantages.tolist(), keep.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )


RATIOS, ADVANTAGES = _numbers([0.5, 0.5, 1.0, 2.0]), _numbers([1.0, 1.0, 0.0, 4.0])
KEEP = torch.tensor([True, False, True, True])

COEFFICIENTS = Exercise(
    expected=_coefficients,
    cases=(
        (RATIOS.flatten(), ADVANTAGES.flatten(), KEEP, 1.5, False),
        (RATIOS.flatten(), ADVANTAGES.flatten(), KEEP, 1.5, True),
        (_normal(9, seed=1).exp(), _normal(9, seed=2), torch.arange(9) % 3 > 0, 1.2, True),
    ),
    mistakes=(
        (lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a / (keep.sum() if kept_only else len(r)),
         "A rejected token has the coefficient 0: multiply by the mask."),
        (lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep,
         "The gradient is an average: divide by the number of tokens."),
        (lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / keep.sum(),
         "Without kept_only the rejected tokens stay in the denominator: divide by the number of all tokens."),
        (lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / len(r),
         "With kept_only the denominator counts the kept tokens only."),
        (lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / (len(r) if kept_only else keep.sum()),
         "The two denominators are exchanged: with kept_only divide by the kept tokens, without it by all."),
        (lambda r, a, keep, cap, kept_only: r.clamp(1 / cap, cap) * a * keep / (keep.sum() if kept_only else len(r)),
         "The cap bounds the weight from above only: a small ratio stays as it is."),
        (lambda r, a, keep, cap, kept_only: r * a * keep / (keep.sum() if kept_only else len(r)),
         "The cap is missing: a ratio above it counts as the cap."),
    ),
)  # fmt: skip


# --- the progress of a correction, from all answers ---


def _progress(q: Tensor, parts: Tensor, exact: Tensor, B: int) -> float:
    """Number by number."""
    rows, target = parts.tolist(), exact.tolist()
    mean = [sum(p * row[k] for p, row in zip(q.tolist(), rows, strict=True)) for k in range(len(target))]
    variance = sum(
        p * sum((x - m) ** 2 for x, m in zip(row, mean, strict=True)) for p, row in zip(q.tolist(), rows, strict=True)
    )
    along = max(sum(m * x for m, x in zip(mean, target, strict=True)), 0.0)
    return along**2 / (sum(x * x for x in target) * (sum(m * m for m in mean) + variance / B))


def _variance(q: Tensor, u: Tensor) -> Tensor:
    return q @ (u - q @ u).square().sum(-1)


def _share(along: Tensor, exact: Tensor, squared: Tensor) -> Tensor:
    return along.clamp(min=0).square() / (exact.square().sum() * squared)


TWO_SIDES = (_numbers(0.5, 0.5), _numbers([3.0], [-1.0]), _numbers(1.0))
ANSWERS = (_normal(6, seed=5).softmax(-1), _normal(6, 3, seed=6), _normal(3, seed=7))

PROGRESS = Exercise(
    expected=_progress,
    cases=(
        (*TWO_SIDES, 1),
        (*TWO_SIDES, 4),
        (*ANSWERS, 16),
        (ANSWERS[0], ANSWERS[1], -ANSWERS[2], 16),
    ),
    mistakes=(
        (lambda q, u, exact, B: _share(q @ u @ exact, exact, (q @ u).square().sum() + _variance(q, u)),
         "σ² is the variance of one answer. A batch of B answers has σ²/B."),
        (lambda q, u, exact, B: _share(q @ u @ exact, exact, (q @ u).square().sum()),
         "That is the squared cosine, which is η for infinitely many answers: the noise σ²/B is missing."),
        (lambda q, u, exact, B: (
             (q @ u @ exact) ** 2 / (exact.square().sum() * ((q @ u).square().sum() + _variance(q, u) / B))
         ),
         "If g points away from g*, the best step is none: an inner product below 0 counts as 0."),
        (lambda q, u, exact, B: _share(
             u.mean(0) @ exact, exact, u.mean(0).square().sum() + (u - u.mean(0)).square().sum(-1).mean() / B
         ),
         "The answers are not equally likely: weight each with q."),
        (lambda q, u, exact, B: _share(
             u.mean(0) @ exact, exact, u.mean(0).square().sum() + q @ (u - u.mean(0)).square().sum(-1) / B
         ),
         "The mean 𝔼g is not weighted: the answers are not equally likely, so weight each with q."),
        (lambda q, u, exact, B: _share(q @ u @ exact, exact, (q @ u).square().sum() + u.var(0).sum() / B),
         "The mean is weighted with q, but the variance is not: `var` counts every answer once."),
        (lambda q, u, exact, B: _share(
             q @ u @ exact, exact, (q @ u).square().sum() + (u - q @ u).square().sum(-1).mean() / B
         ),
         "The mean is weighted with q, but the variance is not: weight the squared distances with q, too."),
        (lambda q, u, exact, B: _share(
             q @ u @ exact, exact, (q @ u).square().sum() + q @ (u - u.mean(0)).square().sum(-1) / B
         ),
         "σ² is the mean squared distance from 𝔼g, which is weighted with q. You took it from the unweighted mean."),
        (lambda q, u, exact, B: _share(q @ u @ exact, exact, (q @ u).square().sum() + q @ u.square().sum(-1) / B),
         "σ² is the mean squared distance from 𝔼g. You took the distance from 0."),
        (lambda q, u, exact, B: 1 - ((q @ u - exact).square().sum() + _variance(q, u) / B) / exact.square().sum(),
         "That is 1 minus the squared error. It changes with the length of the step, and progress does not."),
        (lambda q, u, exact, B: (
             (q @ u @ exact).clamp(min=0) / (exact.square().sum() * ((q @ u).square().sum() + _variance(q, u) / B))
         ),
         "The inner product is squared."),
    ),
)  # fmt: skip
