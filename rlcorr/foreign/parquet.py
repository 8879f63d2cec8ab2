"""Strangers' Parquet as columns; what its pages unpack to is counted before they are."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.columns import MAX_BYTES, MAX_ROWS, MAX_TOKENS, Column, Columns, Lists, at_most
from rlcorr.foreign.parquet_sizes import sizes

PART = 1 << 18
"""Numbers of a column that are read at once of a file of any size."""
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError)


def to_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """The wanted columns, and the names of all. What the pages unpack to is counted first. Raises `UsageError`."""
    stored = sizes(content, wanted)
    if not stored.rows:
        raise UsageError("holds no rows.")
    at_most(MAX_ROWS, stored.rows, "rows")
    at_most(MAX_BYTES, stored.unpacked, "bytes when unpacked")
    for name, numbers in stored.numbers.items():
        at_most(MAX_TOKENS, numbers, f"numbers in {name}")
    try:
        schema = pq.ParquetFile(pa.BufferReader(content)).schema_arrow
        types = {name: schema.field(name).type for name in schema.names if name in wanted}
        texts = [name for name, kind in types.items() if _is_text(name, kind, stored.rows)]
        # As a dictionary a text is there once, however often it stands in the column.
        table = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts).read(list(types), use_threads=False)
        columns = {name: _column(name, table[name]) for name in types if table[name].null_count < len(table)}
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error
    return columns, schema.names


# --- in parts, for files of any size ---


def column_names(path: Path) -> list[str]:
    """The names of all columns. Raises `UsageError`."""
    with _opened(path) as file:
        return file.schema_arrow.names


def parts(path: Path, wanted: Set[str], *, texts: bool = False) -> Iterator[tuple[Columns, int]]:
    """The wanted columns some rows at a time, and how many rows these are: a row group may be larger than the memory.

    What is held is a part, of about `PART` numbers in a column where all rows are of one length, and the pages that it
    lies in. Unlike `to_columns` this trusts the sizes that the file states. Raises `UsageError`.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        types = {name: schema.field(name).type for name in schema.names if name in wanted}
        words = [name for name, kind in types.items() if _is_text(name, kind, 0)]
        if words and not texts:
            raise UsageError(
                f"{words[0]} is a column of {types[words[0]]!s:.80}; lists of numbers and numbers are read."
            )
        rows = max(file.metadata.num_rows * PART // max(_most_numbers(file.metadata, wanted), 1), 1)
        for batch in file.iter_batches(batch_size=rows, columns=list(types), use_threads=False):
            table = pa.Table.from_batches([batch])
            some = [name for name in types if table[name].null_count < len(table)]
            columns = {name: table[name].dictionary_encode() if name in words else table[name] for name in some}
            yield {name: _column(name, column) for name, column in columns.items()}, len(table)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Read as a stream: whole column chunks, which the reader takes otherwise, may be larger than the memory."""
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield file
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error


def _most_numbers(metadata: pq.FileMetaData, wanted: Set[str]) -> int:
    """How many numbers the largest wanted column has."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    of_column = [
        sum(group.column(place).num_values for group in groups)
        for place in range(metadata.num_columns)
        if metadata.schema.column(place).path.partition(".")[0] in wanted
    ]
    return max(of_column, default=0)


# --- types ---


def _is_text(name: str, kind: pa.DataType, rows: int) -> bool:
    """Raises `UsageError` for a type that is neither numbers, nor a list of numbers, nor text."""
    value = kind.value_type if isinstance(kind, _LISTS) or pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(value) or pa.types.is_large_string(value)
    number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)
    if not (number or pa.types.is_null(value) or (text and not isinstance(kind, _LISTS))):
        raise UsageError(f"{name} is a column of {kind!s:.80}; lists of numbers, numbers and texts are read.")
    if isinstance(kind, pa.FixedSizeListType):  # in which a null takes as much as a list
        at_most(MAX_TOKENS, kind.list_size * rows, f"numbers in {name}")
    return text


def _column(name: str, column: pa.ChunkedArray) -> Column:
    if pa.types.is_dictionary(column.type):
        return _texts(column)
    lists = isinstance(column.type, _LISTS)
    whole = column.combine_chunks()
    if lists and whole.null_count:
        raise UsageError(f"{name} is null in row {whole.is_null().to_pylist().index(True)}, a list in others.")
    values = whole.flatten() if lists else whole
    if pa.types.is_boolean(values.type) and values.null_count:
        raise UsageError(f"{name} holds nulls beside true and false.")
    array = values.to_numpy(zero_copy_only=False)  # a null among numbers becomes NaN
    tensor = torch.tensor(array.astype("int64") if array.dtype.kind == "u" else array)
    if not lists:
        return tensor
    return Lists(tensor, torch.tensor(pc.call_function("list_value_length", [whole]).to_numpy().astype("int64")))


def _texts(column: pa.ChunkedArray) -> list[str]:
    """A null is an empty text."""
    texts: list[str] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        texts += ["" if place is None else words[place] for place in chunk.indices.to_pylist()]
    return texts
