"""Moments of a quantity: count, sum, sum of squares, minimum and maximum. Moments of parts merge exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.masked import count_true
from rlcorr.measuring.quantities import RuleQuantity


@dataclass(frozen=True)
class Moments:
    """Count, sum, sum of squares, minimum and maximum of one quantity.

    The five tensors have the same shape: (B,), one entry per sequence, () for a whole batch, or one dimension more for
    several quantities.
    """

    count: Tensor
    total: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    def double(self) -> "Moments":
        return Moments(*(getattr(self, column).double() for column in COLUMNS))

    def pooled(self) -> "Moments":
        """Merge the moments of all sequences, (…, B) → (…), in float64."""
        wide = self.double()
        count, total, squares = wide.count.sum(-1), wide.total.sum(-1), wide.squares.sum(-1)
        if not wide.count.shape[-1]:
            infinity = torch.full_like(count, torch.inf)
            return Moments(count, total, squares, infinity, -infinity)
        return Moments(count, total, squares, wide.low.amin(-1), wide.high.amax(-1))


COLUMNS = ("count", "total", "squares", "low", "high")
"""The fields of `Moments`. The compiler cannot read them from the class."""


def stacked(quantities: Sequence[Moments]) -> Moments:
    """Stack the moments of several quantities, of shape (B,) each, into those of shape (quantities, B).

    >>> two = stacked([moments(torch.tensor([1.0, 2.0]), torch.tensor([True, True]))] * 2)
    >>> two.total.tolist(), [quantity.total.item() for quantity in unstacked(two)]
    ([3.0, 3.0], [3.0, 3.0])
    """
    return Moments(*(torch.stack([getattr(quantity, column) for quantity in quantities]) for column in COLUMNS))


def unstacked(quantities: Moments) -> list[Moments]:
    """Return the moments of each quantity: the inverse of `stacked`.

    >>> unstacked(stacked([moments(torch.tensor([1.0]), torch.tensor([True]))]))[0].count.item()
    1.0
    """
    return [Moments(*row) for row in zip(*(getattr(quantities, column).unbind() for column in COLUMNS), strict=True)]


class RuleKey(NamedTuple):
    """Key of a quantity that is measured for one rejection rule."""

    rule: str  # token_k1, seq_mean_k3, …
    quantity: RuleQuantity


Name = TypeVar("Name", bound=str | RuleKey)


@dataclass(frozen=True)
class MomentTable:
    """Moments of a batch with their names, in one table, so that one operation merges or copies all of them."""

    names: tuple[str | RuleKey, ...]
    table: Tensor  # (names, 5) float64: count, total, squares, low, high

    @classmethod
    def of(cls, moments: Mapping[Name, Moments]) -> "MomentTable":
        """Stack moments of the whole batch, of shape () each, into one table."""
        cells = [getattr(m, column) for m in moments.values() for column in COLUMNS]
        return cls(tuple(moments), torch.stack(cells).view(-1, 5))

    @classmethod
    def pooled(cls, moments: Mapping[Name, Moments]) -> "MomentTable":
        """Merge the moments of all sequences, of shape (B,) each, into one table."""
        batch = stacked([*moments.values()]).pooled()
        return cls(tuple(moments), torch.stack([getattr(batch, column) for column in COLUMNS], -1))

    def rows(self) -> list[tuple[str | RuleKey, list[float]]]:
        """Return each name with its count, total, squares, low and high. Waits for the device."""
        return list(zip(self.names, self.table.tolist(), strict=True))

    def merge(self, other: "MomentTable") -> "MomentTable":
        """Return the moments of two batches together. Raises `UsageError` if different quantities were measured."""
        if self.names != other.names:
            mine, theirs = (", ".join(map(str, names)) for names in (self.names, other.names))
            raise UsageError(f"moments of different quantities cannot be merged: {mine} with {theirs}.")
        a, b = self.table, other.table
        columns = (a[:, :3] + b[:, :3], torch.minimum(a[:, 3:4], b[:, 3:4]), torch.maximum(a[:, 4:], b[:, 4:]))
        return MomentTable(self.names, torch.cat(columns, 1))


def moments(
    x: Tensor,
    mask: Tensor,
    *,
    squares: bool = True,
    extremes: bool = True,
    count: Tensor | None = None,
    zeroed: bool = False,
) -> Moments:
    """Compute count, Σx, Σx², min and max over the last dimension: (B, T) → (B,), or (B,) → ().

    Without `squares` the sum of squares is 0; without `extremes` the minimum is inf and the maximum −inf. An empty
    selection has the same values, and they change nothing when moments merge. Pass `count_true(mask)` as `count` if it
    has been computed already, and `zeroed` if x is 0 outside the mask.

    >>> one_row = moments(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]]))
    >>> [x.item() for x in (one_row.count, one_row.total, one_row.squares, one_row.low, one_row.high)]
    [2.0, 3.0, 5.0, 1.0, 2.0]
    """
    selected = x if zeroed else torch.where(mask, x, 0)
    count = count_true(mask) if count is None else count
    infinity = torch.full_like(count, torch.inf)
    return Moments(
        count=count,
        total=selected.sum(-1),
        squares=selected.square().sum(-1) if squares else torch.zeros_like(count),
        low=masked_min(x, mask) if extremes else infinity,
        high=masked_max(x, mask) if extremes else -infinity,
    )


def masked_min(x: Tensor, mask: Tensor) -> Tensor:
    """Return the minimum over the last dimension, inf for an empty selection.

    >>> masked_min(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[True, True, False]])).tolist()
    [2.0]
    """
    return torch.where(mask, x, torch.inf).amin(-1) if x.shape[-1] else x.sum(-1) + torch.inf


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over the last dimension, −inf for an empty selection.

    >>> masked_max(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, True, False]])).tolist()
    [2.0]
    """
    return torch.where(mask, x, -torch.inf).amax(-1) if x.shape[-1] else x.sum(-1) - torch.inf


def flag_moments(flags: Tensor, mask: Tensor, *, count: Tensor | None = None) -> Moments:
    """Compute the moments of a condition over the last dimension. Their mean is the share of True.

    `count` is as in `moments`.

    >>> answers = flag_moments(torch.tensor([True, False, True]), torch.tensor([True, True, False]))
    >>> answers.total.item(), answers.count.item()
    (1.0, 2.0)
    """
    count, total = count_true(mask) if count is None else count, count_true(flags & mask)
    infinity = torch.full_like(count, torch.inf)
    return Moments(count, total, total, infinity, -infinity)


def row_moments(x: Tensor, count: Tensor) -> Moments:
    """Compute the moments of one number per sequence, each counted `count` times; all of the same shape, such as (B,).

    With the number of tokens as `count` a number counts once for each token of its sequence. A sequence that counts 0
    times is left out.

    >>> weights = row_moments(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]))  # one token of 0.5, three of 2
    >>> weights.total.tolist(), weights.pooled().total.item(), weights.pooled().high.item()
    ([0.5, 6.0], 6.5, 2.0)
    """
    rows = count > 0
    x = torch.where(rows, x, 0)
    low, high = torch.where(rows, x, torch.inf), torch.where(rows, x, -torch.inf)
    return Moments(count, x * count, x * x * count, low, high)
