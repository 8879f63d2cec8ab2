"""Parquet files, of any size: some rows at a time. Texts stay dictionaries, in which a repeated text is there once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.limits import MAX_ROWS
from rlcorr.foreign.parse.request import NO_TABLE, Piece, Request
from rlcorr.foreign.parse.rows import table_piece

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_MAX_NESTED = 6
"""Depth of nested lists, objects and maps."""
_UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError)
Types = dict[str, pa.DataType]
"""Column → its type."""


def parquet_pieces(request: Request) -> Iterator[Piece]:
    """Yield the rows of a file, about `request.part` numbers per column at a time.

    If log-probs or masks are nested, rows are read like the objects of JSON; other nested columns are not read. Raises
    `UsageError` if the file is damaged.
    """
    wanted, keys = request.wanted, request.keys
    try:
        metadata = pq.read_metadata(request.path)
        schema = metadata.schema.to_arrow_schema()
        types = {name: schema.field(name).type for name in schema.names}
        may_be_turns = wanted & keys.may_be_turns()
        by_row = any(_is_nested(types[name]) and _has_numbers(types[name]) for name in may_be_turns & types.keys())
        if by_row:  # these columns say whether nested lists are turns or responses, and which token was sampled
            wanted |= keys.per_response | set(keys.ids)
        types = {name: kind for name, kind in types.items() if name in wanted}
        unreadable = {name for name, kind in types.items() if not _is_read(kind, nested=by_row)}
        why = {name: _unsupported_type(name, types[name]) for name in unreadable}
        yield {"names": schema.names, "unreadable": why, "rows": metadata.num_rows}, NO_TABLE
        if not wanted or not metadata.num_rows:
            return
        types = {name: kind for name, kind in types.items() if name not in unreadable}
        texts = [name for name, kind in types.items() if _is_text(kind)]
        # By default pyarrow reads whole column chunks, which may be larger than the memory.
        with pq.ParquetFile(request.path, buffer_size=1 << 20, pre_buffer=False, read_dictionary=texts) as file:
            row, paths = 0, _leaf_paths(file, types)
            rows = _rows_at_once(metadata, types, request.part)
            for batch in file.iter_batches(rows, columns=paths, use_threads=False):
                table = pa.Table.from_batches([batch])
                if by_row:
                    facts, table = table_piece(_objects(table, row), replace(request, wanted=wanted))
                    yield {"unreadable": facts["unreadable"]}, table
                else:
                    yield {}, table
                row += len(batch)
    except MemoryError:  # some are among the errors of Arrow, too
        raise
    except _UNREADABLE as error:
        raise UsageError(f"cannot be read as Parquet ({first_line(error)}).") from error


def _rows_at_once(metadata: pq.FileMetaData, types: Types, part: int) -> int:
    """Return the number of rows that have about `part` numbers in the largest column of these types."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    counts = [
        sum(group.column(i).num_values for group in groups)
        for i in range(metadata.num_columns)
        if metadata.schema.column(i).path.partition(".")[0] in types
    ]
    return min(max(metadata.num_rows * part // max(*counts, 1, 1), 1), MAX_ROWS)


def _objects(table: pa.Table, first_row: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place. Only 64 are converted at a time: in Python a row takes ten times the memory."""
    row = first_row
    for batch in table.to_batches(max_chunksize=64):
        for value in batch.to_pylist(maps_as_pydicts="strict"):
            yield f"row {row} (from 0)", value
            row += 1


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


def _is_read(kind: pa.DataType, *, nested: bool) -> bool:
    if _is_nested(kind):
        return nested and _has_numbers(kind)
    return _is_text(kind) or isinstance(kind, _LISTS) or _is_number(kind)


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
        if name in types:
            if not _is_nested(types[name]):
                paths += [name] * (name not in paths)
            elif leaf.physical_type != "BYTE_ARRAY":
                paths.append(leaf.path)
    return paths


def _unsupported_type(name: str, kind: pa.DataType) -> str:
    return f"{name} is a column of {kind!s:.80}; lists of numbers, numbers and texts are read."
