"""A file from outside as named columns whose meaning is not known yet, and limits on how much of a file is read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.types import TOP

MAX_BYTES = 512 << 20
"""Bytes of a file, and of its decompressed content."""
MAX_TOKENS = 1 << 22
"""Numbers in one column, without padding that a mask shows."""
MAX_NUMBERS = 1 << 25
"""Numbers in one array (B, T), padding included: 256 rows of 131,072 columns."""
MAX_ROWS = 1 << 18
MAX_PADDED = 1 << 24
"""Number of rows times the longest row: the size of a batch made of a ragged file."""
MAX_TEXT = 1 << 26
"""Characters in one column of texts."""
MAX_NAMES = 1 << 16
"""Different names of columns."""
LARGEST_INTEGER = 2**63 - 1
ABORTED = "import --leave-out-aborted leaves out the rows for which one side has no log-prob, and counts them"
"""How to leave them out, for messages."""


@dataclass(frozen=True)
class Lists:
    """One list of numbers per row."""

    values: Tensor  # (N,) all rows, one after the other
    lengths: Tensor  # (B,) int64, with sum N
    padded: bool = False  # read from an array (B, T), so that some values may be padding
    null: Tensor | None = None  # (B,) bool: rows in which the file has null, or nothing; here they are empty

    def rows(self) -> Tensor:
        """Return the row of each value, (N,)."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    def positions(self) -> Tensor:
        """Return the position of each value in its row, (N,), from 0."""
        starts = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.values)) - torch.repeat_interleave(starts, self.lengths)


@dataclass(frozen=True)
class Unreadable:
    """A column that is in the file and cannot be read.

    The readers of formats do not know which columns are needed; `names.to_our_names` and `to_record` do. They refuse
    the file if the pair or a column about masks is unreadable, and leave out every other unreadable column.
    """

    why: str  # a sentence


Column = Lists | Tensor | list[str] | Unreadable
"""A list of numbers per row, a number per row, or a text per row; `Unreadable` if it cannot be read."""
Columns = dict[str, Column]


# --- making columns ---


def try_read(read: Callable[[], Column]) -> Column:
    """Return the column that `read` returns, or `Unreadable` with the message of its `UsageError`."""
    try:
        return read()
    except UsageError as error:
        return Unreadable(str(error))


def from_array(name: str, array: Tensor) -> Column:
    """Return (B, T) as lists, and (B,) or a single number () unchanged. Raises `UsageError` for more dimensions.

    Only the sampler's likeliest tokens have three, (B, T, K), and become lists of T·K numbers.
    """
    if name in TOP and array.dim() == 3:
        array = array.flatten(1)
    if array.dim() > 2:
        raise UsageError(f"{name} has shape {tuple(array.shape)}; (B, T), or (B,) with one number per row, is read.")
    for size in array.shape:  # an array of no numbers may have any number of rows
        check_limit(MAX_TOKENS, size, f"rows or columns of {name}")
    if array.dim() < 2:
        return array
    check_limit(MAX_ROWS, len(array), f"rows of {name}")
    return Lists(array.flatten(), torch.full(array.shape[:1], array.shape[1]), padded=True)


def signed(name: str, array: np.ndarray) -> np.ndarray:
    """Return integers as int64. Raises `UsageError` for those above 2⁶³ − 1, which would become negative."""
    if array.dtype.kind == "u" and array.size and int(array.max()) > LARGEST_INTEGER:
        raise UsageError(f"{name} has the number {int(array.max()):,}; integers of at most 63 bits are read.")
    return array.astype(np.int64)


# --- checking columns ---


def check_limit(limit: int, count: int, what: str) -> None:
    """Raise `UsageError` if `count` is above the limit; `what` names what is counted."""
    if count > limit:
        raise UsageError(
            f"{count:,} {what}; at most {limit:,} are read. Split the file, or leave out what is not needed."
        )


def refuse_null(columns: Columns) -> Columns:
    """Return the columns with `Unreadable` for every column that is null in a row and a list in others."""
    return {name: _without_null(name, column) for name, column in columns.items()}


def _without_null(name: str, column: Column) -> Column:
    if not isinstance(column, Lists) or column.null is None or not bool(column.null.any()):
        return column
    row = int(column.null.nonzero()[0])
    hint = f": {ABORTED}" if name.endswith("log_probs") else ""
    return Unreadable(f"row {row} (from 0) has nothing as {name}, another row has a list of numbers{hint}.")


def require_readable(column: Column) -> Lists | Tensor | list[str]:
    """Return the column. Raises `UsageError` if it cannot be read."""
    if isinstance(column, Unreadable):
        raise UsageError(column.why)
    return column


def require_lists(name: str, column: Column) -> Lists:
    """Return a column that holds a list of numbers per row. Raises `UsageError` for any other column."""
    column = require_readable(column)
    if not isinstance(column, Lists):
        got = f"texts such as {column[0]!r:.40}" if isinstance(column, list) and column else "one number per row"
        raise UsageError(f"{name} must hold a list of numbers per row; got {got}.")
    return column


def require_aligned(name: str, columns: Columns, rollout: Lists) -> Lists:
    """Return the lists of a column that has the row lengths of rollout_log_probs. Raises `UsageError` otherwise."""
    lists = require_lists(name, columns[name])
    if len(wrong := (lists.lengths != rollout.lengths).nonzero()):
        row = int(wrong[0])
        got, wanted = int(lists.lengths[row]), int(rollout.lengths[row])
        hint = f"; {ABORTED}" if not wanted or (not got and name.endswith("log_probs")) else ""
        raise UsageError(f"row {row} (from 0): {name} has {got} values, rollout_log_probs {wanted}{hint}.")
    return lists


def refuse_where(lists: Lists, wrong: Tensor, what: str) -> None:
    """Raise `UsageError` with row and token of the first true entry of the mask `wrong` (N,), if it has one."""
    if len(indices := wrong.nonzero()):
        first = int(indices[0])
        more = f", and at {len(indices) - 1} more" if len(indices) > 1 else ""
        row, token = int(lists.rows()[first]), int(lists.positions()[first])
        raise UsageError(f"row {row}, token {token} (from 0){more}: {what}.")
