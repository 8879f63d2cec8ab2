"""Moments of a quantity: count, sum, sum of squares, minimum and maximum. Moments of parts merge exactly."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.masked import count_true


class Moments(NamedTuple):
    """Count, sum, sum of squares, minimum and maximum of one quantity.

    The five tensors have the same shape: (B,), one entry per sequence, or () for a whole batch.
    """

    count: Tensor
    total: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor

    def pooled(self) -> "Moments":
        """Merge the moments of all sequences, (…, B) → (…), in float64."""
        count, total, squares = (x.double().sum(-1) for x in (self.count, self.total, self.squares))
        if not self.count.shape[-1]:
            infinity = torch.full_like(count, torch.inf)
            return Moments(count, total, squares, infinity, -infinity)
        return Moments(count, total, squares, self.low.double().amin(-1), self.high.double().amax(-1))


class RuleKey(NamedTuple):
    """Key of a quantity that is measured for one rejection rule."""

    rule: str  # token_k1, seq_mean_k3, …
    quantity: str


@dataclass(frozen=True)
class MomentTable:
    """Moments of a batch with their names, in one table, so that one operation merges or copies all of them."""

    names: tuple[str | RuleKey, ...]
    table: Tensor  # (names, 5) float64: count, total, squares, low, high

    @classmethod
    def of(cls, moments: Mapping[str, Moments]) -> "MomentTable":
        """Stack moments of the whole batch, of shape () each, into one table."""
        return cls(tuple(moments), torch.stack([cell.double() for m in moments.values() for cell in m]).view(-1, 5))

    @classmethod
    def pooled(cls, moments: Mapping[Any, Moments]) -> "MomentTable":
        """Merge the moments of all sequences, of shape (B,) each, into one table."""
        columns = [torch.stack(column) for column in zip(*moments.values(), strict=True)]
        return cls(tuple(moments), torch.stack(Moments(*columns).pooled(), -1))

    def rows(self) -> list[tuple[str | RuleKey, list[float]]]:
        """Return each name with its count, total, squares, low and high. Waits for the device."""
        return list(zip(self.names, self.table.tolist(), strict=True))


def merge(parts: Iterable[MomentTable]) -> MomentTable:
    """Return the moments of several micro-batches as one batch, exactly.

    Raises `UsageError` if different quantities were measured, and TypeError if there are no parts.
    """
    return functools.reduce(_merged, parts)


def _merged(one: MomentTable, other: MomentTable) -> MomentTable:
    if one.names != other.names:
        mine, theirs = (", ".join(map(str, names)) for names in (one.names, other.names))
        raise UsageError(f"moments of different quantities cannot be merged: {mine} with {theirs}.")
    a, b = one.table, other.table
    columns = (a[:, :3] + b[:, :3], torch.minimum(a[:, 3:4], b[:, 3:4]), torch.maximum(a[:, 4:], b[:, 4:]))
    return MomentTable(one.names, torch.cat(columns, 1))


def normalised(measured: MomentTable, factor: Tensor) -> MomentTable:
    """Return the moments as they are after batch normalisation, which divides the weights by this factor."""
    factor, table, one = factor.double(), measured.table.clone(), measured.table.new_ones(())
    table[measured.names.index("trained"), 1:3] /= torch.stack([factor, factor**2])
    of_factor = torch.stack([one, factor, factor**2, factor, factor])
    return MomentTable((*measured.names, "norm_factor"), torch.cat([table, of_factor[None]]))


def moments(
    x: Tensor, mask: Tensor, *, squares: bool = True, extremes: bool = True, count: Tensor | None = None
) -> Moments:
    """Compute count, Σx, Σx², min and max over the last dimension: (B, T) → (B,), or (B,) → ().

    Without `squares` the sum of squares is 0; without `extremes`, and for an empty selection, the minimum is inf and
    the maximum −inf: they change nothing when moments merge. A condition counts 1 where it is true, and has no
    extremes. Pass `count_true(mask)` as `count` if it has been computed already.
    """
    count = count_true(mask) if count is None else count
    infinity = torch.full_like(count, torch.inf)
    if x.dtype == torch.bool:
        total = count_true(x & mask)
        return Moments(count, total, total, infinity, -infinity)
    selected = torch.where(mask, x, 0)
    extremes = extremes and bool(x.shape[-1])
    return Moments(
        count=count,
        total=selected.sum(-1),
        squares=selected.square().sum(-1) if squares else torch.zeros_like(count),
        low=torch.where(mask, x, torch.inf).amin(-1) if extremes else infinity,
        high=torch.where(mask, x, -torch.inf).amax(-1) if extremes else -infinity,
    )


def row_moments(x: Tensor, count: Tensor) -> Moments:
    """Compute the moments of one number per sequence, each counted `count` times; all of the same shape, such as (B,).

    With the number of tokens as `count` a number counts once for each token of its sequence. A sequence that counts 0
    times is left out.
    """
    rows = count > 0
    x = torch.where(rows, x.double(), 0.0)
    low, high = torch.where(rows, x, torch.inf), torch.where(rows, x, -torch.inf)
    return Moments(count, x * count, x * x * count, low, high)
