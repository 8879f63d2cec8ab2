"""Strangers' Parquet as columns; what its pages unpack to is counted before they are."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.columns import (
    MAX_BYTES,
    MAX_ROWS,
    MAX_TOKENS,
    Column,
    Columns,
    Lists,
    Unreadable,
    at_most,
    readable,
)
from rlcorr.foreign.json_rows import object_columns
from rlcorr.foreign.parquet_sizes import sizes
from rlcorr.foreign.turns import BY_ROW, IDS, PER_RESPONSE

PART = 1 << 18
"""Numbers of a column that are read at once of a file of any size."""
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
Types = dict[str, pa.DataType]
"""Wanted column → its type."""
_MAX_NESTED = 6
"""Lists, objects and maps within each other."""
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
        for name, kind in types.items():
            if isinstance(kind, pa.FixedSizeListType):  # in which a null takes as much as a list
                at_most(MAX_TOKENS, kind.list_size * stored.rows, f"numbers in {name}")
        # As a dictionary a text is there once, however often it stands in the column.
        texts = [name for name, kind in types.items() if _is_text(kind)]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        columns = _columns(file.read(_stored(file, types), use_threads=False), types)
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error
    return columns, schema.names


# --- in parts, for files of any size ---


def column_names(path: Path) -> list[str]:
    """The names of all columns. Raises `UsageError`."""
    with _opened(path) as file:
        return file.schema_arrow.names


def parts(path: Path, wanted: Set[str]) -> Iterator[tuple[Columns, int]]:
    """The wanted columns some rows at a time, and how many rows these are: a row group may be larger than the memory.

    What is held is a part, of about `PART` numbers in a column where all rows are of one length, and the pages that it
    lies in. Unlike `to_columns` this trusts the sizes that the file states. Raises `UsageError`.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        types = {name: schema.field(name).type for name in schema.names}
        if any(_is_nested(kind) for name, kind in types.items() if name in wanted & BY_ROW):
            # What the lists of lists are, and which token was sampled.
            wanted = wanted | PER_RESPONSE | set(IDS)
        types = {name: kind for name, kind in types.items() if name in wanted}
        words = [name for name, kind in types.items() if _is_text(kind)]
        rows = max(file.metadata.num_rows * PART // max(_most_numbers(file.metadata, wanted), 1), 1)
        for batch in file.iter_batches(batch_size=rows, columns=_stored(file, types), use_threads=False):
            table = pa.Table.from_batches([batch])
            for name in words:
                table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
            yield _columns(table, types), len(table)


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


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value)


def _is_number(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return number or pa.types.is_null(kind)


def _is_nested(kind: pa.DataType) -> bool:
    """Lists of lists, of objects or of texts, and objects: what JSON holds, and a table of numbers does not."""
    return isinstance(kind, pa.StructType | pa.MapType) or (
        isinstance(kind, _LISTS) and not _is_number(kind.value_type)
    )


def _has_numbers(kind: pa.DataType, depth: int = _MAX_NESTED) -> bool:
    """Whether something of it is left without its texts, which are not read: what a short file says once can stand in
    it a million times. The keys of a map cannot be left out."""
    if depth and isinstance(kind, pa.MapType):
        return pa.types.is_integer(kind.key_type) and _has_numbers(kind.item_type, depth - 1)
    if depth and isinstance(kind, pa.StructType):
        return any(_has_numbers(field.type, depth - 1) for field in kind)
    return _has_numbers(kind.value_type, depth - 1) if depth and isinstance(kind, _LISTS) else _is_number(kind)


def _stored(file: pq.ParquetFile, types: Types) -> list[str]:
    """The paths of what is read of these columns: of nested ones the numbers."""
    paths: list[str] = []
    for i in range(file.metadata.num_columns):
        leaf = file.schema.column(i)
        name = leaf.path.partition(".")[0]
        if name in types and not _is_nested(types[name]):
            paths += [name] * (name not in paths)
        elif name in types and _has_numbers(types[name]) and leaf.physical_type != "BYTE_ARRAY":
            paths.append(leaf.path)
    return paths


def _columns(table: pa.Table, types: Types) -> Columns:
    """The columns that say something. Where log-probs or masks are nested, a row is read as an object of JSON is."""
    nested = {name for name, kind in types.items() if _is_nested(kind) and _has_numbers(kind)}
    columns = {name: Unreadable(_what(name, kind)) for name, kind in types.items() if name not in table.column_names}
    if nested & BY_ROW:
        return columns | object_columns(_objects(table), set(types))[0]
    made: dict[str, Column | None] = {}
    for name in table.column_names:
        if name in nested:
            made[name] = Unreadable(_what(name, types[name]))
        elif table[name].null_count < len(table):
            made[name] = readable(lambda name=name: _column(name, table[name]))
    return columns | {name: column for name, column in made.items() if column is not None}


def _objects(table: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row, and where it stands; a few at a time, because in Python they take ten times as much memory."""
    row = 0
    for batch in table.to_batches(max_chunksize=64):
        for value in batch.to_pylist(maps_as_pydicts="strict"):
            yield f"row {row} (from 0)", value
            row += 1


def _what(name: str, kind: pa.DataType) -> str:
    return f"{name} is a column of {kind!s:.80}; lists of numbers, numbers and texts are read."


def _column(name: str, column: pa.ChunkedArray) -> Column:
    """Raises `UsageError` for a type that is neither numbers, nor a list of numbers, nor text, and for a null list."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type):
        return _texts(column)
    lists = isinstance(column.type, _LISTS)
    if not _is_number(column.type.value_type if lists else column.type):
        raise UsageError(_what(name, column.type))
    whole = column.combine_chunks()
    if lists and whole.null_count:
        raise UsageError(f"{name} is null in row {whole.is_null().to_pylist().index(True)}, a list in others.")
    values = whole.flatten() if lists else whole
    if pa.types.is_boolean(values.type) and values.null_count:
        if lists:
            raise UsageError(f"{name} holds nulls beside true and false.")
        values = values.cast(pa.float64())
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
