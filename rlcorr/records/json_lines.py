"""Files with one JSON object per line, each with a checksum of its own, to which a running process adds lines."""

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlcorr.records.disk import naming

CHECKSUM = "crc32"
"""Key of the checksum in a line: the CRC-32 of the line without it."""


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line with one call, so that a reader sees all of it or nothing.

    If a killed process left an unfinished line, this line is ended first; otherwise the new one would be lost, too.
    Raises `CannotWrite`.
    """
    with naming(path), path.open("a+b") as file:
        file.seek(max(file.tell() - 1, 0))
        begin = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(begin + as_line(row))


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(map(as_line, rows))


def as_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps({**row, CHECKSUM: checksum(row)}).encode() + b"\n"


def parsed(line: str) -> dict[str, Any] | None:
    """Return the object of a line without its checksum; None if the line is damaged.

    Lines of older versions have no checksum.

    >>> line = as_line({"step": 7}).decode()
    >>> parsed(line), parsed(line.replace("7", "6")), parsed('{"step": 7}')
    ({'step': 7}, None, {'step': 7})
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    written = row.pop(CHECKSUM, None)
    return row if written is None or written == checksum(row) else None


def checksum(row: Mapping[str, Any]) -> int:
    """Return the CRC-32 of an object without its checksum, as JSON."""
    return zlib.crc32(json.dumps(row).encode())
