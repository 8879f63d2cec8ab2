"""Files that are written whole, and lines of JSON that a running process adds. Errors of the disk become sentences."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcorr.errors import UsageError

OLD_CHECKSUM = "crc32"
"""Key that lines of older versions have; the hashes of the manifest have taken its place."""


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


# --- one JSON object per line, to which a running process adds lines ---


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line with one call, so that a reader sees all of it or nothing.

    If a killed process left an unfinished line, this line is ended first; otherwise the new one would be lost, too.
    Raises `CannotWrite`.
    """
    with naming(path), path.open("a+b") as file:
        file.seek(max(file.tell() - 1, 0))
        begin = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(begin + as_lines([row]))


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parsed(line: str) -> dict[str, Any] | None:
    """Return the object of a line; None if the line was cut off."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    row.pop(OLD_CHECKSUM, None)
    return row
