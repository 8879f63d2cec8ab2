"""Moments of what is measured: count, sum, sum of squares, minimum and maximum, which merge exactly."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.masked import tally
from rlcorr.measuring.quantities import RuleQuantity


@dataclass(frozen=True)
class Moments:
    """Count, sum, sum of squares, minimum, maximum of one quantity: what merges exactly.

    The five tensors share one shape: (B,), one entry per sequence, or () for a whole batch.
    """

    count: Tensor
    total: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    def double(self) -> "Moments":
        return Moments(*(getattr(self, f.name).double() for f in fields(self)))

    def pooled(self) -> "Moments":
        """(B,) → (): the moments of all sequences together, in float64."""
        wide = self.double()
        count, total, squares = wide.count.sum(), wide.total.sum(), wide.squares.sum()
        if not len(wide.count):
            return Moments(count, total, squares, *_no_extremes(wide.count))
        return Moments(count, total, squares, wide.low.amin(), wide.high.amax())


class RuleMoment(NamedTuple):
    """The name of something measured of one rejection rule."""

    rule: str  # token_k1, seq_mean_k3, …
    quantity: RuleQuantity


Name = TypeVar("Name", bound=str | RuleMoment)


@dataclass(frozen=True)
class Measured:
    """Named moments of a batch in one table, so that they merge, and reach the host, in one piece."""

    names: tuple[str | RuleMoment, ...]
    table: Tensor  # (names, 5) float64: count, total, squares, low, high

    @classmethod
    def of(cls, moments: Mapping[Name, Moments]) -> "Measured":
        """Moments of the whole batch, of shape () each, as one table."""
        cells = [x for m in moments.values() for x in (m.count, m.total, m.squares, m.low, m.high)]
        return cls(tuple(moments), torch.stack(cells).view(-1, 5))

    def rows(self) -> list[tuple[str | RuleMoment, list[float]]]:
        """Each name with its count, total, squares, low and high. Waits for the device."""
        return list(zip(self.names, self.table.tolist(), strict=True))

    def merge(self, other: "Measured") -> "Measured":
        """The moments of two batches together. Raises `UsageError` if different things were measured."""
        if self.names != other.names:
            mine, theirs = (", ".join(map(str, names)) for names in (self.names, other.names))
            raise UsageError(f"only like merges with like: {mine} with {theirs}.")
        a, b = self.table, other.table
        columns = (a[:, :3] + b[:, :3], torch.minimum(a[:, 3:4], b[:, 3:4]), torch.maximum(a[:, 4:], b[:, 4:]))
        return Measured(self.names, torch.cat(columns, 1))


def _no_extremes(like: Tensor) -> tuple[Tensor, Tensor]:
    edge = like.new_full((), torch.inf)
    return edge, -edge


def moments(
    x: Tensor, mask: Tensor, *, squares: bool = True, extremes: bool = True, count: Tensor | None = None
) -> Moments:
    """Count, Σx, Σx², min and max over the last dimension: (B, T) → (B,), (B,) → (). `count` is `tally(mask)`, for
    those who have it already.

    Without `squares` or `extremes` these are not computed: they are 0, and inf and −inf for the extremes. That is also
    what an empty selection has, and what changes nothing when moments merge.

    >>> one_row = moments(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    >>> [x.item() for x in (one_row.count, one_row.total, one_row.squares, one_row.low, one_row.high)]
    [2.0, 3.0, 5.0, 1.0, 2.0]
    """
    selected = torch.where(mask, x, 0)
    count = tally(mask) if count is None else count
    edge = torch.full_like(count, torch.inf)
    extremes = extremes and x.shape[-1] > 0
    return Moments(
        count=count,
        total=selected.sum(-1),
        squares=selected.square().sum(-1) if squares else torch.zeros_like(count),
        low=torch.where(mask, x, torch.inf).amin(-1) if extremes else edge,
        high=torch.where(mask, x, -torch.inf).amax(-1) if extremes else -edge,
    )


def shares(flags: Tensor, mask: Tensor) -> Moments:
    """How often something holds, over the last dimension; the mean is the share.

    >>> answers = shares(torch.tensor([True, False, True]), torch.tensor([True, True, False]))
    >>> answers.total.item(), answers.count.item()
    (1.0, 2.0)
    """
    count, total = tally(mask), tally(flags & mask)
    edge = torch.full_like(count, torch.inf)
    return Moments(count, total, total, edge, -edge)


def row_moments(x: Tensor, count: Tensor) -> Moments:
    """(B,) → scalars: the moments over tokens of a number that each sequence has once, `count` tokens each.

    >>> weights = row_moments(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]))  # one token of 0.5, three of 2
    >>> weights.count.item(), weights.total.item(), weights.high.item()
    (4.0, 6.5, 2.0)
    """
    rows = count > 0
    x = torch.where(rows, x, 0)
    return replace(moments(x, rows), count=count.sum(-1), total=(x * count).sum(-1), squares=(x * x * count).sum(-1))
