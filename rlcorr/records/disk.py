"""Files that are written whole, lines with a checksum, and compressed files that are read up to a limit.

Errors of the disk become sentences.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError

LARGEST_RATIO = 100
"""Largest ratio of content to file. Recorded metrics and sketches have ratios of 1.3 to 9.8 (`runs/`)."""
ALWAYS_READ = 1 << 24
"""Bytes that are read at any ratio: small files may repeat themselves."""
CHECKSUM = "crc32"
"""Key of the checksum in a line: the CRC-32 of the line without it."""


class CannotWrite(UsageError):
    """The disk is full or read-only, or a folder is missing. The message names the file."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Replace an `OSError` of a `with` block that writes this file or folder by `CannotWrite`."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror or error}.") from error


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder, which may exist already. Raises `CannotWrite`, also if its parent is missing without `parents`."""
    with naming(path):
        path.mkdir(parents=parents, exist_ok=True)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: a reader sees the old file or the new one. Temporary name, fsync, rename.

    Raises `CannotWrite`; then the old file is as it was, and no temporary file is left.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with naming(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with naming(path):
            temporary.replace(path)
    except CannotWrite:
        temporary.unlink(missing_ok=True)
        raise


def read_gzip(path: Path) -> bytes:
    """Return the content. Raises `UsageError` if it is larger than `LARGEST_RATIO` times the file."""
    limit = max(ALWAYS_READ, LARGEST_RATIO * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UsageError(f"its content is more than {LARGEST_RATIO} times as large as the file")
    return content


# --- one JSON object per line, to which a running process adds lines ---


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
