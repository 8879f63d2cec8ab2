"""A file from outside as named columns, before anything is known about them; and how much of it is taken."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError

MAX_BYTES = 512 << 20
"""Of the file, and of what it inflates to."""
MAX_TOKENS = 1 << 22
"""Numbers in one column, padding included."""
MAX_ROWS = 1 << 18
MAX_PADDED = 1 << 24
"""Rows × the longest: what a ragged file becomes in a batch."""
MAX_TEXT = 1 << 26
"""Characters in one column of texts."""


@dataclass(frozen=True)
class Lists:
    """One list of numbers per row."""

    values: Tensor  # (N,) all rows, one after the other
    lengths: Tensor  # (B,) int64, with sum N
    padded: bool = False  # from an array (B, T), in which some places may hold nothing

    def rows(self) -> Tensor:
        """(N,) the row of each value."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    def places(self) -> Tensor:
        """(N,) the place of each value in its row."""
        starts = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.values)) - torch.repeat_interleave(starts, self.lengths)


@dataclass(frozen=True)
class Unreadable:
    """A column that is there and cannot be read. Readers do not know whether it is needed: `names.ours` and `step` do.
    They refuse a file for the pair and for what says which tokens count, and leave every other column out."""

    why: str  # a sentence


Column = Lists | Tensor | list[str] | Unreadable
"""A list of numbers per row, a number per row, or a text per row, if it can be read."""
Columns = dict[str, Column]


def readable(read: Callable[[], Column]) -> Column:
    """Return the column, or why it cannot be read."""
    try:
        return read()
    except UsageError as error:
        return Unreadable(str(error))


def the_readable(column: Column) -> Lists | Tensor | list[str]:
    """Return the column. Raises `UsageError` if it cannot be read."""
    if isinstance(column, Unreadable):
        raise UsageError(column.why)
    return column


def from_array(name: str, array: Tensor) -> Column:
    """(B, T) as lists, (B,) as numbers, () as one number. Raises `UsageError` for more dimensions."""
    if array.dim() > 2:
        raise UsageError(f"{name} has shape {tuple(array.shape)}; (B, T), or (B,) with one number per row, is read.")
    if array.dim() < 2:
        return array
    return Lists(array.flatten(), torch.full(array.shape[:1], array.shape[1]), padded=True)


def at_most(limit: int, got: int, what: str) -> None:
    """Raises `UsageError` if there is more than is taken."""
    if got > limit:
        raise UsageError(
            f"{got:,} {what}; at most {limit:,} are read. Split the file, or leave out what is not needed."
        )
