"""Check the exercises on dashboards."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rlcorr.teaching.check import Exercise

NAN = math.nan


def _pairs(old: Tensor, rollout: Tensor, mask: Tensor) -> list[float]:
    """d of the real tokens, in one list."""
    flat = (x.flatten().tolist() for x in (old, rollout, mask))
    return [p - q for p, q, real in zip(*flat, strict=True) if real]


def _numbers(d: list[float]) -> dict[str, float]:
    count, r = len(d), [math.exp(x) for x in d]
    return {
        "kl": -sum(d) / count,
        "k3": sum(y - 1 - x for x, y in zip(d, r, strict=True)) / count,
        "mean ratio": sum(r) / count,
        "ess": sum(r) ** 2 / (count * sum(y * y for y in r)),
    }


def _dashboard(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, float]:
    return _numbers(_pairs(old_log_probs, rollout_log_probs, mask))


def _vectorised(old: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    d = (old - rollout)[mask]
    r = d.exp()
    return {"kl": -d.mean(), "k3": (r - 1 - d).mean(), "mean ratio": r.mean(), "ess": r.mean() ** 2 / (r**2).mean()}


def _per_answer(old: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """The mean over answers of each answer's own numbers."""
    rows = [_dashboard(old[b : b + 1], rollout[b : b + 1], mask[b : b + 1]) for b in range(len(mask))]
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def _logs(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


DASHBOARD = Exercise(
    expected=_dashboard,
    cases=(
        (
            _logs([[0.6, 0.4, 0.5], [0.8, NAN, NAN]]),
            _logs([[0.5, 0.8, 0.5], [0.4, NAN, NAN]]),
            torch.tensor([[True, True, True], [True, False, False]]),
        ),
        (_logs([[0.2, 0.9], [0.3, 0.1]]), _logs([[0.3, 0.8], [0.3, 0.4]]), torch.ones(2, 2, dtype=torch.bool)),
    ),
    mistakes=(
        (lambda old, rollout, mask: _dashboard(rollout, old, mask),
         "Exchanged: d is the trainer's log-prob minus the engine's."),
        (lambda old, rollout, mask: _vectorised(old, rollout, mask) | {"kl": (old - rollout)[mask].mean()},
         "The sign of kl is wrong: k1 is −d."),
        (lambda old, rollout, mask: (
             _vectorised(old, rollout, mask) | {"ess": _vectorised(old, rollout, mask)["ess"] * mask.sum()}
         ),
         "ess is a number of tokens. Divide by how many there are: the share is what compares batches."),
        (_per_answer,
         "You averaged the numbers of the answers. These four are over all tokens, so that long answers count more."),
        (lambda old, rollout, mask: (
             _vectorised(old, rollout, mask) | {"k3": ((rollout - old).exp() - 1 + old - rollout)[mask].mean()}
         ),
         "That k3 is built on 1/r. It estimates the other divergence, KL(p‖q), and only for tokens drawn from p."),
    ),
)  # fmt: skip

Values = Sequence[float | None]


def _first_alarm(values: Values, low: float, high: float, patience: int) -> int:
    """The step, from 1, from which on `patience` values in a row lie outside [low, high]; 0 if there is none."""
    outside = 0
    for step, value in enumerate(values, 1):
        outside = 0 if value is not None and low <= value <= high else outside + 1
        if outside == patience:
            return step - patience + 1
    return 0


def _slices(values: Values, low: float, high: float, patience: int) -> int:
    bad = [value is None or not low <= value <= high for value in values]
    return next((n + 1 for n in range(len(bad) - patience + 1) if all(bad[n : n + patience])), 0)


def _forgiving(values: Values, low: float, high: float, patience: int) -> int:
    """A missing value counts as healthy."""
    return _first_alarm([low if value is None else value for value in values], low, high, patience)


def _in_all(values: Values, low: float, high: float, patience: int, *, counted_back: bool = False) -> int:
    """Counts without starting again. The step is the first one outside, or counted back from that of the alarm."""
    bad = [step for step, value in enumerate(values, 1) if value is None or not low <= value <= high]
    if len(bad) < patience:
        return 0
    return bad[patience - 1] - patience + 1 if counted_back else bad[0]


EARLY_WARNING = Exercise(
    expected=_first_alarm,
    cases=(
        ([1.0, 1.2, 5.0, 1.1, 4.0, 6.0, 7.0, 1.0], 0.5, 3.0, 3),
        ([1.0, 1.2, 5.0, 1.1, 1.0], 0.5, 3.0, 3),
        ([0.1, 0.2, 0.1, 1.0], 0.5, 3.0, 2),
        ([1.0, None, None, None, 1.0], 0.5, 3.0, 3),
        ([3.0, 3.0, 3.0], 0.5, 3.0, 3),
        ([9.0, 1.0, 9.0, 1.0, 9.0], 0.5, 3.0, 3),
    ),
    mistakes=(
        (lambda values, low, high, patience: _slices(values, low, high, 1),
         "A single value outside gives the alarm. Only `patience` values in a row count."),
        (lambda values, low, high, patience: (
             first + patience - 1 if (first := _slices(values, low, high, patience)) else 0
         ),
         "That is the step at which the count is full. Return the step at which it began."),
        (lambda values, low, high, patience: _slices(values, -math.inf, high, patience),
         "Only the upper bound is watched. A value below `low` is outside, too: a gradient can vanish."),
        (_forgiving,
         "A missing value counted as healthy. A step that measured nothing trained on nothing: count it as outside."),
        (_in_all, "The count must start again at every healthy value."),
        (partial(_in_all, counted_back=True), "The count must start again at every healthy value."),
        (lambda values, low, high, patience: _slices(
             [None if value in (low, high) else value for value in values], low, high, patience
         ),
         "A value that equals a bound is inside of [low, high]: healthy is low ≤ value ≤ high."),
        (lambda values, low, high, patience: first - 1 if (first := _slices(values, low, high, patience)) else 0,
         "Steps count from 1: yours is one too small, as an index is."),
    ),
)  # fmt: skip


ROUNDING = 2.5e-3
"""The largest k3 that passes for rounding: healthy runs of the real model in bfloat16 stay below it."""
