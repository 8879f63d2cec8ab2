"""A checksum of the contents of a table.

The checksums that Parquet keeps for its pages do not cover the footer, in which a flipped bit may change what the pages
mean. This checksum is computed from the values that a reader gets.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rlcorr.errors import UsageError

KEY = b"rlcorr.crc32"
"""Key of the checksum in the metadata of a file."""


def extended(checksums: Mapping[str, int], table: pa.Table) -> dict[str, int]:
    """Return the CRC-32 of every column after the rows of a table were added to those before.

    The result does not depend on how rows are divided into tables, so a file can be written in parts.

    >>> one, two = pa.table({"x": [1, 2, 3]}), [pa.table({"x": [1]}), pa.table({"x": [2, 3]})]
    >>> extended({}, one) == extended(extended({}, two[0]), two[1])
    True
    """
    sums = dict(checksums)
    for name in table.column_names:
        for stream, content in _streams(name, table[name].combine_chunks()):
            sums[stream] = zlib.crc32(content, sums.get(stream, 0))
    return sums


def _streams(name: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Yield the bytes of a column: of nested columns first the lengths, and of all columns which values are missing."""
    if pa.types.is_list(values.type):
        yield f"{name} lengths", _bytes(values.value_lengths())
        yield from _streams(name, values.flatten())
        return
    if values.null_count:
        yield f"{name} present", _bytes(values.is_valid().cast(pa.int8()))
    if pa.types.is_string(values.type):
        yield f"{name} lengths", _bytes(pc.call_function("binary_length", [values]))
        yield name, "".join(text for text in values.to_pylist() if text is not None).encode()
    else:
        yield name, _bytes(values.drop_null())


def _bytes(values: Any) -> bytes:
    return values.fill_null(0).to_numpy(zero_copy_only=False).tobytes()


def as_metadata(checksums: Mapping[str, int]) -> dict[bytes, bytes]:
    return {KEY: json.dumps(checksums, sort_keys=True).encode()}


def check(table: pa.Table, metadata: Mapping[bytes, bytes]) -> None:
    """Raise `UsageError` if the contents are not those that were written. Files without a checksum are not checked."""
    written = metadata.get(KEY)
    if written is not None and json.loads(written) != extended({}, table):
        raise UsageError("its contents differ from their checksum")
