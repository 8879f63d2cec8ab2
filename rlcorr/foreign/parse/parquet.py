"""Parquet files, of any size: some rows at a time. Texts stay dictionaries, in which a repeated text is there once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.objects import table_piece
from rlcorr.foreign.parse.request import MAX_ROWS, NO_TABLE, Piece, Request

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
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
        by_row = any(name in types and _is_nested(types[name]) for name in wanted & {*keys.log_probs, *keys.masks})
        if by_row:  # these columns say whether nested lists are turns or responses, and which token was sampled
            wanted |= keys.per_response | set(keys.ids)
        types = {name: kind for name, kind in types.items() if name in wanted}
        unreadable = {} if by_row else {name: kind for name, kind in types.items() if not _is_plain(kind)}
        why = {name: f"{name} is a column of {kind!s:.80}; {_READ}." for name, kind in unreadable.items()}
        yield {"names": schema.names, "unreadable": why, "rows": metadata.num_rows}, NO_TABLE
        types = {name: kind for name, kind in types.items() if name not in unreadable}
        texts = [name for name, kind in types.items() if _is_text(kind)]
        # By default pyarrow reads whole column chunks, which may be larger than the memory.
        with pq.ParquetFile(request.path, buffer_size=1 << 20, pre_buffer=False, read_dictionary=texts) as file:
            row, rows = 0, _rows_at_once(metadata, types, request.part)
            for batch in file.iter_batches(rows, columns=[*types], use_threads=False):
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

_READ = "lists of numbers, numbers and texts are read"


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value)


def _is_number(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return number or pa.types.is_null(kind)


def _is_nested(kind: pa.DataType) -> bool:
    """Check for objects, and for lists of lists, objects or maps."""
    if isinstance(kind, _LISTS):
        return not _is_number(kind.value_type) and not _is_text(kind.value_type)
    return isinstance(kind, pa.StructType | pa.MapType)


def _is_plain(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_number(kind.value_type if isinstance(kind, _LISTS) else kind)
