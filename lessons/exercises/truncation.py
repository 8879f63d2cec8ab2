"""Check the exercises on truncated weights."""

import math

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def _bounded(old: Tensor, rollout: Tensor, mask: Tensor, lower: float | None, upper: float) -> Tensor:
    weights = torch.zeros(mask.shape, dtype=torch.float64)
    for row, column in mask.nonzero().tolist():
        r = math.exp(float(old[row, column] - rollout[row, column]))
        weights[row, column] = min(max(r, lower or 0.0), upper)
    return weights


def _ratios(old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    return (old - rollout).exp().where(mask, 0)


WEIGHTS = Exercise(
    expected=_bounded,
    cases=(
        (
            _logs([[0.6, 0.4, 0.5, 0.9], [0.6, 0.2, NAN, NAN]]),
            _logs([[0.5, 0.8, 0.5, 0.3], [0.2, 0.5, NAN, NAN]]),
            torch.tensor([[True, True, True, True], [True, True, False, False]]),
            None,
            2.0,
        ),
        (
            _logs([[0.9, 0.1, 0.3, 0.5]]),
            _logs([[0.1, 0.9, 0.3, 0.5]]),
            torch.tensor([[True, True, True, False]]),
            0.5,
            5.0,
        ),
    ),
    mistakes=(
        (lambda old, rollout, mask, lower, upper: (old - rollout).exp().clamp(lower, upper),
         "Padding got a weight, too. Its weight must be 0, whatever the log-probs contain there."),
        (lambda old, rollout, mask, lower, upper: _bounded(rollout, old, mask, lower, upper),
         "Your ratio is engine over trainer. It must be trainer over engine."),
        *(
            (lambda old, rollout, mask, lower, upper, used=used: _ratios(old, rollout, mask).where(
                 (_ratios(old, rollout, mask) >= used * (lower or 0.0)) & (_ratios(old, rollout, mask) <= upper), 0
             ),
             "That is masking: a weight outside became 0. Truncation moves it to the nearer bound.")
            for used in (0, 1)
        ),
        *(
            (answer,
             "The bounds are on r, and you compared d = log r with them. Exponentiate first, or take their logarithms.")
            for answer in (
                lambda old, rollout, mask, lower, upper: (old - rollout).clamp(lower, upper).exp().where(mask, 0),
                lambda old, rollout, mask, lower, upper: (old - rollout).clamp(lower, upper).where(mask, 0),
            )
        ),
        (lambda old, rollout, mask, lower, upper: _ratios(old, rollout, mask).clamp(lower, upper),
         "You set padding to 0 and then applied the bounds: the lower bound lifts these zeros. Apply the mask last."),
        (lambda old, rollout, mask, lower, upper: (old - rollout).exp().clamp(lower, upper) * mask,
         "You multiplied by the mask. Padding may contain nan, and nan times 0 is nan: choose with `torch.where`."),
        (lambda old, rollout, mask, lower, upper: _bounded(old, rollout, mask, None, upper),
         "The lower bound is missing: a weight below it becomes the bound."),
        (lambda old, rollout, mask, lower, upper: _bounded(old, rollout, mask, lower, math.inf),
         "The upper bound is missing: a weight above it becomes the bound."),
        (lambda old, rollout, mask, lower, upper: _ratios(old, rollout, mask),
         "These are the ratios. Apply the bounds."),
        (lambda old, rollout, mask, lower, upper: _bounded(old, rollout, mask, lower or 1 / upper, upper),
         "If `lower` is None there is no lower bound. You took one, 1/`upper`."),
        (lambda old, rollout, mask, lower, upper: (old / rollout).clamp(lower, upper).where(mask, 0),
         "You divided log-probs. Subtract them, and raise e to the power of the difference."),
        (lambda old, rollout, mask, lower, upper: _bounded(old, rollout, mask, lower, upper).where(mask, 1),
         "Padding gets the weight 1, for example as e⁰. It must be 0: select last."),
        (lambda old, rollout, mask, lower, upper: (old - rollout).exp().clamp(lower, upper).where(~mask, 0),
         "Your mask is the wrong way round: it is True at real tokens."),
        (lambda old, rollout, mask, lower, upper: _bounded(old, rollout, mask, lower, math.inf).where(
             _ratios(old, rollout, mask) <= upper, 1
         ),
         "A weight above the upper bound becomes this bound, not 1."),
    ),
)  # fmt: skip


def _bias(p: Tensor, q: Tensor, f: Tensor, cap: float) -> float:
    total = 0.0
    for p_a, q_a, f_a in zip(p.tolist(), q.tolist(), f.tolist(), strict=True):
        total += q_a * min(p_a / q_a, cap) * f_a - p_a * f_a
    return total


def _policies(seed: int, actions: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, actions, dtype=torch.float64, generator=generator)
    return logits[0].softmax(-1), logits[1].softmax(-1), logits[2]


THREE = (
    torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64),
    torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64),
    torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64),
)


def _error(p: Tensor, q: Tensor, f: Tensor, cap: float, draws: int) -> float:
    bias, mean, square = _bias(p, q, f, cap), 0.0, 0.0
    for p_a, q_a, f_a in zip(p.tolist(), q.tolist(), f.tolist(), strict=True):
        counted = min(p_a / q_a, cap) * f_a
        mean += q_a * counted
        square += q_a * counted**2
    return bias**2 + (square - mean**2) / draws


def _variance(p: Tensor, q: Tensor, f: Tensor, cap: float) -> float:
    return _error(p, q, f, cap, 1) - _bias(p, q, f, cap) ** 2


SQUARED_ERROR = Exercise(
    expected=_error,
    cases=((*THREE, 1.5, 5), (*THREE, 1.5, 20), (*THREE, math.inf, 20), (*_policies(3, 6), 1.2, 7)),
    mistakes=(
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2 + _variance(p, q, f, cap),
         "The mean of N draws has an N-th of the variance of one."),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) + _variance(p, q, f, cap) / draws,
         "The bias must be squared: a variance is a square already."),
        (lambda p, q, f, cap, draws: (_bias(p, q, f, cap) ** 2 + _variance(p, q, f, cap)) / draws,
         "Only the variance shrinks with N. The bias stays, however many draws there are."),
        (lambda p, q, f, cap, draws: (
             _bias(p, q, f, cap) ** 2 + (q * ((p / q).clamp(max=cap) * f).square()).sum() / draws
         ),
         "That is the average of the squares. The variance is that minus the square of the average."),
        *(
            (lambda p, q, f, cap, draws, n=n: (
                 _bias(p, q, f, cap) ** 2 + ((p / q).clamp(max=cap) * f).var(correction=n) / draws
             ),
             "`var` counts every action once. Each action counts with its probability under the engine, q.")
            for n in (0, 1)
        ),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2,
         "This is the square of the bias. The variance, divided by N, is missing."),
        (lambda p, q, f, cap, draws: _variance(p, q, f, cap) / draws,
         "This is the noise alone. The square of the bias is missing."),
        *(
            (lambda p, q, f, cap, draws, n=n: _bias(p, q, f, cap) ** 2 + _variance(p, q, f, cap) / n(draws),
             "The variance of the mean of N draws is that of one draw, divided by N: not by N − 1, N² or √N.")
            for n in (lambda draws: draws - 1, lambda draws: draws**2, math.sqrt)
        ),
        (lambda p, q, f, cap, draws: abs(_bias(p, q, f, cap)) + _variance(p, q, f, cap) / draws,
         "You took the size of the bias. It must be squared: a variance is a square already."),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2 + math.sqrt(_variance(p, q, f, cap)) / draws,
         "You added the standard deviation. Add the variance, divided by N: both terms are squares."),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2 + (_variance(p, q, f, cap) / draws) ** 2,
         "You squared the variance. It is a square already."),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2 - _variance(p, q, f, cap) / draws,
         "You subtracted the noise. Both add to the error."),
        (lambda p, q, f, cap, draws: _error(q, p, f, cap, draws),
         "p and q are exchanged: the samples come from q, the engine, and the weight is p/q."),
        (lambda p, q, f, cap, draws: _bias(p, q, f, cap) ** 2 + _variance(p, q, f, math.inf) / draws,
         "The variance is that without a cap. The cap bounds the weights in both terms."),
        (lambda p, q, f, cap, draws: _error(p, q, f, math.inf, draws),
         "The cap is missing: the weight is min(p/q, cap)."),
        (lambda p, q, f, cap, draws: (
             (float((p * f - q * f).sum()) + _bias(p, q, f, cap)) ** 2 + _variance(p, q, f, cap) / draws
         ),
         "The truth is the trainer's average, Σ p f. You compared with the engine's."),
        (lambda p, q, f, cap, draws: math.sqrt(_error(p, q, f, cap, draws)),
         "That is the root of it. The squared error was asked for."),
    ),
)  # fmt: skip
