"""Decompressed size of a Parquet file, from its footer and from the headers of its pages.

Both are read because the footer may be wrong: a page of a hundred bytes can hold a billion numbers although the footer
says three. They are parsed here because pyarrow ends the process if the footer is damaged. Both are Thrift structs in
the compact protocol; the field numbers are those of parquet.thrift.
"""

from collections.abc import Set
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import check_limit

_MAX_FOOTER = 16 << 20
_MAX_PAGES = 100_000
_MAX_DEPTH = 12
# Field numbers of the Thrift structs.
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4  # of the footer
_NAME, _CHILDREN = 4, 5  # of an element of the schema
_COLUMNS, _GROUP_ROWS = 1, 3  # of a row group
_META, _NUMBERS, _UNPACKED, _PACKED, _DATA_POSITION, _DICTIONARY_POSITION = 3, 5, 6, 7, 9, 11  # of a column
_PAGE_UNPACKED, _PAGE_PACKED, _DATA, _DICTIONARY, _DATA_2, _COUNT = 2, 3, 5, 7, 8, 1  # of a page

Struct = dict[int, Any]
Content = bytes | mmap


@dataclass(frozen=True)
class Sizes:
    """Sizes of the wanted columns: the larger of the numbers in the footer and in the pages."""

    rows: int
    numbers: dict[str, int]  # per column, nulls and empty lists included
    unpacked: int  # bytes, of all wanted columns
    largest_page: int  # bytes of it when unpacked


def sizes(content: Content, wanted: Set[str]) -> Sizes:
    """Return the sizes of a file. Raises `UsageError` if its footer or the header of a page is damaged."""
    length = int.from_bytes(content[-8:-4], "little")
    check_limit(_MAX_FOOTER, length, "bytes of footer")
    if content[-4:] != b"PAR1" or length > len(content) - 12:
        raise UsageError("is cut off: the footer is not where it should be.")
    try:
        footer, _ = _struct(content, len(content) - 8 - length, _MAX_DEPTH)
        groups: list[Struct] = _get(footer, _ROW_GROUPS, list)
        rows = max(_get(footer, _ROWS, int), sum(_get(group, _GROUP_ROWS, int) for group in groups))
        names = _leaves(_get(footer, _SCHEMA, list))
        numbers = dict.fromkeys(wanted & set(names), 0)
        unpacked = largest_page = 0
        for group in groups if rows else []:
            for name, chunk in zip(names, _get(group, _COLUMNS, list), strict=True):
                if name in wanted:
                    count, size, page = _column(content, _get(chunk, _META, dict))
                    numbers[name] += count
                    unpacked += size
                    largest_page = max(largest_page, page)
    except (IndexError, TypeError, AttributeError, ValueError) as error:
        raise UsageError("is damaged: its footer or the header of a page cannot be followed.") from error
    return Sizes(rows, numbers, unpacked, largest_page)


def _leaves(schema: list[Struct]) -> list[str]:
    """Return the name of the table's column for each stored column. The schema is a tree, written depth first."""
    names: list[str] = []
    table_column, pending = "", 0  # pending: elements of this column that are still to come
    for element in schema[1:]:
        if not pending:
            table_column, pending = _get(element, _NAME, bytes).decode(), 1
        children = element.get(_CHILDREN, 0)
        pending += children - 1
        if not children:
            names.append(table_column)
    return names


def _column(content: Content, column: Struct) -> tuple[int, int, int]:
    """Return the number of values and the decompressed bytes of one column of a row group, and of its largest page."""
    data_position, dictionary_position = _get(column, _DATA_POSITION, int), column.get(_DICTIONARY_POSITION, 0)
    position = dictionary_position if 0 < dictionary_position < data_position else data_position
    end = position + _get(column, _PACKED, int)
    data = dictionary = unpacked = largest = pages = 0
    while position < end:
        page, position = _struct(content, position, _MAX_DEPTH)
        data += sum(_get(page[kind], _COUNT, int) for kind in (_DATA, _DATA_2) if kind in page)
        dictionary += _get(page[_DICTIONARY], _COUNT, int) if _DICTIONARY in page else 0
        size = _get(page, _PAGE_UNPACKED, int)
        unpacked, largest = unpacked + size, max(largest, size)
        position += _get(page, _PAGE_PACKED, int)
        pages += 1
        check_limit(_MAX_PAGES, pages, "pages in a column")
    return max(data, dictionary, _get(column, _NUMBERS, int)), max(unpacked, _get(column, _UNPACKED, int)), largest


def _get(fields: Struct, number: int, kind: type) -> Any:
    """Return a field. Raises `UsageError` if it is missing, of another type, or negative."""
    value = fields.get(number)
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise UsageError("is damaged: a size or an offset is missing or negative.")
    return value


# --- the compact protocol ---


def _struct(content: Content, position: int, depth: int) -> tuple[Struct, int]:
    """Return the fields by number, and the position after the struct.

    Raises `UsageError` for a repeated field, because readers differ in which one they use.
    """
    fields: Struct = {}
    number = 0
    while True:
        step, kind = divmod(content[position], 16)
        position += 1
        if kind == 0:
            return fields, position
        if step:  # difference to the previous field number; 0: the number follows
            number += step
        else:
            number, position = _varint(content, position)
        if number in fields:
            raise UsageError("is damaged: a field is repeated.")
        if kind in (1, 2):  # the type itself is the value: 1 is true, 2 is false
            fields[number] = kind == 1
        else:
            fields[number], position = _value(content, position, kind, depth)


def _value(content: Content, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _varint(content, position)
    if kind == 8:
        size, position = _raw_varint(content, position)
        return content[position : position + size], position + size
    if kind in (9, 10) and depth:
        return _list(content, position, depth - 1)
    if kind == 12 and depth:
        return _struct(content, position, depth - 1)
    if kind in (1, 2, 3, 7):  # true or false in a list, a byte, a double
        size = 8 if kind == 7 else 1
        return content[position : position + size], position + size
    raise UsageError("is damaged: its footer or the header of a page has a field of unknown type.")


def _list(content: Content, position: int, depth: int) -> tuple[list[Any], int]:
    count, kind = divmod(content[position], 16)
    position += 1
    if count == 15:
        count, position = _raw_varint(content, position)
    values = []
    for _ in range(count):
        if position >= len(content):
            raise IndexError
        value, position = _value(content, position, kind, depth)
        values.append(value)
    return values, position


def _varint(content: Content, position: int) -> tuple[int, int]:
    """Return a signed number, which is stored as a zigzag varint, and the position after it."""
    raw, position = _raw_varint(content, position)
    return (raw >> 1) ^ -(raw & 1), position


def _raw_varint(content: Content, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise UsageError("is damaged: a number has no end.")
