"""What lesson 10 asks for."""

import itertools
from typing import Any

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise, Mistake


def _numbers(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- exercise 1: the coefficient of every token ---


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
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a / (keep.sum() if kept_only else len(r)),
            "A rejected token has the coefficient 0: multiply by the mask.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep,
            "The gradient is an average: divide by the number of tokens.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / keep.sum(),
            "Without kept_only the rejected tokens stay in the denominator: divide by all of them.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / len(r),
            "With kept_only the rejected tokens leave the denominator: divide by the kept ones.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(max=cap) * a * keep / (len(r) if kept_only else keep.sum()),
            "The two denominators are exchanged: with kept_only divide by the kept tokens, without it by all.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r.clamp(1 / cap, cap) * a * keep / (keep.sum() if kept_only else len(r)),
            "The cap bounds the weight from above only: a small ratio stays as it is.",
        ),
        Mistake(
            lambda r, a, keep, cap, kept_only: r * a * keep / (keep.sum() if kept_only else len(r)),
            "The cap is missing: a ratio above it counts as the cap.",
        ),
    ),
    equivalents=(
        lambda r, a, keep, cap, kept_only: torch.where(keep, r.clamp(max=cap) * a, 0) / [len(r), keep.sum()][kept_only],
    ),
)


# --- exercise 2: a sketch ---


def _sketch(scores: Tensor, directions: Tensor) -> Tensor:
    """⟨score, direction⟩/√K for every pair, written out."""
    count = len(directions)
    rows = [
        [sum(x * y for x, y in zip(score, one, strict=True)) / count**0.5 for one in directions.tolist()]
        for score in scores.tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64)


SKETCH = Exercise(
    expected=_sketch,
    cases=(
        (_numbers([3, 4], [4, 3]), _numbers([1, 0], [0, 1], [1, 1], [1, -1])),
        (_normal(5, 7, seed=3), _normal(4, 7, seed=4)),
    ),
    mistakes=(
        Mistake(
            lambda scores, directions: scores @ directions.T,
            "Divide by √K: else a squared length comes out K times too large.",
        ),
        Mistake(
            lambda scores, directions: scores @ directions.T / len(directions),
            "Divide by √K, not by K: the factor enters twice in an inner product.",
        ),
        Mistake(
            lambda scores, directions: scores @ (directions / directions.norm(dim=1, keepdim=True)).T,
            "Do not make the directions unit vectors. Their lengths are part of the average that returns ⟨a, b⟩.",
        ),
        Mistake(
            lambda scores, directions: directions @ scores.T / len(directions) ** 0.5,
            "Transposed: one row per token, one column per direction.",
        ),
        Mistake(
            lambda scores, directions: scores @ directions.T / scores.shape[1] ** 0.5,
            "K is the number of directions. You divided by the root of the number of parameters.",
        ),
    ),
    equivalents=(
        lambda scores, directions: torch.einsum("nd,kd->nk", scores, directions) / len(directions) ** 0.5,
        lambda scores, directions: (directions @ scores.T).T * len(directions) ** -0.5,
    ),
)


# --- exercise 3: a squared length without its noise ---


def _pairs(x: Tensor) -> float:
    """The mean of ⟨x_i, x_j⟩ over the pairs of different rows."""
    rows = x.tolist()
    products = [sum(a * b for a, b in zip(one, other, strict=True)) for one, other in itertools.permutations(rows, 2)]
    return sum(products) / len(products)


SQUARED_LENGTH = Exercise(
    expected=_pairs,
    cases=(
        (_numbers([3, 0], [0, 3], [0, 0]),),
        (_numbers([1, 2], [3, 2]),),
        (_numbers([1, 0], [-1, 0]),),
        (_normal(6, 4, seed=5),),
    ),
    mistakes=(
        Mistake(
            lambda x: x.mean(0).square().sum(),
            "That is the squared length of the mean. The pairs of a sequence with itself, so its noise, are still in.",
        ),
        Mistake(
            lambda x: x.mean(0).square().sum() - x.var(0).sum(),
            "You took off the variance of one sequence. That of the mean is B times smaller.",
        ),
        Mistake(
            lambda x: x.mean(0).square().sum() - x.var(0, correction=0).sum() / len(x),
            "Nearly. The variance divides by B − 1 here: with B the pairs of a sequence with itself stay in.",
        ),
        Mistake(
            lambda x: (x.mean(0).square().sum() - x.var(0).sum() / len(x)).clamp(min=0),
            "Leave it negative where it is. Clamped, its average over batches is too large again.",
        ),
        Mistake(
            lambda x: x.square().sum(-1).mean(),
            "That is the mean of the squared lengths: every sequence paired with itself. Pair different ones.",
        ),
    ),
    equivalents=(
        lambda x: x.mean(0).square().sum() - x.var(0).sum() / len(x),
        lambda x: x.square().sum(-1).mean() - x.var(0).sum(),
        lambda x: ((x @ x.T).sum() - x.square().sum()) / (len(x) * (len(x) - 1)),
    ),
)
