"""Parquet files of other programs as columns. The decompressed size of their pages is checked before they are read."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
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
    check_limit,
    signed,
    try_read,
)
from rlcorr.foreign.json_rows import object_columns
from rlcorr.foreign.parquet_sizes import sizes
from rlcorr.foreign.turns import BY_ROW, IDS, PER_RESPONSE

PART = 1 << 18
"""Numbers of a column that are in memory at once when a file is read in parts."""
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
Types = dict[str, pa.DataType]
"""Wanted column → its type."""
_MAX_PAGE = 64 << 20
"""Bytes of one page, when unpacked, of a file that is read in parts. Writers make pages of about 1 MiB."""
_MAX_NESTED = 6
"""Depth of nested lists, objects and maps."""
_UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError)


def parquet_columns(content: bytes, wanted: Set[str]) -> tuple[Columns, list[str]]:
    """Return the wanted columns, and the names of all.

    Raises `UsageError` for a damaged file, and before any page is decompressed if it is too large.
    """
    stored = sizes(content, wanted)
    if not stored.rows:
        raise UsageError("holds no rows.")
    check_limit(MAX_ROWS, stored.rows, "rows")
    check_limit(MAX_BYTES, stored.unpacked, "bytes when unpacked")
    for name, numbers in stored.numbers.items():
        check_limit(MAX_TOKENS, numbers, f"numbers in {name}")
    try:
        schema = pq.ParquetFile(pa.BufferReader(content)).schema_arrow
        types = {name: schema.field(name).type for name in schema.names if name in wanted}
        for name, kind in types.items():
            if isinstance(kind, pa.FixedSizeListType):  # a null takes as much memory as a list here
                check_limit(MAX_TOKENS, kind.list_size * stored.rows, f"numbers in {name}")
        # With a dictionary a text is in memory once, however often it occurs in the column.
        texts = [name for name, kind in types.items() if _is_text(kind)]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        columns = _columns(file.read(_leaf_paths(file, types), use_threads=False), types)
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error
    return columns, schema.names


# --- in parts, for files of any size ---


def column_names(path: Path) -> list[str]:
    """Return the names of all columns. Raises `UsageError` for a damaged file."""
    with _open(path) as file:
        return file.schema_arrow.names


def parquet_parts(path: Path, wanted: Set[str]) -> Iterator[tuple[Columns, int]]:
    """Yield the wanted columns of some rows at a time, with the number of these rows.

    A row group may be larger than the memory, so only one part and its pages are in memory. A part has about `PART`
    numbers per column if all rows have the same length. Raises `UsageError` for a damaged file, and for a page that is
    too large when unpacked.
    """
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        check_limit(_MAX_PAGE, sizes(content, wanted).largest_page, "bytes in a page when unpacked")
    with _open(path) as file:
        schema = file.schema_arrow
        types = {name: schema.field(name).type for name in schema.names}
        if any(_is_nested(kind) for name, kind in types.items() if name in wanted & BY_ROW):
            # These columns say whether nested lists are turns or responses, and which token was sampled.
            wanted = wanted | PER_RESPONSE | set(IDS)
        types = {name: kind for name, kind in types.items() if name in wanted}
        words = [name for name, kind in types.items() if _is_text(kind)]
        rows = max(file.metadata.num_rows * PART // max(_largest_column(file.metadata, wanted), 1), 1)
        for batch in file.iter_batches(batch_size=rows, columns=_leaf_paths(file, types), use_threads=False):
            table = pa.Table.from_batches([batch])
            for name in words:
                table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
            yield _columns(table, types), len(table)


def is_long(path: Path) -> bool:
    """Check whether a column has more numbers than are read at once: padded rows of zeros make a small file."""
    with path.open("rb") as stream:
        content = stream.read()
    return content[:4] == b"PAR1" and max(sizes(content, BY_ROW).numbers.values(), default=0) > MAX_TOKENS


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file as a stream: by default pyarrow reads whole column chunks, which may be larger than the memory."""
    try:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield file
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error


def _largest_column(metadata: pq.FileMetaData, wanted: Set[str]) -> int:
    """Return the number of values in the largest wanted column."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    counts = [
        sum(group.column(i).num_values for group in groups)
        for i in range(metadata.num_columns)
        if metadata.schema.column(i).path.partition(".")[0] in wanted
    ]
    return max(counts, default=0)


# --- types ---


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value)


def _is_number(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return number or pa.types.is_null(kind)


def _is_nested(kind: pa.DataType) -> bool:
    """Check for objects, and for lists of anything except numbers."""
    return isinstance(kind, pa.StructType | pa.MapType) or (
        isinstance(kind, _LISTS) and not _is_number(kind.value_type)
    )


def _has_numbers(kind: pa.DataType, depth: int = _MAX_NESTED) -> bool:
    """Check whether the type contains numbers that can be read without its texts.

    Texts in nested types are not read: a short file can repeat one text a million times. The keys of a map cannot be
    left out, so a map with texts as keys is not read.
    """
    if depth and isinstance(kind, pa.MapType):
        return pa.types.is_integer(kind.key_type) and _has_numbers(kind.item_type, depth - 1)
    if depth and isinstance(kind, pa.StructType):
        return any(_has_numbers(field.type, depth - 1) for field in kind)
    return _has_numbers(kind.value_type, depth - 1) if depth and isinstance(kind, _LISTS) else _is_number(kind)


def _leaf_paths(file: pq.ParquetFile, types: Types) -> list[str]:
    """Return the paths to read: whole columns, but only the numbers of nested ones."""
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
    """Return the columns that are not all null. If log-probs or masks are nested, rows are read like JSON objects."""
    nested = {name for name, kind in types.items() if _is_nested(kind) and _has_numbers(kind)}
    columns = {
        name: Unreadable(_unsupported_type(name, kind))
        for name, kind in types.items()
        if name not in table.column_names
    }
    if nested & BY_ROW:
        return columns | object_columns(_row_objects(table), set(types))[0]
    converted: dict[str, Column | None] = {}
    for name in table.column_names:
        if name in nested:
            converted[name] = Unreadable(_unsupported_type(name, types[name]))
        elif table[name].null_count < len(table):
            converted[name] = try_read(lambda name=name: _column(name, table[name]))
    return columns | {name: column for name, column in converted.items() if column is not None}


def _row_objects(table: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place. Only 64 are converted at a time: in Python a row takes ten times the memory."""
    row = 0
    for batch in table.to_batches(max_chunksize=64):
        for value in batch.to_pylist(maps_as_pydicts="strict"):
            yield f"row {row} (from 0)", value
            row += 1


def _unsupported_type(name: str, kind: pa.DataType) -> str:
    return f"{name} is a column of {kind!s:.80}; lists of numbers, numbers and texts are read."


def _column(name: str, column: pa.ChunkedArray) -> Column:
    """Return a column of numbers, lists of numbers or texts. Raises `UsageError` for other types."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type):
        return _text_column(column)
    lists = isinstance(column.type, _LISTS)
    if not _is_number(column.type.value_type if lists else column.type):
        raise UsageError(_unsupported_type(name, column.type))
    whole = column.combine_chunks()
    values = whole.flatten() if lists else whole
    if pa.types.is_boolean(values.type) and values.null_count:
        if lists:
            raise UsageError(f"{name} holds nulls among true and false.")
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)  # a null among numbers becomes NaN
    tensor = torch.tensor(signed(name, array) if array.dtype.kind == "u" else array)
    if not lists:
        return tensor
    lengths = pc.fill_null(pc.call_function("list_value_length", [whole]), 0).to_numpy().astype("int64")
    null = torch.tensor(whole.is_null().to_numpy(zero_copy_only=False)) if whole.null_count else None
    return Lists(tensor, torch.tensor(lengths), null=null)


def _text_column(column: pa.ChunkedArray) -> list[str]:
    """Return the texts; a null becomes an empty text."""
    texts: list[str] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        texts += ["" if index is None else words[index] for index in chunk.indices.to_pylist()]
    return texts
