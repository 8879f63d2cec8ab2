"""Check the exercises on silent bugs."""

import struct
from collections.abc import Callable, Sequence
from statistics import median

import torch
from exercises.patients import HELD_OUT, held_out
from torch import Tensor

from rlcorr.teaching.check import Exercise


def _z(d: Tensor, of: Callable[[list[float]], float] = lambda d: sum(d) / len(d)) -> float:
    values = d.tolist()
    mean = sum(values) / len(values)
    variance = sum((x - mean) ** 2 for x in values) / (len(values) - 1)
    return of(values) / (variance / len(values)) ** 0.5


def _random_d(seed: int, mean: float, count: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + 0.2 * torch.randn(count, dtype=torch.float64, generator=generator)


UPSIDE_DOWN = Exercise(
    expected=lambda d: _z(d) > 3,
    cases=(
        (torch.tensor([0.1, 0.2, 0.1, 0.2], dtype=torch.float64),),  # mean 0.15, error 0.029
        (torch.tensor([-0.1, -0.2, -0.1, -0.2], dtype=torch.float64),),
        (torch.tensor([0.4, -0.3, 0.3, -0.2], dtype=torch.float64),),  # above 0 by chance
        (_random_d(0, 0.05),),
        (_random_d(1, 0.005),),
        (_random_d(2, -0.05),),
        (torch.tensor([-0.1] * 200 + [1.5] * 8, dtype=torch.float64),),  # a few large ratios
    ),
    mistakes=(
        (lambda d: bool(d.mean() > 0),
         "By chance the mean is often above 0. Ask for three of its standard errors."),
        (lambda d: _z(d) < -3,
         "This is the opposite: the mean of d is below 0 if everything is right."),
        (lambda d: bool((d.exp().mean() - 1) > 3 * d.exp().std() / len(d) ** 0.5),
         "That is the mean of r, which one large ratio can move far. Use the mean of d."),
        (lambda d: bool(d.mean() > 3 * d.std()),
         "That is the standard deviation of one token. The standard error of the mean is smaller by a factor of √N."),
        (lambda d: abs(_z(d)) > 3,
         "Your alarm rings on both sides. A mean far below 0 is healthy."),
    ),
)  # fmt: skip


def _gaps(old: Tensor, rollout: Tensor, mask: Tensor, by: int, edge: bool = False) -> list[float]:
    """|p_t − q_{t+by}| of every token that has a next one (`edge`: also of the last)."""
    gaps = []
    for p, q, real in zip(old.tolist(), rollout.tolist(), mask.tolist(), strict=True):
        for t in range(len(p) - 1):
            if real[t] and real[t + 1]:
                gaps.append(abs(p[t] - q[t + by]))
        last = sum(real) - 1
        if edge and last >= 0:
            gaps.append(abs(p[last] - q[(last + by) % len(q)]))
    return gaps


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_P = torch.tensor([[-1.0, -3.0, -0.5, -9.0]], dtype=torch.float64)
_Q = torch.tensor([[-7.0, -1.0, -3.0, -0.5]], dtype=torch.float64)
_REAL = torch.ones(1, 4, dtype=torch.bool)


def _random_case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -2 * torch.rand(6, 9, dtype=torch.float64, generator=generator)
    rollout = old.roll(1, -1) + 0.05 * torch.randn(6, 9, dtype=torch.float64, generator=generator)
    mask = torch.arange(9) < torch.tensor([[9], [6], [4], [2], [8], [5]])
    return old.where(mask, torch.nan), rollout.where(mask, torch.nan), mask


MOVED = Exercise(
    expected=lambda old, rollout, mask: 1 - _mean(_gaps(old, rollout, mask, 1)) / _mean(_gaps(old, rollout, mask, 0)),
    cases=((_P, _Q, _REAL), (_P, _P - 0.1, _REAL), _random_case(0), _random_case(1)),
    mistakes=(
        (lambda old, rollout, mask: float(
             1 - (old - rollout.roll(-1, -1)).abs()[mask].mean() / (old - rollout).abs()[mask].mean()
         ),
         "The last token has no next one. `roll` gave it the first token of the row, or padding."),
        (lambda old, rollout, mask: 1 - _mean(_gaps(rollout, old, mask, 1)) / _mean(_gaps(rollout, old, mask, 0)),
         "This is the other direction: compare p of a token with q of the token after it."),
        (lambda old, rollout, mask: _mean(_gaps(old, rollout, mask, 1)) / _mean(_gaps(old, rollout, mask, 0)),
         "That is the share that is left. The share that disappears is 1 minus it."),
        (lambda old, rollout, mask: _mean(_gaps(old, rollout, mask, 0)) - _mean(_gaps(old, rollout, mask, 1)),
         "That is a difference. For a share, divide it by the sum before the move."),
    ),
)  # fmt: skip


# --- which alarm rings, on patients that the lesson does not show ---

Columns = Sequence[Sequence[tuple[float, float]]]
"""For each position the pairs (p, q) of log-probs of the real tokens there."""


def _columns(old: Tensor, rollout: Tensor, mask: Tensor) -> Columns:
    rows = list(zip(old.tolist(), rollout.tolist(), mask.tolist(), strict=True))
    return [[(p[t], q[t]) for p, q, real in rows if real[t]] for t in range(mask.shape[1])]


def _in_bf16(x: float) -> bool:
    """The last 16 of its 32 bits are 0."""
    return struct.unpack("<I", struct.pack("<f", x))[0] & 0xFFFF == 0


def _rounded(columns: Columns) -> bool:
    """Of tokens of which neither side is sure: there a log-prob is 0, which is a bfloat16 number."""
    both = [_in_bf16(p) and _in_bf16(q) for column in columns for p, q in column if p != 0 and q != 0]
    return bool(both) and _mean(both) >= 0.5


def _foreign(columns: Columns, of: Callable[[list[float]], float] = median) -> bool:
    """Whether one position stands out: half of its tokens are twenty times likelier on one side."""
    return any(abs(of([p - q for p, q in column])) > 3 for column in columns if len(column) >= 5)


def _first_alarm(alarms: dict[str, bool]) -> str:
    return next((bug for bug, rings in alarms.items() if rings), "nothing")


def _alarms(old: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, bool]:
    columns = _columns(old, rollout, mask)
    return {
        "shift by one": _mean(_gaps(old, rollout, mask, 1)) < _mean(_gaps(old, rollout, mask, 0)) / 2,
        "bf16 subtraction": _rounded(columns),
        "mask off by one": _foreign(columns),
        "upside down": _z(torch.tensor([p - q for column in columns for p, q in column])) > 3,
    }


def _diagnosis(old: Tensor, rollout: Tensor, mask: Tensor) -> str:
    return _first_alarm(_alarms(old, rollout, mask))


def _with(bug: str, alarm: Callable[[Tensor, Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor, Tensor], str]:
    """The diagnosis with another alarm for one of the bugs."""
    return lambda *pairs: _first_alarm(_alarms(*pairs) | {bug: alarm(*pairs)})


def _repeated(old: Tensor, rollout: Tensor, mask: Tensor) -> bool:
    d = (old - rollout)[mask].tolist()
    return len(set(d)) < len(d) / 2


def diagnosed_at_once(old: Tensor, rollout: Tensor, mask: Tensor) -> str:
    d, both = (old - rollout).double(), mask[:, 1:]
    after = (old[:, :-1] - rollout[:, 1:]).abs()[both].mean()
    if after < (old - rollout).abs()[:, :-1][both].mean() / 2:
        return "shift by one"
    p, q = old[mask], rollout[mask]
    unsure = (p != 0) & (q != 0)
    if ((p == p.bfloat16()) & (q == q.bfloat16()))[unsure].double().mean() > 0.5:
        return "bf16 subtraction"
    if any(d[:, t][mask[:, t]].median().abs() > 3 for t in range(d.shape[1]) if mask[:, t].sum() >= 5):
        return "mask off by one"
    return "upside down" if d[mask].mean() > 3 * d[mask].std() / len(p) ** 0.5 else "nothing"


DIAGNOSE = Exercise(
    expected=_diagnosis,
    cases=tuple(held_out(*patient) for patient in HELD_OUT),
    mistakes=(
        (_with("upside down", lambda *pairs: float(torch.nanmean(pairs[0] - pairs[1])) > 0),
         "In a healthy step without a gap the mean of d is often above 0 by chance: ask for three standard errors."),
        (_with("upside down", lambda *pairs: abs(_z((pairs[0] - pairs[1])[pairs[2]])) > 3),
         "Only a mean of d far above 0 is impossible. A mean far below 0 is healthy."),
        (_with(
             "shift by one", lambda old, q, mask: _mean(_gaps(q, old, mask, 1)) < _mean(_gaps(old, q, mask, 0)) / 2
         ),
         "This is the other direction: compare p of a token with q of the token after it."),
        (_with("bf16 subtraction", _repeated),
         "Repeated values of d are healthy if both sides are certain. Test the log-probs themselves."),
        (_with("mask off by one", lambda *pairs: _foreign(_columns(*pairs), lambda d: max(d, key=abs))),
         "Your alarm rings for one large token. A wrong position differs in most rows: take the median over rows."),
        (_with("mask off by one", lambda *pairs: False),
         "You do not test the positions: look for a column in which |median of d| is above 3."),
    ),
)  # fmt: skip
