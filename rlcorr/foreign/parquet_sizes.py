"""What a Parquet file of somebody else unpacks to, by its footer and by the headers of its pages.

Both are looked at because the footer need not be true: a page of a hundred bytes can stand for a thousand million
numbers under a footer that says three. And they are read here because pyarrow ends the process where it asks a damaged
footer for its columns. Both are Thrift structs in the compact protocol; the field numbers are those of parquet.thrift.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import at_most

_MAX_FOOTER = 2 << 20
_MAX_PAGES = 100_000
_MAX_DEPTH = 12
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4  # of the footer
_NAME, _CHILDREN = 4, 5  # of an element of the schema
_COLUMNS, _GROUP_ROWS = 1, 3  # of a row group
_META, _NUMBERS, _UNPACKED, _PACKED, _DATA_AT, _DICTIONARY_AT = 3, 5, 6, 7, 9, 11  # of a column
_PAGE_UNPACKED, _PAGE_PACKED, _DATA, _DICTIONARY, _DATA_2, _COUNT = 2, 3, 5, 7, 8, 1  # of a page

Struct = dict[int, Any]


@dataclass(frozen=True)
class Sizes:
    """The larger of what footer and pages say."""

    rows: int
    numbers: dict[str, int]  # per column, nulls and empty lists included
    unpacked: int  # bytes, of all wanted columns


def sizes(content: bytes, wanted: Set[str]) -> Sizes:
    """Raises `UsageError` where footer or pages cannot be followed."""
    length = int.from_bytes(content[-8:-4], "little")
    at_most(_MAX_FOOTER, length, "bytes of footer")
    if content[-4:] != b"PAR1" or length > len(content) - 12:
        raise UsageError("is cut off: the footer is not where it should be.")
    try:
        footer, _ = _struct(content, len(content) - 8 - length, _MAX_DEPTH)
        groups: list[Struct] = _get(footer, _ROW_GROUPS, list)
        rows = max(_get(footer, _ROWS, int), sum(_get(group, _GROUP_ROWS, int) for group in groups))
        names = _leaves(_get(footer, _SCHEMA, list))
        numbers = dict.fromkeys(wanted & set(names), 0)
        unpacked = 0
        for group in groups if rows else []:
            for name, chunk in zip(names, _get(group, _COLUMNS, list), strict=True):
                if name in wanted:
                    count, size = _column(content, _get(chunk, _META, dict))
                    numbers[name] += count
                    unpacked += size
    except (IndexError, TypeError, AttributeError, ValueError) as error:
        raise UsageError("is damaged: its footer or the header of a page cannot be followed.") from error
    return Sizes(rows, numbers, unpacked)


def _leaves(schema: list[Struct]) -> list[str]:
    """The column of the table that each stored column belongs to. The schema is a tree, written depth first."""
    names: list[str] = []
    table_column, pending = "", 0
    for element in schema[1:]:
        if not pending:
            table_column, pending = _get(element, _NAME, bytes).decode(), 1
        children = element.get(_CHILDREN, 0)
        pending += children - 1
        if not children:
            names.append(table_column)
    return names


def _column(content: bytes, column: Struct) -> tuple[int, int]:
    """Numbers and unpacked bytes of one column of a row group."""
    data_at, dictionary_at = _get(column, _DATA_AT, int), column.get(_DICTIONARY_AT, 0)
    at = dictionary_at if 0 < dictionary_at < data_at else data_at
    end = at + _get(column, _PACKED, int)
    data = dictionary = unpacked = pages = 0
    while at < end:
        page, at = _struct(content, at, _MAX_DEPTH)
        data += sum(_get(page[kind], _COUNT, int) for kind in (_DATA, _DATA_2) if kind in page)
        dictionary += _get(page[_DICTIONARY], _COUNT, int) if _DICTIONARY in page else 0
        unpacked += _get(page, _PAGE_UNPACKED, int)
        at += _get(page, _PAGE_PACKED, int)
        pages += 1
        at_most(_MAX_PAGES, pages, "pages in a column")
    return max(data, dictionary, _get(column, _NUMBERS, int)), max(unpacked, _get(column, _UNPACKED, int))


def _get(fields: Struct, number: int, kind: type) -> Any:
    """A field, which must be there; a size must be ≥ 0."""
    value = fields.get(number)
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise UsageError("is damaged: a size or an offset is missing or negative.")
    return value


# --- the compact protocol ---


def _struct(content: bytes, at: int, depth: int) -> tuple[Struct, int]:
    """The fields by number, and where the struct ends. A number twice is refused: readers differ in which they take."""
    fields: Struct = {}
    number = 0
    while True:
        step, kind = divmod(content[at], 16)
        at += 1
        if kind == 0:
            return fields, at
        if step:
            number += step
        else:
            number, at = _varint(content, at)
        if number in fields:
            raise UsageError("is damaged: a field is there twice.")
        if kind in (1, 2):  # true or false is the type itself
            fields[number] = kind == 1
        else:
            fields[number], at = _value(content, at, kind, depth)


def _value(content: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _varint(content, at)
    if kind == 8:
        size, at = _raw_varint(content, at)
        return content[at : at + size], at + size
    if kind in (9, 10) and depth:
        return _list(content, at, depth - 1)
    if kind == 12 and depth:
        return _struct(content, at, depth - 1)
    if kind in (1, 2, 3, 7):  # true or false in a list, a byte, a double
        size = 8 if kind == 7 else 1
        return content[at : at + size], at + size
    raise UsageError("is damaged: its footer or the header of a page has a field of unknown type.")


def _list(content: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, kind = divmod(content[at], 16)
    at += 1
    if count == 15:
        count, at = _raw_varint(content, at)
    values = []
    for _ in range(count):
        if at >= len(content):
            raise IndexError
        value, at = _value(content, at, kind, depth)
        values.append(value)
    return values, at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A signed number: zigzag over a varint."""
    raw, at = _raw_varint(content, at)
    return (raw >> 1) ^ -(raw & 1), at


def _raw_varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise UsageError("is damaged: a number has no end.")
