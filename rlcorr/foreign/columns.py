"""Columns of a file, whose meaning is not known yet: of the tables that `parse` answers, or of a trainer's batch."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.parse.request import MAX_NUMBERS, MAX_TOKENS, Unreadable, check_limit
from rlcorr.types import TOP

_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Lists:
    """One list of numbers per row."""

    values: Tensor  # (N,) all rows, one after the other
    lengths: Tensor  # (B,) int64, with sum N
    padded: bool = False  # read from an array (B, T), so that some values may be padding
    null: Tensor | None = None  # (B,) bool: rows in which the file has no list, not even an empty one

    def rows(self) -> Tensor:
        """Return the row of each value, (N,)."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    def positions(self) -> Tensor:
        """Return the position of each value in its row, (N,), from 0."""
        starts = self.lengths.cumsum(0) - self.lengths
        return torch.arange(len(self.values)) - torch.repeat_interleave(starts, self.lengths)


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
    """Return (B, T) as lists, and (B,) or a single number () unchanged. Raises `UsageError` for others.

    Only the sampler's likeliest tokens have three dimensions, (B, T, K), and become lists of T·K numbers.
    """
    if array.is_complex() or (array.dtype.itemsize == 1 and array.is_floating_point()):
        raise UsageError(f"{name} has dtype {array.dtype}; bool, integers and floats of 16, 32 or 64 bits are read.")
    check_limit(MAX_NUMBERS if array.dim() > 1 else MAX_TOKENS, array.numel(), f"numbers in {name}")
    if name in TOP and array.dim() == 3:
        array = array.flatten(1)
    if array.dim() > 2:
        raise UsageError(f"{name} has shape {tuple(array.shape)}; (B, T), or (B,) with one number per row, is read.")
    for size in array.shape:  # an array of no numbers may have any number of rows
        check_limit(MAX_TOKENS, size, f"rows or columns of {name}")
    if not array.is_floating_point() and array.dtype != torch.bool:
        array = _signed(name, array.numpy())
    if array.dim() < 2:
        return array
    return Lists(array.flatten(), torch.full(array.shape[:1], array.shape[1]), padded=True)


def _signed(name: str, array: np.ndarray) -> Tensor:
    """Return integers as int64. Raises `UsageError` for those above 2⁶³ − 1, which would become negative."""
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise UsageError(f"{name} has the number {int(array.max()):,}; integers of at most 63 bits are read.")
    return torch.from_numpy(array.astype(np.int64))


def from_table(table: pa.Table) -> Columns:
    """Return the columns of a table that are not all null."""
    filled = [name for name in table.column_names if table[name].null_count < len(table)]
    return {name: try_read(lambda name=name: from_arrow(name, table[name])) for name in filled}


def from_arrow(name: str, column: pa.ChunkedArray) -> Column:
    """Return a column of numbers, lists of numbers or texts; a null text or list is empty, and a null number NaN."""
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [text for chunk in column.chunks for text in _texts(chunk)]
    lists = isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    whole = column.combine_chunks()
    values = whole.flatten() if lists else whole
    if pa.types.is_boolean(values.type) and values.null_count:
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)
    tensor = _signed(name, array) if array.dtype.kind == "u" else torch.tensor(array)
    if not lists:
        return tensor
    lengths = pc.fill_null(pc.call_function("list_value_length", [whole]), 0).to_numpy().astype("int64")
    null = torch.tensor(whole.is_null().to_numpy(zero_copy_only=False)) if whole.null_count else None
    return Lists(tensor, torch.tensor(lengths), null=null)


def _texts(chunk: pa.Array) -> list[str]:
    """Return the texts; one that the dictionary of the file has once is in memory once."""
    if not isinstance(chunk, pa.DictionaryArray):
        return [text or "" for text in chunk.to_pylist()]
    words = chunk.dictionary.to_pylist()
    return ["" if index is None else words[index] or "" for index in chunk.indices.to_pylist()]


# --- checking columns ---


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


def refuse_where(lists: Lists, wrong: Tensor, what: str, places: Lists | None = None) -> None:
    """Raise `UsageError` with row and token of the first true entry of the mask `wrong` (N,), if it has one.

    Args:
        places: the position of each token in the file, if some tokens of the file are not in `lists`.
    """
    if len(indices := wrong.nonzero()):
        first = int(indices[0])
        more = f", and at {len(indices) - 1} more" if len(indices) > 1 else ""
        row, token = int(lists.rows()[first]), int((lists.positions() if places is None else places.values)[first])
        raise UsageError(f"row {row}, token {token} (from 0){more}: {what}.")


def one_per_row(name: str, column: Column) -> Tensor:
    """Return one number per row, (B,).

    A column of lists is accepted if all numbers in a row are equal: an array (B, 1), or a number repeated per token.
    """
    column = require_readable(column)
    if isinstance(column, Tensor) and column.dim() == 1:
        return column
    if isinstance(column, Lists) and is_constant(column):
        return column.values[column.positions() == 0]
    got = f"; got texts such as {column[0]!r:.40}" if isinstance(column, list) and column else ""
    raise UsageError(f"{name} must hold one number per row{got}.")


def is_constant(column: Lists) -> bool:
    """Check whether every row has a number, and one number alone. NaN counts as equal."""
    if not bool((column.lengths > 0).all()):
        return False
    first_values = column.values[column.positions() == 0]
    return bool(((column.values == first_values[column.rows()]) | column.values.isnan()).all())


def whole_numbers(name: str, column: Tensor) -> Tensor:
    """Return the numbers as int32. Raises `UsageError` unless they are whole numbers of at most 32 bits."""
    numbers = column.double() if column.is_floating_point() else column
    if column.dtype == torch.bool or not bool(
        ((numbers >= -_INT32) & (numbers <= _INT32) & (numbers == numbers.round())).all()
    ):
        raise UsageError(f"{name} must hold whole numbers of at most 32 bits; got {first_numbers(numbers)}.")
    return numbers.to(torch.int32)


def first_numbers(numbers: Tensor) -> str:
    """Return the first five numbers as text, for messages."""
    shown = ", ".join(f"{x:g}" for x in numbers.flatten()[:5].tolist())
    return shown + (", …" if numbers.numel() > 5 else "")


# --- rows ---


def split_rows(columns: Columns, groups: Tensor) -> list[Columns]:
    """Return the rows of each number in `groups` (B,), ascending, with one sort; a number for the file stays."""
    numbers, group = groups.unique(sorted=True, return_inverse=True)
    order, counts = group.argsort(stable=True), group.bincount().tolist()
    parts: list[Columns] = [{} for _ in numbers]
    for name, column in columns.items():
        pieces: list[Column] = [column for _ in numbers]
        if isinstance(column, Lists):
            of_values = group[column.rows()]
            values = column.values[of_values.argsort(stable=True)].split(
                of_values.bincount(minlength=len(numbers)).tolist()
            )
            nulls = [None] * len(counts) if column.null is None else column.null[order].split(counts)
            lengths = column.lengths[order].split(counts)
            pieces = [Lists(v, n, column.padded, null) for v, n, null in zip(values, lengths, nulls, strict=True)]
        elif isinstance(column, list):
            texts = iter([column[row] for row in order.tolist()])
            pieces = [list(itertools.islice(texts, count)) for count in counts]
        elif isinstance(column, Tensor) and column.dim():
            pieces = list(column[order].split(counts))
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece
    return parts
