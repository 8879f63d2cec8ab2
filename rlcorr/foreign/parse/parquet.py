"""Parquet files, of any size: some rows at a time. Texts stay dictionaries, in which a repeated text is there once."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from rlcorr.errors import UsageError, first_line
from rlcorr.foreign.parse.request import MAX_ROWS, NO_TABLE, Piece, Request

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_UNREADABLE = (OSError, pa.ArrowException, LookupError, ValueError, TypeError)
_READ = "lists of numbers, numbers and texts are read. JSON Lines may hold lists of lists and objects, too"
Types = dict[str, pa.DataType]
"""Column → its type."""


def parquet_pieces(request: Request) -> Iterator[Piece]:
    """Yield the rows of a file, about `request.part` numbers per column at a time.

    Raises `UsageError` if the file is damaged.
    """
    try:
        metadata = pq.read_metadata(request.path)
        schema = metadata.schema.to_arrow_schema()
        types = {name: schema.field(name).type for name in schema.names if name in request.wanted}
        why = {
            name: f"{name} is a column of {kind!s:.80}; {_READ}." for name, kind in types.items() if not _is_read(kind)
        }
        yield {"names": schema.names, "unreadable": why, "rows": metadata.num_rows}, NO_TABLE
        types = {name: kind for name, kind in types.items() if name not in why}
        texts = [name for name, kind in types.items() if _is_text(kind)]
        # By default pyarrow reads whole column chunks, which may be larger than the memory.
        with pq.ParquetFile(request.path, buffer_size=1 << 20, pre_buffer=False, read_dictionary=texts) as file:
            at_once, rows = _rows_at_once(metadata, types, request.part), 0
            for batch in file.iter_batches(at_once, columns=[*types], use_threads=False):
                rows += len(batch)
                yield {}, pa.Table.from_batches([batch])
            # Of a file that is cut off meanwhile, pyarrow takes the end for the end of the column.
            if types and rows != metadata.num_rows:
                raise UsageError(f"has {metadata.num_rows:,} rows, but only {rows:,} could be read.")
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


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value)


def _is_read(kind: pa.DataType) -> bool:
    number = kind.value_type if isinstance(kind, _LISTS) else kind
    return (
        _is_text(kind) or pa.types.is_integer(number) or pa.types.is_floating(number) or pa.types.is_boolean(number)
        or pa.types.is_null(number)
    )  # fmt: skip
